"""Lets the claims of one call reach the record thread together, so that their records are one write."""

from __future__ import annotations

import asyncio


class BatchWindow:
    """A barrier for ``count`` tasks. It opens when each task waits or has left, or ``max_wait`` seconds after the first wait."""

    def __init__(self, count: int, max_wait: float = 0.25) -> None:
        self._missing = count
        self._max_wait = max_wait  # seconds after the first task has arrived
        self._all = asyncio.Event()
        self._seen: set[object] = set()
        self._timer: asyncio.TimerHandle | None = None

    def leave(self, task: object) -> None:
        if task not in self._seen:
            self._seen.add(task)
            self._missing -= 1
            if self._missing <= 0:
                self._open()

    async def wait(self, task: object) -> None:
        self.leave(task)
        if not self._all.is_set() and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._max_wait, self._open)
        await self._all.wait()

    def _open(self) -> None:
        self._all.set()
        if self._timer is not None:
            self._timer.cancel()
