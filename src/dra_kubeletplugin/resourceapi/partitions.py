"""Builds the partitions of one physical device from its vendor's profiles: the devices and their shared counters.

Source: KEP-4815, whose example is an NVIDIA A100 with its MIG profiles. The API server rejects three kinds of names
in that example, so they are mapped here:

- A device's name has no dots or plus signs: ``gpu-0-mig-1g.5gb-0`` becomes ``gpu-0-mig-1g-5gb-0``.
- A capacity is a C identifier: ``copy-engines`` becomes ``copyEngines``.
- A counter is a DNS label: ``memorySlice0`` becomes ``memory-slice-0``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import InvalidObjectError
from .amounts import Amount
from .quantity import Quantity, QuantityError
from .types import Attribute, CounterSet, Device, counter_set_faults
from .validation import names


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One type of partition.

    Args:
        name: the vendor's name, such as ``1g.5gb``; published as the attribute ``profile``.
        takes: the amount of each of the device's resources that one partition uses, such as ``{"memory": "4864Mi"}``.
        slots: the number of adjacent slots that a partition occupies.
        at: the slots at which a partition can begin, in the order of preference.
        attributes: added to the device's attributes.
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
    """The partitions of one physical device. Put both into the same :class:`Pool`.

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
    kind: str = "part",
    attributes: Mapping[str, Attribute] | None = None,
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
        kind: part of each partition's name: ``<parent>-<kind>-<profile>-<first slot>[-<last slot>]``.
        attributes: attributes of every partition, such as the device's UUID.
        whole: whether the whole device can be allocated too, under its own name. It then uses everything, and comes
            last.

    Raises :class:`InvalidObjectError` for a profile that exceeds the device, does not fit into the slots, or has the
    same mapped name as another; and for everything that the API server would reject.
    """
    amounts = {resource: _amount(value, f"{parent}: {resource}") for resource, value in has.items()}
    counter_set = CounterSet(parent, _counters(amounts, _slot_names(slot, range(slots))))
    if faults := counter_set_faults(counter_set.json()):
        raise InvalidObjectError(f"counter set {parent!r}: {'; '.join(faults)}")
    devices: dict[str, Device] = {}
    for part in [*_placed(parent, profiles, slots), *([Partition(parent, None, range(slots))] if whole else [])]:
        device = _device(part, amounts, slot, kind, attributes or {}, counter_set.name)
        if device.name in devices:
            raise InvalidObjectError(f"{parent}: two partitions are called {device.name!r}: rename one of the profiles")
        devices[device.name] = device
    return Partitioned(tuple(devices.values()), counter_set)


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


def _device(
    part: Partition,
    has: Mapping[str, Quantity],
    slot: str,
    kind: str,
    attributes: Mapping[str, Attribute],
    counter_set: str,
) -> Device:
    profile = part.profile
    taken = dict(has) if profile is None else _taken(part.parent, profile, has)
    taken |= _slot_names(slot, part.slots)
    return Device(
        part.parent if profile is None else _name(part, profile, kind),
        {**attributes, **({**profile.attributes, "profile": profile.name} if profile else {})},
        {capacity_name(resource): value for resource, value in taken.items()},
        consumes_counters={counter_set: _counters(taken, {})},
        data=part,
    )


def _taken(parent: str, profile: Profile, has: Mapping[str, Quantity]) -> dict[str, Quantity]:
    for resource, value in profile.takes.items():
        amount = _amount(value, f"{parent}: profile {profile.name!r}: {resource}")
        if resource not in has or amount > has[resource]:
            found = f"has {has[resource]}" if resource in has else f"has only {', '.join(has)}"
            raise InvalidObjectError(
                f"{parent}: profile {profile.name!r} takes {amount} of {resource!r}, but the device {found}"
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


def _name(part: Partition, profile: Profile, kind: str) -> str:
    first, last = part.slots[0], part.slots[-1]
    place = f"{first}" if first == last else f"{first}-{last}"
    return f"{part.parent}-{kind}-{names.sanitize(profile.name)}-{place}"
