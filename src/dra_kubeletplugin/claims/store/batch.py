"""Blocking work done in batches: what arrives while one batch runs becomes the next.

A call for 32 claims is one transaction, and so are 100 calls that come together.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ...errors import RecordsError

Item = TypeVar("Item")
_QUIET = 0.1  # seconds
_LATEST = 1.0  # seconds


class Batcher(Generic[Item]):
    """Runs ``work`` in one thread of its own. It answers one result, or an exception, for each item.

    ``idle`` runs in that thread after a moment without work, or between two batches where there is none for long: for what
    nobody should have to wait for. Used from one event loop; the thread is made with the first item, and holds up no end of the
    process.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[Item]], Sequence[Any]],
        idle: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._work = work
        self._idle = idle
        self._waiting: list[tuple[Item, asyncio.Future[Any]]] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._quiet = asyncio.Event()  # set while the thread has nothing to do
        self._quiet.set()
        self._timer: asyncio.TimerHandle | None = None
        self._unrested = math.inf  # the loop's time of the first batch since the last rest
        self._closed = False
        self.batches = 0

    def submit(self, item: Item) -> asyncio.Future[Any]:
        """The item's result, or its exception; :class:`RecordsError` after the end. A cancelled wait does not stop the work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._closed:
            future.set_exception(RecordsError(f"{self._name}: closed, because the plugin stops"))
            return future
        self._waiting.append((item, future))
        if self._quiet.is_set():
            self._quiet.clear()
            if self._timer is not None:
                self._timer.cancel()
            loop.call_soon(self._send, loop)  # everything that is ready in this turn of the loop goes together
        return future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting, []
        self.batches += 1
        self._unrested = min(self._unrested, loop.time())
        items = [item for item, _ in batch]

        def job() -> None:
            try:
                results = self._work(items)
            except BaseException as e:  # nothing may end the thread
                results = [e] * len(items)
            self._hand_over(loop, lambda: self._deliver(loop, batch, results))

        self._run(job)

    def _deliver(
        self, loop: asyncio.AbstractEventLoop, batch: Sequence[tuple[Item, asyncio.Future[Any]]], results: Sequence[Any]
    ) -> None:
        for (_, future), result in zip(batch, results, strict=True):
            if future.cancelled():
                continue
            if isinstance(result, StopIteration):  # which no future takes
                future.set_exception(RuntimeError("the work raised StopIteration"))
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        if self._idle is not None and loop.time() - self._unrested > _LATEST:
            self._rest(loop, self._idle)
        else:
            self._next(loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting:
            self._send(loop)
            return
        self._quiet.set()
        if self._idle is not None and self._unrested < math.inf and not self._closed:
            self._timer = loop.call_later(_QUIET, self._rest, loop, self._idle)

    def _rest(self, loop: asyncio.AbstractEventLoop, idle: Callable[[], None]) -> None:
        self._quiet.clear()
        self._unrested = math.inf

        def job() -> None:
            with contextlib.suppress(Exception):  # who waits for nothing is told nothing
                idle()
            self._hand_over(loop, lambda: self._next(loop))

        self._run(job)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    @staticmethod
    def _hand_over(loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done)

    async def close(self, timeout: float, last: Callable[[], None] = lambda: None) -> None:
        """Waits up to ``timeout`` seconds for what is under way and for ``last``, which the thread does before it ends."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def job() -> None:
            with contextlib.suppress(Exception):
                last()
            self._hand_over(loop, ended.set)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
                self._end(job)
                if self._thread is not None:
                    await ended.wait()
        if not self._closed:  # the thread may hang: what it has in use is not to be touched
            self._end(job)

    def _end(self, job: Callable[[], None]) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._jobs.put(job)
        self._jobs.put(None)


class BatchWindow:
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
