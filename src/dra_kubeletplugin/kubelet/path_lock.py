"""A lock on a path that lasts as long as its process: of several that want to serve there, exactly one does.

The kernel drops the lock with the process, whatever kills it. Source: flock(2).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_TRIES = 20  # another one may come and go between any two steps


class PathLock:
    """The lock file ``path``, made by an instance that ``token`` names."""

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{token}")
        self._fd = -1

    def acquire(self) -> bool:
        """Takes the lock, a dead one's too; False where a living process has it.

        Raises ``OSError`` where the folder cannot be written.
        """
        for _ in range(_TRIES):
            # Locked before it has its name: nobody can find it unlocked and take it for a dead one's.
            fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.link(self._temporary, self.path)
            except FileExistsError:
                os.close(fd)
            except BaseException:
                os.close(fd)
                raise
            else:
                self._fd = fd
                return True
            finally:
                self._temporary.unlink(missing_ok=True)
            taken = self._take_over()
            if taken is not None:
                return taken
        return False

    def _take_over(self) -> bool | None:
        """None where the file went meanwhile."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        if not self._names(fd):
            os.close(fd)
            return None
        self._fd = fd
        return True

    def _names(self, fd: int) -> bool:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(fd))

    def release(self) -> None:
        """Gives the lock up, and removes its file."""
        if self._fd < 0:
            return
        try:
            if self._names(self._fd):
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._fd)
            self._fd = -1
