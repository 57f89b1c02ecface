"""Searches devices for claims: depth first over claims, requests, alternatives and devices in published order.

As in Kubernetes, the first solution is used. Source: KEP-4381, 4815, 5004, 5007, 5055, 5075 and recorded results of
Kubernetes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse

from ...kubernetes_releases import DEFAULT, AllocatorBehavior, allocator_behavior
from . import capacity, constraints, counters, derived, faults, pruning, selection
from .faults import AllocationError, AllocationTimeout, NodeFault
from .pools import AllocatorPool, Candidate, DeviceId
from .results import Pick, PickedRequest

MAX_RESULTS = 32
TIME_LIMIT = 10.0  # seconds for one node, the limit of the scheduler's Filter
_STEPS_PER_CHECK = 64  # steps between two reads of the clock
STEPS_BEFORE_PRUNING = 32  # steps after which pruning pays off
DEFAULT_BEHAVIOR = allocator_behavior(DEFAULT)


class _TooMany(Exception):
    """The claim would get more than ``MAX_RESULTS`` devices. Another alternative may request fewer devices."""


@dataclass
class SearchState:
    """The state before a search.

    ``in_use`` contains the devices that a claim holds as a whole. ``shares`` contains the consumed capacity of shared
    devices.
    """

    classes: Mapping[str, ReadOnlyJSON]
    in_use: set[DeviceId]
    shares: dict[DeviceId, dict[str, Quantity]]
    share_id: Callable[[], str]
    time_limit: float  # seconds for one node
    cancelled: bool = False
    fractions: bool = False  # gate DRAFractionalCapacityRange
    behavior: AllocatorBehavior = DEFAULT_BEHAVIOR


def plus(a: Quantity | None, b: Quantity) -> Quantity:
    return b if a is None else a + b


class Search:
    def __init__(self, state: SearchState, pools: list[AllocatorPool], claims: Sequence[ReadOnlyJSON]) -> None:
        self.state = state
        self.pools = pools
        self.by_pool = {p.key: p for p in pools}
        # Pools that are incomplete or invalid are ignored.
        self.candidates = [c for p in pools if not (p.invalid or p.incomplete) for c in p.candidates]
        self.held = state.in_use  # the devices that are not free as a whole
        if state.behavior.keeps_shares and state.shares:
            self.held = state.in_use | {c.id for c in self.candidates if not c.multiple and c.id in state.shares}
        self.claims = claims
        self.picks: list[list[Pick]] = [[] for _ in claims]
        self.taken: dict[DeviceId, list[int]] = {}  # device -> indices of the claims that took it
        self.taken_shares: dict[DeviceId, list[dict[str, Quantity]]] = {}
        self._selectable: dict[tuple[int, str, int], bool] = {}
        self._counters: dict[tuple[str, str], dict[tuple[str, str], Quantity]] = {}
        self._group_users: dict[tuple[str, str], dict[str, list[counters.Groups]]] = {}
        self._deadline = time.monotonic() + state.time_limit
        self._steps = 0
        self._pruning = False  # whether branches without a solution are skipped; set after many steps
        self._equivalence_keys: dict[int, str] = {}
        self._demands: list[pruning.Demand] = []
        self.requests = [self._claim_requests(i, c) for i, c in enumerate(claims)]
        self.constraints = [constraints.build(c, state.behavior) for c in claims]

    # --- before the search ----------------------------------------------------------------------

    def _claim_requests(self, index: int, claim: ReadOnlyJSON) -> list[list[PickedRequest]]:
        out = []
        minimum = 0
        for request in claim["spec"].get("devices", {}).get("requests") or []:
            if request.get("exactly") is not None:
                options = [self._request(index, claim, request["name"], "", request["exactly"])]
            else:
                options = [
                    self._request(index, claim, sub["name"], request["name"], sub) for sub in request["firstAvailable"]
                ]
            out.append(options)
            minimum += min(o.count for o in options)
        if minimum > MAX_RESULTS:
            name = _name(claim)
            raise faults.TooManyDevices(
                f"claim {name}: number of requested devices {minimum} exceeds the claim limit of {MAX_RESULTS}"
            )
        return out

    def _request(self, index: int, claim: ReadOnlyJSON, name: str, parent: str, spec: ReadOnlyJSON) -> PickedRequest:
        where = f"claim {_name(claim)}, request {name}"
        class_name = spec["deviceClassName"]
        device_class = self.state.classes.get(class_name)
        if device_class is None:
            missing = f'deviceclass "{class_name}" not found'
            raise AllocationError(f"{where}: could not retrieve device class {class_name}: {missing}")
        request = PickedRequest(name, parent, spec, device_class)
        if spec.get("allocationMode", "ExactCount") != "All":
            request.count = spec.get("count", 1)
            return request
        request.all = []
        for pool in self.pools:
            if pool.incomplete:
                raise faults.PoolUpdating(
                    f"{where}: asks for all devices, but resource pool {pool} is currently being updated"
                )
            if pool.invalid:
                raise faults.PoolInvalid(
                    f"{where}: asks for all devices, but resource pool {pool} is currently invalid"
                )
            found = [c for c in pool.candidates if self._is_selectable(index, claim, request, c)]
            if not self.state.behavior.all_needs_exhausted:
                found = [c for c in found if not c.multiple or self._amounts(request, c) is not None]
            request.all += found
        request.count = len(request.all)
        return request

    def _is_selectable(self, index: int, claim: ReadOnlyJSON, request: PickedRequest, candidate: Candidate) -> bool:
        key = (index, request.full_name, id(candidate))
        found = self._selectable.get(key)
        if found is None:
            self._check_deadline()  # one expression may take seconds
            found = self._selectable[key] = selection.accepts(_name(claim), request, candidate)
        return found

    # --- the search -----------------------------------------------------------------------------

    def run(self) -> bool:
        if self._next_request(0, 0):
            return True
        if any(p.invalid for p in self.pools):
            raise NodeFault("invalid resource pools were encountered")
        return False

    def _next_request(self, index: int, position: int) -> bool:
        """Finds the devices of a claim from its request number ``position`` on, and of all claims after it."""
        if index >= len(self.claims):
            return True
        options = self.requests[index]
        if position >= len(options):
            try:
                return self._next_request(index + 1, 0)
            except _TooMany:
                return False
        if self._pruning and self._rest_cannot_fit(index, position):
            return False
        alternatives = options[position]
        if not alternatives[0].parent:
            return self._devices(index, position, alternatives[0], 0)
        too_many = 0
        for alternative in alternatives:
            try:
                if self._devices(index, position, alternative, 0):
                    return True
            except _TooMany:
                too_many += 1
        if too_many == len(alternatives):
            raise _TooMany  # other devices for the requests before this one do not help
        return False

    def _devices(self, index: int, position: int, request: PickedRequest, n: int, start: int = 0) -> bool:
        """Finds device number ``n`` of ``request`` and everything after it.

        The devices of one request are tried in published order only, from ``start`` on. Another order of the same
        devices would be the same solution.
        """
        self._steps += 1
        if self._steps % _STEPS_PER_CHECK == 0:
            self._check_deadline()
        if request.all is not None and not request.all:
            return False
        if n >= request.count:
            return self._next_request(index, position + 1)
        if len(self.picks[index]) + request.count - n > MAX_RESULTS:
            raise _TooMany
        if request.all is not None:
            candidates, places = request.all, range(n, n + 1)
        elif self._pruning and self._too_few(index, request, request.count - n, start):
            return False
        else:
            candidates, places = self.candidates, range(start, len(self.candidates))
        failed: set[str] = set()
        for place in places:
            candidate = candidates[place]
            if not self._may_take(index, request, candidate):
                continue
            if failed and self._equivalence_keys[id(candidate)] in failed:
                continue
            undo = self._take(index, request, candidate)
            if undo is None:
                continue
            try:
                if self._devices(index, position, request, n + 1, place + 1):
                    return True
            except _TooMany:
                undo()
                raise
            undo()
            if self._pruning and not request.admin and not candidate.multiple:
                failed.add(self._equivalence_keys[id(candidate)])
        if request.all is None and not self._demands and self._steps > STEPS_BEFORE_PRUNING:
            self._start_pruning()
        return False

    def _may_take(self, index: int, request: PickedRequest, candidate: Candidate) -> bool:
        """Returns whether a device is free, and accepted by the request."""
        if not self._free(index, request, candidate):
            return False
        return request.all is not None or self._is_selectable(index, self.claims[index], request, candidate)

    # --- time limit and pruning -----------------------------------------------------------------

    def _check_deadline(self) -> None:
        if self.state.cancelled or time.monotonic() > self._deadline:
            raise AllocationTimeout("timed out trying to allocate devices")

    def _start_pruning(self) -> None:
        """Collects the candidates of each request and enables pruning, after the search has taken many steps.

        A search that could end in an error is not pruned, because pruning could skip the branch that raises the error.
        """
        requests = [(i, p, o) for i, rs in enumerate(self.requests) for p, options in enumerate(rs) for o in options]
        self._demands = [pruning.Demand(i, p, o, []) for i, p, o in requests]
        if any(o.all is not None and self.constraints[i] for i, _, o in requests):
            return
        names = sorted({c.attribute for cs in self.constraints for c in cs})
        try:
            for place, candidate in enumerate(self.candidates):
                accepted = [
                    self._is_selectable(d.claim, self.claims[d.claim], d.request, candidate) for d in self._demands
                ]
                for demand, selectable in zip(self._demands, accepted, strict=True):
                    if selectable:
                        demand.indices.append(place)
                takers = [d.request for d, found in zip(self._demands, accepted, strict=True) if found]
                attributes = [derived.value_of(r, candidate, n) for r in takers for n in names]
                self._equivalence_keys[id(candidate)] = pruning.equivalence_key(candidate, accepted, attributes)
        except AllocationError:
            return
        self._pruning = True

    def _too_few(self, index: int, request: PickedRequest, wanted: int, start: int) -> bool:
        """Returns whether the remaining devices cannot satisfy the request, however they are chosen."""
        fitting = [c for c in self.candidates[start:] if self._may_take(index, request, c)]
        return self._max_devices(fitting, request) < wanted

    def _max_devices(self, fitting: list[Candidate], request: PickedRequest) -> int:
        if request.admin or not any(c.device.get("consumesCounters") for c in fitting):
            return len(fitting)
        # A shared device consumes its counters once, with its first share.
        alone = [c for c in fitting if not c.multiple]
        most = pruning.most_devices(alone, lambda c: self._available(self.by_pool[c.id.driver, c.id.pool]))
        return most + len(fitting) - len(alone)

    def _rest_cannot_fit(self, index: int, position: int) -> bool:
        """Returns whether the remaining devices cannot satisfy all requests from this one on."""
        ahead = [
            d
            for d in self._demands
            if (d.claim, d.position) >= (index, position) and not d.request.admin and not d.of_alternative
        ]
        for indices in {tuple(d.indices) for d in ahead}:
            free = [self.candidates[p] for p in indices if self._free(index, ahead[0].request, self.candidates[p])]
            if any(c.multiple for c in free):
                continue
            within = set(indices)
            wanted = sum(d.request.count for d in ahead if within.issuperset(d.indices))
            if self._max_devices(free, ahead[0].request) < wanted:
                return True
        return False

    def _free(self, index: int, request: PickedRequest, candidate: Candidate) -> bool:
        """Returns whether a device is free for the request.

        A request with admin access may use any device that its own claim has not taken yet.
        """
        takers = self.taken.get(candidate.id)
        if request.admin:
            return not takers or index not in takers
        return not takers and candidate.id not in self.held

    def _take(self, index: int, request: PickedRequest, candidate: Candidate) -> Callable[[], None] | None:
        """Takes a free device tentatively. Returns a function that releases it, or None if it cannot be taken."""
        pick = Pick(request, candidate)
        if candidate.multiple:
            amounts = self._amounts(request, candidate)
            if amounts is None:
                return None
            pick.consumed, pick.share = amounts, self.state.share_id()
        # A shareable device consumes its counters with the first share, also for admin access.
        counted = not self._is_shared_already(candidate) and (candidate.multiple or not request.admin)
        if counted and not (self._free_counters(candidate) and self._is_compatible(candidate)):
            return None
        if not selection.tolerated(candidate.device, request.spec):
            return None
        base, sub = (request.parent, request.name) if request.parent else (request.name, "")
        done: list[constraints.Constraint] = []
        for constraint in self.constraints[index]:
            if not constraint.covers(base, sub):
                continue
            value = derived.value_of(request, candidate, constraint.attribute)
            if value is None or not constraint.add(base, constraints.values_of(value)):
                for c in reversed(done):
                    c.remove(base)
                if request.all is not None:
                    raise faults.ConstraintUnmet(
                        f"claim {_name(self.claims[index])}, request {request.name}: cannot add device "
                        f"{candidate.id} because a claim constraint would not be satisfied"
                    )
                return None
            done.append(constraint)
        if candidate.multiple:
            self.taken_shares.setdefault(candidate.id, []).append(pick.consumed)
        else:
            self.taken.setdefault(candidate.id, []).append(index)
        self.picks[index].append(pick)
        if counted:
            self._count(candidate, 1)

        def undo() -> None:
            self.picks[index].pop()
            (self.taken_shares if candidate.multiple else self.taken)[candidate.id].pop()
            if counted:
                self._count(candidate, -1)
            for c in reversed(done):
                c.remove(base)

        return undo

    def _is_shared_already(self, candidate: Candidate) -> bool:
        used = self.state.shares.get(candidate.id)
        known = used is not None if self.state.behavior.knows_empty_shares else bool(used)
        return known or bool(self.taken_shares.get(candidate.id))

    def _amounts(self, request: PickedRequest, candidate: Candidate) -> dict[str, Quantity] | None:
        """Returns what the request would consume of a shared device; None if the device has too little left."""
        wanted = capacity.consumed(candidate.device, request.spec.get("capacity"), fractions=self.state.fractions)
        if wanted is None:
            return None
        used = dict(self.state.shares.get(candidate.id, {}))
        for taken in self.taken_shares.get(candidate.id, []):
            for name, amount in taken.items():
                used[name] = plus(used.get(name), amount)
        capacities = candidate.device.get("capacity") or {}
        fits = all(plus(used.get(n), q) <= parse(capacities[n]["value"]) for n, q in wanted.items())
        return wanted if fits else None

    # --- shared counters ------------------------------------------------------------------------

    def _available(self, pool: AllocatorPool) -> dict[tuple[str, str], Quantity]:
        """Returns the remaining amounts of a pool's counters, by (counter set, counter).

        The amounts are computed once; the search then updates them.
        """
        if pool.key not in self._counters:
            remaining = {(s, n): parse(c["value"]) for s, cs in pool.counter_sets.items() for n, c in cs.items()}
            for device in pool.devices:
                device_id = DeviceId(pool.driver, pool.name, device["name"])
                if device_id in self.state.in_use or (
                    self.state.behavior.counts_shares and device_id in self.state.shares
                ):
                    counters.consume(remaining, device, 1)
            self._counters[pool.key] = remaining
        return self._counters[pool.key]

    def _free_counters(self, candidate: Candidate) -> bool:
        if not candidate.device.get("consumesCounters"):
            return True
        remaining = self._available(self.by_pool[candidate.id.driver, candidate.id.pool])
        return all(
            (c["counterSet"], name) in remaining and remaining[c["counterSet"], name] >= parse(amount["value"])
            for c in candidate.device["consumesCounters"]
            for name, amount in c["counters"].items()
        )

    def _is_compatible(self, candidate: Candidate) -> bool:
        """Returns whether the device has a common compatibility group with all consumers of its counter sets (KEP-5963)."""
        if not candidate.device.get("consumesCounters"):
            return True
        users = self._groups(self.by_pool[candidate.id.driver, candidate.id.pool])
        return all(
            counters.are_compatible([groups, *users.get(counter_set, ())])
            for counter_set, groups in counters.groups_of(candidate.device)
        )

    def _groups(self, pool: AllocatorPool) -> dict[str, list[counters.Groups]]:
        """Returns, by counter set, the compatibility groups of each device that consumes from the set now."""
        if pool.key not in self._group_users:
            found: dict[str, list[counters.Groups]] = {}
            for device in pool.devices:
                device_id = DeviceId(pool.driver, pool.name, device["name"])
                if device_id in self.state.in_use or device_id in self.state.shares:
                    for counter_set, groups in counters.groups_of(device):
                        found.setdefault(counter_set, []).append(groups)
            self._group_users[pool.key] = found
        return self._group_users[pool.key]

    def _count(self, candidate: Candidate, sign: int) -> None:
        if candidate.device.get("consumesCounters"):
            pool = self.by_pool[candidate.id.driver, candidate.id.pool]
            counters.consume(self._available(pool), candidate.device, sign)
            for counter_set, groups in counters.groups_of(candidate.device):
                users = self._groups(pool).setdefault(counter_set, [])
                users.append(groups) if sign > 0 else users.remove(groups)


def _name(claim: ReadOnlyJSON) -> str:
    return f"{claim['metadata'].get('namespace', '')}/{claim['metadata']['name']}"
