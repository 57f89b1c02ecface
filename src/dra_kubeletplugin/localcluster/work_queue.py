"""Keys that have to be worked on: each once, never two workers on one, with a pause of its own after each failure.

Source: client-go's workqueue, whose rules these are.
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
    """Seconds. The pause before a key is tried again doubles with each failure in a row.

    ``longest`` is 1,000 s in Kubernetes; who develops does not want to wait for that.
    """

    first: float = 0.005
    longest: float = 10.0

    def pause(self, failures: int) -> float:
        return min(self.longest, self.first * 2.0 ** min(failures, 40))


class WorkQueue(Generic[K]):
    """Must be made and used in one event loop. Keys come out in the order in which they went in."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.backoff = backoff or Backoff()
        self._waiting: deque[K] = deque()
        self._dirty: set[K] = set()  # to be worked on
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """A key that is being worked on is worked on again afterwards."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._working:
            self._waiting.append(key)
            self._news.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key later; the earliest of several times counts."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if (known := self._later.get(key)) and not known.cancelled():
            if known.when() <= due:
                return
            known.cancel()
        self._later[key] = loop.call_at(due, self._ripe, key)

    def _ripe(self, key: K) -> None:
        self._later.pop(key, None)
        self.add(key)

    def retry(self, key: K) -> float:
        """Adds the key after its pause, and answers that."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = self.backoff.pause(failures)
        self.add_after(key, pause)
        return pause

    def forget(self, key: K) -> None:
        """The key has no failures any more."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; :meth:`done` must follow."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        key = self._waiting.popleft()
        self._dirty.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._dirty:
            self._waiting.append(key)
            self._news.set()

    def close(self) -> None:
        """Forgets what was to come later."""
        for handle in self._later.values():
            handle.cancel()
        self._later.clear()

    async def work(
        self, reconcile: Callable[[K], Awaitable[None]], failed: Callable[[K, Exception], None], workers: int = 5
    ) -> None:
        """Never returns. A key whose ``reconcile`` raises is told to ``failed`` and tried again after its pause.

        Only the end of the task ends it: what a key does to ``reconcile`` concerns no other key.
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
                    failed(key, RuntimeError(f"something that was waited for was cancelled: {e}"))
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


__all__ = ["Backoff", "WorkQueue"]
