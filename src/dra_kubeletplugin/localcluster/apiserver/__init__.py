"""The local cluster's API server: storage, versions, validation, watch and tables, enough for kubectl and client libraries."""

from .auth import Tokens
from .server import ApiServer

__all__ = ["ApiServer", "Tokens"]
