"""Async context managers that one task enters and another leaves."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class Hosted(Generic[T]):
    """``manager`` entered in a task of its own: task groups and time-outs in it belong to the task that entered them."""

    def __init__(self, manager: AbstractAsyncContextManager[T], name: str) -> None:
        self._manager = manager
        self._name = name
        self._over = asyncio.Event()
        self._entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(), name=name)

    async def enter(self) -> T:
        """What the manager gives. Raises what it raises."""
        try:
            return await asyncio.shield(self._entered)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            raise

    async def leave(self) -> None:
        """Leaves it. Raises what it raises, also where it ended by itself before."""
        self._over.set()
        await self._task

    def check(self) -> None:
        """Raises what ended it by itself."""
        if self._task.done() and not self._over.is_set():
            self._task.result()
            raise RuntimeError(f"{self._name} has ended")

    async def _live(self) -> None:
        try:
            async with self._manager as value:
                self._entered.set_result(value)
                await self._over.wait()
        except BaseException as e:
            if self._entered.done():
                raise
            self._entered.set_exception(e)
