"""Logs which line blocks the event loop.

An ``async def`` of a driver that blocks delays the kubelet, probes and all claims.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from ...base.threads import current_frames
from ...driver.diagnostics.author_errors import running_line

log = logging.getLogger(__name__)
_CHECKS = 4  # checks without a response before the warning; several, because a process that was stopped and continued misses one check


def watch(loop: asyncio.AbstractEventLoop, pause: float = 2.0, check_interval: float = 0.5) -> None:
    """Watches the loop from a thread until the loop is closed. Call it in the loop's thread.

    Args:
        loop: the running loop.
        pause: seconds between two probes of the loop.
        check_interval: seconds between two checks whether the loop has responded to a probe.
    """
    arguments = loop, threading.get_ident(), pause, check_interval
    threading.Thread(target=_watch, args=arguments, name="event loop", daemon=True).start()


def _watch(loop: asyncio.AbstractEventLoop, thread: int, pause: float, check_interval: float) -> None:
    while True:
        responded, started = threading.Event(), time.monotonic()
        try:
            loop.call_soon_threadsafe(responded.set)
        except RuntimeError:  # the loop is closed
            return
        checks, where = 0, ""
        while not responded.wait(check_interval):
            checks += 1
            if checks >= _CHECKS and not where and (where := running_line(current_frames().get(thread))):
                log.warning(
                    "the event loop is blocked by %s: calls of the kubelet, probes and all claims wait; `await` slow operations, or "
                    "make the method plain `def`, which runs in a thread",
                    where,
                )
        if where:
            seconds = round(time.monotonic() - started, 3)
            log.warning("the event loop runs again", extra={"duration_s": seconds})
        time.sleep(pause)
