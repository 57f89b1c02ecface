"""Ports for those who must name one before anybody listens there."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_LOWEST, _HIGHEST = 20_000, 32_768
_KERNELS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str = "127.0.0.1") -> int:
    """One that no connection takes meanwhile: the kernel gives out those of its own range only, and this is none of them."""
    first = _HIGHEST
    with contextlib.suppress(OSError, ValueError):
        first = max(int(_KERNELS_OWN.read_text().split()[0]), _LOWEST + 1000)
    while True:
        port = random.randrange(_LOWEST, first)
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port


__all__ = ["free_port"]
