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
from collections.abc import Mapping

from .interface import ContainerError

_FLAGS = {
    "network": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}  # CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS: clone(2)
_FILES = {"network": "net", "ipc": "ipc", "uts": "uts"}
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1


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
        try:
            return cls(await asyncio.to_thread(_in_thread, hostname))
        except OSError as e:
            raise ContainerError(f"failed to create the pod's namespaces: {e}") from None

    def close(self) -> None:
        for number in self._descriptors.values():
            with contextlib.suppress(OSError):
                os.close(number)
        self._descriptors.clear()


def _in_thread(hostname: str) -> dict[str, int]:
    """A thread of its own: one that has left the machine's namespaces must not come back to a pool."""
    made: dict[str, int] = {}
    failed: list[OSError] = []

    def work() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(sum(_FLAGS.values())) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"unshare: {os.strerror(number)}")
            socket.sethostname(hostname)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loopback:
                fcntl.ioctl(loopback, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
            for kind, name in _FILES.items():
                made[kind] = os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            failed.append(e)

    thread = threading.Thread(target=work, name="pod namespaces")
    thread.start()
    thread.join()
    if failed:
        for number in made.values():
            os.close(number)
        raise failed[0]
    return made


__all__ = ["PodNamespaces"]
