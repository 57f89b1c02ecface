"""Detects which plugin instances are alive: each holds a lock on its own file while it can touch hardware.

The kernel releases the lock when the process dies, for any reason; a suspended process (SIGSTOP) keeps it. The file contains the
process's sockets. From it, the next instance knows which sockets of a killed instance it can remove. Source: flock(2).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..base.files import NOT_NOW, named, read_file
from ..base.flock import FileLock, is_locked, remove_unlocked

_SUFFIX = ".lock"
_TIMEOUT = 10.0  # seconds for taking the lock of the own file, which other instances check and may remove
_READS = 10  # attempts, 0.5 ms apart; a write takes about 0.005 ms


class OwnedSocket(msgspec.Struct, frozen=True):
    """A socket of an instance. ``inode`` is 0 if it was not known when the socket was written to the file."""

    path: str
    device: int = 0
    inode: int = 0


class _Content(msgspec.Struct):
    since: float = 0.0  # seconds since boot
    sockets: list[OwnedSocket] = []


class Instance(msgspec.Struct, frozen=True):
    """A living instance. ``since`` is its start in seconds since boot; 0 if its file cannot be read."""

    id: str
    since: float


class InstanceLock:
    """The lock of this process, a file in ``folder``. Records contain ``id`` as the name of the process that works on the claim."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._lock: FileLock | None = None
        self._content = _Content()
        self._writing = threading.Lock()  # the record thread also writes the file

    def acquire(self) -> None:
        """Marks this process as alive.

        Raises ``OSError`` if the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # This clock cannot be set, continues during suspend and is the same in all containers of the host.
        # All living instances were started in this boot, so their times can be compared. Source: clock_gettime(2)
        self._content.since = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self._lock is None:
            lock = FileLock(self._path(self.id), _encoded(self._content))
            # Another instance may remove the file before it is locked. Then a new file is locked.
            lock.acquire(_TIMEOUT)
            self._lock = lock

    def claim_sockets(self, sockets: Iterable[OwnedSocket]) -> None:
        """Writes the sockets of this instance to the file, in place of the earlier list."""
        self._content.sockets = list(sockets)
        self._write()

    def _write(self) -> None:
        with self._writing:
            if self._lock is not None:
                self._lock.write(_encoded(self._content))

    def release(self) -> None:
        """Releases the lock and removes the file. Call it when no thread of this process can touch hardware any more."""
        with self._writing:  # the kernel may reuse the descriptor number for another file
            if self._lock is not None:
                self._lock.remove()
                self._lock = None

    def alive(self, id: str) -> bool:
        """Whether the process that holds ``id`` is alive. Changes nothing."""
        if not id or "/" in id:
            return False
        if id == self.id:
            return self._lock is not None
        return is_locked(self._path(id))

    def others(self) -> list[Instance]:
        """Returns the other living instances. Raises ``OSError`` if the folder cannot be read."""
        own, found = f"{self.id}{_SUFFIX}", []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.folder):  # noqa: PTH208 - each transaction asks, and a Path takes longer than the system call
                if name != own and name.endswith(_SUFFIX) and is_locked(path := self.folder / name):
                    found.append(Instance(name.removesuffix(_SUFFIX), _read(path).since))
        return found

    @property
    def since(self) -> float:
        """When this instance took its lock, in seconds since boot."""
        return self._content.since

    def reap_dead(self) -> list[OwnedSocket]:
        """Removes the files of dead instances. Returns the sockets that they may have left behind."""
        return [
            s for path in named(self.folder, "", _SUFFIX) for s in _decoded(_checked(remove_unlocked(path))).sockets
        ]

    @staticmethod
    def pid(id: str) -> str:
        return id.partition("-")[0]

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{_SUFFIX}"


def _encoded(content: _Content) -> bytes:
    data = msgspec.json.encode(content)
    return b"%s\n%08x\n" % (data, zlib.crc32(data))


def _read(path: Path) -> _Content:
    """Reads a living instance's file. Reads again while the checksum does not match: a read during a write can return parts of the
    old and the new content, because the kernel locks the file neither for reads nor writes.

    Raises ``OSError`` if the process cannot open any file now, for example because too many are open.
    """
    line = b""
    for _ in range(_READS):
        try:
            line = _checked(read_file(path))
        except OSError as e:
            if e.errno in NOT_NOW:
                # The instance may have the records open. If it were ignored, the devices in its records could be given to other claims.
                raise
        if line:
            break
        time.sleep(0.0005)
    return _decoded(line)


def _checked(data: bytes) -> bytes:
    """Returns the first line; empty if the checksum in the second line does not match."""
    content, _, rest = data.partition(b"\n")
    return content if rest.partition(b"\n")[0] == b"%08x" % zlib.crc32(content) else b""


def _decoded(line: bytes) -> _Content:
    """Decodes a file's first line. The content is empty if the file is not an instance's, or its writer stopped during the write."""
    try:
        content = msgspec.json.decode(line, type=_Content)
    except (ValueError, RecursionError):
        return _Content()
    content.sockets = [s for s in content.sockets if "\0" not in s.path]
    return content
