"""Finds every reason why a request cannot have a device, independently of other requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...base.text import join_names
from ...resourceapi.quantity import Quantity, canonical, parse
from ...scheduling import cel
from ...scheduling.allocator import capacity, selection
from ...scheduling.allocator.faults import AllocationError
from ...scheduling.allocator.pools import AllocatorPool, Candidate, DeviceId, PoolKey, key_of
from ...scheduling.allocator.results import PickedRequest
from ...scheduling.allocator.search import plus
from ...scheduling.allocator.taints import tolerates
from ...scheduling.cel.parts import unmet
from ...scheduling.framework.claim_cache import UNUSED, DeviceUse
from ...scheduling.framework.node_info import NodeInfo
from ..scheduler_view import SchedulerView, describe_claim
from .model import ReasonKind

JSON = Mapping[str, Any]
_KEEPS_AWAY = {"NoSchedule", "NoExecute"}


@dataclass(frozen=True)
class DeviceFault:
    """One reason against one device.

    Args:
        detail: the part of the reason that differs from device to device.
        subject: the item that a trial would change: a part of a selector, a taint, a constraint, a capacity.
        parts: the single reasons, if this one combines several.
    """

    kind: ReasonKind
    text: str
    change: str
    detail: str = ""
    subject: str = ""
    parts: tuple[DeviceFault, ...] = ()


_NO_AMOUNT = DeviceFault(ReasonKind.CAPACITY, "its policy allows no amount that suffices", "ask for another amount")


class NodeDevices:
    """The devices that are visible from one node, and their remaining capacity."""

    def __init__(self, view: SchedulerView, node: NodeInfo) -> None:
        self.view = view
        self.node = node
        self.pools: list[AllocatorPool] = view.memory.pools.pools(node, view.slices)
        self._by_key = {p.key: p for p in self.pools}
        self._left: dict[PoolKey, dict[tuple[str, str], Quantity]] = {}

    @cached_property
    def candidates(self) -> list[Candidate]:
        return [c for p in self.pools if not (p.invalid or p.incomplete) for c in p.candidates]

    def broken(self) -> Iterator[DeviceFault]:
        """Yields a fault for each pool of the node that cannot be used now."""
        known = {p.key for p in self.pools}
        for pool in self.pools:
            if pool.invalid:
                change = "the driver has to publish a pool that does not contradict itself"
                yield DeviceFault(
                    ReasonKind.POOL_INVALID, "a pool contradicts itself", change, f"pool {pool}: {pool.invalid}"
                )
            elif pool.incomplete:
                yield from _incomplete(pool.key, self.view)
        for key in {key for sl in self.view.slices.local.get(self.node.name, ()) if (key := key_of(sl)) not in known}:
            yield from _incomplete(key, self.view)

    # --- one device -----------------------------------------------------------------------------

    def faults(self, claim: str, request: PickedRequest, candidate: Candidate) -> list[DeviceFault]:
        """Returns the reasons against a device; empty if the device fits this request, without regard to other requests."""
        try:
            if not selection.accepts(claim, request, candidate):
                return self._not_taken(request, candidate)
        except AllocationError:
            return list(_selectors(request, candidate))
        held = list(self._held(request, candidate))
        # The holder of a device also consumes its counters, so they are not a second reason.
        taken = held or self._exhausted(request, candidate)
        return [*_taints(request, candidate), *taken]

    @staticmethod
    def _not_taken(request: PickedRequest, candidate: Candidate) -> list[DeviceFault]:
        found = list(_selectors(request, candidate))
        if not found and not candidate.for_node:
            found = [DeviceFault(ReasonKind.NOT_HERE, "it is for other nodes", "use another node")]
        return found or list(_too_small(request, candidate)) or [_NO_AMOUNT]

    def _use(self, candidate: Candidate) -> DeviceUse:
        return self.view.cache.claims.use.get((candidate.id.driver, candidate.id.pool), UNUSED)

    def _held(self, request: PickedRequest, candidate: Candidate) -> Iterator[DeviceFault]:
        if not request.admin and candidate.id in self._use(candidate).devices:
            yield DeviceFault(
                ReasonKind.HELD,
                "another claim holds it",
                "claims that hold such devices must be deleted",
                self._holders(candidate.id),
            )

    def _exhausted(self, request: PickedRequest, candidate: Candidate) -> Iterator[DeviceFault]:
        """Yields a fault for each exhausted capacity of a shared device, and for exhausted counters."""
        used = self._use(candidate).shares.get(candidate.id)
        if candidate.multiple:
            amounts = capacity.consumed(candidate.device, request.spec.get("capacity")) or {}
            for name, amount in amounts.items():
                has = parse(candidate.device["capacity"][name]["value"])
                taken = (used or {}).get(name)
                if plus(taken, amount) > has:
                    remaining = canonical(has - taken) if taken is not None else canonical(has)
                    detail = f"{remaining} of {canonical(has)} left; {self._holders(candidate.id)}"
                    text = f"too little of its {_short(name)} is left for {canonical(amount)}"
                    change = f"ask for less {_short(name)}, or delete a claim that shares it"
                    yield DeviceFault(ReasonKind.CAPACITY, text, change, detail, name)
        if used is None and (candidate.multiple or not request.admin):
            yield from self._counters(candidate)

    def _counters(self, candidate: Candidate) -> Iterator[DeviceFault]:
        """Yields one fault for each counter set. Its detail names the exhausted counters, which differ from device to device."""
        remaining = self._free_counters(candidate)
        for consumed in candidate.device.get("consumesCounters") or []:
            counter_set, short = consumed["counterSet"], {}
            for name, amount in consumed["counters"].items():
                has = remaining.get((counter_set, name))
                if has is None or has < parse(amount["value"]):
                    short[name] = f"{amount['value']} {name} ({'none' if has is None else canonical(has)} left)"
            if short:
                text = "counters that it shares with other devices are exhausted"
                holders = self._takers(candidate, counter_set, short)
                detail = f"it needs {join_names(short.values(), 2)} of counter set {counter_set}; {holders}"
                yield DeviceFault(
                    ReasonKind.COUNTERS, text, "claims that hold devices of the same counters must be deleted", detail
                )

    def _free_counters(self, candidate: Candidate) -> Mapping[tuple[str, str], Quantity]:
        pool = self._by_key[candidate.id.driver, candidate.id.pool]
        if pool.key not in self._left:
            use = self._use(candidate)
            remaining = {(s, n): parse(c["value"]) for s, cs in pool.counter_sets.items() for n, c in cs.items()}
            for device in pool.devices:
                held = DeviceId(pool.driver, pool.name, device["name"])
                if held in use.devices or held in use.shares:
                    for key, amount in _consumes(device):
                        if key in remaining:
                            remaining[key] -= amount
            self._left[pool.key] = remaining
        return self._left[pool.key]

    def _takers(self, candidate: Candidate, counter_set: str, counters: Collection[str]) -> str:
        """Returns the holders of devices that consume one of the counters."""
        pool = self._by_key[candidate.id.driver, candidate.id.pool]
        ids = (DeviceId(pool.driver, pool.name, d["name"]) for d in pool.devices if _takes(d, counter_set, counters))
        claims = {str(c["metadata"]["uid"]): c for i in ids for c in self.view.holders(i)}
        return join_names([describe_claim(c) for c in claims.values()]) or "no claim holds any of it"

    def _holders(self, device: DeviceId) -> str:
        return (
            join_names([describe_claim(c) for c in self.view.holders(device)]) or "a claim that is not known holds it"
        )


def _incomplete(key: PoolKey, view: SchedulerView) -> Iterator[DeviceFault]:
    """Yields a fault if slices of the pool's newest generation are missing."""
    slices = view.slices.by_pool.get(key, ())
    newest = max(int(s["spec"]["pool"].get("generation", 0)) for s in slices)
    current = [s for s in slices if int(s["spec"]["pool"].get("generation", 0)) == newest]
    wanted = int(current[0]["spec"]["pool"]["resourceSliceCount"])
    if len(current) != wanted:
        detail = f"pool {key[0]}/{key[1]}, generation {newest}: {len(current)} of {wanted} slices"
        change = "the driver has to publish the rest of the pool: see its log where that takes long"
        yield DeviceFault(
            ReasonKind.POOL_INCOMPLETE, "a pool is being updated: not all of its slices are there", change, detail
        )


def _selectors(request: PickedRequest, candidate: Candidate) -> Iterator[DeviceFault]:
    """Yields the false parts of the class's selectors; if there are none, those of the request's selectors."""
    name = request.device_class["metadata"]["name"]
    change = f"devices that class {name} selects, or another class"
    of_class = DeviceFault(ReasonKind.CLASS_SELECTOR, f"class {name} does not select it", change)
    own = DeviceFault(ReasonKind.SELECTOR, "its selector is false", "a selector without {}, or devices that match")
    for fault, spec in ((of_class, request.device_class["spec"]), (own, request.spec)):
        found = [f for s in spec.get("selectors") or [] for f in _parts(s["cel"]["expression"], fault, candidate)]
        if found:
            yield from found
            return


def _parts(expression: str, fault: DeviceFault, candidate: Candidate) -> Iterator[DeviceFault]:
    try:
        parts = unmet(expression, candidate.cel_device)
    except cel.CompileError as e:
        text = f"a selector does not compile: {e}"
        yield DeviceFault(ReasonKind.SELECTOR_ERROR, text, "a selector that compiles", subject=str(e))
        return
    for part in parts:
        if part.error:
            change = "a selector that can be evaluated for every device"
            if part.guards:
                change = f"a selector that checks first: {' && '.join(part.guards)} && ..."
            text = f"a selector fails: {_line(part.expression)}: {part.error}"
            yield DeviceFault(ReasonKind.SELECTOR_ERROR, text, change, part.seen, part.error)
            return
    if parts:
        shown = ", and ".join(_line(p.expression) for p in parts)
        detail = ", ".join(dict.fromkeys(p.seen for p in parts if p.seen))
        alone = parts[0].expression if len(parts) == 1 else ""
        change = fault.change.format(shown)
        yield replace(fault, text=f"{fault.text}: {shown}", change=change, detail=detail, subject=alone)


def _line(expression: str) -> str:
    return " ".join(expression.split())


def _too_small(request: PickedRequest, candidate: Candidate) -> Iterator[DeviceFault]:
    capacities = candidate.device.get("capacity") or {}
    for name, value in ((request.spec.get("capacity") or {}).get("requests") or {}).items():
        if name not in capacities:
            yield DeviceFault(
                ReasonKind.CAPACITY,
                f"it has no capacity {_short(name)}",
                f"a device with {_short(name)}, or no request for it",
                subject=name,
            )
        elif parse(str(value)) > parse(capacities[name]["value"]):
            text = f"its {_short(name)} is less than {value}"
            yield DeviceFault(
                ReasonKind.CAPACITY,
                text,
                f"ask for less {_short(name)}, or add larger devices",
                f"it has {capacities[name]['value']}",
                name,
            )
        elif (
            candidate.multiple
            and capacity.consumed({"capacity": {name: capacities[name]}}, {"requests": {name: value}}) is None
        ):
            policy = capacities[name].get("requestPolicy")
            text = f"its policy for {_short(name)} allows no amount for {value}"
            yield DeviceFault(
                ReasonKind.CAPACITY, text, f"ask for another amount of {_short(name)}", f"policy {policy}", name
            )


def _taints(request: PickedRequest, candidate: Candidate) -> Iterator[DeviceFault]:
    for taint in candidate.device.get("taints") or []:
        if taint["effect"] in _KEEPS_AWAY and not any(
            tolerates(t, taint) for t in request.spec.get("tolerations") or []
        ):
            shown = taint_text(taint)
            change = f"the request has to tolerate {shown}, or the driver has to remove the taint"
            yield DeviceFault(
                ReasonKind.DEVICE_TAINT, f"it has the taint {shown}, which is not tolerated", change, subject=shown
            )


def taint_text(taint: JSON) -> str:
    """Formats a taint like kubectl: ``key=value:effect``."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _consumes(device: JSON) -> Iterator[tuple[tuple[str, str], Quantity]]:
    for consumed in device.get("consumesCounters") or []:
        for name, amount in consumed["counters"].items():
            yield (consumed["counterSet"], name), parse(amount["value"])


def _takes(device: JSON, counter_set: str, counters: Collection[str]) -> bool:
    return any(key[0] == counter_set and key[1] in counters for key, _ in _consumes(device))


def _short(name: str) -> str:
    """Returns a capacity's name without its domain."""
    return name.rpartition("/")[2]


__all__ = ["DeviceFault", "NodeDevices", "taint_text"]
