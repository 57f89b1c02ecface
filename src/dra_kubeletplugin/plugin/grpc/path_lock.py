"""A lock on a path for the life of a process. Of several processes that want to serve at the path, only one gets the lock.

The kernel releases the lock when the process ends, also after a kill. Source: flock(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

from ...base import forks
from ...base.flock import try_lock

_TRIES = 20  # another process may start and end between any two steps
_TEMPORARY = re.compile(r"\..+\.(\d+-[0-9a-f]{8})")


def lock_of(socket: Path, folder: Path) -> Path:
    """Returns the lock file in ``folder`` for a socket's path."""
    return folder / f"{socket.name}.lock"


def remove_dead(lock: Path) -> bool:
    """Removes the lock file of a dead instance. Returns whether it did; False, for example, if a living process holds the lock."""
    with contextlib.suppress(OSError):
        fd = forks.open_file(lock, os.O_RDWR)
        try:
            if try_lock(fd) and os.path.samestat(lock.stat(), os.fstat(fd)):
                lock.unlink()
                return True
        finally:
            forks.close(fd)
    return False


def remove_temporary(folder: Path, alive: Callable[[str], bool]) -> None:
    """Removes files whose instance died before it renamed them. ``alive`` gets the instance's token."""
    for path in folder.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match and not alive(match[1]):
            path.unlink(missing_ok=True)


class PathLock:
    """The lock file ``path``. ``token`` names this instance in the temporary file name."""

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{token}")
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Takes the lock, also if a dead process left its lock file. Returns False if a living process holds the lock.

        Raises:
            OSError: the folder cannot be written.
        """
        for _ in range(_TRIES):
            # The file is locked before it gets its name: a process that found it unlocked would treat it as a dead process's file.
            fd = forks.open_file(self._temporary, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.link(self._temporary, self.path)
            except FileExistsError:
                forks.close(fd)
            except BaseException:
                forks.close(fd)
                raise
            else:
                self._fd = fd
                return True
            finally:
                self._temporary.unlink(missing_ok=True)
            done = self._take_over()
            if done is not None:
                return done
        return False

    def _take_over(self) -> bool | None:
        """Takes the lock of an existing file. Returns None if the file was removed meanwhile."""
        try:
            fd = forks.open_file(self.path, os.O_RDWR)
        except FileNotFoundError:
            return None
        if not try_lock(fd):
            forks.close(fd)
            return False
        if not self._path_refers_to(fd):
            forks.close(fd)
            return None
        self._fd = fd
        return True

    def _path_refers_to(self, fd: int) -> bool:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(fd))

    def release(self) -> None:
        """Releases the lock and removes its file."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            if self._path_refers_to(fd):
                self.path.unlink(missing_ok=True)
        finally:
            forks.close(fd)
