"""Ports for those who must name one before anybody listens there."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import deque
from pathlib import Path

_LOWEST, _HIGHEST = 20_000, 32_768
_KERNELS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_KEPT = 100  # marks: whoever was told an earlier port listens there by now
_marks: deque[int] = deque()  # file descriptors


def free_port(host: str = "127.0.0.1") -> int:
    """One that nobody takes meanwhile. Connections have ports of the kernel's own range only, and this is none of them; who calls
    this too, in whatever process, sees that it is marked."""
    first = _HIGHEST
    with contextlib.suppress(OSError, ValueError):
        first = max(int(_KERNELS_OWN.read_text().split()[0]), _LOWEST + 1000)
    while True:
        port = random.randrange(_LOWEST, first)
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            _mark(host, port)
            return port


def _mark(host: str, port: int) -> None:
    """UDP has the same ports beside those of TCP: having one of them is a mark for all processes, until this one ends.

    Raises ``OSError`` where somebody has it.
    """
    with socket.socket(type=socket.SOCK_DGRAM) as mark:
        mark.bind((host, port))
        _marks.append(mark.detach())
    if len(_marks) > _KEPT:
        os.close(_marks.popleft())


__all__ = ["free_port"]
