"""Waiting for events of an event loop, and a request from any thread that wakes a task."""

from __future__ import annotations

import asyncio
import contextlib


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event at most ``seconds``. Returns whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class Wakeup:
    """Wakes one task that repeats its work. Several requests during the work cause one repetition.

    The task calls :meth:`clear`, does its work, and calls :meth:`wait`.
    """

    def __init__(self) -> None:
        self._wanted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def request(self) -> None:
        """Wakes the task. Safe from any thread. Has no effect before the first :meth:`clear`, because the task then works anyway."""
        if self._loop is None:
            return
        # The loop may be closed: a thread of the vendor's library may live longer than the plugin.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wanted.set)

    def clear(self) -> None:
        """Deletes all requests until now, because the work that begins now fulfils them."""
        self._loop = asyncio.get_running_loop()
        self._wanted.clear()

    async def wait(self, timeout: float) -> bool:
        """Waits for a request. Returns False if there is none within ``timeout`` seconds."""
        return await is_set_within(self._wanted, timeout)
