"""Creates the network, IPC and UTS namespaces that the containers of one pod share.

In Kubernetes, a pause container keeps the namespaces alive. Here, a short-lived thread creates the namespaces, and open
files of this process keep them alive. So the kernel removes the namespaces when this process ends.
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

# CLONE_NEWNET, CLONE_NEWIPC and CLONE_NEWUTS of clone(2)
_FLAGS = {"network": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000}
_FILES = {"network": "net", "ipc": "ipc", "uts": "uts"}
_SIOCSIFFLAGS, _SIOCSIFADDR, _IFF_UP = 0x8914, 0x8916, 0x1
ADDRESS = "192.0.2.1"  # the address of every pod, which is valid only inside the pod's own network (RFC 5737)


class PodNamespaces:
    """The namespaces of one pod. Create them with :meth:`make`.

    ``paths`` contains the file of each namespace, by type, for the OCI spec.
    """

    def __init__(self, descriptors: Mapping[str, int]) -> None:
        self._descriptors = dict(descriptors)

    @property
    def paths(self) -> dict[str, str]:
        return {kind: f"/proc/{os.getpid()}/fd/{number}" for kind, number in self._descriptors.items()}

    @classmethod
    async def make(cls, hostname: str) -> PodNamespaces:
        """Creates new namespaces with a loopback device that is up.

        Raises:
            ContainerError: the kernel refused to create them.
        """
        creation = asyncio.ensure_future(asyncio.to_thread(_create, hostname))
        try:
            return cls(await asyncio.shield(creation))
        except asyncio.CancelledError:  # the thread continues, so the namespaces that it creates must be closed
            creation.add_done_callback(lambda made: None if made.exception() else cls(made.result()).close())
            raise
        except OSError as e:
            raise ContainerError(f"failed to create the pod's namespaces: {e}") from None

    async def connect(self, address: str, port: int, timeout: float) -> socket.socket:
        """Opens a connection inside the pod's network.

        Raises:
            OSError: the connection failed.
        """
        return await asyncio.to_thread(_connect, self._descriptors["network"], address, port, timeout)

    async def listen(self, address: str, port: int) -> socket.socket:
        """Opens a listening socket inside the pod's network.

        Raises:
            OSError: the address cannot be used.
        """

        def opened() -> socket.socket:
            found = _socket(self._descriptors["network"])
            try:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                found.bind((address, port))
                found.listen()
                found.setblocking(False)
            except OSError:
                found.close()
                raise
            return found

        return await asyncio.to_thread(opened)

    def close(self) -> None:
        for number in self._descriptors.values():
            with contextlib.suppress(OSError):
                os.close(number)
        self._descriptors.clear()


def _create(hostname: str) -> dict[str, int]:
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
        _run_in_new_thread(work)
    except OSError:
        for number in made.values():
            os.close(number)
        raise
    return made


def _connect(network: int, address: str, port: int, timeout: float) -> socket.socket:
    """Connects inside a network namespace."""
    found = _socket(network)
    try:
        found.settimeout(timeout)
        found.connect((address, port))
    except OSError:
        found.close()
        raise
    return found


def _socket(network: int) -> socket.socket:
    """Opens a socket inside a network namespace. The socket stays in this namespace, and any thread can use it."""
    made: list[socket.socket] = []

    def work() -> None:
        _call("setns", network, _FLAGS["network"])
        made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))

    _run_in_new_thread(work)
    [found] = made
    return found


def _run_in_new_thread(work: Callable[[], None]) -> None:
    """Runs ``work`` in a new thread, because a thread whose namespaces were changed must not be used again.

    Raises:
        OSError: ``work`` raised it.
    """
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
    """Calls a function of libc.

    Raises:
        OSError: the call failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
