"""File locks that the kernel releases when their process ends, however it ends. Source: flock(2)."""

from __future__ import annotations

import fcntl
import time

_ATTEMPTS = 5
_PAUSE = 0.002  # seconds between two attempts; a mere check holds the lock for a hundredth of that


def try_lock(fd: int) -> bool:
    """Takes the lock of the open file ``fd``. Returns False if a running process holds it.

    Another process may hold the lock briefly, to check whether its owner is alive or to delete a dead owner's file. So this
    function retries for 8 ms.

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


__all__ = ["try_lock"]
