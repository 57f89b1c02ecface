"""Closes the plugin's locks and sockets in processes that a driver forks without exec.

A forked child shares open files with its parent. If the parent is killed, the child would keep the parent's locks and listening sockets.
The parent would then count as alive, and the next instance could not bind the sockets. Source: fork(2), flock(2).
This works only for forks that Python makes, because a C library's own call of fork(2) runs no hook. In a container, the kernel kills
such children together with the plugin.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

_lock = threading.RLock()  # held during a fork, so that no child inherits a file that is open but not in _files yet
_files: set[int] = set()
_null = -1  # a descriptor of /dev/null
_addresses: set[str | int] = set()


def _open_null() -> None:
    """Opens /dev/null before the first fork, because a child may have no descriptor left.

    Not called at import: if a program was started with standard output closed, /dev/null would get the number of standard output.
    """
    global _null
    if _null < 0:
        _null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def open_file(path: Path, flags: int, mode: int = 0o777) -> int:
    """Opens a file like :func:`os.open`, but rejects a symbolic link and never waits for a pipe or a device.

    Forked children close the file. Close it with :func:`close`.
    """
    with _lock:
        _open_null()
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
        _files.add(fd)
    return fd


def close(fd: int) -> None:
    """Closes a file of :func:`open_file`. Raises ``OSError``."""
    with _lock:
        _files.discard(fd)
        os.close(fd)


def close_address(address: str | int) -> None:
    """From now on, forked children close all sockets with this local address, also accepted connections.

    Args:
        address: the path that a Unix socket was bound to, or a TCP port.
    """
    with _lock:
        _open_null()
        _addresses.add(address)


def keep_address(address: str | int) -> None:
    """Undoes :func:`close_address`: forked children keep the sockets with this address."""
    with _lock:
        _addresses.discard(address)


def _after_in_child() -> None:
    try:
        # Keeps the descriptor's number in use. gRPC or Python may still close this number in the child, and must not close another file.
        for fd in _files:
            os.dup2(_null, fd, inheritable=False)
        for fd in _sockets():
            os.dup2(_null, fd, inheritable=False)
    finally:
        _files.clear()
        _lock.release()


def _sockets() -> set[int]:
    found = set()
    for name in os.listdir("/dev/fd") if _addresses else ():  # noqa: PTH208 - only the names are needed
        with contextlib.suppress(OSError):  # not a socket, or the folder's own descriptor
            opened = socket.socket(fileno=int(name))
            try:
                local = opened.getsockname()
                if opened.family in {socket.AF_INET, socket.AF_INET6}:
                    local = local[1]
                if isinstance(local, str | int) and local in _addresses:
                    found.add(int(name))
            finally:
                opened.detach()
    return found


# With its own fork handlers, gRPC starts its threads again in the child, which then crashes at random (gRPC 1.85: SIGSEGV, SIGABRT).
# gRPC reads this variable at import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_in_child)
