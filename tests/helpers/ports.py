"""TCP ports: free ports, and a port that refuses connections."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from dra_devkit.testing.ports import free_port

__all__ = ["free_port", "refusing_port"]


@contextlib.contextmanager
def refusing_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Yields a port that is bound without a listener, so each connection is refused."""
    with socket.socket() as bound_socket:
        bound_socket.bind((host, 0))
        yield int(bound_socket.getsockname()[1])
