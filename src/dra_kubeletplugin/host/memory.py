"""Gives memory back that starting or a burst of work took and idling does not need.

Source: malloc_trim(3); glibc only, elsewhere nothing but a collection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys

_SETTLED = 5.0  # seconds: what starting set off (the first events of watches, a second publishing) is over
_INTERVAL = 60.0  # as often as devices are looked at, each time anew


def trim() -> None:
    """One collection, then free pages of the heap go back to the kernel. A few milliseconds."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


async def keep_trimmed(settled: float = _SETTLED, interval: float = _INTERVAL) -> None:
    """Trims now, after ``settled`` seconds, and then every ``interval`` seconds. Never returns."""
    trim()
    await asyncio.sleep(settled)
    gc.collect()
    gc.freeze()  # what is there now stays: later collections pass it over, and hold up nobody
    while True:
        trim()
        await asyncio.sleep(interval)
