"""Computes device usage from slices and claims: one row per device of each pool, with all claims that use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ...errors import clip, describe
from ..quantity import Quantity, QuantityError
from .rows import CounterRow, DeviceRow, DeviceUse, HealthRow, Holder, Meter

T = TypeVar("T")
JSON = Mapping[str, Any]
DeviceKey = tuple[str, str, str]  # driver, pool, device
PoolKey = tuple[str, str]  # driver, pool
Reaches = Callable[[JSON, JSON], bool]
_MALFORMED = (TypeError, KeyError, ValueError, AttributeError)
# First the standard attribute (KEP-4381), then names that some drivers use instead.
_ROOTS = ("resource.kubernetes.io/pcieroot", "pcieroot", "pciroot", "rootcomplex")
_NUMA = ("resource.kubernetes.io/numanode", "numanode", "numa")
_INFORMATIONAL = "None"


Consumption = Mapping[str, Mapping[str, Quantity]]  # counter set → counter → amount


@dataclass(frozen=True)
class UsageResult:
    devices: tuple[DeviceRow, ...]
    sets: tuple[CounterRow, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _SliceDevice:
    """The part of a device's row that depends on its slice only. ``row`` has no holders."""

    row: DeviceRow
    consumption: Consumption
    shared: bool
    json: JSON


@dataclass(frozen=True, slots=True)
class _Slice:
    pool: PoolKey
    generation: int
    wanted: int  # the number of slices that its pool should have
    node: str
    devices: Sequence[_SliceDevice]
    sets: Consumption  # the totals of counters
    json: JSON


class ObjectCache(Generic[T]):
    """Caches a value per object.

    An object of a watch is replaced when it changes, so the object's identity is a valid key.
    """

    def __init__(self, make: Callable[[JSON], T]) -> None:
        self._make = make
        self._cache: dict[int, tuple[JSON, T]] = {}

    def of(self, objects: Iterable[JSON]) -> list[T]:
        current = {}
        for obj in objects:
            known = self._cache.get(id(obj))
            current[id(obj)] = known if known is not None else (obj, self._make(obj))
        self._cache = current
        return [made for _, made in current.values()]


class UsageCounter:
    """Computes the usage of a cluster repeatedly. Each computation converts only the changed objects."""

    def __init__(self) -> None:
        self._slices = ObjectCache(_or_sentence(_slice, "slice"))
        self._claims = ObjectCache(_or_sentence(lambda claim: tuple(_holders(claim)), "claim"))
        self._rows: dict[DeviceKey, tuple[_SliceDevice, tuple[Holder, ...], DeviceRow]] = {}

    def tally(self, slices: Iterable[JSON], claims: Iterable[JSON], reaches: Reaches | None = None) -> UsageResult:
        """Returns the usage, ordered by node, driver, pool and slice. Devices without a node come first.

        A malformed object is left out and named in the notes.

        Args:
            reaches: returns whether a device of a slice is included. None includes all devices, and also devices that
                are in no slice but in a claim's allocation; they have no node.
        """
        notes: list[str] = []
        held = _held(self._claims.of(claims), notes)
        rows: list[DeviceRow] = []
        sets: list[CounterRow] = []
        kept: dict[DeviceKey, tuple[_SliceDevice, tuple[Holder, ...], DeviceRow]] = {}
        known: set[DeviceKey] = set()
        incomplete_pools: set[PoolKey] = set()
        for key, pool in _pools(self._slices.of(slices), notes).items():
            if len(pool) < pool[0].wanted:
                incomplete_pools.add(key)
            devices = {d.row.name: (sl, d) for sl in reversed(pool) for d in reversed(sl.devices)}  # each name once
            remaining = _remaining(key, pool, [d for _, d in devices.values()], held)
            used_sets: set[str] = set()
            for name in reversed(devices):
                sl, device = devices[name]
                known.add((*key, name))
                if reaches is None or reaches(sl.json, device.json):
                    used_sets.update(device.consumption)
                    holders = tuple(held.get((*key, name), ()))
                    rows.append(self._row((*key, name), device, holders, remaining, kept))
            for sl in pool:
                wanted = [n for n in sl.sets if reaches is None or n in used_sets]
                sets += [_set(key, n, sl, remaining[n], [d.row for _, d in devices.values()]) for n in wanted]
        if reaches is None:
            rows += [
                _unpublished_row(key, holders, incomplete_pools) for key, holders in held.items() if key not in known
            ]
        self._rows = kept
        rows.sort(key=lambda r: (r.node, r.driver, r.pool))
        return UsageResult(tuple(rows), tuple(sets), tuple(notes))

    def _row(
        self,
        key: DeviceKey,
        device: _SliceDevice,
        holders: tuple[Holder, ...],
        remaining: Consumption,
        kept: dict[DeviceKey, tuple[_SliceDevice, tuple[Holder, ...], DeviceRow]],
    ) -> DeviceRow:
        use = _use(device, holders, remaining)
        before = self._rows.get(key)
        if before is not None and before[0] is device and before[1] == holders and before[2].use is use:
            kept[key] = before
            return before[2]
        row = device.row
        if holders or use is not DeviceUse.FREE:
            row = replace(row, use=use, holders=holders)
        if device.shared:
            meters = tuple(_meter(n, _consumed(n, holders), Quantity(v)) for n, v in row.capacity.items())
            row = replace(row, meters=meters)
        kept[key] = (device, holders, row)
        return row


def count_usage(slices: Iterable[JSON], claims: Iterable[JSON], reaches: Reaches | None = None) -> UsageResult:
    """Calls :meth:`UsageCounter.tally` once."""
    return UsageCounter().tally(slices, claims, reaches)


def _or_sentence(make: Callable[[JSON], T], what: str) -> Callable[[JSON], T | str]:
    """Wraps ``make`` so that it returns a sentence for a malformed object."""

    def wrapped(obj: JSON) -> T | str:
        try:
            return make(obj)
        except _MALFORMED as e:
            meta = obj.get("metadata")
            name = clip(meta.get("name")) if isinstance(meta, Mapping) else "?"
            return f"{what} {name} cannot be read, and is left out: {describe(e)}"

    return wrapped


# --- claims ---------------------------------------------------------------------------------------


def _held(found: Iterable[Sequence[tuple[DeviceKey, Holder]] | str], notes: list[str]) -> dict[DeviceKey, list[Holder]]:
    out: dict[DeviceKey, list[Holder]] = {}
    for holders in found:
        if isinstance(holders, str):
            notes.append(holders)
            continue
        for key, holder in holders:
            out.setdefault(key, []).append(holder)
    return out


def _holders(claim: JSON) -> Iterator[tuple[DeviceKey, Holder]]:
    meta, status = claim["metadata"], claim.get("status") or {}
    namespace = str(meta.get("namespace") or "")
    pods = tuple(_consumer(namespace, r) for r in status.get("reservedFor") or [])
    statuses = {(s["driver"], s["pool"], s["device"], s.get("shareID") or ""): s for s in status.get("devices") or []}
    for r in ((status.get("allocation") or {}).get("devices") or {}).get("results") or []:
        key = (str(r["driver"]), str(r["pool"]), str(r["device"]))
        share = str(r.get("shareID") or "")
        of_driver = statuses.get((*key, share)) or {}
        yield (
            key,
            Holder(
                claim=f"{namespace}/{meta['name']}",
                request=str(r["request"]),
                pods=pods,
                share=share,
                amounts={_short(n): str(a) for n, a in (r.get("consumedCapacity") or {}).items()},
                admin=bool(r.get("adminAccess")),
                conditions=tuple(_conditions(of_driver, r)),
                network=_network(of_driver.get("networkData") or {}),
                state=str(claim.get("state") or ""),
            ),
        )


def _consumer(namespace: str, reference: JSON) -> str:
    """Formats a consumer: a pod by its name, any other object with its resource: ``podgroups ml/train`` (KEP-5729)."""
    resource, name = str(reference.get("resource", "pods")), f"{namespace}/{reference['name']}"
    return name if resource == "pods" else f"{resource} {name}"


def _conditions(status: JSON, result: JSON) -> Iterator[str]:
    """Yields the conditions that a reader should see: not true, indicating failure, or still missing (KEP-5007)."""
    failures = set(result.get("bindingFailureConditions") or [])
    seen = set()
    for c in status.get("conditions") or []:
        seen.add(c["type"])
        if (c["status"] == "True") is (c["type"] in failures):
            words = [w for w in (c.get("reason"), c.get("message")) if w]
            yield clip(f"{c['type']} is {c['status']}" + (f": {': '.join(words)}" if words else ""))
    yield from (f"{t} is awaited" for t in result.get("bindingConditions") or [] if t not in seen)


def _network(data: JSON) -> str:
    words = [data.get("interfaceName"), *(data.get("ips") or []), data.get("hardwareAddress")]
    return clip(" ".join(str(w) for w in words if w))


# --- slices ---------------------------------------------------------------------------------------


def _pools(slices: Iterable[_Slice | str], notes: list[str]) -> dict[PoolKey, list[_Slice]]:
    """Returns the slices of each pool's newest generation. Appends a note for an incomplete pool."""
    out: dict[PoolKey, list[_Slice]] = {}
    for sl in slices:
        if isinstance(sl, str):
            notes.append(sl)
            continue
        found = out.setdefault(sl.pool, [])
        if found and sl.generation > found[0].generation:
            found.clear()
        if not found or sl.generation == found[0].generation:
            found.append(sl)
    for (driver, name), found in out.items():
        if len(found) != found[0].wanted:
            notes.append(
                f"pool {driver}/{name} has {len(found)} of {found[0].wanted} slices: "
                "no device of the pool is allocated until all its slices exist"
            )
    return out


def _slice(sl: JSON) -> _Slice:
    spec, pool = sl["spec"], sl["spec"]["pool"]
    key = (str(spec["driver"]), str(pool["name"]))
    sets = {
        str(s["name"]): {str(n): Quantity(c["value"]) for n, c in s["counters"].items()}
        for s in spec.get("sharedCounters") or []
    }
    devices = [_device(key, spec, d) for d in spec.get("devices") or []]
    wanted, generation = int(pool["resourceSliceCount"]), int(pool.get("generation") or 0)
    return _Slice(key, generation, wanted, str(spec.get("nodeName") or ""), devices, sets, sl)


def _device(pool: PoolKey, spec: JSON, device: JSON) -> _SliceDevice:
    attributes = {str(n): _value(v) for n, v in (device.get("attributes") or {}).items()}
    capacity = {str(n): str(Quantity(c["value"])) for n, c in (device.get("capacity") or {}).items()}
    taints = device.get("taints") or []
    bad = any(t.get("effect") != _INFORMATIONAL for t in taints)
    owner = device if spec.get("perDeviceNodeSelection") else spec
    consumption = {
        str(c["counterSet"]): {str(n): Quantity(v["value"]) for n, v in c["counters"].items()}
        for c in device.get("consumesCounters") or []
    }
    row = DeviceRow(
        node=str(owner.get("nodeName") or ""),
        driver=pool[0],
        pool=pool[1],
        name=str(device["name"]),
        use=DeviceUse.FREE,
        health=HealthRow.TAINTED if bad else HealthRow.UNREPORTED,
        reach="" if owner.get("nodeName") else "all nodes" if owner.get("allNodes") else "nodes by label",
        root=_first(attributes, _ROOTS),
        numa=_first(attributes, _NUMA),
        sets=tuple(consumption),
        taints=tuple(_taint(t) for t in taints),
        attributes=attributes,
        capacity=capacity,
    )
    return _SliceDevice(row, consumption, bool(device.get("allowMultipleAllocations")), device)


def _remaining(
    key: PoolKey, pool: Iterable[_Slice], devices: Iterable[_SliceDevice], held: Mapping[DeviceKey, Iterable[Holder]]
) -> dict[str, dict[str, Quantity]]:
    """Returns the free amount of each counter. A shared device is counted once; admin access uses nothing."""
    remaining = {name: dict(counters) for sl in pool for name, counters in sl.sets.items()}
    for device in devices:
        if device.consumption and any(not h.admin for h in held.get((*key, device.row.name), ())):
            for name, counters in device.consumption.items():
                of = remaining.setdefault(name, {})
                for counter, amount in counters.items():
                    of[counter] = of.get(counter, _NOTHING) - amount
    return remaining


def _use(device: _SliceDevice, holders: tuple[Holder, ...], remaining: Consumption) -> DeviceUse:
    if any(not h.admin for h in holders):
        return DeviceUse.SHARED if device.shared else DeviceUse.HELD
    for name, counters in device.consumption.items():
        of = remaining.get(name, {})
        if any(amount > of.get(counter, _NOTHING) for counter, amount in counters.items()):
            return DeviceUse.BLOCKED
    return DeviceUse.FREE


def _unpublished_row(key: DeviceKey, holders: Iterable[Holder], incomplete_pools: Collection[PoolKey]) -> DeviceRow:
    """Returns the row of a device that is in no slice but in a claim. It has vanished, unless its pool is incomplete."""
    use, message = DeviceUse.VANISHED, "it is no longer in a slice"
    if key[:2] in incomplete_pools:
        use, message = DeviceUse.HELD, "it is not in the slices of its pool, which is still incomplete"
    return DeviceRow("", *key, use, HealthRow.UNREPORTED, holders=tuple(holders), message=message)


def _set(
    pool: PoolKey, name: str, sl: _Slice, remaining: Mapping[str, Quantity], devices: Iterable[DeviceRow]
) -> CounterRow:
    meters = tuple(_meter(n, total - remaining[n], total) for n, total in sl.sets[name].items())
    # Counters have a slice of their own. They belong to the node of the devices that use them.
    nodes = {d.node for d in devices if name in d.sets}
    node = sl.node or (nodes.pop() if len(nodes) == 1 else "")
    return CounterRow(*pool, name, node, meters)


# --- texts and amounts ----------------------------------------------------------------------------


_NOTHING = Quantity(0)


def _meter(name: str, taken: Quantity, total: Quantity) -> Meter:
    share = float(taken) / float(total) if total else float(bool(taken))
    return Meter(_short(name), str(taken), str(total), round(share, 4))


def _consumed(name: str, holders: Iterable[Holder]) -> Quantity:
    total = _NOTHING
    for h in holders:
        if not h.admin and (amount := h.amounts.get(_short(name))):
            try:
                total = Quantity(amount) + total  # in the format of the claims' amounts
            except QuantityError:
                continue
    return total


def _short(name: str) -> str:
    """Returns a name without its domain, which is normally the driver's domain."""
    return name.rpartition("/")[2]


def _value(attribute: JSON) -> str:
    """Formats the value of an attribute; the items of a list are separated by commas (KEP-5491)."""
    for value in attribute.values():
        if isinstance(value, list):
            return ", ".join(map(_plain, value))
        return _plain(value)
    return ""


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else clip(value)


def _first(attributes: Mapping[str, str], names: Iterable[str]) -> str:
    """Returns the value of the first of ``names`` that exists. Upper and lower case and the domain are ignored."""
    whole = {n.lower(): v for n, v in attributes.items()}
    bare = {_short(n).replace("-", "").replace("_", ""): v for n, v in whole.items()}
    return next((v for n in names if (v := whole.get(n) or bare.get(n))), "")


def _taint(taint: JSON) -> str:
    """Formats a taint as users write it: ``key=value:NoExecute``."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return clip(f"{taint['key']}{value}:{taint['effect']}")


__all__ = ["UsageCounter", "UsageResult", "count_usage"]
