"""Detects which plugin instances are alive: each holds a lock on its own file while it can touch hardware.

The kernel releases the lock when the process dies, for any reason; a suspended process (SIGSTOP) keeps it. The file contains the
generation of the record journal that the process has open, and the process's sockets. From it, the next instance knows which sockets
of a killed instance it can remove. Source: flock(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..base import forks
from ..base.files import NOT_NOW, named
from ..base.flock import try_lock

_SUFFIX = ".lock"
_READS = 10  # attempts, 0.5 ms apart; a write takes about 0.005 ms
_UNLOCKED = ".new"  # suffix of a file that is not locked yet: it does not count as an instance


class OwnedSocket(msgspec.Struct, frozen=True):
    """A socket of an instance. ``inode`` is 0 if it was not known when the socket was written to the file."""

    path: str
    device: int = 0
    inode: int = 0


class _Content(msgspec.Struct):
    since: float = 0.0  # seconds since boot
    generation: int | None = 0
    sockets: list[OwnedSocket] = []


class Instance(msgspec.Struct, frozen=True):
    """A living instance, read from its file.

    ``since`` is its start in seconds since boot. ``generation`` is the generation of the record journal that it has open, or 0; None if
    its file cannot be read.
    """

    id: str
    since: float
    generation: int | None


class InstanceLock:
    """The lock of this process, a file in ``folder``. Records contain ``id`` as the name of the process that works on the claim."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._fd: int | None = None
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
        while self._fd is None:
            # The file is locked and has its content before it gets its final name.
            # Otherwise another instance could find it unlocked, and treat this instance as dead.
            unnamed = self.folder / f".{self.id}{_UNLOCKED}"
            fd = forks.open_file(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.pwrite(fd, _encoded(self._content), 0)
                unnamed.rename(self._path(self.id))
            except (BlockingIOError, FileNotFoundError):
                forks.close(fd)  # another instance cleaned up at that moment: retry with a new file
                continue
            except BaseException:
                forks.close(fd)
                raise
            self._fd = fd

    def note_records(self, generation: int) -> None:
        """Writes to the file which generation of the record journal this instance has open; 0 if none is open."""
        before, self._content.generation = self._content.generation, generation
        if generation != before:
            try:
                self._write()
            except OSError:
                self._content.generation = before  # the next call tries again
                raise

    def claim_sockets(self, sockets: Iterable[OwnedSocket]) -> None:
        """Writes the sockets of this instance to the file, in place of the earlier list."""
        self._content.sockets = list(sockets)
        self._write()

    def _write(self) -> None:
        with self._writing:
            fd = self._fd
            if fd is None:
                return
            data = _encoded(self._content)
            # Replacing the file would lose the lock on it, so the content is overwritten in place, and the file never shrinks.
            size = max(len(data), os.fstat(fd).st_size)
            os.pwrite(fd, data.ljust(size), 0)

    def release(self) -> None:
        """Releases the lock and removes the file. Call it when no thread of this process can touch hardware any more."""
        with self._writing:  # the kernel may reuse the descriptor number for another file
            if self._fd is not None:
                self._path(self.id).unlink(missing_ok=True)
                forks.close(self._fd)
                self._fd = None

    def alive(self, id: str) -> bool:
        """Whether the process that holds ``id`` is alive. Changes nothing."""
        if not id or "/" in id:
            return False
        if id == self.id:
            return self._fd is not None
        return _is_locked(self._path(id))

    def others(self) -> list[Instance]:
        """Returns the other living instances. Raises ``OSError`` if the folder cannot be read."""
        found = []
        for path in named(self.folder, "", _SUFFIX):
            id = path.name.removesuffix(_SUFFIX)
            if id != self.id and _is_locked(path):
                content = _read(path)
                found.append(Instance(id, content.since, content.generation))
        return found

    @property
    def since(self) -> float:
        """When this instance took its lock, in seconds since boot."""
        return self._content.since

    def reap_dead(self) -> list[OwnedSocket]:
        """Removes the files of dead instances. Returns the sockets that they may have left behind."""
        left: list[OwnedSocket] = []
        for path in [*named(self.folder, "", _SUFFIX), *named(self.folder, ".", _UNLOCKED)]:
            with contextlib.suppress(OSError):
                fd = forks.open_file(path, os.O_RDWR)
                try:
                    if not try_lock(fd):
                        continue
                    content = _read(path)
                    left += content.sockets
                    # The name may belong to another file now: instances never reuse an id, but a person may create a file by hand.
                    if os.path.samestat(os.fstat(fd), path.stat()):
                        path.unlink()
                finally:
                    forks.close(fd)
        return left

    @staticmethod
    def pid(id: str) -> str:
        return id.partition("-")[0]

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{_SUFFIX}"


def _encoded(content: _Content) -> bytes:
    data = msgspec.json.encode(content)
    return b"%s\n%08x\n" % (data, zlib.crc32(data))


def _is_locked(path: Path) -> bool:
    try:
        fd = forks.open_file(path, os.O_RDWR)
    except OSError as e:
        # The instance may be alive. If it were treated as dead, its devices could be given to other claims.
        return e.errno in NOT_NOW
    try:
        # A shared lock, so that two instances that check at the same time do not find each other's lock.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        forks.close(fd)
    return False


def _read(path: Path) -> _Content:
    """Reads an instance's file. Its generation is None if the file is not an instance's, or its writer stopped during the write.

    Raises ``OSError`` if the process cannot open any file now, for example because too many are open.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return _Content(generation=None)
        content = msgspec.json.decode(_read_checked(path), type=_Content)
    except (OSError, ValueError, RecursionError) as e:
        if getattr(e, "errno", None) in NOT_NOW:
            # The instance may have the records open. If it were ignored, the devices in its records could be given to other claims.
            raise
        return _Content(generation=None)
    content.sockets = [s for s in content.sockets if "\0" not in s.path]
    return content


def _read_checked(path: Path) -> bytes:
    """Reads the first line. Reads again while the checksum in the second line does not match.

    A read during a write can return parts of the old and the new content, because the kernel locks the file neither for reads nor writes.

    Raises ``ValueError`` if no attempt reads a complete line.
    """
    for _ in range(_READS):
        content, _, rest = path.read_bytes().partition(b"\n")
        if rest.partition(b"\n")[0] == b"%08x" % zlib.crc32(content):
            return content
        time.sleep(0.0005)
    raise ValueError(f"{path} has no valid checksum")
