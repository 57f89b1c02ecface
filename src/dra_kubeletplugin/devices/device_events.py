"""Writes Events on the Node about devices: which are unhealthy, healthy again, or not published. Devices with one text share an Event."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

from ..base.telemetry.log_once import LogOnce
from ..base.text import join_names, names_by_reason
from ..kube.event_recorder import EventRecorder, node_subject
from .inventory import Inventory
from .pool_state import DeviceKey

_MAX_EVENTS = 10  # texts with their own Event; devices with further texts share one more Event
_AGAIN = 3000.0  # seconds until the Event about a device that is not published is repeated, because Events are deleted after an hour
_CHECK = 300.0  # seconds between checks without a change


class DeviceEvents:
    """Queues the Events about ``node``. The recorder writes them, and limits their rate."""

    def __init__(self, events: EventRecorder, inventory: Inventory, node: str) -> None:
        self._events = events
        self._inventory = inventory
        self._node = node_subject(node)
        self._unhealthy: Mapping[DeviceKey, str] = {}
        self._reported = LogOnce(_AGAIN)

    async def run(self) -> None:
        """Queues the Events. Never returns."""
        while True:
            seen = self._inventory.health_version
            self.check()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK):
                    await self._inventory.health_changed(seen)

    def check(self) -> None:
        """Queues Events for the changes since the last check."""
        before, now = self._unhealthy, self._inventory.unhealthy()
        self._unhealthy = now
        failed = {key: reason for key, reason in now.items() if before.get(key) != reason}
        # A device that was removed has not recovered.
        recovered = {k: r for k, r in before.items() if k not in now and self._inventory.get(k.device, k.pool)}
        for subject, reason in _sentences(self._named(failed), "other faults, which `dra top` shows"):
            self._events.warn(self._node, "DeviceUnhealthy", f"{subject} unhealthy: {reason}")
        for subject, reason in _sentences(self._named(recovered), "other faults"):
            self._events.inform(self._node, "DeviceHealthy", f"{subject} healthy again; the fault was: {reason}")
        for subject, reason in _sentences(self._inventory.rejected, "other reasons, which /readyz of the plugin shows"):
            if self._reported.is_new(f"{subject} not published: {reason}"):
                self._events.warn(self._node, "DeviceNotPublished", f"{subject} not published: {reason}")

    def _named(self, reasons: Mapping[DeviceKey, str]) -> dict[str, str]:
        return {self._inventory.shown(key.pool, key.device): reason for key, reason in reasons.items()}


def _sentences(reasons: Mapping[str, str], others: str) -> Iterator[tuple[str, str]]:
    """Yields the names of devices with one reason, with "is" or "are", and the reason. ``others`` replaces the reasons above the limit."""
    own = list(names_by_reason(reasons))[:_MAX_EVENTS]
    limited = {name: reason if reason in own else others for name, reason in reasons.items()}
    for reason, names in names_by_reason(limited).items():
        yield f"{join_names(names)} {'is' if len(names) == 1 else 'are'}", reason
