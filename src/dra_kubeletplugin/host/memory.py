"""Returns unused memory to the kernel: memory that the process needed only at its start or for a burst of work.

Source: malloc_trim(3) and mallopt(3). Only glibc has both; with another C library, only Python's garbage collection runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_THRESHOLD = 128 * 1024  # bytes; the initial value in glibc
_SETTLED = 5.0  # seconds; longer than the work that the start triggers (first watch events, a second publish)
_INTERVAL = 60.0  # seconds; as often as devices are rescanned, which allocates each time


def fix_thresholds() -> None:
    """Makes glibc return each large block to the kernel when it is freed. Call it when a process starts.

    By default, glibc raises both thresholds, up to 64 MiB, when a program frees a large block. It then allocates the next large blocks in
    the arenas of threads. Free memory stays at the ends of these arenas, because ``malloc_trim`` releases the end of the main arena only.
    Fixed thresholds prevent this. Use it in processes that decode large objects of many users. It makes large allocations slower: about
    5 ms in a prepare of 32 claims.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)
            libc.mallopt(_M_TRIM_THRESHOLD, _THRESHOLD)


def trim() -> None:
    """Runs the garbage collector and returns the heap's free pages to the kernel. This takes a few milliseconds."""
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
