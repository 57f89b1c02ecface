"""One call of an asynchronous function whose result concurrent callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Runs at most one call at a time. Callers that arrive meanwhile get the same result or exception.

    A caller that is cancelled does not cancel the call.

    Args:
        call: the function. It ends within a bounded time.
        name: name of the task, for debuggers.
        keep: seconds for which :meth:`since` can still return a result after its call ended.
    """

    def __init__(self, call: Callable[[], Awaitable[T]], name: str, keep: float = 0.0) -> None:
        self._call = call
        self._name = name
        self._keep = keep
        self._began = 0.0
        self._task: asyncio.Task[T] | None = None

    async def since(self, when: float) -> T:
        """Returns the result of a call that began at ``when`` or later, in event loop time. Raises the call's exception."""
        task = self._task
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
        async def run() -> T:
            return await self._call()

        loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._task = task = loop.create_task(run(), name=self._name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio would log an exception that no caller retrieves
            task.get_loop().call_later(self._keep, self._forget, task)

    def _forget(self, task: asyncio.Task[T]) -> None:
        if self._task is task:
            self._task = None
