"""Finds every reason why a request cannot have a device, independently of other requests."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dra_devkit.generations import PoolKey, generation_of, key_of, newest
from dra_devkit.scheduling import cel
from dra_devkit.scheduling.allocator import capacity, selection
from dra_devkit.scheduling.allocator.faults import AllocationError
from dra_devkit.scheduling.allocator.pools import AllocatorPool, Candidate, DeviceId
from dra_devkit.scheduling.allocator.results import PickedRequest
from dra_devkit.scheduling.allocator.search import plus
from dra_devkit.scheduling.allocator.taints import tolerates
from dra_devkit.scheduling.cel.parts import excludes_driver, unmet
from dra_devkit.scheduling.framework import extended
from dra_devkit.scheduling.framework.claim_cache import UNUSED, AllocatedState
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import counted, join_names
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse
from dra_kubeletplugin.resourceapi.unhealthy_reason import ATTRIBUTE as UNHEALTHY
from dra_kubeletplugin.resourceapi.unhealthy_reason import reason_of

from ..scheduler_view import SchedulerView, describe_claim
from ..taints import BLOCKING_EFFECTS, RULE, taint_text
from ..usage.usage import text_beside
from .model import ReasonKind

# A claim stays allocated while pods use it, also after its deletion.
FREED = frozenset({ReasonKind.HELD, ReasonKind.COUNTERS, ReasonKind.CAPACITY})  # reasons that other claims may cause
FREEING = "free such devices: delete the pods of these claims, or a claim that no pod uses"


@dataclass(frozen=True)
class DeviceFault:
    """One reason against one device.

    Args:
        detail: the part of the reason that differs from device to device.
        subject: the item that a trial of :mod:`.what_if` changes, to find out whether that is enough: a part of a selector, a constraint,
            a capacity.
        command: a command that makes the change, with ``{node}`` for the name of the node; empty if there is none.
        parts: the single reasons, if this one combines several.
        of_node: whether ``detail`` differs also between nodes with equal devices, for example because it names claims.
        taint: the taint that is not tolerated.
        removal: the change that removes the taint, if a toleration is another possible change.
    """

    kind: ReasonKind
    text: str
    change: str
    detail: str = ""
    subject: str = ""
    parts: tuple[DeviceFault, ...] = ()
    of_node: bool = False
    command: str = ""
    taint: ReadOnlyJSON | None = None
    removal: str = ""

    def command_on(self, node: str) -> str:
        return self.command.replace("{node}", node)


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

    def invalid(self) -> Iterator[DeviceFault]:
        """Yields a fault for each invalid pool of any driver. If the pod does not fit, the scheduler reports these first."""
        change = "the driver has to publish a pool that does not contradict itself"
        for pool in self.pools:
            if pool.invalid:
                yield DeviceFault(
                    ReasonKind.POOL_INVALID, "a pool contradicts itself", change, f"pool {pool}: {pool.invalid}"
                )

    def broken(self, request: PickedRequest) -> Iterator[DeviceFault]:
        """Yields a fault for each pool of the node that cannot be used now.

        An incomplete pool counts if it can have devices for the request. A request for all devices waits for each pool of
        any driver.
        """
        yield from self.invalid()
        every = request.spec.get("allocationMode") == "All"
        selectors = () if every else tuple(_expressions(request))
        known = {p.key for p in self.pools}
        for pool in self.pools:
            if pool.incomplete and not _excluded(selectors, pool.driver):
                yield from _incomplete(pool.key, self.view)
        local = self.view.slices.local.get(self.node.name, ())
        for key in dict.fromkeys(key for sl in local if (key := key_of(sl)) not in known):
            if not _excluded(selectors, key[0]):
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
        return [*self._taints(request, candidate, extended_resource=claim.endswith(extended.DRAFT)), *taken]

    def _taints(
        self, request: PickedRequest, candidate: Candidate, *, extended_resource: bool
    ) -> Iterator[DeviceFault]:
        """``extended_resource``: whether the request is for an extended resource, so that it cannot have tolerations."""
        taints = candidate.device.get("taints") or []
        for taint in taints:
            if taint["effect"] not in BLOCKING_EFFECTS or any(
                tolerates(t, taint) for t in request.spec.get("tolerations") or []
            ):
                continue
            shown, rule = taint_text(taint), taint.get(RULE, "")
            # A plugin adds the taint for bad health after the driver's own taints.
            reason = reason_of(candidate.device) if taint is taints[-1] and not rule else ""
            removal = f"delete DeviceTaintRule {rule}" if rule else f"the driver has to remove the taint {shown}"
            tolerable = False
            if reason or taint["key"] == UNHEALTHY:
                # A plugin refuses to prepare an unhealthy device, so a toleration alone is not enough.
                change = f"repair the device, so that its driver removes the taint {shown}"
            elif extended_resource:
                change = removal
            else:
                change = f"the request has to tolerate {shown}, or {removal.removesuffix(f' {shown}')}"
                tolerable = True
            yield DeviceFault(
                ReasonKind.DEVICE_TAINT,
                f"the taint {shown} is not tolerated",
                change,
                f"of DeviceTaintRule {rule}" if rule else reason,
                taint=taint,
                removal=removal if tolerable else "",
            )

    @staticmethod
    def _not_taken(request: PickedRequest, candidate: Candidate) -> list[DeviceFault]:
        found = list(_selectors(request, candidate))
        if not found and not candidate.for_node:
            found = [DeviceFault(ReasonKind.NOT_HERE, "it is for other nodes", "use another node")]
        return found or list(_too_small(request, candidate)) or [_NO_AMOUNT]

    def _use(self, candidate: Candidate) -> AllocatedState:
        return self.view.cache.claims.use.get((candidate.id.driver, candidate.id.pool), UNUSED)

    def _held(self, request: PickedRequest, candidate: Candidate) -> Iterator[DeviceFault]:
        use = self._use(candidate)
        shared = self.view.behavior.keeps_shares and not candidate.multiple and candidate.id in use.shares
        if not request.admin and (shared or candidate.id in use.devices):
            yield DeviceFault(
                ReasonKind.HELD,
                "another claim holds it",
                FREEING,
                self._holders(candidate.id),
                of_node=True,
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
                    remaining = (has - taken).text if taken is not None else has.text
                    wanted = text_beside(amount, has)
                    detail = f"{remaining} of {has.text} left; {self._holders(candidate.id)}"
                    text = f"too little of its {_short(name)} is left for {wanted}"
                    change = f"ask for less {_short(name)}, or delete the pods of a claim that shares the device"
                    yield DeviceFault(ReasonKind.CAPACITY, text, change, detail, name, of_node=True)
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
                    short[name] = f"{amount['value']} {name} ({'none' if has is None else has.text} left)"
            if short:
                text = "counters that it shares with other devices are exhausted"
                holders = self._takers(candidate, counter_set, short)
                rest = f" and {counted(len(short) - 2, 'more counter')}" if len(short) > 2 else ""
                needs = ", ".join([*short.values()][:2]) + rest
                detail = f"it needs {needs} of counter set {counter_set}; {holders}"
                change = FREEING
                yield DeviceFault(ReasonKind.COUNTERS, text, change, detail, of_node=True)

    def least_counters(self, candidates: Collection[Candidate]) -> dict[str, Quantity]:
        """Returns the smallest amount of each counter that one of the devices consumes; only counters that all of them consume."""
        consumed = [{key[1]: amount for key, amount in _consumes(c.device)} for c in candidates]
        names = set.intersection(*map(set, consumed)) if consumed else set()
        return {name: min(amounts[name] for amounts in consumed) for name in sorted(names)}

    def left_counters(self, candidates: Iterable[Candidate]) -> Iterator[tuple[str, str, Quantity]]:
        """Yields set, name and remaining amount of each counter that the devices consume."""
        for candidate in candidates:
            remaining = self._free_counters(candidate)
            for (counter_set, name), _ in _consumes(candidate.device):
                if (counter_set, name) in remaining:
                    yield counter_set, name, remaining[counter_set, name]

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
        return join_names([describe_claim(c) for c in claims.values()]) or "no claim holds such a device"

    def _holders(self, device: DeviceId) -> str:
        return (
            join_names([describe_claim(c) for c in self.view.holders(device)]) or "a claim that is not known holds it"
        )


def _incomplete(key: PoolKey, view: SchedulerView) -> Iterator[DeviceFault]:
    """Yields a fault if slices of the pool's newest generation are missing."""
    current = newest(view.slices.by_pool.get(key, ()), generation_of)
    wanted = int(current[0]["spec"]["pool"]["resourceSliceCount"])
    if len(current) != wanted:
        detail = f"pool {key[0]}/{key[1]}, generation {generation_of(current[0])}: {len(current)} of {wanted} slices"
        change = f"driver {key[0]} has to publish the rest of the pool: see its log if that takes long"
        yield DeviceFault(
            ReasonKind.POOL_INCOMPLETE, "a pool is being updated: not all of its slices are there", change, detail
        )


def _expressions(request: PickedRequest) -> Iterator[str]:
    """Yields the selectors of the class and of the request."""
    for spec in (request.device_class["spec"], request.spec):
        yield from (s["cel"]["expression"] for s in spec.get("selectors") or [])


def _excluded(selectors: Iterable[str], driver: str) -> bool:
    """Returns whether one of the selectors matches no device of a driver."""
    for expression in selectors:
        with contextlib.suppress(cel.CompileError):
            if excludes_driver(expression, driver):
                return True
    return False


def _selectors(request: PickedRequest, candidate: Candidate) -> Iterator[DeviceFault]:
    """Yields the false parts of the class's selectors; if there are none, the false parts of the request's selectors."""
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


def _consumes(device: ReadOnlyJSON) -> Iterator[tuple[tuple[str, str], Quantity]]:
    for consumed in device.get("consumesCounters") or []:
        for name, amount in consumed["counters"].items():
            yield (consumed["counterSet"], name), parse(amount["value"])


def _takes(device: ReadOnlyJSON, counter_set: str, counters: Collection[str]) -> bool:
    return any(key[0] == counter_set and key[1] in counters for key, _ in _consumes(device))


def _short(name: str) -> str:
    """Returns a capacity's name without its domain."""
    return name.rpartition("/")[2]
