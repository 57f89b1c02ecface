"""Tells which line holds the event loop: an ``async def`` of a driver that blocks keeps the kubelet, probes and all claims waiting."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time

from ...driver.diagnostics.author_errors import at_work

log = logging.getLogger(__name__)
_PAUSE = 2.0  # seconds between questions,
_LOOK = 0.5  # between looks whether one is answered,
_LOOKS = 4  # and looks without an answer after which it is told: a process that was stopped meanwhile has but one


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """From a thread of its own, until the loop is closed. To be called in the loop's thread."""
    threading.Thread(target=_watch, args=(loop, threading.get_ident()), name="event loop", daemon=True).start()


def _watch(loop: asyncio.AbstractEventLoop, thread: int) -> None:
    while True:
        answered, asked = threading.Event(), time.monotonic()
        try:
            loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # it is closed
            return
        looks, where = 0, ""
        while not answered.wait(_LOOK):
            looks += 1
            if looks >= _LOOKS and not where and (where := at_work(sys._current_frames().get(thread))):
                log.warning(
                    "the event loop is held by %s: the kubelet, probes and all claims wait for it: `await` what takes long, or make "
                    "the method plain `def`, which runs in a thread",
                    where,
                )
        if where:
            log.warning("the event loop goes on, after %.0f s or more", time.monotonic() - asked)
        time.sleep(_PAUSE)
