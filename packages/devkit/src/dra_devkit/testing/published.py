"""Reads a driver's ResourceSlices back into the pools and devices that the driver returned."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import did_you_mean, join_names
from dra_kubeletplugin.errors import clip, describe
from dra_kubeletplugin.resourceapi.amounts import Capacity
from dra_kubeletplugin.resourceapi.decoding import read_counters, read_device
from dra_kubeletplugin.resourceapi.nodes import Nodes, Where
from dra_kubeletplugin.resourceapi.pools import Pool
from dra_kubeletplugin.resourceapi.types import CounterSet, Device

from ..generations import key_of, newest_by_pool

_DEVICES = 20  # devices listed in an error; a machine may have hundreds of partitions
_NAMES = 8
_LINE = 240  # bytes per device in an error


class PublishedDevice(Device):
    """A device as it is published: each amount has one type, whichever type the driver used.

    Equal to every :class:`Device` that is published in the same form: with ``"40Gi"``, ``Quantity("40Gi")`` or ``Capacity("40Gi")``.

    Args:
        capacity: the amount by name. ``device.capacity["memory"].value`` is a :class:`Quantity`; compare it with ``Quantity("40Gi")``.
        consumes_counters: the amount in canonical form, such as ``"40Gi"``, by counter set and counter.
    """

    capacity: Mapping[str, Capacity]
    consumes_counters: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, device: Device) -> PublishedDevice:
        """Returns a device that :func:`read_pool` read, which has these types already."""
        out = object.__new__(cls)
        vars(out).update(vars(device))
        return out

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        return (self.json(), self.nodes) == (other.json(), other.nodes)

    __hash__ = None  # type: ignore[assignment] # as a Device: its mappings have no hash


class Published(Mapping[str, PublishedDevice]):
    """A driver's devices by name, in the order of its slices. Each value is the device as published.

    If two pools have a device of the same name, a lookup of this name raises ``ValueError``: use :attr:`pools` instead.

    Args:
        pools: complete pools by name, with their counter sets and nodes.
    """

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self.pools = dict(pools)
        self._by_name: dict[str, dict[str, PublishedDevice]] = {}  # device name -> pool name -> device
        for pool in pools.values():
            for device in pool.devices:
                self._by_name.setdefault(device.name, {})[pool.name] = PublishedDevice.of(device)

    def __getitem__(self, name: str) -> PublishedDevice:
        found = self._by_name.get(name)
        if found is None:
            raise KeyError(f"no device {name!r} is published{did_you_mean(str(name), self._by_name)}")
        if len(found) > 1:
            raise ValueError(f"device {name} is in the pools {join_names(found)}: look into one of `pools`")
        return next(iter(found.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"<published: {join_names(self, _NAMES) or 'nothing'}>"


Wanted = Collection[str] | Callable[[Published], object]


class PublishedError(AssertionError):
    """Raised if a driver did not publish the expected devices. The text lists the published devices, one per line.

    Args:
        why: one sentence.
        published: the complete pools that exist.
    """

    def __init__(self, why: str, published: Published) -> None:
        self.why = why
        self.published = published
        super().__init__("\n  ".join([why, *_lines(published.pools.values())]))


def pools_of(slices: Iterable[ReadOnlyJSON], pool: str = "") -> tuple[Published, str]:
    """Reads the pools from the slices of one driver.

    As in the scheduler, the newest generation of a pool counts, and only if all its slices exist.

    Args:
        pool: read this pool only.

    Returns:
        the complete pools, and a sentence about the first incomplete pool, or "" if all pools are complete.
    """
    wanted = (s for s in slices if pool in {"", key_of(s)[1]})
    by_pool = newest_by_pool(sorted(wanted, key=lambda s: str(s["metadata"]["name"])))
    incomplete = ""
    complete: dict[str, Pool] = {}
    for (_, name), current in by_pool.items():
        specs = [sl["spec"] for sl in current]
        generation, count = specs[0]["pool"]["generation"], specs[0]["pool"]["resourceSliceCount"]
        if len(specs) == count:
            complete[name] = read_pool(specs)
        else:
            incomplete = incomplete or f"pool {name} has {len(specs)} of {count} slices of generation {generation}"
    return Published(complete), incomplete


def read_pool(specs: Sequence[ReadOnlyJSON]) -> Pool:
    """Reads the pool whose slices have these ``specs``, all of one generation.

    If every device has its own nodes, the pool's original nodes are unknown; the pool then has all nodes.

    Raises the same exceptions as :func:`.read_device`.
    """
    first = specs[0]
    devices = [_with_nodes(read_device(d), d) for spec in specs for d in spec.get("devices") or ()]
    sets = [
        CounterSet(s["name"], read_counters(s["counters"])) for spec in specs for s in spec.get("sharedCounters") or ()
    ]
    return Pool(
        first["pool"]["name"],
        devices,
        sets,
        Nodes.this() if first.get("nodeName") else _read_nodes(first) or Nodes.all(),
        str(first.get("partitionTypeAttribute") or ""),
        [str(operation) for operation in first.get("skipNodeOperations") or ()] or (),
    )


def _with_nodes(device: Device, raw: ReadOnlyJSON) -> Device:
    object.__setattr__(device, "nodes", _read_nodes(raw))
    return device


def _read_nodes(raw: ReadOnlyJSON) -> Nodes | None:
    """Reads the nodes of a slice's spec or of a device; None if no nodes are set."""
    if raw.get("nodeName"):
        return Nodes.named(raw["nodeName"])
    if selector := raw.get("nodeSelector"):
        text = json.dumps(selector, sort_keys=True)
        names = [v for t in selector["nodeSelectorTerms"] for f in t.get("matchFields") or () for v in f["values"]]
        if len(names) == 1 and Nodes.named(*names).selector_json == text:
            return Nodes.named(*names)
        return Nodes(Where.SELECTED, selector_json=text)
    return Nodes.all() if raw.get("allNodes") else None


def differs(published: Published, wanted: Wanted) -> str:
    """Returns how ``published`` differs from ``wanted``, or "" if it matches.

    If ``wanted`` is a function, its ``LookupError`` counts as a difference; its other exceptions are raised.
    """
    if callable(wanted):
        try:
            return "" if wanted(published) else "the function returned no true value"
        except LookupError as e:
            return describe(e)
    if isinstance(wanted, str):
        raise TypeError(f"wanted is the text {wanted!r}: use a list of names")
    missing = [name for name in wanted if name not in published]
    unexpected = [name for name in published if name not in wanted]
    return " and ".join(
        [
            *([f"{join_names(missing, _NAMES)} is missing"] if missing else []),
            *([f"{join_names(unexpected, _NAMES)} is unexpected"] if unexpected else []),
        ]
    )


def _lines(pools: Iterable[Pool]) -> Iterator[str]:
    shown = [f"pool {pool.name} has {clip(_line(device), _LINE)}" for pool in pools for device in pool.devices]
    yield from shown[:_DEVICES] or ["nothing is published"]
    if len(shown) > _DEVICES:
        yield f"and {len(shown) - _DEVICES} more devices"


def _line(device: Device) -> str:
    """Returns a device's name and the values that tests check. Taints come first, because they change most often."""
    facts = [f"taint {t.key}{f'={t.value}' if t.value else ''}:{t.effect}" for t in device.taints]
    facts += [
        f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in device.attributes.items()
    ]
    facts += [f"{key} {getattr(amount, 'value', amount)}" for key, amount in device.capacity.items()]
    return f"{device.name}{': ' if facts else ''}{', '.join(facts)}"
