"""Runs a job once for all callers that wait for it, and limits the share of time that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_PAUSE_FACTOR = 4  # pause after a run, as a multiple of its duration: runs take at most a fifth of the time
_MAX_PAUSE = 0.5  # seconds


class SharedRun(Generic[T]):
    """Runs a job that many clients may request at the same time, such as rendering ``/metrics``.

    A caller never gets a result from before its call: each run serves only callers that were waiting before the run began. Later
    callers share the next run.
    """

    def __init__(self, job: Callable[[], Awaitable[T]]) -> None:
        self._job = job
        self._one = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None
        self._not_before = 0.0  # the loop's time

    async def __call__(self) -> T:
        """Returns the job's result. Raises the job's exception."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_retrieve)
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        now = asyncio.get_running_loop().time
        async with self._one:
            await asyncio.sleep(max(0.0, self._not_before - now()))
            self._next = None
            began = now()
            try:
                return await self._job()
            finally:
                ended = now()
                self._not_before = ended + min((ended - began) * _PAUSE_FACTOR, _MAX_PAUSE)


def _retrieve(task: asyncio.Task[T]) -> None:
    """Retrieves the job's error, because asyncio would log it if all callers were cancelled."""
    if not task.cancelled():
        task.exception()
