"""Delivers the UIDs of changed pods to any number of listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class Changes:
    """Delivers the UIDs of changed pods. A listener gets the changes that happen after it awaited its first item."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[str]] = set()

    def notify(self, pod_uid: str) -> None:
        for queue in self._listeners:
            queue.put_nowait(pod_uid)

    async def listen(self) -> AsyncIterator[str]:
        """Yields UIDs of changed pods. Never ends."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)
