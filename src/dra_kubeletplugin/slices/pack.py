"""Devices in, slices out: a pure function.

A device stays in its slice when others come and go, so that a change touches as few objects as it can. Limits are those of
Kubernetes 1.36, and a size in bytes: a slice of the worst case would come near to what etcd takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..publishable import Parcel
from ..resources.slice_rules import MAX_CONSUMED_COUNTERS, MAX_COUNTER_SETS, MAX_DEVICES

MAX_BYTES = 512 * 1024
JSON = Mapping[str, Any]


@dataclass
class SliceContent:
    """What one slice carries: devices, or counter sets; never both (since 1.35). ``key`` is the slice it was in before."""

    devices: list[Parcel] = field(default_factory=list)
    counter_sets: list[JSON] = field(default_factory=list)
    key: str | None = None
    _most: int = MAX_DEVICES
    _bytes: int = 0
    _consumed: int = 0

    def take(self, device: Parcel) -> bool:
        """Adds a device if the slice stays within its limits."""
        if not self.fits(len(device.encoded), device.consumed, device.most):
            return False
        self.devices.append(device)
        self._most = min(self._most, device.most)
        self._bytes += len(device.encoded)
        self._consumed += device.consumed
        return True

    def fits(self, size: int, consumed: int, most: int) -> bool:
        """Whether there is room for a device of so many bytes and counters, of which a slice may have ``most``."""
        return (
            len(self.devices) < min(self._most, most)
            and self._bytes + size <= MAX_BYTES
            and self._consumed + consumed <= MAX_CONSUMED_COUNTERS
        )


def pack(
    devices: Sequence[Parcel], counter_sets: Sequence[JSON] = (), before: Mapping[str, Sequence[str]] | None = None
) -> list[SliceContent]:
    """Slices for a pool.

    Args:
        devices: in published order.
        counter_sets: shared counters of the pool.
        before: slice → names of its devices, in slice order; a slice of counter sets has none.

    An empty pool is one slice with no devices: "the driver is up and has nothing".
    """
    before = before or {}
    home = {name: key for key, names in before.items() for name in names}
    contents = {key: SliceContent(key=key) for key in before}
    rest = []
    for device in devices:
        content = contents.get(home.get(device.name, ""))
        if content is None or not content.take(device):
            rest.append(device)
    filled = [c for c in contents.values() if c.devices]
    spare = [c for c in contents.values() if not c.devices]
    filled += _place(rest, filled, spare)
    # Within a slice devices stand in published order, which is the order in which they are given out.
    place = {d.name: i for i, d in enumerate(devices)}
    for content in filled:
        content.devices.sort(key=lambda d: place[d.name])
    sets = [
        SliceContent(counter_sets=list(counter_sets[i : i + MAX_COUNTER_SETS]))
        for i in range(0, len(counter_sets), MAX_COUNTER_SETS)
    ]
    for content in sets:
        if spare:
            content.key = spare.pop(0).key
    out = sets + filled
    return out or [SliceContent(key=next(iter(before), None))]


def _place(rest: list[Parcel], filled: list[SliceContent], spare: list[SliceContent]) -> list[SliceContent]:
    """Puts each device into the first slice with room for it; answers the slices that were added, taken from ``spare`` first."""
    if not rest:
        return []
    # A slice without room for the least that a device here takes is offered none any more: thousands are looked at once each.
    least = (min(len(d.encoded) for d in rest), min(d.consumed for d in rest), max(d.most for d in rest))
    offered = [c for c in filled if c.fits(*least)]
    added = []
    for device in rest:
        for i, content in enumerate(offered):
            if content.take(device):
                if not content.fits(*least):
                    del offered[i]
                break
        else:
            # An emptied slice is filled again before a new one is made.
            content = spare.pop(0) if spare else SliceContent()
            content.take(device)
            added.append(content)
            offered.append(content)
    return added
