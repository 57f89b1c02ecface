"""Holds an async context manager in a task of its own, so that one task may request its entry and another task its exit."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class Hosted(Generic[T]):
    """Enters and leaves ``manager`` in one separate task: asyncio requires that the same task enters and leaves a task group or timeout."""

    def __init__(self, manager: AbstractAsyncContextManager[T], name: str) -> None:
        self._manager = manager
        self._name = name
        self._leave_requested = asyncio.Event()
        self._entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(), name=name)

    async def enter(self) -> T:
        """Enters the manager and returns its value. Raises its exception."""
        try:
            return await asyncio.shield(self._entered)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            raise

    async def leave(self) -> None:
        """Leaves the manager. Raises its exception, also if it ended by itself earlier."""
        self._leave_requested.set()
        await self._task

    def check(self) -> None:
        """Raises the manager's exception if it has ended by itself."""
        if self._task.done() and not self._leave_requested.is_set():
            self._task.result()
            raise RuntimeError(f"{self._name} has ended")

    async def _hold(self) -> None:
        try:
            async with self._manager as value:
                self._entered.set_result(value)
                await self._leave_requested.wait()
        except BaseException as e:
            if self._entered.done():
                raise
            self._entered.set_exception(e)
