"""Reads ResourceSlices: the part of a device's row that depends on the slice only, and the limits of its use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dra_devkit.generations import PoolKey
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.errors import clip
from dra_kubeletplugin.resourceapi.quantity import Quantity
from dra_kubeletplugin.resourceapi.unhealthy_reason import ATTRIBUTE, reason_of

from ..taints import BLOCKING_EFFECTS, taint_text
from .rows import DeviceRow, DeviceUse, HealthRow

DeviceKey = tuple[str, str, str]  # driver, pool, device
Consumption = Mapping[str, Mapping[str, Quantity]]  # counter set → counter → amount
# First the standard attribute (KEP-4381), then names that some drivers use instead.
_ROOTS = ("resource.kubernetes.io/pcieroot", "pcieroot", "pciroot", "rootcomplex")
_NUMA = ("resource.kubernetes.io/numanode", "numanode", "numa")
_INFORMATIONAL = "None"
_NONE: ReadOnlyJSON = {}


class AttributeTexts(Mapping[str, str]):
    """The attributes of a device as text. Each is formatted when it is read, because most devices of a cluster are never shown."""

    __slots__ = ("_attributes", "number")

    def __init__(self, attributes: ReadOnlyJSON) -> None:
        self._attributes = attributes
        self.number = len(attributes)
        """The number of all attributes, also of the reason for bad health, which is not part of the mapping."""

    def __getitem__(self, name: str) -> str:
        if name == ATTRIBUTE:  # shown as the message of the device
            raise KeyError(name)
        return _value(self._attributes[name])

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._attributes if name != ATTRIBUTE)

    def __len__(self) -> int:
        return len(self._attributes) - (ATTRIBUTE in self._attributes)


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """A device of a slice.

    Args:
        row: the row without holders, as if a request could get the device.
        taints: taints that keep new claims away.
        groups: the compatibility groups by counter set (KEP-5963).
        least: the smallest amount of each capacity that a share of the device consumes, by short name. An amount of zero
            stands for any amount.
        owner: the object with the fields that choose the nodes: the slice's spec or the device.
    """

    row: DeviceRow
    consumption: Consumption
    shared: bool
    taints: tuple[str, ...]
    groups: Mapping[str, frozenset[str]]
    least: Mapping[str, Quantity]
    owner: ReadOnlyJSON
    json: ReadOnlyJSON


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A slice. ``wanted`` is the number of slices that its pool should have, ``sets`` has the totals of its counters."""

    pool: PoolKey
    generation: int
    wanted: int
    node: str
    devices: Sequence[SliceDevice]
    sets: Consumption
    json: ReadOnlyJSON


def read_slice(sl: ReadOnlyJSON) -> PublishedSlice:
    spec, pool = sl["spec"], sl["spec"]["pool"]
    key = (str(spec["driver"]), str(pool["name"]))
    sets = {
        str(s["name"]): {str(n): Quantity(c["value"]) for n, c in s["counters"].items()}
        for s in spec.get("sharedCounters") or []
    }
    devices = [_device(key, spec, d) for d in spec.get("devices") or []]
    wanted, generation = int(pool["resourceSliceCount"]), int(pool.get("generation") or 0)
    return PublishedSlice(key, generation, wanted, str(spec.get("nodeName") or ""), devices, sets, sl)


def _device(pool: PoolKey, spec: ReadOnlyJSON, device: ReadOnlyJSON) -> SliceDevice:
    attributes = AttributeTexts(device.get("attributes") or _NONE)
    names = tuple(attributes)
    reason = reason_of(device) if len(names) < attributes.number else ""
    capacity = {str(n): _canonical(c["value"]) for n, c in (device.get("capacity") or _NONE).items()}
    taints = device.get("taints") or ()
    bad = any(t.get("effect") != _INFORMATIONAL for t in taints) if taints else False
    owner = device if spec.get("perDeviceNodeSelection") else spec
    node = str(owner.get("nodeName") or "")
    consumed = device.get("consumesCounters") or ()
    consumption = {
        str(c["counterSet"]): {str(n): Quantity(v["value"]) for n, v in c["counters"].items()} for c in consumed
    }
    shared = bool(device.get("allowMultipleAllocations"))
    row = DeviceRow(
        node=node,
        driver=pool[0],
        pool=pool[1],
        name=str(device["name"]),
        use=DeviceUse.FREE,
        health=HealthRow.UNHEALTHY if reason else HealthRow.TAINTED if bad else HealthRow.UNREPORTED,
        reach="" if node else "all nodes" if owner.get("allNodes") else "nodes by label",
        root=_first(attributes, names, _ROOTS),
        numa=_first(attributes, names, _NUMA),
        sets=tuple(consumption),
        taints=tuple(clip(taint_text(t)) for t in taints),
        message=reason,
        attributes=attributes,
        capacity=capacity,
    )
    return SliceDevice(
        row,
        consumption,
        shared,
        taints=tuple(clip(taint_text(t)) for t in taints if t.get("effect") in BLOCKING_EFFECTS) if taints else (),
        groups={str(c["counterSet"]): frozenset(c.get("compatibilityGroups") or ()) for c in consumed},
        least={short_name(n): _least(c) for n, c in (device.get("capacity") or {}).items()} if shared else {},
        owner=owner,
        json=device,
    )


def _least(capacity: ReadOnlyJSON) -> Quantity:
    """Returns the smallest amount of a capacity that a request consumes by its policy (KEP-5075); zero for any amount."""
    policy = capacity.get("requestPolicy") or {}
    if values := policy.get("validValues"):
        return min(Quantity(v) for v in values)
    return Quantity((policy.get("validRange") or {}).get("min") or 0)


# --- texts ----------------------------------------------------------------------------------------


def short_name(name: str) -> str:
    """Returns a name without its domain, which is normally the driver's domain."""
    return name.rpartition("/")[2]


@lru_cache(1024)  # the devices of a cluster have few different amounts
def _canonical(amount: str) -> str:
    return str(Quantity(amount))


def _value(attribute: ReadOnlyJSON) -> str:
    """Formats the value of an attribute; the items of a list are separated by commas (KEP-5491)."""
    for value in attribute.values():
        if isinstance(value, list):
            return ", ".join(map(_plain, value))
        return _plain(value)
    return ""


def _plain(value: object) -> str:
    if isinstance(value, int):
        return str(value).lower()  # true, or a number
    return clip(value)


def _first(attributes: AttributeTexts, known: tuple[str, ...], names: tuple[str, ...]) -> str:
    """Returns the value of the first of ``names`` that is ``known``. Upper and lower case and the domain are ignored."""
    return next((text for n in _spellings(known, names) if (text := attributes[n])), "")


@lru_cache(64)  # the devices of a driver have the same attributes
def _spellings(attributes: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    whole = {n.lower(): n for n in attributes}
    bare = {short_name(n).replace("-", "").replace("_", ""): spelled for n, spelled in whole.items()}
    return tuple(by_name[n] for n in names for by_name in (whole, bare) if n in by_name)
