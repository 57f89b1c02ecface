"""The plugin's connection to the kubelet: sockets, registration, node service and health stream."""

from ...base import forks  # noqa: F401 - sets variables that gRPC reads when it is imported
from .node_service import NodeService
from .registration import Registration
from .server import UnixServer
from .sockets import lock_of, remove_hidden, remove_stale, socket_paths

__all__ = [
    "NodeService",
    "Registration",
    "UnixServer",
    "lock_of",
    "remove_hidden",
    "remove_stale",
    "socket_paths",
]
