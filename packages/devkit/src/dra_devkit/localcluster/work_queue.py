"""A work queue with the rules of client-go's workqueue.

Each key is in the queue at most once. Only one worker at a time processes a key. Failed keys are retried with backoff.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from dra_kubeletplugin.base.backoff import Backoff
from dra_kubeletplugin.base.telemetry.log_once import LogOnce

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """A queue for one event loop. Keys are returned in the order in which they were added.

    Args:
        first: seconds before the first retry of a key. The pause doubles with each consecutive failure.
        longest: the longest pause in seconds. It is 1,000 s in Kubernetes, which is too long for development.
    """

    def __init__(self, first: float = 0.005, longest: float = 10.0) -> None:
        self._pauses = first, longest
        self._waiting: deque[K] = deque()
        self._dirty: set[K] = set()  # keys to be processed
        self._working: set[K] = set()
        self._failing: dict[K, Backoff] = {}
        self._reported = LogOnce()
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Adds a key. A key that is being processed is processed again afterwards."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._working:
            self._waiting.append(key)
            self._added.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key after some seconds. If the key already waits for an earlier time, that time stays."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if (known := self._later.get(key)) and not known.cancelled():
            if known.when() <= due:
                return
            known.cancel()
        self._later[key] = loop.call_at(due, self._add_due, key)

    def _add_due(self, key: K) -> None:
        self._later.pop(key, None)
        self.add(key)

    def retry(self, key: K) -> float:
        """Adds the key again after its backoff. Returns the pause in seconds."""
        pause = self._failing.setdefault(key, Backoff(*self._pauses)).next()
        self.add_after(key, pause)
        return pause

    def retry_now(self) -> None:
        """Adds every waiting key at once, and resets all failures. Call it when the cause of the failures may have ended."""
        self._failing.clear()
        for key, handle in list(self._later.items()):
            handle.cancel()
            self._add_due(key)

    def forget(self, key: K) -> None:
        """Resets the failures of a key."""
        self._failing.pop(key, None)
        self._reported.forget(str(key))

    async def get(self) -> K:
        """Waits for the next key. Call :meth:`done` after the key is processed."""
        while not self._waiting:
            self._added.clear()
            await self._added.wait()
        key = self._waiting.popleft()
        self._dirty.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._dirty:
            self._waiting.append(key)
            self._added.set()

    def close(self) -> None:
        """Cancels the additions that :meth:`add_after` and :meth:`retry` scheduled."""
        for handle in self._later.values():
            handle.cancel()
        self._later.clear()

    async def work(
        self, reconcile: Callable[[K], Awaitable[None]], failed: Callable[[K, Exception], None], workers: int = 5
    ) -> None:
        """Processes keys. Never returns; only cancellation ends it.

        If ``reconcile`` raises, the key is retried after its pause. ``failed`` is called with the key and the error, once for each
        text until the key succeeds. An error of one key does not affect other keys.
        """

        def retry(key: K, error: Exception) -> None:
            if self._reported.is_new(str(key), f"{type(error).__name__}: {error}"):
                failed(key, error)
            self.retry(key)

        async def worker() -> None:
            while True:
                key = await self.get()
                try:
                    await reconcile(key)
                except asyncio.CancelledError as e:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    retry(key, RuntimeError(f"a task that it waited for was cancelled: {e}"))
                except Exception as e:
                    retry(key, e)
                else:
                    self.forget(key)
                finally:
                    self.done(key)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(workers):
                    tasks.create_task(worker())
        finally:
            self.close()
