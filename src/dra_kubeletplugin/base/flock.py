"""Locks on files that last as long as their process, whatever kills it. Source: flock(2)."""

from __future__ import annotations

import fcntl
import time

_LOOKS = 5
_MOMENT = 0.002  # seconds between two looks; who only looks has a lock for a hundredth of that


def try_lock(fd: int) -> bool:
    """Takes the lock of the open file ``fd``; False where somebody living has it.

    Who asks whether its owner lives, or takes a dead one's file away, has it for a moment: that one is waited for.

    Raises ``OSError`` where the file can have no lock.
    """
    for left in reversed(range(_LOOKS)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(_MOMENT)
        else:
            return True
    return False


__all__ = ["try_lock"]
