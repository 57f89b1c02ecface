"""Writes Events on the Node about devices that are not published: one Event for all devices with the same reason."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

from ...base.text import join_names, names_by_reason
from ...kube.event_recorder import EventRecorder, node_subject
from ..inventory import Inventory

_MAX_EVENTS = 10  # reasons with their own Event
_AGAIN = 3000.0  # seconds until an Event is written again, because the API server deletes an Event after an hour
_RETRY = 60.0  # seconds until an Event that could not be written is tried again


class RejectionEvents:
    """Writes the Events about ``node``. If the API server rejects an Event, it is retried; nothing else depends on it."""

    def __init__(self, events: EventRecorder, inventory: Inventory, node: str) -> None:
        self._events = events
        self._inventory = inventory
        self._node = node_subject(node)
        self._written: set[str] = set()

    async def run(self) -> None:
        """Writes the Events. Never returns; external failures do not stop it."""
        while True:
            seen = self._inventory.version
            complete = self._inventory.update_pending or await self._write_events(list(self._texts()))
            wait = _AGAIN if complete else _RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait * random.uniform(0.8, 1.0)):
                    await self._inventory.changed(seen)
                    continue
            if complete:
                self._written = set()

    def _texts(self) -> Iterator[str]:
        names = names_by_reason(self._inventory.rejected)
        for reason in list(names)[:_MAX_EVENTS]:
            yield f"{join_names(names[reason])} {'is' if len(names[reason]) == 1 else 'are'} not published: {reason}"
        if len(names) > _MAX_EVENTS:
            yield "more devices are not published: see the readiness of the driver's plugin, /readyz"

    async def _write_events(self, texts: list[str]) -> bool:
        self._written &= set(texts)
        for text in texts:
            if text not in self._written:
                if not await self._events.write(self._node, "DeviceNotPublished", text):
                    return False
                self._written.add(text)
        return True
