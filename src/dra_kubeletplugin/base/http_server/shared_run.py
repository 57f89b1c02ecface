"""Runs a job once for all callers that wait for it, and limits the share of time that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_PAUSES = 4  # times a run's duration until the next may begin: a fifth of the time at most
_LONGEST_PAUSE = 0.5  # seconds


class SharedRun(Generic[T]):
    """Calls of a job that many clients may request at the same time, such as rendering ``/metrics``.

    The result is never older than the call: a run serves the callers that came before it began. Later callers share the next run.
    """

    def __init__(self, job: Callable[[], Awaitable[T]]) -> None:
        self._job = job
        self._one = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None
        self._not_before = 0.0  # the loop's time

    async def __call__(self) -> T:
        """Raises what the job raises."""
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
                self._not_before = ended + min((ended - began) * _PAUSES, _LONGEST_PAUSE)


def _retrieve(task: asyncio.Task[T]) -> None:
    """asyncio logs an error that is not retrieved; the callers may all have gone."""
    if not task.cancelled():
        task.exception()


__all__ = ["SharedRun"]
