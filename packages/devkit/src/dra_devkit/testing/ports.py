"""Finds free TCP ports for servers whose port must be known before they listen."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import deque
from pathlib import Path

_LOWEST, _HIGHEST = 20_000, 32_768
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MAX_MARKS = 100  # reserved ports; when this number is reached, the servers of older ports have long been listening
_marks: deque[int] = deque()  # file descriptors


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port that no other process takes before the caller listens on it.

    The port is outside the kernel's range for outgoing connections. A mark reserves it against other callers of this
    function, in any process.
    """
    first = _HIGHEST
    with contextlib.suppress(OSError, ValueError):
        first = max(int(_EPHEMERAL_RANGE.read_text().split()[0]), _LOWEST + 1000)
    while True:
        port = random.randrange(_LOWEST, first)
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            _mark(host, port)
            return port


def _mark(host: str, port: int) -> None:
    """Reserves a port by binding the UDP port with the same number, which no other process can bind until this one ends.

    Raises ``OSError`` if another process has it.
    """
    with socket.socket(type=socket.SOCK_DGRAM) as mark:
        mark.bind((host, port))
        _marks.append(mark.detach())
    if len(_marks) > _MAX_MARKS:
        os.close(_marks.popleft())
