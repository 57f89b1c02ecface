"""Repeats an allocation with changed objects, to find the single change that would be enough.

Changes are made to the objects that the allocator gets, so the result is what the scheduler would decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...resourceapi.quantity import Quantity, canonical, parse
from ...scheduling.allocator.constraints import attribute_of
from ...scheduling.allocator.faults import AllocationError
from ...scheduling.allocator.pools import AllocatorPool, Candidate, DeviceId
from ...scheduling.allocator.search import Search, SearchState, plus
from ...scheduling.cel.parts import without
from ...scheduling.framework.claim_cache import UNUSED, results_of, taken_by
from ..scheduler_view import describe_claim
from .device_reasons import DeviceFault, NodeDevices, taint_text
from .model import ReasonKind

JSON = dict[str, Any]
LIMIT = 1.0  # seconds for one trial; a trial that takes longer counts as failed
_VALUES = 4
_FREED = {ReasonKind.HELD, ReasonKind.COUNTERS, ReasonKind.CAPACITY}  # reasons that other claims may cause
_HOLDERS = 16  # number of claims that are tried one by one
NOT_TOGETHER = DeviceFault(
    ReasonKind.COMPETITION,
    "there are devices for each request alone, and not for all of them together",
    "ask for fewer devices, or add some",
)
Edit = Callable[[JSON], JSON]


class WhatIf:
    """Trials on one node for claims that are not allocated yet."""

    def __init__(
        self, devices: NodeDevices, claims: Sequence[JSON], own: Collection[str] = (), limit: float = LIMIT
    ) -> None:
        """``own``: UIDs of the pod's own claims, which cannot free devices for it."""
        self.devices = devices
        self._own = own
        self.claims = list(claims)
        self._limit = limit

    def fits(
        self, claims: Sequence[JSON] | None = None, *, gone: Collection[str] = (), device: Edit | None = None
    ) -> bool:
        """Returns whether the claims can be allocated.

        Args:
            claims: the claims to allocate; None for those of the constructor.
            gone: UIDs of claims that are treated as deleted.
            device: a change that is applied to each device.
        """
        in_use: set[DeviceId] = set()
        shares: dict[DeviceId, dict[str, Quantity]] = {}
        if gone:
            uses = [taken_by(results_of(c)) for uid, c in self._holders.items() if uid not in gone]
        else:
            use = self.devices.view.cache.claims.use
            uses = [use.get(pool.key, UNUSED) for pool in self.devices.pools]
        for taken in uses:
            in_use |= taken.devices
            for held, amounts in taken.shares.items():
                used = shares.setdefault(held, {})
                used.update({name: plus(used.get(name), amount) for name, amount in amounts.items()})
        classes = self.devices.view.cache.classes
        state = SearchState(classes, in_use, shares, lambda: "", self._limit)
        pools = [_changed(p, device) for p in self.devices.pools] if device else self.devices.pools
        try:
            return Search(state, pools, self.claims if claims is None else claims).run()
        except AllocationError:
            return False

    # --- all requests together ------------------------------------------------------------------

    def together(self) -> Iterator[DeviceFault]:
        """Yields reasons why devices suffice for each request alone, but not for all requests together."""
        named = list(_constraints(self.claims))
        alone = [(i, k, c) for i, k, c in named if self.fits(_dropped(self.claims, {(i, k)}))]
        for i, _, constraint in alone:
            yield self._constraint(self.claims[i], constraint)
        if alone:
            return
        if len(named) > 1 and self.fits(_dropped(self.claims, {(i, k) for i, k, _ in named})):
            shown = ", ".join(_shown(c) for _, _, c in named)
            yield DeviceFault(
                ReasonKind.CONSTRAINT,
                f"the constraints cannot all hold: {shown}",
                "fewer constraints, or fewer devices",
            )
        elif self.fits(device=_without("consumesCounters")):
            text = (
                "each of the devices would do alone, but together they need more of the shared counters than there is"
            )
            change = "fewer or smaller devices at once, or delete a claim that holds a device of the same counters"
            yield DeviceFault(ReasonKind.COUNTERS, text, change)
        else:
            yield NOT_TOGETHER

    def _constraint(self, claim: JSON, constraint: JSON) -> DeviceFault:
        change = f"without this constraint of claim {claim['metadata']['name']} the devices would do; or other devices are needed"
        shown = _shown(constraint)
        return DeviceFault(
            ReasonKind.CONSTRAINT, f"no choice of devices satisfies {shown}", change, self._values(constraint), shown
        )

    def _values(self, constraint: JSON) -> str:
        """Describes the values of a constraint's attribute on the free devices, with the number of devices for each value."""
        name = str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
        use = self.devices.view.cache.claims.use
        free = [c for c in self.devices.candidates if c.id not in use.get((c.id.driver, c.id.pool), UNUSED).devices]
        values = Counter(str(next(iter(v.values()))) for c in free if (v := attribute_of(c, name)))
        counts = ", ".join(f"{value} on {n}" for value, n in values.most_common(_VALUES))
        more = ", ..." if len(values) > _VALUES else ""
        return f"values of the free devices: {counts}{more}" if values else "no free device has the attribute"

    # --- suggested changes ----------------------------------------------------------------------

    def enough(self, fault: DeviceFault) -> Iterator[tuple[str, str]]:
        """Yields changes, each of which alone removes a fault and lets the claims fit, and an example for each."""
        if fault.parts:
            if all(part.kind in _FREED for part in fault.parts):
                yield from self._freeing
            elif self._without_all(fault.parts):
                yield fault.change, ""
            return
        match fault.kind:
            case ReasonKind.HELD | ReasonKind.COUNTERS:
                yield from self._freeing
            case ReasonKind.DEVICE_TAINT:
                if self.fits(device=_untainted(fault.subject)):
                    yield fault.change, ""
            case ReasonKind.SELECTOR:
                if fault.subject and self.fits([_edited(c, _without_part(fault.subject)) for c in self.claims]):
                    yield fault.change, ""
            case ReasonKind.CAPACITY:
                yield from self._less(fault.subject)
                yield from self._freeing
            case ReasonKind.CONSTRAINT:
                named = {(i, k) for i, k, c in _constraints(self.claims) if _shown(c) == fault.subject}
                if self.fits(_dropped(self.claims, named)):
                    yield fault.change, ""

    def _without_all(self, parts: Sequence[DeviceFault]) -> bool:
        """Returns whether removing several taints and parts of selectors would be enough; False for other kinds of faults."""
        claims, tainted = self.claims, []
        for part in parts:
            if part.kind is ReasonKind.DEVICE_TAINT:
                tainted.append(part.subject)
            elif part.kind is ReasonKind.SELECTOR and part.subject:
                claims = [_edited(c, _without_part(part.subject)) for c in claims]
            else:
                return False
        return self.fits(claims, device=_untainted(*tainted))

    @cached_property
    def _holders(self) -> dict[str, JSON]:
        """Claims that hold devices of the node's pools, by UID."""
        view = self.devices.view
        ids = (DeviceId(p.driver, p.name, d["name"]) for p in self.devices.pools for d in p.devices)
        return {str(c["metadata"]["uid"]): c for i in ids for c in view.holders(i)}

    @cached_property
    def _freeing(self) -> list[tuple[str, str]]:
        """The deletion of claims that would be enough: of one claim, or else of several claims that all must be deleted."""
        every = [uid for uid in self._holders if uid not in self._own]
        if not every or not self.fits(gone=every):
            return []
        gone = next(([uid] for uid in every[:_HOLDERS] if self.fits(gone=[uid])), every)
        for uid in every[:_HOLDERS] if len(gone) > 1 else ():
            fewer = [other for other in gone if other != uid]
            if fewer and self.fits(gone=fewer):
                gone = fewer
        return [
            (
                "claims that hold such devices must be deleted",
                " and ".join(describe_claim(self._holders[uid]) for uid in gone),
            )
        ]

    def _less(self, name: str) -> Iterator[tuple[str, str]]:
        """Yields the largest amount of a capacity that would be available, if that is less than requested."""
        short = name.rpartition("/")[2]
        for amount in self._amounts(name)[:_VALUES]:
            if self.fits([_edited(c, _at_most(name, amount)) for c in self.claims]):
                yield f"ask for at most {canonical(amount)} of {short}", ""
                return
        if self.fits([_edited(c, _without_request(name)) for c in self.claims]):
            yield f"ask for no {short}", ""

    def _amounts(self, name: str) -> list[Quantity]:
        """Returns the remaining amounts of a capacity on the devices, largest first."""
        use = self.devices.view.cache.claims.use
        remaining = set()
        for c in self.devices.candidates:
            if name in (c.device.get("capacity") or {}):
                has = parse(c.device["capacity"][name]["value"])
                taken = use.get((c.id.driver, c.id.pool), UNUSED).shares.get(c.id, {}).get(name)
                remaining.add(has if taken is None else has - taken)
        return sorted((amount for amount in remaining if amount > parse("0")), reverse=True)


def _changed(pool: AllocatorPool, edit: Edit) -> AllocatorPool:
    def candidate(c: Candidate) -> Candidate:
        return Candidate(c.id, edit(dict(c.device)), c.slice, c.for_node, c.matches)

    return replace(pool, candidates=[candidate(c) for c in pool.candidates])


def _without(key: str) -> Edit:
    return lambda obj: {k: v for k, v in obj.items() if k != key}


def _untainted(*taints: str) -> Edit:
    def edit(device: JSON) -> JSON:
        return {**device, "taints": [t for t in device.get("taints") or [] if taint_text(t) not in taints]}

    return edit


def _edited(claim: JSON, edit: Edit) -> JSON:
    """Returns the claim with ``edit`` applied to each of its requests and alternatives."""
    requests = []
    devices = claim["spec"].get("devices") or {}
    for request in devices.get("requests") or []:
        changed = dict(request)
        if request.get("exactly"):
            changed["exactly"] = edit(dict(request["exactly"]))
        if request.get("firstAvailable"):
            changed["firstAvailable"] = [edit(dict(sub)) for sub in request["firstAvailable"]]
        requests.append(changed)
    return {**claim, "spec": {**claim["spec"], "devices": {**devices, "requests": requests}}}


def _without_part(part: str) -> Edit:
    def edit(request: JSON) -> JSON:
        expressions = [s["cel"]["expression"] for s in request.get("selectors") or []]
        return {**request, "selectors": [{"cel": {"expression": without(e, part)}} for e in expressions]}

    return edit


def _at_most(name: str, amount: Quantity) -> Edit:
    def edit(request: JSON) -> JSON:
        requested = dict((request.get("capacity") or {}).get("requests") or {})
        if name not in requested or parse(str(requested[name])) > amount:
            requested[name] = canonical(amount)
        return {**request, "capacity": {"requests": requested}}

    return edit


def _without_request(name: str) -> Edit:
    def edit(request: JSON) -> JSON:
        requested = (request.get("capacity") or {}).get("requests") or {}
        return {**request, "capacity": {"requests": {k: v for k, v in requested.items() if k != name}}}

    return edit


def _constraints(claims: Sequence[JSON]) -> Iterator[tuple[int, int, JSON]]:
    for i, claim in enumerate(claims):
        for k, constraint in enumerate((claim["spec"].get("devices") or {}).get("constraints") or []):
            yield i, k, constraint


def _dropped(claims: Sequence[JSON], which: set[tuple[int, int]]) -> list[JSON]:
    out = []
    for i, claim in enumerate(claims):
        devices = claim["spec"].get("devices") or {}
        kept = [c for k, c in enumerate(devices.get("constraints") or []) if (i, k) not in which]
        out.append({**claim, "spec": {**claim["spec"], "devices": {**devices, "constraints": kept}}})
    return out


def _shown(constraint: Mapping[str, Any]) -> str:
    kind = "matchAttribute" if constraint.get("matchAttribute") else "distinctAttribute"
    requests = constraint.get("requests")
    return f"{kind} {constraint.get(kind)}" + (f" of requests {', '.join(requests)}" if requests else "")
