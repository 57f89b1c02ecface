"""Which instances of the plugin live: each holds a lock on a file of its own for as long as it can touch hardware.

The kernel drops the lock with the process, whatever kills it; a stopped process keeps it. The file says what its process has
in the file system, so that the next instance can take away what a killed one left. Source: flock(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import threading
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..base import forks
from ..base.files import NOT_NOW, named
from ..base.flock import try_lock

_SUFFIX = ".lock"
_READS = 10  # half a millisecond apart; a write takes a hundredth of one
_MOST_LEFT = 16  # databases; more did not die since somebody looked after them
_UNLOCKED = ".new"  # of a file that has not got its lock yet: no instance is judged by it


@dataclass(frozen=True)
class OwnedSocket:
    """A socket of an instance. ``inode`` is 0 where it was not known yet."""

    path: str
    device: int = 0
    inode: int = 0


class OpenDatabase(msgspec.Struct, frozen=True):
    """The record database that an instance has open, see :class:`Connection`."""

    generation: int
    inodes: tuple[tuple[int, int] | None, ...]


class _Content(msgspec.Struct):
    since: float = 0.0  # seconds since boot
    opened: OpenDatabase | None = None
    left: list[OpenDatabase] = []
    sockets: list[OwnedSocket] = []


@dataclass(frozen=True)
class Instance:
    """A living instance, as its file tells. ``since`` is seconds since boot; ``opened`` is None where it has no database open."""

    id: str
    since: float
    opened: OpenDatabase | None


class InstanceLock:
    """The lock of this process, in ``folder``; ``id`` names it in records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._fd: int | None = None
        self._content = _Content()
        self._writing = threading.Lock()  # the store's thread notes the records

    def acquire(self) -> None:
        """Marks this process as alive.

        Raises ``OSError`` where the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        while self._fd is None:
            # The lock comes before the name, so nobody ever finds a name of ours without its lock.
            unnamed = self.folder / f".{self.id}{_UNLOCKED}"
            fd = forks.open_file(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                unnamed.rename(self._path(self.id))
            except (BlockingIOError, FileNotFoundError):
                forks.close(fd)  # somebody cleaned up at that moment; a fresh file it is
                continue
            except BaseException:
                forks.close(fd)
                raise
            self._fd = fd
        # Of all clocks the one that nobody sets back and that goes on through a suspend, one for all containers of the host. Who
        # lives was started in this boot, so its times compare. Source: clock_gettime(2)
        self._content.since = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._write()

    def note_records(self, opened: OpenDatabase | None) -> None:
        """Notes which record database this instance has open."""
        if self._content.opened != opened:
            self._content.opened = opened
            self._write()

    @property
    def left(self) -> list[OpenDatabase]:
        """What those had open that were buried: they died with it."""
        return self._content.left

    def forget_left(self) -> None:
        """What the dead had open is looked after."""
        if self._content.left:
            self._content.left = []
            self._write()

    def own(self, sockets: Iterable[OwnedSocket]) -> None:
        """Notes which sockets are this instance's, in place of those noted before."""
        self._content.sockets = list(sockets)
        self._write()

    def _write(self) -> None:
        with self._writing:
            fd = self._fd
            if fd is None:
                return
            content = msgspec.json.encode(self._content)
            data = b"%s\n%08x\n" % (content, zlib.crc32(content))
            # The lock is on this file, so no other can take its name: it is written over, and never shrinks.
            size = max(len(data), os.fstat(fd).st_size)
            os.pwrite(fd, data.ljust(size), 0)

    def release(self) -> None:
        """The mark goes; call it when no thread of this process can touch hardware any more."""
        with self._writing:  # the number of a closed file is soon another file's
            if self._fd is not None:
                self._path(self.id).unlink(missing_ok=True)
                forks.close(self._fd)
                self._fd = None

    def alive(self, id: str) -> bool:
        """Whether the process that holds ``id`` lives. Changes nothing."""
        if not id or "/" in id:
            return False
        if id == self.id:
            return self._fd is not None
        return _is_locked(self._path(id))

    def others(self) -> list[Instance]:
        """The other living instances. Raises ``OSError`` where they cannot be looked for."""
        found = []
        for path in named(self.folder, "", _SUFFIX):
            id = path.name.removesuffix(_SUFFIX)
            if id != self.id and _is_locked(path):
                content = _read(path)
                found.append(Instance(id, content.since, content.opened))
        return found

    @property
    def since(self) -> float:
        """When this instance took its lock, in seconds since boot."""
        return self._content.since

    def bury(self) -> list[OwnedSocket]:
        """Takes the files of dead instances away; answers the sockets that they may have left."""
        left: list[OwnedSocket] = []
        for path in [*named(self.folder, "", _SUFFIX), *named(self.folder, ".", _UNLOCKED)]:
            with contextlib.suppress(OSError):
                fd = forks.open_file(path, os.O_RDWR)
                try:
                    if not try_lock(fd):
                        continue
                    content = _read(path)
                    left += content.sockets
                    self._inherit(content)
                    # Still the file that was locked: ids are never used twice, but names can be made by hand.
                    if os.path.samestat(os.fstat(fd), path.stat()):
                        path.unlink()
                finally:
                    forks.close(fd)
        return left

    def _inherit(self, dead: _Content) -> None:
        """Before its file goes: whoever dies next leaves it to the one after."""
        found = [o for o in (*dead.left, dead.opened) if o is not None and o not in self._content.left]
        if found:
            self._content.left = [*self._content.left, *found][-_MOST_LEFT:]
            self._write()

    @staticmethod
    def pid(id: str) -> str:
        return id.partition("-")[0]

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{_SUFFIX}"


def _is_locked(path: Path) -> bool:
    try:
        fd = forks.open_file(path, os.O_RDWR)
    except OSError as e:
        return e.errno in NOT_NOW  # it may live: who is taken for dead loses its devices to others
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask at once do not see each other
    except BlockingIOError:
        return True
    finally:
        forks.close(fd)
    return False


def _read(path: Path) -> _Content:
    """What the file tells; nothing where it is no file of ours, or its writer was stopped within the write.

    Raises ``OSError`` where no file can be read now.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return _Content()
        content = msgspec.json.decode(_whole(path), type=_Content)
    except (OSError, ValueError, RecursionError) as e:
        if getattr(e, "errno", None) in NOT_NOW:
            raise  # it may have the records open: whoever does not know that may give out anew what they hold
        return _Content()
    content.sockets = [s for s in content.sockets if "\0" not in s.path]
    return content


def _whole(path: Path) -> bytes:
    """The first line, as it was written: a read can meet a write, and then finds some of both (the kernel locks neither).

    Raises ``ValueError`` where no read finds it whole.
    """
    for _ in range(_READS):
        content, _, rest = path.read_bytes().partition(b"\n")
        if rest.partition(b"\n")[0] == b"%08x" % zlib.crc32(content):
            return content
        time.sleep(0.0005)
    raise ValueError(f"{path} was not written whole")
