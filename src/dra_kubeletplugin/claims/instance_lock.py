"""Detects which plugin instances are alive: each holds a lock on its own file while it can touch hardware.

The kernel releases the lock when the process dies, for any reason; a suspended process (SIGSTOP) keeps it. The file's first line says
when the instance started. The second line has its sockets: from it, the next instance knows which sockets of a killed instance it can
remove. Source: flock(2).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from ..base.files import NOT_NOW, named, read_file
from ..base.flock import FileLock, is_locked, remove_unlocked

_SUFFIX = ".lock"
_TIMEOUT = 10.0  # seconds for taking the lock of the own file, which other instances check and may remove
T = TypeVar("T")


class OwnedSocket(msgspec.Struct, frozen=True):
    """A socket of an instance. ``inode`` is 0 if it was not known when the socket was written to the file."""

    path: str
    device: int = 0
    inode: int = 0


class Instance(msgspec.Struct, frozen=True):
    """A living instance. ``since`` is its start in seconds since boot; 0 if its file cannot be read."""

    id: str
    since: float


class InstanceLock:
    """The lock of this process, a file in ``folder``. Records contain ``id`` as the name of the process that works on the claim.

    ``since`` is when the lock was taken, in seconds since boot.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = f"{os.getpid()}-{os.urandom(4).hex()}"
        self.since = 0.0
        self._lock: FileLock | None = None

    def acquire(self) -> None:
        """Marks this process as alive.

        Raises ``OSError`` if the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # This clock cannot be set, continues during suspend and is the same in all containers of the host.
        # All living instances were started in this boot, so their times can be compared. Source: clock_gettime(2)
        self.since = time.clock_gettime(time.CLOCK_BOOTTIME)
        lock = FileLock(self._path(self.id), self._content([]))
        # Another instance may remove the file before it is locked. Then a new file is locked.
        lock.acquire(_TIMEOUT)
        self._lock = lock

    def write_sockets(self, sockets: Iterable[OwnedSocket]) -> None:
        """Writes the sockets of this instance to the file, in place of the earlier list. Call it between acquisition and release.

        The first line does not change, so an instance that reads it during the write gets the whole line.
        """
        if self._lock:
            self._lock.write(self._content(sockets))

    def _content(self, sockets: Iterable[OwnedSocket]) -> bytes:
        return b"%s\n%s\n" % (msgspec.json.encode(self.since), msgspec.json.encode(list(sockets)))

    def release(self) -> None:
        """Releases the lock and removes the file. Call it when no thread of this process can touch hardware any more."""
        lock, self._lock = self._lock, None
        if lock:
            lock.remove()

    def alive(self, id: str) -> bool:
        """Whether the process that holds ``id`` is alive. Changes nothing."""
        return self._lock is not None if id == self.id else is_locked(self._path(id))

    def is_newest(self) -> bool:
        """Whether no other living instance started later. Of two instances in a rolling update, the newer one publishes slices.

        Which instance the kubelet calls is the kubelet's decision. Raises ``OSError`` as :meth:`others`.
        """
        return all((other.since, other.id) < (self.since, self.id) for other in self.others())

    def others(self) -> list[Instance]:
        """Returns the other living instances.

        Raises ``OSError`` if the folder or a file cannot be read now, for example because too many files are open. If such an instance
        were ignored, the devices in its records could be given to other claims.
        """
        own, found = f"{self.id}{_SUFFIX}", []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.folder):  # noqa: PTH208 - each transaction asks, and a Path takes longer than the system call
                if name != own and name.endswith(_SUFFIX) and is_locked(path := self.folder / name):
                    try:
                        line = read_file(path).partition(b"\n")[0]
                    except OSError as e:
                        if e.errno in NOT_NOW:
                            raise
                        line = b""
                    found.append(Instance(name.removesuffix(_SUFFIX), _decoded(line, float, 0.0)))
        return found

    def reap_dead(self) -> list[OwnedSocket]:
        """Removes the files of dead instances. Returns the sockets that they may have left behind."""
        lines = [remove_unlocked(path).partition(b"\n")[2] for path in named(self.folder, "", _SUFFIX)]
        return [socket for line in lines for socket in _decoded(line, list[OwnedSocket], [])]

    @staticmethod
    def pid(id: str) -> str:
        return id.partition("-")[0]

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{_SUFFIX}"


def _decoded(line: bytes, kind: type[T], default: T) -> T:
    """Decodes a line of a file. Returns ``default`` if the file is not an instance's, or its writer stopped during the write."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (ValueError, RecursionError):
        return default
