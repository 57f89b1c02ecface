"""From slices and claims to rows: each device of each pool once, with all that claims have of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import clip, describe
from ..resources.quantity import Quantity, QuantityError
from .rows import CounterSet, DeviceRow, Health, Holder, Meter, Use

JSON = Mapping[str, Any]
DeviceKey = tuple[str, str, str]  # driver, pool, device
PoolKey = tuple[str, str]  # driver, pool
Reaches = Callable[[JSON, JSON], bool]
_ODD = (TypeError, KeyError, ValueError, AttributeError)
# The standard attribute first (KEP-4381), then what drivers that have none call it.
_ROOTS = ("resource.kubernetes.io/pcieroot", "pcieroot", "pciroot", "rootcomplex")
_NUMA = ("resource.kubernetes.io/numanode", "numanode", "numa")
_EFFECTLESS = "None"


@dataclass(frozen=True)
class Tally:
    devices: tuple[DeviceRow, ...]
    sets: tuple[CounterSet, ...]
    notes: tuple[str, ...]


@dataclass
class _Pool:
    """A pool's newest generation."""

    driver: str
    name: str
    generation: int
    wanted: int  # slices that it should have
    slices: list[JSON] = field(default_factory=list)
    left: dict[str, dict[str, Quantity]] = field(default_factory=dict)  # counter set → counter → what is not held
    draws: dict[str, dict[str, dict[str, Quantity]]] = field(default_factory=dict)  # device → set → counter → amount

    def devices(self) -> Iterator[tuple[JSON, JSON]]:
        """With their slices, each name once: what a scheduler would not trust is shown all the same."""
        seen = set()
        for sl in self.slices:
            for device in sl["spec"].get("devices") or []:
                if device["name"] not in seen:
                    seen.add(device["name"])
                    yield sl, device

    def totals(self) -> Iterator[tuple[JSON, JSON]]:
        return ((sl, s) for sl in self.slices for s in sl["spec"].get("sharedCounters") or [])


def tally(slices: Iterable[JSON], claims: Iterable[JSON], reaches: Reaches | None = None) -> Tally:
    """Rows in the order of nodes, drivers, pools and slices; devices that only claims know of come last.

    Args:
        reaches: whether a device of a slice is wanted; all are without it, and then what only claims know of is too.

    An object that has not its kind's form is left out, and named in the notes.
    """
    notes: list[str] = []
    held = _held(claims, notes)
    rows: list[DeviceRow] = []
    sets: list[CounterSet] = []
    known: set[DeviceKey] = set()
    for pool in _pools(slices, notes):
        try:
            _draw(pool, held)
            found = [
                _row(pool, sl, d, held.get((pool.driver, pool.name, d["name"]), ()))
                for sl, d in pool.devices()
                if reaches is None or reaches(sl, d)
            ]
            drawn = {name for row in found for name in row.sets}
            sets += [_set(pool, sl, s) for sl, s in pool.totals() if reaches is None or s["name"] in drawn]
        except _ODD as e:
            notes.append(f"pool {pool.driver}/{pool.name} cannot be read, and is left out: {describe(e)}")
            continue
        rows += found
        known.update((pool.driver, pool.name, d["name"]) for _, d in pool.devices())
    if reaches is None:
        rows += [_gone(key, holders) for key, holders in held.items() if key not in known]
    rows.sort(key=lambda r: (r.node, r.driver, r.pool))
    return Tally(tuple(rows), tuple(sets), tuple(notes))


# --- claims ---------------------------------------------------------------------------------------


def _held(claims: Iterable[JSON], notes: list[str]) -> dict[DeviceKey, list[Holder]]:
    out: dict[DeviceKey, list[Holder]] = {}
    for claim in claims:
        try:
            found = list(_holders(claim))
        except _ODD as e:
            notes.append(f"a claim cannot be read, and is left out: {describe(e)}")
            continue
        for key, holder in found:
            out.setdefault(key, []).append(holder)
    return out


def _holders(claim: JSON) -> Iterator[tuple[DeviceKey, Holder]]:
    meta, status = claim["metadata"], claim.get("status") or {}
    namespace = str(meta.get("namespace") or "")
    pods = tuple(
        f"{namespace}/{r['name']}" for r in status.get("reservedFor") or [] if r.get("resource", "pods") == "pods"
    )
    told = {(s["driver"], s["pool"], s["device"], s.get("shareID") or ""): s for s in status.get("devices") or []}
    for r in ((status.get("allocation") or {}).get("devices") or {}).get("results") or []:
        key = (str(r["driver"]), str(r["pool"]), str(r["device"]))
        share = str(r.get("shareID") or "")
        of_driver = told.get((*key, share)) or {}
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


def _conditions(status: JSON, result: JSON) -> Iterator[str]:
    """Those that a reader should know: what is not True, what means failure, and what is still to come (KEP-5007)."""
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


def _pools(slices: Iterable[JSON], notes: list[str]) -> Iterable[_Pool]:
    out: dict[PoolKey, _Pool] = {}
    for sl in slices:
        try:
            spec, pool = sl["spec"], sl["spec"]["pool"]
            key = (str(spec["driver"]), str(pool["name"]))
            generation, wanted = int(pool.get("generation") or 0), int(pool["resourceSliceCount"])
        except _ODD as e:
            notes.append(f"a slice cannot be read, and is left out: {describe(e)}")
            continue
        found = out.get(key)
        if found is None or generation > found.generation:
            found = out[key] = _Pool(*key, generation, wanted)
        if generation == found.generation:
            found.slices.append(sl)
    for found in out.values():
        if len(found.slices) != found.wanted:
            notes.append(
                f"pool {found.driver}/{found.name} has {len(found.slices)} of {found.wanted} slices: "
                "no device of it is allocated until it is complete"
            )
    return out.values()


def _draw(pool: _Pool, held: Mapping[DeviceKey, Iterable[Holder]]) -> None:
    """A device draws once, however many share it; one that is looked at by admin access alone does not."""
    for _, counter_set in pool.totals():
        pool.left[counter_set["name"]] = {n: Quantity(c["value"]) for n, c in counter_set["counters"].items()}
    for _, device in pool.devices():
        draws = {
            c["counterSet"]: {n: Quantity(v["value"]) for n, v in c["counters"].items()}
            for c in device.get("consumesCounters") or []
        }
        if not draws:
            continue
        pool.draws[device["name"]] = draws
        if any(not h.admin for h in held.get((pool.driver, pool.name, device["name"]), ())):
            for name, counters in draws.items():
                left = pool.left.setdefault(name, {})
                for counter, amount in counters.items():
                    left[counter] = left.get(counter, _NOTHING) - amount


def _row(pool: _Pool, sl: JSON, device: JSON, holders: Iterable[Holder]) -> DeviceRow:
    spec, holders = sl["spec"], tuple(holders)
    attributes = {str(n): _value(v) for n, v in (device.get("attributes") or {}).items()}
    capacity = {str(n): str(c["value"]) for n, c in (device.get("capacity") or {}).items()}
    taints = tuple(_taint(t) for t in device.get("taints") or [])
    bad = any(t.get("effect") != _EFFECTLESS for t in device.get("taints") or [])
    owner = device if spec.get("perDeviceNodeSelection") else spec
    shared = bool(device.get("allowMultipleAllocations"))
    draws = pool.draws.get(device["name"], {})
    return DeviceRow(
        node=str(owner.get("nodeName") or ""),
        driver=pool.driver,
        pool=pool.name,
        name=str(device["name"]),
        use=_use(pool, draws, holders, shared=shared),
        health=Health.TAINTED if bad else Health.UNSAID,
        reach="" if owner.get("nodeName") else "all nodes" if owner.get("allNodes") else "nodes by label",
        root=_first(attributes, _ROOTS),
        numa=_first(attributes, _NUMA),
        sets=tuple(draws),
        taints=taints,
        meters=tuple(_meter(n, _consumed(n, holders), Quantity(v)) for n, v in capacity.items()) if shared else (),
        holders=holders,
        attributes=attributes,
        capacity=capacity,
    )


def _use(pool: _Pool, draws: Mapping[str, Mapping[str, Quantity]], holders: tuple[Holder, ...], *, shared: bool) -> Use:
    if any(not h.admin for h in holders):
        return Use.SHARED if shared else Use.HELD
    for name, counters in draws.items():
        left = pool.left.get(name, {})
        if any(amount > left.get(counter, _NOTHING) for counter, amount in counters.items()):
            return Use.BLOCKED
    return Use.FREE


def _gone(key: DeviceKey, holders: Iterable[Holder]) -> DeviceRow:
    return DeviceRow("", *key, Use.GONE, Health.UNSAID, holders=tuple(holders), message="no slice has it any more")


def _set(pool: _Pool, sl: JSON, counter_set: JSON) -> CounterSet:
    name = str(counter_set["name"])
    left = pool.left[name]
    totals = {n: Quantity(c["value"]) for n, c in counter_set["counters"].items()}
    meters = tuple(_meter(n, total - left[n], total) for n, total in totals.items())
    node = str(sl["spec"].get("nodeName") or "")
    if not node:  # counters have a slice of their own: they belong where the devices are that draw from them
        nodes = {_node(of, d) for of, d in pool.devices() if name in pool.draws.get(d["name"], {})}
        node = nodes.pop() if len(nodes) == 1 else ""
    return CounterSet(pool.driver, pool.name, name, node, meters)


def _node(sl: JSON, device: JSON) -> str:
    return str((device if sl["spec"].get("perDeviceNodeSelection") else sl["spec"]).get("nodeName") or "")


# --- words and amounts ----------------------------------------------------------------------------


_NOTHING = Quantity(0)


def _meter(name: str, taken: Quantity, total: Quantity) -> Meter:
    share = float(taken) / float(total) if total else float(bool(taken))
    return Meter(_short(name), str(taken), str(total), round(share, 4))


def _consumed(name: str, holders: Iterable[Holder]) -> Quantity:
    total = _NOTHING
    for h in holders:
        if not h.admin and (amount := h.amounts.get(_short(name))):
            try:
                total = Quantity(amount) + total  # in the format of what claims have
            except QuantityError:
                continue
    return total


def _short(name: str) -> str:
    """Without the domain, which is the driver's own as a rule."""
    return name.rpartition("/")[2]


def _value(attribute: JSON) -> str:
    """Whichever of the typed fields it has; lists with commas (KEP-5491)."""
    for value in attribute.values():
        if isinstance(value, list):
            return ", ".join(map(_plain, value))
        return _plain(value)
    return ""


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else clip(value)


def _first(attributes: Mapping[str, str], names: Iterable[str]) -> str:
    """The value of the first of ``names``, whole or without domain, whatever letters are large in it."""
    whole = {n.lower(): v for n, v in attributes.items()}
    bare = {_short(n).replace("-", "").replace("_", ""): v for n, v in whole.items()}
    return next((v for n in names if (v := whole.get(n) or bare.get(n))), "")


def _taint(taint: JSON) -> str:
    """As people write one: ``key=value:NoExecute``."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


__all__ = ["Tally", "tally"]
