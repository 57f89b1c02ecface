"""Locks between processes on files and folders. The kernel releases a lock when its process ends, however it ends. Source: flock(2)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

from .backoff import Backoff
from .files import NOT_NOW, open_regular

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.005  # seconds between two attempts
_MAX_CONTENT = 1 << 20  # bytes
_CHECK = 0.01  # seconds; a check of a lock holds it for a hundredth of that


class _PathLock:
    """A lock on the file or folder at ``path``. Use it from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def _open(self) -> int:
        raise NotImplementedError

    def acquire(self, timeout: float) -> None:
        """Takes the lock. Raises :class:`TimeoutError` after ``timeout`` seconds, and ``OSError``."""
        with contextlib.closing(self._pauses(timeout)) as pauses:
            for pause in pauses:
                time.sleep(pause)

    async def acquire_async(self, timeout: float) -> None:
        """Takes the lock without blocking the event loop. Raises as :meth:`acquire`."""
        with contextlib.closing(self._pauses(timeout)) as pauses:
            for pause in pauses:
                await asyncio.sleep(pause)

    def _pauses(self, timeout: float) -> Generator[float]:
        """Tries to take the lock, and yields the pause after each attempt that failed. Without the lock, closes the file at the end."""
        deadline, backoff = time.monotonic() + timeout, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while not self.try_acquire():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.path} is locked")
                yield backoff.next()
        except BaseException:  # also if the caller's task is cancelled
            self.close()
            raise

    def acquire_at_once(self) -> None:
        """Takes the lock unless a process holds it. Raises as :meth:`acquire`.

        Waits a moment, because another process may hold the lock briefly to check whether its owner is alive.
        """
        self.acquire(_CHECK)

    def try_acquire(self) -> bool:
        """Takes the lock. Returns False if another holder has it. Raises ``OSError``."""
        while True:
            if self._fd < 0:
                self._fd = self._open()
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            # A lock on a file or folder that was removed or replaced would exclude no other process.
            if self._has_name():
                return True
            self.close()

    def _has_name(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        return False

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Releases the lock and closes the file or folder."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class FolderLock(_PathLock):
    """A lock on the folder at ``path``. It needs no lock file, which a person could remove. Use it from one thread."""

    def _open(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)


class FileLock(_PathLock):
    """A lock on the file at ``path``. Use it from one thread.

    Args:
        content: written before the lock is taken, so that a locked file is never without content. Use it only if no other process
            takes this lock. None if the file must exist.
        makes_folder: whether the file's folder is created if it is missing, also while the lock is waited for.
    """

    def __init__(self, path: Path, content: bytes | None = b"", *, makes_folder: bool = False) -> None:
        super().__init__(path)
        self._content = content
        self._makes_folder = makes_folder

    def _open(self) -> int:
        if self._content is None:
            return open_regular(self.path, os.O_RDWR)
        if self._makes_folder:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = open_regular(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, self._content, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def write(self, content: bytes) -> None:
        """Overwrites the content of the locked file with one write. Spaces follow the content if the old content was longer."""
        os.pwrite(self._fd, content.ljust(os.fstat(self._fd).st_size), 0)

    def read(self) -> bytes:
        """Returns the content of the locked file, at most its first MiB."""
        return os.pread(self._fd, _MAX_CONTENT, 0)

    def remove(self) -> None:
        """Removes the locked file, but not another file that has its name now, and releases the lock."""
        try:
            if self._fd >= 0 and self._has_name():
                self.path.unlink(missing_ok=True)
        finally:
            self.close()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file. True if this process cannot open any file now."""
    try:
        fd = open_regular(path, os.O_RDWR)
    except OSError as e:
        return e.errno in NOT_NOW
    try:
        # A shared lock, so that two processes that check at the same time do not find each other's lock.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def remove_unlocked(path: Path) -> bytes:
    """Removes a lock file that its dead process left. Returns its content; empty if the file is locked or cannot be removed."""
    lock = FileLock(path, content=None)
    with contextlib.suppress(OSError), contextlib.closing(lock):
        lock.acquire_at_once()
        content = lock.read()
        lock.remove()
        return content
    return b""
