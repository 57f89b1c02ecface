"""Blocking work done in batches: what arrives while one batch runs becomes the next.

A call for 32 claims is one transaction, and so are 100 calls that come together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
_QUIET = 1.0  # seconds
_MANY = 2000  # batches


class Batcher(Generic[Item]):
    """Runs ``work`` in one thread of its own. It answers one result, or an exception, for each item.

    ``idle`` runs in that thread after a second without work, or after very many batches without one: for what nobody should
    have to wait for.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[Item]], Sequence[Any]],
        idle: Callable[[], None] | None = None,
    ) -> None:
        self._work = work
        self._idle = idle
        self._since_idle = 0
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: list[tuple[Item, asyncio.Future[Any]]] = []
        self._drain: asyncio.Task[None] | None = None
        self.batches = 0

    async def submit(self, item: Item) -> Any:
        """Waits for the item's result, or raises its exception. A cancelled wait does not stop the work."""
        return await self._add(item)

    def post(self, item: Item) -> None:
        """As :meth:`submit`, for an item whose result nobody needs and which raises nothing."""
        self._add(item)

    def _add(self, item: Item) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._timer is not None:
            self._timer.cancel()
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._run())
        return future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(0)  # everything that is ready in this turn of the loop goes together
            batch, self._waiting = self._waiting, []
            self.batches += 1
            try:
                results = await loop.run_in_executor(self._thread, self._work, [item for item, _ in batch])
            except Exception as e:
                results = [e] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.cancelled():
                    continue
                if isinstance(result, StopIteration):  # which no future takes
                    future.set_exception(RuntimeError("the work raised StopIteration"))
                elif isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            self._since_idle += 1
            if self._idle is not None and self._since_idle >= _MANY:
                await self._rest(self._idle)
        if self._idle is not None:
            self._timer = loop.call_later(_QUIET, self._start_rest, self._idle)

    def _start_rest(self, idle: Callable[[], None]) -> None:
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._rest(idle, more=True))

    async def _rest(self, idle: Callable[[], None], *, more: bool = False) -> None:
        self._since_idle = 0
        await asyncio.get_running_loop().run_in_executor(self._thread, idle)
        if more and self._waiting:
            await self._run()

    async def close(self, timeout: float) -> None:
        """Waits up to ``timeout`` seconds for what is under way, then lets the thread end by itself."""
        if self._timer is not None:
            self._timer.cancel()
        if self._drain:
            await asyncio.wait([self._drain], timeout=timeout)
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=False)


class Rendezvous:
    """A meeting of ``count`` tasks before a common step; those that fail earlier leave, late ones are not waited for long."""

    def __init__(self, count: int, patience: float = 0.25) -> None:
        self._missing = count
        self._patience = patience  # seconds after the first has come
        self._all = asyncio.Event()
        self._seen: set[object] = set()
        self._timer: asyncio.TimerHandle | None = None

    def leave(self, who: object) -> None:
        if who not in self._seen:
            self._seen.add(who)
            self._missing -= 1
            if self._missing <= 0:
                self._open()

    async def meet(self, who: object) -> None:
        self.leave(who)
        if not self._all.is_set() and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._open)
        await self._all.wait()

    def _open(self) -> None:
        self._all.set()
        if self._timer is not None:
            self._timer.cancel()
