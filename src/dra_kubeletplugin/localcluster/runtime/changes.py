"""Tells any number of listeners which pods have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class Changes:
    """A listener hears what happens from the moment it asks for the next item the first time."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[str]] = set()

    def tell(self, pod_uid: str) -> None:
        for queue in self._listeners:
            queue.put_nowait(pod_uid)

    async def listen(self) -> AsyncIterator[str]:
        """Never ends."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)


__all__ = ["Changes"]
