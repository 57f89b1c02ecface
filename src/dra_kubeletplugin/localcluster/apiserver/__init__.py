"""The API server: storage, versions, validation, watch, tables; enough of it that kubectl and client libraries work."""

from .auth import Tokens
from .server import ApiServer

__all__ = ["ApiServer", "Tokens"]
