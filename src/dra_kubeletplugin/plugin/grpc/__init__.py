"""The kubelet's side of the plugin: sockets, registration, node service, health stream."""

from ...base import forks  # noqa: F401 - gRPC reads, when it is imported, what this module sets
from .health import HealthService
from .node_service import NodeService
from .path_lock import lock_of, remove_dead, remove_temporary
from .registration import Registration
from .server import UnixServer
from .sockets import SocketPaths, remove_hidden, remove_stale, socket_paths

__all__ = [
    "HealthService",
    "NodeService",
    "Registration",
    "SocketPaths",
    "UnixServer",
    "lock_of",
    "remove_dead",
    "remove_hidden",
    "remove_stale",
    "remove_temporary",
    "socket_paths",
]
