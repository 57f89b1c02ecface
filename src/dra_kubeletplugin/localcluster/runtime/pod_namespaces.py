"""Network, IPC and UTS namespaces that the containers of one pod share, as a sandbox's pause container holds them.

A thread makes them and ends; what keeps them is open files of this process, so they go with it, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping

from .interface import ContainerError

_FLAGS = {
    "network": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}  # CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS: clone(2)
_FILES = {"network": "net", "ipc": "ipc", "uts": "uts"}
_SIOCSIFFLAGS, _SIOCSIFADDR, _IFF_UP = 0x8914, 0x8916, 0x1
ADDRESS = "192.0.2.1"  # of every pod in its own network, which ends at the pod (RFC 5737)


class PodNamespaces:
    """Made by :meth:`make`. ``paths`` are files by type of namespace, as an OCI spec wants them."""

    def __init__(self, descriptors: Mapping[str, int]) -> None:
        self._descriptors = dict(descriptors)

    @property
    def paths(self) -> dict[str, str]:
        return {kind: f"/proc/{os.getpid()}/fd/{number}" for kind, number in self._descriptors.items()}

    @classmethod
    async def make(cls, hostname: str) -> PodNamespaces:
        """Fresh ones, with a loopback device that is up. Raises :class:`ContainerError`."""
        making = asyncio.ensure_future(asyncio.to_thread(_in_thread, hostname))
        try:
            return cls(await asyncio.shield(making))
        except asyncio.CancelledError:  # the thread goes on, and what it makes is nobody's
            making.add_done_callback(lambda made: None if made.exception() else cls(made.result()).close())
            raise
        except OSError as e:
            raise ContainerError(f"failed to create the pod's namespaces: {e}") from None

    async def connect(self, address: str, port: int, timeout: float) -> socket.socket:
        """A connection made within the pod's network. Raises ``OSError``."""
        return await asyncio.to_thread(_connect, self._descriptors["network"], address, port, timeout)

    def close(self) -> None:
        for number in self._descriptors.values():
            with contextlib.suppress(OSError):
                os.close(number)
        self._descriptors.clear()


def _in_thread(hostname: str) -> dict[str, int]:
    made: dict[str, int] = {}

    def work() -> None:
        _call("unshare", sum(_FLAGS.values()))
        socket.sethostname(hostname)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loopback:
            fcntl.ioctl(loopback, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
            address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
            fcntl.ioctl(loopback, _SIOCSIFADDR, struct.pack("16s16s8x", b"lo:0", address))
        for kind, name in _FILES.items():
            made[kind] = os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    try:
        _apart(work)
    except OSError:
        for number in made.values():
            os.close(number)
        raise
    return made


def _connect(network: int, address: str, port: int, timeout: float) -> socket.socket:
    """A socket belongs to the network in which it was made, wherever it is used then."""
    made: list[socket.socket] = []

    def work() -> None:
        _call("setns", network, _FLAGS["network"])
        made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))

    _apart(work)
    [found] = made
    try:
        found.settimeout(timeout)
        found.connect((address, port))
    except OSError:
        found.close()
        raise
    return found


def _apart(work: Callable[[], None]) -> None:
    """In a thread of its own: one that has left the machine's namespaces must not come back to a pool. Raises ``OSError``."""
    failed: list[OSError] = []

    def guarded() -> None:
        try:
            work()
        except OSError as e:
            failed.append(e)

    thread = threading.Thread(target=guarded, name="pod namespaces")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _call(name: str, *arguments: int) -> None:
    """A function of libc. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


__all__ = ["ADDRESS", "PodNamespaces"]
