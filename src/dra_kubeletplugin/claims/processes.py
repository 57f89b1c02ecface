"""Which instances of the plugin live: each holds a lock on a file of its own for as long as it does.

The kernel drops the lock with the process, whatever kills it; a stopped process keeps it. Source: flock(2).
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


class ProcessLock:
    """The lock of this process, in ``folder``; ``id`` names it in records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._fd = -1

    def acquire(self) -> None:
        """Raises ``OSError`` where the folder cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path(self.id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in self.folder.glob("*.lock"):
            self.alive(path.stem)  # removes the files of the dead

    def release(self) -> None:
        if self._fd >= 0:
            self._path(self.id).unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def alive(self, id: str) -> bool:
        """Whether the process that holds ``id`` lives."""
        if not id:
            return False
        if id == self.id:
            return self._fd >= 0
        path = self._path(id)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)

    @staticmethod
    def pid(id: str) -> str:
        return id.partition("-")[0]

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}.lock"
