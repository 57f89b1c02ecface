"""Repeats an allocation with changed objects, to find the single change that would be enough.

Changes are made to the objects that the allocator gets, so the result is what the scheduler would decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from dra_devkit.scheduling.allocator import capacity
from dra_devkit.scheduling.allocator.derived import value_of
from dra_devkit.scheduling.allocator.faults import AllocationError, AllocationTimeout, NodeFault
from dra_devkit.scheduling.allocator.pools import AllocatorPool, Candidate, DeviceId
from dra_devkit.scheduling.allocator.results import PickedRequest
from dra_devkit.scheduling.allocator.search import Search, SearchState, plus
from dra_devkit.scheduling.cel.parts import without
from dra_devkit.scheduling.framework import extended
from dra_devkit.scheduling.framework.claim_cache import UNUSED, taken_by
from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse

from ..scheduler_view import describe_claim, name_of
from ..taints import taint_with_rule
from .device_reasons import FREED, FREEING, DeviceFault, NodeDevices
from .model import ReasonKind, RequestOnNodes
from .request_reasons import options_of

LIMIT = 1.0  # seconds for one trial; a trial that takes longer counts as failed
_VALUES = 4
_HOLDERS = 16  # number of claims that are tried one by one
NOT_TOGETHER = DeviceFault(
    ReasonKind.COMPETITION,
    "there are devices for each request alone, but not for all of them together",
    "ask for fewer devices, or add devices",
)
Edit = Callable[[JSON], JSON]


class Enough(NamedTuple):
    """A change that was tried on one node with success.

    Args:
        example: the objects that the change concerns on this node.
        claims: the changed claims; None if the claims stay as they are.
        removes: the text of a node's reason that the change removes on all nodes; empty if it changes one node only.
        less: for a change that asks for less: the item, and the amount that is still requested. A larger amount is better.
    """

    text: str
    example: str = ""
    command: str = ""
    claims: Sequence[JSON] | None = None
    removes: str = ""
    less: tuple[str, Any] | None = None


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
        try:
            return self._search(self.claims if claims is None else claims, gone, device)
        except AllocationError:
            return False

    def fits_alone(self) -> bool:
        """Returns whether the claims can be allocated if all other claims release their devices. True if no result was found in time."""
        try:
            return self._search(self.claims, [uid for uid in self._holders if uid not in self._own], None)
        except AllocationTimeout:
            return True
        except AllocationError:
            return False

    def ends_in_error(self) -> bool:
        """Returns whether the search on this node ends with an error.

        The scheduler then stops the search on all nodes, so no node can take the pod.
        """
        try:
            self._search(self.claims, (), None)
        except (NodeFault, AllocationTimeout):
            return False
        except AllocationError:
            return True
        return False

    def _search(self, claims: Sequence[JSON], gone: Collection[str], device: Edit | None) -> bool:
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
        state = SearchState(classes, in_use, shares, lambda: "", self._limit, behavior=self.devices.view.behavior)
        pools = [_changed(p, device) for p in self.devices.pools] if device else self.devices.pools
        return Search(state, pools, claims).run()

    # --- all requests together ------------------------------------------------------------------

    def together(self) -> Iterator[DeviceFault]:
        """Yields the reasons why the devices do not suffice for all requests together, although they suffice for each request alone."""
        yield from self.devices.invalid()
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
        elif self.fits(device=_without_counters):
            text = "each device fits alone, but together the devices need more of the shared counters than exist"
            change = "fewer or smaller devices at once, or delete a claim that holds a device of the same counters"
            yield DeviceFault(ReasonKind.COUNTERS, text, change, self._counters(), of_node=True)
        else:
            yield NOT_TOGETHER

    def _constraint(self, claim: JSON, constraint: JSON) -> DeviceFault:
        shown, values = _shown(constraint), self._values(claim, constraint)
        change = f"remove the constraint {shown} from claim {claim['metadata']['name']}"
        text = f"no choice of devices satisfies {shown}"
        return DeviceFault(ReasonKind.CONSTRAINT, text, change, values, shown, of_node=True)

    def _counters(self) -> str:
        """Describes the counters that all requests need together, and what is left of them, by counter set."""
        needs: dict[str, Quantity] = {}
        left: dict[str, dict[str, Quantity]] = {}  # by counter and set
        for claim in self.claims:
            for options in options_of(claim, self.devices.view.cache.classes):
                request = options[0]
                usable = [c for c in self.devices.candidates if not self.devices.faults(name_of(claim), request, c)]
                for name, amount in self.devices.least_counters(usable).items():
                    needs[name] = plus(needs.get(name), amount * request.count)
                for counter_set, name, amount in self.devices.left_counters(usable):
                    left.setdefault(name, {})[counter_set] = amount
        short = [n for n, amount in needs.items() if amount > sum(left[n].values(), parse("0"))] or list(needs)
        return "; ".join(
            f"{needs[name].text} {name} needed, "
            + ", ".join(f"{amount.text} left in counter set {s}" for s, amount in [*left[name].items()][:_VALUES])
            for name in short[:2]
        )

    def _values(self, claim: JSON, constraint: JSON) -> str:
        """Describes the values of a constraint's attribute, with the number of devices for each value.

        Counts only devices that at least one of the constraint's requests could get now.
        """
        name = str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
        only = constraint.get("requests") or ()
        every = [o for options in options_of(claim, self.devices.view.cache.classes) for o in options]
        requests = [o for o in every if not only or o.full_name in only or (o.parent or o.name) in only]
        usable = dict.fromkeys(
            (c.id, str(next(iter(value.values()))))
            for c in self.devices.candidates
            for r in requests
            if not self.devices.faults(name_of(claim), r, c) and (value := _value_of(r, c, name))
        )
        values = Counter(value for _, value in usable)
        counts = ", ".join(f"{value} on {n}" for value, n in values.most_common(_VALUES))
        more = ", ..." if len(values) > _VALUES else ""
        return f"values of the usable devices: {counts}{more}" if values else "no usable device has the attribute"

    # --- suggested changes ----------------------------------------------------------------------

    def enough(self, fault: DeviceFault) -> Iterator[Enough]:
        """Yields changes, each of which alone removes a fault and lets the claims fit."""
        if fault.parts:
            if all(part.kind in FREED for part in fault.parts):
                yield from self._freeing
            elif claims := self._without_all(fault.parts):
                yield Enough(fault.change, claims=claims)
            return
        match fault.kind:
            case ReasonKind.HELD | ReasonKind.COUNTERS:
                yield from self._freeing
            case ReasonKind.DEVICE_TAINT:
                yield from self._without_taint(fault)
            case ReasonKind.SELECTOR:
                claims = [_edited(c, _without_part(fault.subject)) for c in self.claims]
                if fault.subject and self.fits(claims):
                    yield Enough(fault.change, claims=claims)
            case ReasonKind.CAPACITY:
                yield from self._less(fault.subject)
                yield from self._freeing
            case ReasonKind.CONSTRAINT:
                named = {(i, k) for i, k, c in _constraints(self.claims) if _shown(c) == fault.subject}
                if self.fits(claims := _dropped(self.claims, named)):
                    yield Enough(fault.change, claims=claims)

    def _without_taint(self, fault: DeviceFault) -> Iterator[Enough]:
        """Yields the change for a taint. A request for an extended resource cannot tolerate it, so only its removal may be enough."""
        assert fault.taint is not None
        if not self.fits(device=_untainted(fault.taint)):
            return
        if not fault.removal or self.fits([_edited(c, _tolerating(fault.taint)) for c in self.claims]):
            yield Enough(fault.change)
        else:
            yield Enough(fault.removal)

    def _without_all(self, parts: Sequence[DeviceFault]) -> list[JSON]:
        """Returns the claims without the parts of selectors in ``parts``, if they fit once the taints in ``parts`` are removed as well.

        Otherwise returns an empty list.
        """
        claims, tolerant, tainted = self.claims, self.claims, list[ReadOnlyJSON]()
        for part in parts:
            if part.taint is not None:
                tainted.append(part.taint)
                tolerant = [_edited(c, _tolerating(part.taint)) for c in tolerant]
            elif part.kind is ReasonKind.SELECTOR and part.subject:
                claims = [_edited(c, _without_part(part.subject)) for c in claims]
                tolerant = [_edited(c, _without_part(part.subject)) for c in tolerant]
            else:
                return []
        # The change leaves the choice between tolerations and the removal of taints, so each of them must be enough.
        if any(part.removal for part in parts) and not self.fits(tolerant):
            return []
        return claims if self.fits(claims, device=_untainted(*tainted)) else []

    @cached_property
    def _holders(self) -> dict[str, JSON]:
        """Claims that hold devices of the node's pools, by UID."""
        view = self.devices.view
        ids = (DeviceId(p.driver, p.name, d["name"]) for p in self.devices.pools for d in p.devices)
        return {str(c["metadata"]["uid"]): c for i in ids for c in view.holders(i)}

    @cached_property
    def _freeing(self) -> list[Enough]:
        """The claims whose release would be enough: one claim, or several claims that must all be released."""
        every = [uid for uid in self._holders if uid not in self._own]
        if not every or not self.fits(gone=every):
            return []
        gone = next(([uid] for uid in every[:_HOLDERS] if self.fits(gone=[uid])), every)
        for uid in every[:_HOLDERS] if len(gone) > 1 else ():
            fewer = [other for other in gone if other != uid]
            if fewer and self.fits(gone=fewer):
                gone = fewer
        holders = " and ".join(describe_claim(self._holders[uid]) for uid in gone)
        return [Enough(FREEING, holders)]

    def fewer(self, request: RequestOnNodes) -> Iterator[Enough]:
        """Yields the largest number of devices of one request with which the claims fit, if that is less than wanted."""
        fitting, most = 0, min(request.usable, (request.wanted or 0) - 1)
        while fitting < most:  # a smaller number always fits too
            number = (fitting + most + 1) // 2
            if self.fits(_with_count(self.claims, request, number)):
                fitting = number
            else:
                most = number - 1
        if fitting:
            what = f"of {request.shown}" if request.resource else f"in {request.shown}"
            claims = _with_count(self.claims, request, fitting)
            text = f"ask for {fitting} instead of {request.wanted} {what}"
            yield Enough(text, claims=claims, less=(f"{request.claim} {what}", fitting))

    def _less(self, name: str) -> Iterator[Enough]:
        """Yields the largest remaining amount of a capacity with which the claims fit, or else a request for none of it.

        Tries only the largest remaining amounts, because each trial is a search.
        """
        short = name.rpartition("/")[2]
        for amount in self._amounts(name)[:_VALUES]:
            if self.fits(claims := [_edited(c, _at_most(name, amount)) for c in self.claims]):
                text = f"ask for at most {amount.text} of {short}"
                yield Enough(text, claims=claims, less=(short, amount))
                return
        if self.fits(claims := [_edited(c, _without_request(name)) for c in self.claims]):
            yield Enough(f"ask for no {short}", claims=claims)

    def _amounts(self, name: str) -> list[Quantity]:
        """Returns the remaining amounts of a capacity that are less than wanted and that the devices' policies allow, largest first."""
        use = self.devices.view.cache.claims.use
        options = [o.spec for c in self.claims for os in options_of(c, self.devices.view.cache.classes) for o in os]
        requested = [(spec.get("capacity") or {}).get("requests") or {} for spec in options]
        wanted = max((parse(str(r[name])) for r in requested if name in r), default=None)
        remaining = set()
        for c in self.devices.candidates:
            if found := (c.device.get("capacity") or {}).get(name):
                has = parse(found["value"])
                taken = use.get((c.id.driver, c.id.pool), UNUSED).shares.get(c.id, {}).get(name)
                left = has if taken is None else has - taken
                remaining.add(capacity.largest(found, left) if c.multiple else left)
        allowed = (amount for amount in remaining if amount is not None and amount > parse("0"))
        return sorted((amount for amount in allowed if wanted is None or amount < wanted), reverse=True)


def _with_count(claims: Sequence[JSON], request: RequestOnNodes, number: int) -> list[JSON]:
    """Returns the claims with another number of devices in one request."""

    def counted(claim: JSON, r: JSON) -> JSON:
        named = name_of(claim) == request.claim and r["name"] == request.request
        return {**r, "exactly": {**r["exactly"], "count": number}} if named and r.get("exactly") else r

    return [_with_devices(c, requests=[counted(c, r) for r in _devices(c).get("requests") or []]) for c in claims]


def _devices(claim: JSON) -> JSON:
    return claim["spec"].get("devices") or {}


def _with_devices(claim: JSON, **changes: list[JSON]) -> JSON:
    return {**claim, "spec": {**claim["spec"], "devices": {**_devices(claim), **changes}}}


def _changed(pool: AllocatorPool, edit: Edit) -> AllocatorPool:
    changed = [Candidate(c.id, edit(dict(c.device)), c.slice, c.for_node, c.matches) for c in pool.candidates]
    return replace(pool, candidates=changed)


def _without_counters(device: JSON) -> JSON:
    return {k: v for k, v in device.items() if k != "consumesCounters"}


def _untainted(*taints: ReadOnlyJSON) -> Edit:
    """Returns an edit that removes taints of a device."""
    removed = set(map(taint_with_rule, taints))
    return lambda device: {
        **device,
        "taints": [t for t in device.get("taints") or [] if taint_with_rule(t) not in removed],
    }


def _tolerating(taint: ReadOnlyJSON) -> Edit:
    """Returns an edit by which a request tolerates a taint."""
    toleration = {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
    return lambda request: {**request, "tolerations": [*(request.get("tolerations") or []), toleration]}


def _edited(claim: JSON, edit: Edit) -> JSON:
    """Returns the claim with ``edit`` applied to each of its requests and alternatives.

    The claim for extended resources stays as it is, because a pod requests only numbers of them.
    """
    if extended.is_draft(claim):
        return claim
    requests = []
    for request in _devices(claim).get("requests") or []:
        changed = dict(request)
        if request.get("exactly"):
            changed["exactly"] = edit(dict(request["exactly"]))
        if request.get("firstAvailable"):
            changed["firstAvailable"] = [edit(dict(sub)) for sub in request["firstAvailable"]]
        requests.append(changed)
    return _with_devices(claim, requests=requests)


def _without_part(part: str) -> Edit:
    def edit(request: JSON) -> JSON:
        expressions = [s["cel"]["expression"] for s in request.get("selectors") or []]
        return {**request, "selectors": [{"cel": {"expression": without(e, part)}} for e in expressions]}

    return edit


def _at_most(name: str, amount: Quantity) -> Edit:
    def edit(request: JSON) -> JSON:
        requested = dict((request.get("capacity") or {}).get("requests") or {})
        if name not in requested or parse(str(requested[name])) > amount:
            requested[name] = amount.text
        return {**request, "capacity": {"requests": requested}}

    return edit


def _without_request(name: str) -> Edit:
    def edit(request: JSON) -> JSON:
        requested = (request.get("capacity") or {}).get("requests") or {}
        return {**request, "capacity": {"requests": {k: v for k, v in requested.items() if k != name}}}

    return edit


def _value_of(request: PickedRequest, candidate: Candidate, name: str) -> JSON | None:
    """Returns the attribute of a device for a request; None also if a derived attribute cannot be evaluated on it.

    The search tries only some of the devices, so it may not have met the error.
    """
    try:
        found = value_of(request, candidate, name)
    except AllocationError:
        return None
    return dict(found) if found else None


def _constraints(claims: Sequence[JSON]) -> Iterator[tuple[int, int, JSON]]:
    for i, claim in enumerate(claims):
        for k, constraint in enumerate(_devices(claim).get("constraints") or []):
            yield i, k, constraint


def _dropped(claims: Sequence[JSON], which: set[tuple[int, int]]) -> list[JSON]:
    kept: list[list[JSON]] = [[] for _ in claims]
    for i, k, constraint in _constraints(claims):
        if (i, k) not in which:
            kept[i].append(constraint)
    return [_with_devices(c, constraints=of_claim) for c, of_claim in zip(claims, kept, strict=True)]


def _shown(constraint: Mapping[str, Any]) -> str:
    kind = "matchAttribute" if constraint.get("matchAttribute") else "distinctAttribute"
    requests = constraint.get("requests")
    return f"{kind} {constraint.get(kind)}" + (f" of requests {', '.join(requests)}" if requests else "")
