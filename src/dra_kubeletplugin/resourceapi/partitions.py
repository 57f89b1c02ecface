"""Builds the partitions of one physical device from its vendor's profiles: the devices and their shared counters.

Source: KEP-4815, whose example is an NVIDIA A100 with its MIG profiles. The API server rejects three kinds of names
in that example, so they are mapped here:

- A device's name has no dots or plus signs: ``gpu-0-mig-1g.5gb-0`` becomes ``gpu-0-mig-1g-5gb-0``.
- A capacity is a C identifier: ``copy-engines`` becomes ``copyEngines``.
- A counter is a DNS label: ``memorySlice0`` becomes ``memory-slice-0``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import InvalidObjectError
from .amounts import Amount
from .quantity import Quantity, QuantityError
from .types import Attribute, CounterSet, Device
from .validation import names


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One type of partition.

    Args:
        name: the vendor's name, such as ``1g.5gb``; published as the attribute ``profile``.
        takes: the amount of each of the device's resources that one partition uses, such as ``{"memory": "4864Mi"}``.
        slots: the number of adjacent slots that a partition occupies.
        at: the slots at which a partition can begin, in the order of preference.
        attributes: attributes of the partitions of this profile.
    """

    name: str
    takes: Mapping[str, Amount]
    slots: int = 1
    at: Sequence[int] = (0,)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Partition:
    """The ``data`` of a device that :func:`partitions` returns.

    Attributes:
        parent: the name of the physical device.
        profile: the profile of the partition; None for the whole device.
        slots: the numbers of the slots that the partition occupies.
    """

    parent: str
    profile: Profile | None
    slots: range


@dataclass(frozen=True)
class Partitioned:
    """The partitions of one physical device, and their counters. Put both into the same :class:`Pool`.

    Attributes:
        devices: the partitions, and the whole device last if it can be allocated.
        counter_set: the counters that the devices consume.
    """

    devices: tuple[Device, ...]
    counter_set: CounterSet


def partitions(
    parent: str,
    profiles: Sequence[Profile],
    *,
    has: Mapping[str, Amount],
    slots: int,
    slot: str = "slot",
    slot_capacities: bool = True,
    kind: str = "part",
    device_name: Callable[[Partition], str] | None = None,
    counter_set: str | None = None,
    attributes: Mapping[str, Attribute] | None = None,
    part_attributes: Mapping[str, Attribute] | None = None,
    whole_attributes: Mapping[str, Attribute] | None = None,
    whole: bool = True,
) -> Partitioned:
    """Returns all partitions of a device, and the counters that prevent overlapping partitions.

    A partition consumes the amounts of its profile, and its slots, each of which is a counter. It consumes nothing of
    resources that its profile does not name.

    Args:
        parent: the name of the physical device, and the prefix of its partitions' names.
        profiles: in the order of preference for allocation.
        has: the device's amounts, by resource.
        slots: the device's number of slots.
        slot: the name of a slot, such as ``memorySlice``.
        slot_capacities: whether a device has a capacity for each of its slots. The slots are counters in both cases.
        kind: part of each partition's name: ``<parent>-<kind>-<profile>-<first slot>[-<last slot>]``.
        device_name: returns the name of a partition, and of the whole device, in place of these names.
        counter_set: the name of the counter set; by default ``parent``.
        attributes: attributes of every partition and of the whole device.
        part_attributes: attributes of every partition only, such as the UUID of the physical device as ``parentUUID``.
        whole_attributes: attributes of the whole device only, such as its UUID as ``uuid``.
        whole: whether the whole device can be allocated too, under its own name. It then uses everything, and comes
            last.

    Raises :class:`InvalidObjectError` for a profile that exceeds the device, does not fit into the slots, or has the
    same mapped name as another; and for everything that the API server would reject.
    """
    amounts = {resource: _amount(value, f"{parent}: {resource}") for resource, value in has.items()}
    shared = CounterSet(counter_set or parent, _counters(amounts, _slot_names(slot, range(slots))))
    if faults := shared.faults():
        raise InvalidObjectError(f"counter set {shared.name!r}: {'; '.join(faults)}")
    devices: dict[str, Device] = {}
    for part in [*_placed(parent, profiles, slots), *([Partition(parent, None, range(slots))] if whole else [])]:
        taken, slot_names = _taken(part, amounts), _slot_names(slot, part.slots)
        published = taken | (slot_names if slot_capacities else {})
        device = Device(
            device_name(part) if device_name else _name(part, kind),
            attributes=_attributes(
                part, attributes or {}, (part_attributes if part.profile else whole_attributes) or {}
            ),
            capacity={capacity_name(resource): value for resource, value in published.items()},
            consumes_counters={shared.name: _counters(taken, slot_names)},
            data=part,
        )
        if device.name in devices:
            raise InvalidObjectError(f"{parent}: two partitions are called {device.name!r}: rename one of the profiles")
        devices[device.name] = device
    return Partitioned(tuple(devices.values()), shared)


def counter_name(resource: str) -> str:
    """Maps a resource's name to a valid name of a counter: ``memorySlice0`` becomes ``memory-slice-0``."""
    return "-".join(_words(resource)).lower()


def capacity_name(resource: str) -> str:
    """Maps a resource's name to a valid name of a capacity: ``copy-engines`` becomes ``copyEngines``."""
    first, *rest = _words(resource) or [""]
    return first.lower() + "".join(word[:1].upper() + word[1:].lower() for word in rest)


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", text)


def _slot_names(slot: str, slots: range) -> dict[str, Quantity]:
    return {f"{slot}{i}": Quantity(1) for i in slots}


def _placed(parent: str, profiles: Sequence[Profile], slots: int) -> Iterator[Partition]:
    for profile in profiles:
        for first in profile.at:
            occupied = range(first, first + profile.slots)
            if first < 0 or profile.slots < 1 or occupied.stop > slots:
                raise InvalidObjectError(
                    f"{parent}: profile {profile.name!r} with {profile.slots} slots does not fit at {first}: slots are 0 to {slots - 1}"
                )
            yield Partition(parent, profile, occupied)


def _attributes(
    part: Partition, common: Mapping[str, Attribute], own: Mapping[str, Attribute]
) -> Mapping[str, Attribute]:
    """Returns a device's attributes. If names are equal, the profile's attribute wins over ``own``, and ``own`` wins over ``common``."""
    profile = part.profile
    return {**common, **own, **({**profile.attributes, "profile": profile.name} if profile else {})}


def _taken(part: Partition, has: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Returns the amount of each resource that a partition uses. The whole device uses everything."""
    profile = part.profile
    if profile is None:
        return dict(has)
    for resource, value in profile.takes.items():
        amount = _amount(value, f"{part.parent}: profile {profile.name!r}: {resource}")
        if resource not in has or amount > has[resource]:
            found = f"has {has[resource]}" if resource in has else f"has only {', '.join(has)}"
            raise InvalidObjectError(
                f"{part.parent}: profile {profile.name!r} takes {amount} of {resource!r}, but the device {found}"
            )
    return {resource: Quantity(profile.takes.get(resource, 0)) for resource in has}


def _amount(value: Amount, where: str) -> Quantity:
    try:
        return Quantity(value)
    except (QuantityError, TypeError) as e:
        raise InvalidObjectError(f"{where}: {e}") from None


def _counters(amounts: Mapping[str, Quantity], slots: Mapping[str, Quantity]) -> dict[str, Amount]:
    out: dict[str, Amount] = {}
    for resource, value in {**amounts, **slots}.items():
        name = counter_name(resource)
        if name in out:
            raise InvalidObjectError(f"two resources have the counter name {name!r}: rename one of them")
        out[name] = value
    return out


def _name(part: Partition, kind: str) -> str:
    if part.profile is None:
        return part.parent
    first, last = part.slots[0], part.slots[-1]
    place = f"{first}" if first == last else f"{first}-{last}"
    return f"{part.parent}-{kind}-{names.sanitize(part.profile.name)}-{place}"
