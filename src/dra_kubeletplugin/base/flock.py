"""File locks that the kernel releases when their process ends, however it ends. Source: flock(2)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from . import forks

_ATTEMPTS = 5
_PAUSE = 0.002  # seconds between two attempts; a check for a live owner holds the lock for a hundredth of that


def try_lock(fd: int) -> bool:
    """Takes the lock of the open file ``fd``. Returns False if a running process holds it.

    Another process may hold the lock briefly, to check whether the lock's owner is alive or to delete the file of a dead owner.
    So this function retries for 8 ms.

    Raises ``OSError`` if the file cannot be locked.
    """
    for attempts in reversed(range(_ATTEMPTS)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempts:
                time.sleep(_PAUSE)
        else:
            return True
    return False


class _PathLock:
    """A lock between processes on the file or folder at ``path``. Use it from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def _open(self) -> int:
        raise NotImplementedError

    def acquire(self, deadline: float) -> None:
        """Takes the lock. Raises :class:`TimeoutError` at ``deadline``, in seconds of the monotonic clock, and ``OSError``."""
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path} is locked")
            time.sleep(_PAUSE)

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
            has_name = False
            try:
                with contextlib.suppress(FileNotFoundError):
                    has_name = os.path.samestat(os.fstat(self._fd), self.path.stat())
            finally:
                if not has_name:
                    self.close()
            if has_name:
                return True

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            forks.close(fd)


class FolderLock(_PathLock):
    """A lock between processes on the folder at ``path``. It needs no lock file, which a person could remove. Use it from one thread."""

    def _open(self) -> int:
        return forks.open_file(self.path.resolve(), os.O_RDONLY | os.O_DIRECTORY)


class FileLock(_PathLock):
    """A lock between processes on the file at ``path``, which is created if it is missing. Use it from one thread."""

    def _open(self) -> int:
        return forks.open_file(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, content: bytes) -> None:
        """Replaces the content of the locked file."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, content, 0)
