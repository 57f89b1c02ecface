"""One call of an asynchronous function whose result concurrent callers share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_MAX_PAUSE = 0.5  # seconds


class SharedCall(Generic[T]):
    """Runs one call for several callers. Callers that arrive before the call begins, or that accept an earlier result, share its result.

    A caller that is cancelled does not cancel the call.

    Args:
        call: the function. It ends within a bounded time.
        name: name of the task, for debuggers.
        keep: seconds for which :meth:`since` can still return a result after its call ended.
        pause: if given, at most one call runs at a time, and the pause between two calls is this multiple of the duration of the first
            one, at most 0.5 s. With 4, calls of up to 0.125 s take at most a fifth of the time.
    """

    def __init__(self, call: Callable[[], Awaitable[T]], name: str, keep: float = 0.0, pause: float = 0.0) -> None:
        self._call = call
        self._name = name
        self._keep = keep
        self._pause = pause
        self._began = math.inf  # when the last call began; infinite during the pause before it
        self._not_before = 0.0
        self._task: asyncio.Task[T] | None = None

    async def fresh(self) -> T:
        """Returns the result of a call that begins now or later. Raises the call's exception."""
        return await self.since(asyncio.get_running_loop().time())

    async def since(self, when: float) -> T:
        """Returns the result of a call that began at ``when`` or later, in event loop time. Raises the call's exception."""
        while (task := self._task) and self._pause and self._began < when and not task.done():
            await asyncio.wait({task})
        if task is None or self._began < when or (task.done() and (task.cancelled() or task.exception())):
            task = self._new()
        return await asyncio.shield(task)

    def begin(self) -> asyncio.Task[T]:
        """Returns the task of the call in progress, or of a new one. Shield it: a cancelled caller must not cancel the call."""
        return self._task if self._task is not None and not self._task.done() else self._new()

    async def close(self) -> None:
        """Cancels the call in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _new(self) -> asyncio.Task[T]:
        self._began = math.inf
        self._task = task = asyncio.create_task(self._run(), name=self._name)
        task.add_done_callback(self._ended)
        return task

    async def _run(self) -> T:
        now = asyncio.get_running_loop().time
        if (pause := self._not_before - now()) > 0:
            await asyncio.sleep(pause)
        self._began = began = now()
        try:
            return await self._call()
        finally:
            self._not_before = now() + min((now() - began) * self._pause, _MAX_PAUSE)

    def _ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio would log an exception that no caller retrieves
            task.get_loop().call_later(self._keep, self._forget, task)

    def _forget(self, task: asyncio.Task[T]) -> None:
        if self._task is task:
            self._task = None
