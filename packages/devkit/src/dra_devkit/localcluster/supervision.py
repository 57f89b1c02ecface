"""Runs the components of the local cluster in one task group. If a component ends by itself, all components end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any


class ComponentEnded(Exception):
    """A component of the local cluster ended by itself. If the component raised an exception, that exception is ``__cause__``."""


class Supervisor:
    """Runs components as tasks. Use it with ``async with``.

    If a component ends by itself, the body of the ``async with`` block is cancelled, and the block raises :class:`ComponentEnded`.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Supervisor:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        for task in self._tasks:
            task.cancel()
        if not isinstance(exc[1], asyncio.CancelledError):
            exc = (None, None, None)  # an exception of the block propagates by itself
        try:
            await self._group.__aexit__(*exc)
        except BaseExceptionGroup as group:
            ended, others = group.split(ComponentEnded)
            if ended is not None and others is None:
                raise ended.exceptions[0] from ended.exceptions[0].__cause__
            raise

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Starts a component. To end the component, cancel its task or pass the task to :meth:`stop`."""

        async def guarded() -> None:
            try:
                await run()
            except Exception as e:
                raise ComponentEnded(f"{name} failed: {type(e).__name__}: {e}") from e
            raise ComponentEnded(f"{name} ended unexpectedly")

        task = self._group.create_task(guarded(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def stop(task: asyncio.Task[None]) -> None:
        """Cancels a component and waits until it has ended."""
        task.cancel()
        with contextlib.suppress(ComponentEnded):
            await asyncio.wait([task])
