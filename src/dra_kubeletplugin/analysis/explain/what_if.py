"""The allocator asked again with something changed: which one thing would be enough.

Each change is made to the objects that the allocator is given, so what is answered is what it would decide.
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
from ..scheduler_view import told
from .device_reasons import DeviceFault, NodeDevices, taint_text
from .model import ReasonKind

JSON = dict[str, Any]
LIMIT = 1.0  # seconds for one trial: what takes longer is taken not to help
_VALUES = 4
_FREED = {ReasonKind.HELD, ReasonKind.COUNTERS, ReasonKind.CAPACITY}  # what other claims may have taken
_HOLDERS = 16  # claims that are tried one by one
NOT_TOGETHER = DeviceFault(
    ReasonKind.COMPETITION,
    "there are devices for each request alone, and not for all of them together",
    "ask for fewer devices, or add some",
)
Edit = Callable[[JSON], JSON]


class WhatIf:
    """What one node would say to claims that are not allocated yet."""

    def __init__(
        self, devices: NodeDevices, claims: Sequence[JSON], own: Collection[str] = (), limit: float = LIMIT
    ) -> None:
        """``own``: UIDs of the pod's own claims, which cannot make room for it."""
        self.devices = devices
        self._own = own
        self.claims = list(claims)
        self._limit = limit

    def fits(
        self, claims: Sequence[JSON] | None = None, *, gone: Collection[str] = (), device: Edit | None = None
    ) -> bool:
        """``claims`` in place of those of the pod; ``gone``: as if there were no claims with these UIDs; ``device``: as if
        devices were so.
        """
        in_use: set[DeviceId] = set()
        shares: dict[DeviceId, dict[str, Quantity]] = {}
        if gone:
            uses = [taken_by(results_of(c)) for uid, c in self._holders.items() if uid not in gone]
        else:
            use = self.devices.scene.cache.claims.use
            uses = [use.get(pool.key, UNUSED) for pool in self.devices.pools]
        for taken in uses:
            in_use |= taken.devices
            for held, amounts in taken.shares.items():
                used = shares.setdefault(held, {})
                used.update({name: plus(used.get(name), amount) for name, amount in amounts.items()})
        classes = self.devices.scene.cache.classes
        state = SearchState(classes, in_use, shares, lambda: "", self._limit)
        pools = [_changed(p, device) for p in self.devices.pools] if device else self.devices.pools
        try:
            return Search(state, pools, self.claims if claims is None else claims).run()
        except AllocationError:
            return False

    # --- together -------------------------------------------------------------------------------

    def together(self) -> Iterator[DeviceFault]:
        """Why devices that would do one by one do not do together."""
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
            text = "the devices would do one by one, but together they need more of shared counters than there is"
            change = "fewer or smaller devices at once, or a claim that holds a device of the same counters has to go"
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
        """How many of the devices that nobody holds have which value of a constraint's attribute."""
        name = str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
        use = self.devices.scene.cache.claims.use
        free = [c for c in self.devices.candidates if c.id not in use.get((c.id.driver, c.id.pool), UNUSED).devices]
        values = Counter(str(next(iter(v.values()))) for c in free if (v := attribute_of(c, name)))
        told = ", ".join(f"{value} on {n}" for value, n in values.most_common(_VALUES))
        more = ", ..." if len(values) > _VALUES else ""
        return f"values of the free devices: {told}{more}" if values else "no free device has the attribute"

    # --- what would help ------------------------------------------------------------------------

    def enough(self, fault: DeviceFault) -> Iterator[tuple[str, str]]:
        """What would let the devices do where a fault stands in the way, each alone, and what is meant by it."""
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
        """Whether the devices would do without several taints and parts of selectors; of anything else nothing is known."""
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
        scene = self.devices.scene
        ids = (DeviceId(p.driver, p.name, d["name"]) for p in self.devices.pools for d in p.devices)
        return {str(c["metadata"]["uid"]): c for i in ids for c in scene.holders(i)}

    @cached_property
    def _freeing(self) -> list[tuple[str, str]]:
        """Claims without which the devices would do: one that suffices, or several of which none can stay."""
        every = [uid for uid in self._holders if uid not in self._own]
        if not every or not self.fits(gone=every):
            return []
        gone = next(([uid] for uid in every[:_HOLDERS] if self.fits(gone=[uid])), every)
        for uid in every[:_HOLDERS] if len(gone) > 1 else ():
            fewer = [other for other in gone if other != uid]
            if fewer and self.fits(gone=fewer):
                gone = fewer
        return [("claims that hold such devices have to go", " and ".join(told(self._holders[uid]) for uid in gone))]

    def _less(self, name: str) -> Iterator[tuple[str, str]]:
        """The largest amount of a capacity that could be had, where less than what is asked for would do."""
        short = name.rpartition("/")[2]
        for amount in self._amounts(name)[:_VALUES]:
            if self.fits([_edited(c, _at_most(name, amount)) for c in self.claims]):
                yield f"ask for at most {canonical(amount)} of {short}", ""
                return
        if self.fits([_edited(c, _not_asking(name)) for c in self.claims]):
            yield f"ask for no {short}", ""

    def _amounts(self, name: str) -> list[Quantity]:
        """What devices have left of a capacity, the largest first."""
        use = self.devices.scene.cache.claims.use
        left = set()
        for c in self.devices.candidates:
            if name in (c.device.get("capacity") or {}):
                has = parse(c.device["capacity"][name]["value"])
                taken = use.get((c.id.driver, c.id.pool), UNUSED).shares.get(c.id, {}).get(name)
                left.add(has if taken is None else has - taken)
        return sorted((amount for amount in left if amount > parse("0")), reverse=True)


def _changed(pool: AllocatorPool, edit: Edit) -> AllocatorPool:
    def candidate(c: Candidate) -> Candidate:
        return Candidate(c.id, edit(dict(c.device)), c.slice, c.here, c.matches)

    return replace(pool, candidates=[candidate(c) for c in pool.candidates])


def _without(key: str) -> Edit:
    return lambda obj: {k: v for k, v in obj.items() if k != key}


def _untainted(*taints: str) -> Edit:
    def edit(device: JSON) -> JSON:
        return {**device, "taints": [t for t in device.get("taints") or [] if taint_text(t) not in taints]}

    return edit


def _edited(claim: JSON, edit: Edit) -> JSON:
    """The claim with each of its requests and alternatives changed."""
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
        asked = dict((request.get("capacity") or {}).get("requests") or {})
        if name not in asked or parse(str(asked[name])) > amount:
            asked[name] = canonical(amount)
        return {**request, "capacity": {"requests": asked}}

    return edit


def _not_asking(name: str) -> Edit:
    def edit(request: JSON) -> JSON:
        asked = (request.get("capacity") or {}).get("requests") or {}
        return {**request, "capacity": {"requests": {k: v for k, v in asked.items() if k != name}}}

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
