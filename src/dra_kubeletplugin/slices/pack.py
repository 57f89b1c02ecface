"""Devices in, slices out: a pure function.

A device stays in its slice when others come and go, so that a change touches as few objects as it can. Limits are those of
Kubernetes 1.36, and a size in bytes: a slice of the worst case would come near to what etcd takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..resources.slice_rules import MAX_CONSUMED_COUNTERS, MAX_COUNTER_SETS, MAX_DEVICES, max_devices

MAX_BYTES = 512 * 1024
JSON = Mapping[str, Any]


@dataclass
class SliceContent:
    """What one slice carries: devices, or counter sets; never both (since 1.35). ``key`` is the slice it was in before."""

    devices: list[JSON] = field(default_factory=list)
    counter_sets: list[JSON] = field(default_factory=list)
    key: str | None = None
    _most: int = MAX_DEVICES
    _bytes: int = 0
    _consumed: int = 0

    def take(self, device: _Measured) -> bool:
        """Adds a device if the slice stays within its limits."""
        most = min(self._most, device.most)
        if len(self.devices) >= most or self._bytes + device.bytes > MAX_BYTES:
            return False
        if self._consumed + device.consumed > MAX_CONSUMED_COUNTERS:
            return False
        self.devices.append(device.json)
        self._most = most
        self._bytes += device.bytes
        self._consumed += device.consumed
        return True


class _Measured:
    """A device and what it takes of a slice, found out once: it may be offered to many slices."""

    __slots__ = ("bytes", "consumed", "json", "most")

    def __init__(self, json: JSON) -> None:
        self.json = json
        self.bytes = len(msgspec.json.encode(json))
        self.consumed = sum(len(c["counters"]) for c in json.get("consumesCounters") or [])
        self.most = max_devices([json])


def pack(
    devices: Sequence[JSON], counter_sets: Sequence[JSON] = (), before: Mapping[str, Sequence[str]] | None = None
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
    for device in map(_Measured, devices):
        content = contents.get(home.get(device.json["name"], ""))
        if content is None or not content.take(device):
            rest.append(device)
    filled = [c for c in contents.values() if c.devices]
    spare = [c for c in contents.values() if not c.devices]
    for device in rest:
        for content in filled:
            if content.take(device):
                break
        else:
            # An emptied slice is filled again before a new one is made.
            content = spare.pop(0) if spare else SliceContent()
            content.take(device)
            filled.append(content)
    # Within a slice devices stand in published order, which is the order in which they are given out.
    place = {d["name"]: i for i, d in enumerate(devices)}
    for content in filled:
        content.devices.sort(key=lambda d: place[d["name"]])
    sets = [
        SliceContent(counter_sets=list(counter_sets[i : i + MAX_COUNTER_SETS]))
        for i in range(0, len(counter_sets), MAX_COUNTER_SETS)
    ]
    for content in sets:
        if spare:
            content.key = spare.pop(0).key
    out = sets + filled
    return out or [SliceContent(key=next(iter(before), None))]
