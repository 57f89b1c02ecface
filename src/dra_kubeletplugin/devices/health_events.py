"""Writes an Event on the Node when devices become unhealthy and when they recover. The Event contains the driver's text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from ..base.text import join_names, natural
from ..kube.event_recorder import EventRecorder, node_subject
from .inventory import Inventory
from .pool_state import DeviceKey

_MAX_EVENTS = 10  # Events for devices that change at the same time; devices with further texts share one more Event
# Different texts of one device within _PERIOD. Later Events about the device have the text _OFTEN, so that Kubernetes aggregates them.
_MAX_TEXTS = 3
_PERIOD = 3600.0  # seconds
_OFTEN = "the text changes often, and `dra top` shows the last one"
Reasons = Mapping[DeviceKey, str]  # the driver's text for each unhealthy device


class HealthEvents:
    """Writes one Event about ``node`` for all devices that change at the same time with the same text.

    The event recorder limits the rate of Events. A device whose text changes often would use up this rate, and the Events of other
    devices would wait for hours. So the Events of such a device get a constant text.
    """

    def __init__(
        self, events: EventRecorder, inventory: Inventory, node: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._events = events
        self._inventory = inventory
        self._node = node_subject(node)
        self._reported: Reasons = {}
        self._texts: dict[DeviceKey, dict[str, float]] = {}  # the texts of a device with the time of their first use

    async def run(self) -> None:
        """Writes the Events. Never returns; external failures do not stop it."""
        while True:
            seen = self._inventory.health_version
            self.check()
            await self._inventory.health_changed(seen)

    def check(self) -> None:
        """Queues Events for the changes since the last check."""
        before, now = self._reported, self._inventory.unhealthy()
        self._reported = now
        failed = {key: reason for key, reason in now.items() if before.get(key) != reason}
        # A device that was removed has not recovered.
        recovered = {k: r for k, r in before.items() if k not in now and self._inventory.get(k.device, k.pool)}
        self._note(failed)
        for names, be, reason in self._grouped(failed):
            self._events.warn(self._node, "DeviceUnhealthy", f"{names} {be} unhealthy: {reason}")
        for names, be, reason in self._grouped(recovered):
            self._events.inform(self._node, "DeviceHealthy", f"{names} {be} healthy again; {_was(reason)}")

    def _note(self, failed: Reasons) -> None:
        now = self._clock()
        for key, reason in failed.items():
            recent = {text: at for text, at in self._texts.get(key, {}).items() if at > now - _PERIOD}
            if reason not in recent and len(recent) < _MAX_TEXTS:
                recent[reason] = now
            self._texts[key] = recent
        self._texts = {k: texts for k, texts in self._texts.items() if self._inventory.get(k.device, k.pool)}

    def _grouped(self, reasons: Reasons) -> Iterator[tuple[str, str, str]]:
        """Groups devices by text. Yields the names of a group, the verb ("is" or "are"), and the text."""
        groups: dict[str, list[str]] = {}
        for key, last in reasons.items():
            reason = last if last in self._texts.get(key, ()) else _OFTEN
            text = reason if reason in groups or len(groups) < _MAX_EVENTS else "other faults, which `dra top` shows"
            groups.setdefault(text, []).append(self._inventory.shown(key.pool, key.device))
        for reason, names in groups.items():
            yield join_names(sorted(names, key=natural)), "is" if len(names) == 1 else "are", reason


def _was(reason: str) -> str:
    return reason if reason == _OFTEN else f"the fault was: {reason}"
