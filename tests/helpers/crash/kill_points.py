"""Adds points to methods, and kills this process at the point KILL_AT.

The environment variable KILL_SKIP is the number of times that the process passes the point before it is killed.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

_reached = 0


def kill_at(point: str) -> None:
    """Kills the process with SIGKILL if KILL_AT is ``point``; otherwise does nothing."""
    global _reached
    if point != os.environ.get("KILL_AT"):
        return
    _reached += 1
    if _reached > int(os.environ.get("KILL_SKIP", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # another thread may continue for a moment; this one must not


def wrap_method(
    owner: Any, name: str, before: Callable[..., object], after: Callable[..., object] = lambda *_, **__: None
) -> None:
    """Replaces a synchronous method or function: it calls ``before`` and ``after`` with its own arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = original(*args, **kwargs)
        after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)
