"""Runs blocking work in batches: items that arrive while a batch runs form the next batch.

So a call for 32 claims is one transaction, and so are 100 calls that arrive together.
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
_QUIET = 0.1  # seconds without work before ``idle`` runs
_LATEST = 1.0  # seconds of continuous work before ``idle`` runs between two batches


class Batcher(Generic[Item]):
    """Runs ``work`` in a thread of its own. ``work`` returns one result or exception for each item.

    ``idle`` runs in that thread after a short time without work, or between two batches under continuous load. It is for work that
    no call should wait for. Use a batcher from one event loop. The thread starts with the first item and does not delay process exit.
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
        self._first_since_idle = math.inf  # loop time of the first batch since ``idle`` last ran
        self._closed = False
        self.batches = 0

    def submit(self, item: Item) -> asyncio.Future[Any]:
        """Returns a future with the item's result or exception; :class:`RecordsError` after :meth:`close`.

        Cancelling the future does not stop the work.
        """
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
            loop.call_soon(self._send, loop)  # all items submitted in this iteration of the loop form one batch
        return future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting, []
        self.batches += 1
        self._first_since_idle = min(self._first_since_idle, loop.time())
        items = [item for item, _ in batch]

        def job() -> None:
            try:
                results = self._work(items)
            except BaseException as e:  # no exception may end the thread
                results = [e] * len(items)
            self._hand_over(loop, lambda: self._deliver(loop, batch, results))

        self._run(job)

    def _deliver(
        self, loop: asyncio.AbstractEventLoop, batch: Sequence[tuple[Item, asyncio.Future[Any]]], results: Sequence[Any]
    ) -> None:
        for (_, future), result in zip(batch, results, strict=True):
            if future.cancelled():
                continue
            if isinstance(result, StopIteration):  # a future does not accept StopIteration
                future.set_exception(RuntimeError("the work raised StopIteration"))
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        if self._idle is not None and loop.time() - self._first_since_idle > _LATEST:
            self._run_idle(loop, self._idle)
        else:
            self._next(loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting:
            self._send(loop)
            return
        self._quiet.set()
        if self._idle is not None and self._first_since_idle < math.inf and not self._closed:
            self._timer = loop.call_later(_QUIET, self._run_idle, loop, self._idle)

    def _run_idle(self, loop: asyncio.AbstractEventLoop, idle: Callable[[], None]) -> None:
        self._quiet.clear()
        self._first_since_idle = math.inf

        def job() -> None:
            with contextlib.suppress(Exception):  # no caller waits for this work
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(done)

    async def close(self, timeout: float, last: Callable[[], None] = lambda: None) -> None:
        """Waits up to ``timeout`` seconds for running work, then for ``last``, which the thread runs before it ends."""
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
        if not self._closed:  # the thread may hang: objects that it uses must not be touched
            self._end(job)

    def _end(self, job: Callable[[], None]) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._jobs.put(job)
        self._jobs.put(None)
