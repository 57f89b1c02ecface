"""Reports faults of claims in use as events on the claim, on its pods and on the node.

A fault is a record that cannot be read, or a device of a prepared claim that vanished or became unhealthy. A repair of the
records is an event on the node. Failed operations are reported by other code: the kubelet writes the event of a failed prepare, and
`rollback.py` the event of a failed rollback or unprepare.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

from ..devices.inventory import Inventory
from ..errors import RecordsError, printable
from ..kube.event_recorder import EventRecorder, Subject, claim_subject, node_subject
from .record import Row, State, UnreadableRecord
from .waits import Waits

Alert = tuple[Subject, str, str]  # the claim, the event's reason, the event's text


class Alerts:
    """Reports the faults of one instance: once when a fault begins, and again when it returns after it had ended.

    Args:
        rows: returns every row of the records; may raise :class:`RecordsError`.
        repaired: sentences about repairs of the records; the sequence only grows.
    """

    def __init__(
        self,
        events: EventRecorder,
        inventory: Inventory,
        node: str,
        rows: Callable[[], Awaitable[Sequence[Row]]],
        repaired: Sequence[str],
        waits: Waits,
    ) -> None:
        self._events = events
        self._inventory = inventory
        self._node = node_subject(node)
        self._rows = rows
        self._repaired = repaired
        self._waits = waits
        self._reported: set[Alert] = set()
        self._reported_repairs = 0

    async def run(self) -> None:
        """Checks for faults for ever. Never returns, and no external failure ends it."""
        while True:
            seen, pause = self._inventory.health_version, self._waits.alerts
            try:
                await self.check()
            except RecordsError:  # readiness reports it
                pause = self._waits.alerts_retry
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    while True:  # skips reports without a fault, if no fault was reported before
                        seen = await self._inventory.health_changed(seen)
                        if self._reported or self._inventory.has_faults:
                            break

    async def check(self) -> None:
        """Records events for faults that are new since the last check. Raises :class:`RecordsError`."""
        for sentence in self._repaired[self._reported_repairs :]:
            self._events.warn(self._node, "RecordsDamaged", sentence)
        self._reported_repairs = len(self._repaired)
        found = {alert for row in await self._rows() for alert in self._faults(row)}
        for alert in sorted(found - self._reported):
            self._events.warn_claim(*alert)
        self._reported = found

    def _faults(self, row: Row) -> Iterator[Alert]:
        if isinstance(row, UnreadableRecord):
            claim = claim_subject(str(row.raw.get("namespace") or ""), str(row.raw.get("name") or ""), row.uid)
            text = f"the record of this claim on the node cannot be read, so its devices stay held: {row.reason}"
            yield claim, "RecordUnreadable", text
        elif row.state is State.PREPARED:
            claim = claim_subject(row.namespace, row.name, row.uid)
            for device in row.devices:
                pool, name = device["pool"], device["device"]
                shown = printable(f"{pool}/{name}")
                if self._inventory.find(name, pool) is not None and self._inventory.get(name, pool) is None:
                    yield claim, "DeviceVanished", f"device {shown} of this claim is no longer on the node"
                elif not self._inventory.healthy(name, pool):
                    reason = self._inventory.unhealthy_reason(name, pool)
                    yield claim, "DeviceUnhealthy", f"device {shown} of this claim is unhealthy: {reason}"
