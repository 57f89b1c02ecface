"""Tells on the Node which devices are not published, where an operator looks: one Event for each, the same for the same fault."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

from ...kube.event_recorder import EventRecorder, node_subject
from ..inventory import Inventory

_MOST = 10  # devices that are named one by one
_AGAIN = 3000.0  # seconds; the server forgets an Event after an hour
_RETRY = 60.0


class RejectionEvents:
    """Events about ``node``. A server that refuses them costs the Events alone."""

    def __init__(self, events: EventRecorder, inventory: Inventory, node: str) -> None:
        self._events = events
        self._inventory = inventory
        self._node = node_subject(node)
        self._told: set[str] = set()

    async def run(self) -> None:
        """Never returns; no fault from outside ends it."""
        while True:
            seen = self._inventory.version
            whole = self._inventory.answer_follows or await self._tell(list(self._texts()))
            wait = _AGAIN if whole else _RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait * random.uniform(0.8, 1.0)):
                    await self._inventory.changed(seen)
                    continue
            if whole:
                self._told = set()

    def _texts(self) -> Iterator[str]:
        left_out = sorted(self._inventory.left_out.items())
        for name, reason in left_out[:_MOST]:
            yield f"{name} is not published: {reason}"
        if len(left_out) > _MOST:
            yield "more devices are not published: see the readiness of the driver's plugin, /readyz"

    async def _tell(self, texts: list[str]) -> bool:
        self._told &= set(texts)
        for text in texts:
            if text not in self._told:
                if not await self._events.write(self._node, "DeviceNotPublished", text):
                    return False
                self._told.add(text)
        return True
