"""Packs devices into slices, as a pure function.

A slice has at most 128 devices, or 64 if one of them has taints, consumed counters or list attributes, in every release. For a node
plugin whose driver reports health, the limit is always 64, because each device may get a taint. The size in bytes is limited too,
because the largest valid slice comes close to the limit of etcd.

A device stays in its slice when other devices are added or removed, so that a change writes few objects. If all slices are written
anyway, ``sync.py`` passes no previous slices, and the devices are in the driver's order of devices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...base.json_types import ReadOnlyJSON
from ...resourceapi.validation.slices import MAX_CONSUMED_COUNTERS, MAX_COUNTER_SETS, MAX_DEVICES_IN_SLICE
from ..validation import DeviceEntry

MAX_BYTES = 512 * 1024  # of the devices in a slice as JSON
_TRIED_SLICES = 8  # slices with free capacity that are tried for a device before a new slice is created


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """The names of the devices or counter sets in a published slice."""

    devices: Sequence[str] = ()
    counter_sets: Sequence[str] = ()


@dataclass(slots=True)
class WantedSlice:
    """One slice as it should be, with devices or counter sets, never both (since 1.35).

    ``name`` is the name of the existing slice that gets this content; None for a new slice.
    """

    devices: list[DeviceEntry] = field(default_factory=list)
    counter_sets: list[ReadOnlyJSON] = field(default_factory=list)
    name: str | None = None
    limit: int = MAX_DEVICES_IN_SLICE
    _bytes: int = 0
    _consumed: int = 0

    def try_add(self, device: DeviceEntry) -> bool:
        """Adds a device if the slice stays within its limits. Returns whether the device was added."""
        limit = device.device_limit if device.device_limit < self.limit else self.limit
        if (
            len(self.devices) >= limit
            or (self._bytes + len(device.encoded) > MAX_BYTES and self.devices)
            or self._consumed + device.consumed > MAX_CONSUMED_COUNTERS
        ):
            return False
        self.devices.append(device)
        self.limit = limit
        self._bytes += len(device.encoded)
        self._consumed += device.consumed
        return True


def pack(
    devices: Sequence[DeviceEntry],
    counter_sets: Sequence[ReadOnlyJSON] = (),
    before: Mapping[str, PublishedNames] | None = None,
    slice_size: int = MAX_DEVICES_IN_SLICE,
) -> list[WantedSlice]:
    """Returns the slices of a pool. Slices with counter sets come first.

    A pool without devices has one empty slice, which shows that the driver runs.

    Args:
        devices: the devices in the driver's order of devices. Devices of one slice stay in this order.
        counter_sets: shared counters of the pool.
        before: the previous content of slices, in the order in which the allocator reads the slices.
        slice_size: maximum number of devices in a slice: 128, or 64 for a node plugin whose driver reports health.
    """
    before = before or {}
    with_sets = {k: h for k, h in before.items() if h.counter_sets}
    with_devices = {k: h for k, h in before.items() if not h.counter_sets}
    contents = {k: WantedSlice(name=k, limit=slice_size) for k in with_devices}
    rest = _keep_in_slices(devices, with_devices, contents)
    filled = [c for c in contents.values() if c.devices]
    spare = [c for c in contents.values() if not c.devices]
    if rest:
        filled += _add_to_slices(devices, rest, filled, spare, slice_size)
        place = {d.name: i for i, d in enumerate(devices)}
        for content in filled:
            content.devices.sort(key=lambda d: place[d.name])
    out = _pack_sets(counter_sets, with_sets) + filled
    return out or [WantedSlice(name=next(iter(before), None))]


def assign_existing(contents: Sequence[WantedSlice], before: Mapping[str, PublishedNames]) -> None:
    """Assigns the names of existing slices, in order, to contents that were packed without ``before``.

    Counter sets get slices that had counter sets, and devices get slices that had devices.
    """
    sets = iter([k for k, h in before.items() if h.counter_sets])
    devices = iter([k for k, h in before.items() if not h.counter_sets])
    for content in contents:
        content.name = next(sets if content.counter_sets else devices, None)


def _keep_in_slices(
    devices: Sequence[DeviceEntry], before: dict[str, PublishedNames], contents: Mapping[str, WantedSlice]
) -> Collection[str]:
    """Puts devices into their previous slices. Returns the names of new devices and of devices that cannot stay."""
    previous = {name: slice_ for slice_ in reversed(before) for name in before[slice_].devices}
    staying: dict[str, list[DeviceEntry]] = {}
    rest = set()
    for device in devices:
        if (key := previous.get(device.name)) is not None:
            staying.setdefault(key, []).append(device)
        else:
            rest.add(device.name)
    for slice_, group in staying.items():
        content = contents[slice_]
        moving = _devices_to_move(group, content.limit)
        for device in group:
            if device.name in moving or not content.try_add(device):
                rest.add(device.name)
    return rest


def _devices_to_move(group: Sequence[DeviceEntry], limit: int) -> Collection[str]:
    """Returns the devices to move to another slice, so that the others can stay. Each of them lowers the limit of the slice.

    Example: two of 128 devices got a taint. If they move, 126 devices stay; otherwise, 64 would have to move.
    """
    least = min(d.device_limit for d in group)
    if least >= limit or len(group) <= least:
        return ()
    few = {d.name for d in group if d.device_limit < limit}
    return few if len(few) < len(group) - least else ()


def _add_to_slices(
    devices: Sequence[DeviceEntry],
    rest: Collection[str],
    filled: Sequence[WantedSlice],
    spare: Sequence[WantedSlice],
    slice_size: int,
) -> list[WantedSlice]:
    """Puts the devices in ``rest`` into slices. Returns the slices that were added to ``filled``.

    For each device, it tries the slice of the previous device, which keeps the driver's order; then some slices with free capacity;
    then the emptied slices in ``spare``; and then creates a slice.
    """
    where = {d.name: content for content in filled for d in content.devices}
    open_ = [c for c in filled if len(c.devices) < c.limit]
    unused = list(reversed(spare))
    added: list[WantedSlice] = []
    neighbour = last = None
    for device in devices:
        if device.name not in rest:
            neighbour = where[device.name]
            continue
        offers = added[-1:] if added else [c for c in (last, neighbour) if c is not None]
        content = next((c for c in offers if c.try_add(device)), None)
        if content is None:
            tried, open_ = open_[:_TRIED_SLICES], open_[_TRIED_SLICES:]
            content = next((c for c in tried if c.try_add(device)), None)
            again = [c for c in tried if len(c.devices) < c.limit]
            open_ = open_ + again if content is None else again + open_
        if content is None:
            content = unused.pop() if unused else WantedSlice(limit=slice_size)
            content.try_add(device)
            added.append(content)
        last = content
    return added


def _pack_sets(counter_sets: Sequence[ReadOnlyJSON], before: dict[str, PublishedNames]) -> list[WantedSlice]:
    """Puts each counter set into its previous slice, or else into the first slice with free capacity."""
    by_name = {k: WantedSlice(name=k) for k in before}
    previous = {name: by_name[k] for k in reversed(before) for name in before[k].counter_sets}
    contents = list(by_name.values())
    for counter_set in sorted(counter_sets, key=lambda s: s["name"] not in previous):
        content = previous.get(counter_set["name"])
        if content is None or len(content.counter_sets) == MAX_COUNTER_SETS:
            content = next((c for c in contents if len(c.counter_sets) < MAX_COUNTER_SETS), None)
        if content is None:
            content = WantedSlice()
            contents.append(content)
        content.counter_sets.append(counter_set)
    place = {s["name"]: i for i, s in enumerate(counter_sets)}
    for content in contents:
        content.counter_sets.sort(key=lambda s: place[s["name"]])
    return [c for c in contents if c.counter_sets]
