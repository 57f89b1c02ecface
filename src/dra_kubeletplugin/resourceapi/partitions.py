"""Partitions of one physical device, built from the profiles that its maker gives: the devices, and the counters they draw from.

Source: KEP-4815, whose example is an NVIDIA A100 with its MIG profiles. Of that table three kinds of names are refused by the API
server, and mapped here: a device's name has no dots or plus signs (``gpu-0-mig-1g.5gb-0`` is ``gpu-0-mig-1g-5gb-0``), a capacity is
a C identifier (``copy-engines`` is ``copyEngines``), a counter is a DNS label (``memorySlice0`` is ``memory-slice-0``).
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
    """A kind of partition.

    Args:
        name: as the maker writes it, such as ``1g.5gb``; published as the attribute ``profile``.
        takes: what each partition of this kind takes of the device, by resource, such as ``{"memory": "4864Mi"}``.
        slots: how many neighbouring slots it occupies.
        at: the first slots where it can be made, in the order in which they should be given out.
        attributes: of its partitions, besides those of the device.
    """

    name: str
    takes: Mapping[str, Amount]
    slots: int = 1
    at: Sequence[int] = (0,)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Partition:
    """What a partition's device has as its ``data``. ``profile`` is None for the device as a whole."""

    parent: str
    profile: Profile | None
    slots: range


@dataclass(frozen=True)
class Partitioned:
    """One physical device as its partitions; both parts belong into the same pool."""

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
    """All partitions that a device can be cut into, and the counters that keep those apart that exclude each other.

    A partition takes its amounts and, as one counter each, its slots. What ``profiles`` do not name, a partition takes
    nothing of.

    Args:
        parent: name of the physical device, and beginning of its partitions' names.
        profiles: in the order in which their partitions should be given out.
        has: what the device has, by resource.
        slots: how many slots it has.
        slot: what a slot is called, such as ``memorySlice``.
        kind: stands in the name of each partition: ``<parent>-<kind>-<profile>-<first slot>[-<last slot>]``.
        attributes: of every partition, such as the device's UUID.
        whole: whether the device can also be had whole, under its own name; it then takes everything, and comes last.

    Raises :class:`InvalidObjectError` for a profile that takes what the device has not, that fits nowhere, or whose name
    is another's once it is mapped; and for whatever the API server would refuse.
    """
    amounts = {resource: _amount(value, f"{parent}: {resource}") for resource, value in has.items()}
    counter_set = CounterSet(parent, _counters(amounts, _slot_names(slot, range(slots))))
    if faults := counter_set_faults(counter_set.json()):
        raise InvalidObjectError(f"counter set {parent!r}: {'; '.join(faults)}")
    devices: dict[str, Device] = {}
    for part in [*_placed(parent, profiles, slots), *([Partition(parent, None, range(slots))] if whole else [])]:
        device = _device(part, amounts, slot, kind, attributes or {}, counter_set.name)
        if device.name in devices:
            raise InvalidObjectError(
                f"{parent}: two partitions are called {device.name!r}: name one of the profiles otherwise"
            )
        devices[device.name] = device
    return Partitioned(tuple(devices.values()), counter_set)


def counter_name(resource: str) -> str:
    """A resource's name as a counter may have it: ``memorySlice0`` is ``memory-slice-0``."""
    return "-".join(_words(resource)).lower()


def capacity_name(resource: str) -> str:
    """A resource's name as a capacity may have it: ``copy-engines`` is ``copyEngines``."""
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
            there = f"has {has[resource]}" if resource in has else f"has none: it has {', '.join(has)}"
            raise InvalidObjectError(
                f"{parent}: profile {profile.name!r} takes {amount} of {resource!r}, and the device {there}"
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
            raise InvalidObjectError(f"two resources are the counter {name!r}: name one of them otherwise")
        out[name] = value
    return out


def _name(part: Partition, profile: Profile, kind: str) -> str:
    first, last = part.slots[0], part.slots[-1]
    place = f"{first}" if first == last else f"{first}-{last}"
    return f"{part.parent}-{kind}-{names.sanitize(profile.name)}-{place}"
