"""A work queue with the rules of client-go's workqueue.

Each key is in the queue at most once. Only one worker at a time processes a key. Failed keys are retried with backoff.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Backoff:
    """The pause in seconds before a key is retried. It doubles with each consecutive failure.

    ``longest`` is 1,000 s in Kubernetes, which is too long for development.
    """

    first: float = 0.005
    longest: float = 10.0

    def pause(self, failures: int) -> float:
        return min(self.longest, self.first * 2.0 ** min(failures, 40))


class WorkQueue(Generic[K]):
    """A queue for one event loop. Keys are returned in the order in which they were added."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.backoff = backoff or Backoff()
        self._waiting: deque[K] = deque()
        self._dirty: set[K] = set()  # keys to be processed
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
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
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = self.backoff.pause(failures)
        self.add_after(key, pause)
        return pause

    def retry_now(self) -> None:
        """Adds every waiting key at once, and resets all failures. Call it when the cause of the failures may have ended."""
        self._failures.clear()
        for key, handle in list(self._later.items()):
            handle.cancel()
            self._add_due(key)

    def forget(self, key: K) -> None:
        """Resets the failures of a key."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

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

        If ``reconcile`` raises, ``failed`` is called with the key and the error, and the key is retried after its
        pause. An error of one key does not affect other keys.
        """

        async def worker() -> None:
            while True:
                key = await self.get()
                try:
                    await reconcile(key)
                except asyncio.CancelledError as e:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    failed(key, RuntimeError(f"a task that it waited for was cancelled: {e}"))
                    self.retry(key)
                except Exception as e:
                    failed(key, e)
                    self.retry(key)
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
