"""Ports for those who must name one before anybody listens there."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_LOWEST = 20_000


def free_port(host: str = "127.0.0.1") -> int:
    """One that no connection takes meanwhile: the kernel gives out those of its own range only, and this is none of them."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(_LOWEST, first)
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port


@contextlib.contextmanager
def refusing_port(host: str = "127.0.0.1") -> Iterator[int]:
    """One that is taken and at which nobody listens: whoever connects is refused."""
    with socket.socket() as taken:
        taken.bind((host, 0))
        yield int(taken.getsockname()[1])
