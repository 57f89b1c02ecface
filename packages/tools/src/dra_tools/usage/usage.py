"""Computes device usage from slices, claims and nodes: one row per device of each pool, with all claims that hold it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dra_devkit.generations import PoolKey, newest
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import natural
from dra_kubeletplugin.errors import clip, describe
from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.quantity import Quantity

from .availability import NOTHING, NodeStates, PoolUsage, consumed
from .published import DeviceKey, PublishedSlice, SliceDevice, read_slice, short_name
from .rows import CounterRow, DeviceRow, DeviceUse, HealthRow, Holder, Meter

T = TypeVar("T")
Reaches = Callable[[ReadOnlyJSON, ReadOnlyJSON], bool]
_MALFORMED = (TypeError, KeyError, ValueError, AttributeError)
_NUMBER = re.compile(r"[-_.]?[0-9]+$")


@dataclass(frozen=True)
class UsageResult:
    devices: tuple[DeviceRow, ...]
    sets: tuple[CounterRow, ...]
    notes: tuple[str, ...]


class ObjectCache(Generic[T]):
    """Caches a value per object.

    An object of a watch is replaced when it changes, so the object's identity is a valid key.
    """

    def __init__(self, make: Callable[[ReadOnlyJSON], T]) -> None:
        self._make = make
        self._cache: dict[int, tuple[ReadOnlyJSON, T]] = {}

    def of(self, objects: Iterable[ReadOnlyJSON]) -> list[T]:
        current = {}
        for obj in objects:
            known = self._cache.get(id(obj))
            current[id(obj)] = known if known is not None else (obj, self._make(obj))
        self._cache = current
        return [made for _, made in current.values()]


class UsageCounter:
    """Computes the usage of a cluster repeatedly. Each computation converts only the changed objects."""

    def __init__(self) -> None:
        self._slices = ObjectCache(_or_sentence(read_slice, "slice"))
        self._claims = ObjectCache(_or_sentence(lambda claim: tuple(_holders(claim)), "claim"))

    def tally(
        self,
        slices: Iterable[ReadOnlyJSON],
        claims: Iterable[ReadOnlyJSON],
        reaches: Reaches | None = None,
        nodes: Iterable[ReadOnlyJSON] | None = None,
    ) -> UsageResult:
        """Returns the usage, ordered by node, driver, pool and slice. Devices without a node come first.

        A malformed object is left out and named in the notes.

        Args:
            reaches: returns whether a device of a slice is included. None includes all devices, and also devices that
                are in no slice but in a claim's allocation; they have no node.
            nodes: all nodes of the cluster; None if they are not known. Then the devices of each node count as reachable.
        """
        notes: list[str] = []
        states = NodeStates(nodes)
        held = _by_pool(self._claims.of(claims), notes)
        rows: list[DeviceRow] = []
        sets: list[CounterRow] = []
        pools = _pools(self._slices.of(slices), notes)
        for key in sorted(pools, key=lambda k: (k[0], natural(k[1]))):
            pool, holders = pools[key], held.pop(key, {})
            devices = {d.row.name: (sl, d) for sl in reversed(pool) for d in reversed(sl.devices)}  # each name once
            usage = PoolUsage(pool, [d for _, d in devices.values()], holders, states)
            if usage.fault:
                notes.append(_unused_pool(key, pool, usage.fault))
            used_sets: set[str] = set()
            for name in reversed(devices):
                sl, device = devices[name]
                if reaches is None or reaches(sl.json, device.json):
                    used_sets.update(device.consumption)
                    rows.append(_row(device, tuple(holders.get(name, ())), usage))
            for sl in pool:
                wanted = [n for n in sl.sets if reaches is None or n in used_sets]
                sets += [_set(key, n, sl, usage.remaining[n], [d.row for _, d in devices.values()]) for n in wanted]
            if reaches is None:
                is_incomplete = len(pool) < pool[0].wanted
                gone = [name for name in holders if name not in devices]
                rows += [_unpublished_row((*key, name), holders[name], incomplete=is_incomplete) for name in gone]
        for key, of_pool in held.items() if reaches is None else ():  # of pools without a slice
            rows += [_unpublished_row((*key, name), found, incomplete=False) for name, found in of_pool.items()]
        rows.sort(key=lambda r: (r.node, r.driver, r.pool))
        return UsageResult(tuple(rows), tuple(sets), tuple(notes))


def _row(device: SliceDevice, holders: tuple[Holder, ...], usage: PoolUsage) -> DeviceRow:
    use, why = usage.use_of(device, holders)
    row = device.row
    meters = row.meters
    if device.shared:
        amounts = ((n, consumed(short_name(n), holders), Quantity(v)) for n, v in row.capacity.items())
        meters = tuple(_meter(*amount) for amount in amounts)
    if not (holders or meters) and use is DeviceUse.FREE:
        return row
    return replace(row, use=use, why=why, meters=meters, holders=holders)


def count_usage(
    slices: Iterable[ReadOnlyJSON],
    claims: Iterable[ReadOnlyJSON],
    reaches: Reaches | None = None,
    nodes: Iterable[ReadOnlyJSON] | None = None,
) -> UsageResult:
    """Calls :meth:`UsageCounter.tally` once."""
    return UsageCounter().tally(slices, claims, reaches, nodes)


def _or_sentence(make: Callable[[ReadOnlyJSON], T], what: str) -> Callable[[ReadOnlyJSON], T | str]:
    """Wraps ``make`` so that it returns a sentence for a malformed object."""

    def wrapped(obj: ReadOnlyJSON) -> T | str:
        try:
            return make(obj)
        except _MALFORMED as e:
            meta = obj.get("metadata")
            name = clip(meta.get("name")) if isinstance(meta, Mapping) else "?"
            return f"{what} {name} cannot be read, and is left out: {describe(e)}"

    return wrapped


# --- claims ---------------------------------------------------------------------------------------


def _by_pool(
    found: Iterable[Sequence[tuple[DeviceKey, Holder]] | str], notes: list[str]
) -> dict[PoolKey, dict[str, list[Holder]]]:
    """Returns the holders of each device, by pool and name."""
    out: dict[PoolKey, dict[str, list[Holder]]] = {}
    for holders in found:
        if isinstance(holders, str):
            notes.append(holders)
            continue
        for (driver, pool, name), holder in holders:
            out.setdefault((driver, pool), {}).setdefault(name, []).append(holder)
    return out


def _holders(claim: ReadOnlyJSON) -> Iterator[tuple[DeviceKey, Holder]]:
    meta, status = claim["metadata"], claim.get("status") or {}
    namespace = str(meta.get("namespace") or "")
    name = f"{namespace}/{meta['name']}"
    pods = tuple(_consumer(namespace, r) for r in status.get("reservedFor") or [])
    statuses = {(s["driver"], s["pool"], s["device"], s.get("shareID") or ""): s for s in status.get("devices") or []}
    for r in results_of(claim):
        key = (str(r["driver"]), str(r["pool"]), str(r["device"]))
        share = str(r.get("shareID") or "")
        of_driver = (statuses.get((*key, share)) or {}) if statuses else {}
        yield (
            key,
            Holder(
                claim=name,
                request=str(r["request"]),
                pods=pods,
                share=share,
                amounts={short_name(n): str(a) for n, a in (r.get("consumedCapacity") or {}).items()},
                admin=bool(r.get("adminAccess")),
                conditions=tuple(_conditions(of_driver, r)) if of_driver or "bindingConditions" in r else (),
                network=_network(of_driver.get("networkData") or {}) if of_driver else "",
            ),
        )


def _consumer(namespace: str, reference: ReadOnlyJSON) -> str:
    """Formats a consumer: a pod by its name, any other object with its resource: ``podgroups ml/train`` (KEP-5729)."""
    resource, name = str(reference.get("resource", "pods")), f"{namespace}/{reference['name']}"
    return name if resource == "pods" else f"{resource} {name}"


def _conditions(status: ReadOnlyJSON, result: ReadOnlyJSON) -> Iterator[str]:
    """Yields the conditions that a reader should see: not true, indicating failure, or still missing (KEP-5007)."""
    failures = set(result.get("bindingFailureConditions") or [])
    seen = set()
    for c in status.get("conditions") or []:
        seen.add(c["type"])
        if (c["status"] == "True") is (c["type"] in failures):
            words = [w for w in (c.get("reason"), c.get("message")) if w]
            yield clip(f"{c['type']} is {c['status']}" + (f": {': '.join(words)}" if words else ""))
    yield from (f"{t} is awaited" for t in result.get("bindingConditions") or [] if t not in seen)


def _network(data: ReadOnlyJSON) -> str:
    words = [data.get("interfaceName"), *(data.get("ips") or []), data.get("hardwareAddress")]
    return clip(" ".join(str(w) for w in words if w))


# --- slices ---------------------------------------------------------------------------------------


def _pools(slices: Iterable[PublishedSlice | str], notes: list[str]) -> dict[PoolKey, list[PublishedSlice]]:
    """Returns the slices of each pool's newest generation. Appends notes about malformed slices."""
    out: dict[PoolKey, list[PublishedSlice]] = {}
    for sl in slices:
        if isinstance(sl, str):
            notes.append(sl)
            continue
        out.setdefault(sl.pool, []).append(sl)
    for key, every in out.items():
        out[key] = newest(every, lambda s: s.generation)
    return out


def _unused_pool(key: PoolKey, pool: Sequence[PublishedSlice], why: str) -> str:
    until = "all its slices exist" if len(pool) != pool[0].wanted else "its driver corrects it"
    return f"pool {'/'.join(key)}: {why}: no device of the pool is allocated until {until}"


def _unpublished_row(key: DeviceKey, holders: Iterable[Holder], *, incomplete: bool) -> DeviceRow:
    """Returns the row of a device that is in no slice but in a claim. It has vanished, unless its pool is incomplete."""
    use, why = DeviceUse.VANISHED, "the device is no longer in a slice"
    if incomplete:
        use, why = DeviceUse.HELD, "the device is not in the slices of its pool, which is still incomplete"
    return DeviceRow("", *key, use, HealthRow.UNREPORTED, holders=tuple(holders), why=why)


def _set(
    pool: PoolKey, name: str, sl: PublishedSlice, remaining: Mapping[str, Quantity], devices: Iterable[DeviceRow]
) -> CounterRow:
    totals = sl.sets[name]
    meters = tuple(_meter(n, total - remaining[n], total) for n, total in totals.items())
    # Counters have a slice of their own. They belong to the node of the devices that use them.
    nodes = {d.node for d in devices if name in d.sets}
    node = sl.node or (nodes.pop() if len(nodes) == 1 else "")
    return CounterRow(*pool, name, node, meters, _card_share(totals, remaining))


# --- amounts --------------------------------------------------------------------------------------


def _card_share(totals: Mapping[str, Quantity], remaining: Mapping[str, Quantity]) -> float:
    """Returns the part of a counter set that is used: the largest part of a counter. Counters ``slot-0``, ``slot-1`` are one."""
    families: dict[str, list[str]] = {}
    for name in totals:
        families.setdefault(_NUMBER.sub("", name), []).append(name)
    shares = [0.0]
    for names in families.values():
        if whole := sum(float(totals[n]) for n in names):
            shares.append(1 - sum(float(remaining[n]) for n in names) / whole)
    return round(min(1.0, max(shares)), 4)


def _meter(name: str, taken: Quantity, total: Quantity) -> Meter:
    share = float(taken) / float(total) if total else float(taken != NOTHING)
    return Meter(short_name(name), text_beside(taken, total), str(total), round(share, 4))


def text_beside(quantity: Quantity, other: Quantity) -> str:
    """Returns the text of an amount that people compare with another amount: in the other's format if that is shorter.

    The scheduler writes 4G of 10G as ``3906250Ki``.
    """
    return min(quantity.text, Quantity(quantity.value, other.format).text, key=len)
