"""Returns memory to the kernel that the start or a burst of work used and an idle process does not need.

Source: malloc_trim(3), glibc only; on other platforms it only runs the garbage collector.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys

_SETTLED = 5.0  # seconds; longer than the work that the start triggers (first watch events, a second publish)
_INTERVAL = 60.0  # seconds; as often as devices are rescanned, which allocates each time


def trim() -> None:
    """Runs the garbage collector, and returns the heap's free pages to the kernel. Takes a few milliseconds."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


async def keep_trimmed(settled: float = _SETTLED, interval: float = _INTERVAL) -> None:
    """Trims now, again after ``settled`` seconds, and then every ``interval`` seconds. Never returns."""
    trim()
    await asyncio.sleep(settled)
    gc.collect()
    gc.freeze()  # these objects live as long as the process; later collections skip them and take less time
    while True:
        trim()
        await asyncio.sleep(interval)
