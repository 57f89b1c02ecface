"""Errors for a claim that needs devices, counters or capacity that other claims hold. Each error names the other claims.

They are raised while a transaction of `transitions.py` adds a record.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.text import join_names
from ..errors import DeviceHeldError, OverdrawnError
from .capacity import Shortage
from .record import Row, UnreadableRecord

_NAMED = 4  # holders that a message lists


class HeldByError(DeviceHeldError):
    """Another claim holds a device; ``holders`` are the records of the claims that hold it."""

    def __init__(self, device: str, holders: Sequence[Row]) -> None:
        self.device = device
        self.holders = holders
        first = holders[0]
        if isinstance(first, UnreadableRecord):
            rest = f"whose record cannot be read ({first.reason}): see `dra claims`"
        else:
            rest = f"which is {first.state}: the device is free when that claim's pod has stopped"
        super().__init__(f"device {device} is still held by claim {first.shown}, {rest}")


class OverdrawnByError(OverdrawnError):
    """Counters or capacity do not suffice; ``holders`` are the records of the claims that take them."""

    def __init__(self, shortage: Shortage, holders: Sequence[Row]) -> None:
        self.shortage = shortage
        self.holders = holders
        shown = [f"{h.shown}{' (amount unknown)' if h.uid in shortage.unknown else ''}" for h in holders]
        by = f" by claim{'s' if len(holders) > 1 else ''} {join_names(shown, _NAMED)}: this amount is free when their pods have stopped"
        super().__init__(f"device {', '.join(shortage.devices)}: {shortage}{by if holders else ''}")
