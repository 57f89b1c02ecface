"""The local cluster's API server. It serves the parts of the Kubernetes API that kubectl, client libraries and drivers need."""

from .auth import Tokens
from .server import ApiServer

__all__ = ["ApiServer", "Tokens"]
