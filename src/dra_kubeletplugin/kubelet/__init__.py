"""The kubelet's side of the plugin: sockets, registration, node service, health stream."""

from .health import HealthService
from .node import NodeService
from .registration import Registration
from .sockets import SocketPaths, UnixServer, socket_paths

__all__ = ["HealthService", "NodeService", "Registration", "SocketPaths", "UnixServer", "socket_paths"]
