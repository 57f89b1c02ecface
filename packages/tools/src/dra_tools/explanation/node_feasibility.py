"""Examines all nodes for a waiting pod with the scheduler's filters and allocator, and finds changes that would be enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, TypeVar

from dra_devkit.scheduling.allocator.search import TIME_LIMIT
from dra_devkit.scheduling.framework import devices as pod_devices
from dra_devkit.scheduling.framework import extended, node_resources, pod_info, unsupported
from dra_devkit.scheduling.framework.binding import TIMEOUT
from dra_devkit.scheduling.framework.claim_cache import is_allocated
from dra_devkit.scheduling.framework.cycle import Cycle
from dra_devkit.scheduling.framework.devices import PodClaims
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo, is_extended
from dra_devkit.scheduling.framework.status import Plugin, Rejection, SchedulerError
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import join_names, natural
from dra_kubeletplugin.kube.resource import NODES
from dra_kubeletplugin.resourceapi import node_selectors
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..scheduler_view import SchedulerView, name_of, named_requests, users_of
from ..selected_attributes import of_constraints, of_selectors
from ..unevaluated.objects import not_evaluated_of_device
from ..unevaluated.parts import UnevaluatedPart, merged
from . import request_reasons
from .device_keys import RepresentativeAllocator, device_keys
from .device_reasons import DeviceFault, NodeDevices
from .grouping import EXAMPLES, NodeReasons, distance, fold
from .model import OF_DEVICES, NodeGroup, Reason, ReasonKind, SuggestedChange
from .node_reasons import NodeFilters
from .search_errors import search_error
from .what_if import NOT_TOGETHER, Enough, WhatIf

T = TypeVar("T")
LIMIT = 2.0  # seconds for the devices of one node; the scheduler has ten
TRIALS_LIMIT = 2.0  # seconds for all trials together; later trials are omitted
Requests = Sequence[Sequence[request_reasons.RequestReasons]]


@dataclass(frozen=True)
class Feasibility:
    """The result for all nodes. ``reasons`` are the reasons for which the scheduler rejects all nodes at once."""

    groups: tuple[NodeGroup, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    unevaluated: tuple[UnevaluatedPart, ...] = ()  # on each node that fits: parts of the devices


def examine_nodes(view: SchedulerView, pod: PodInfo, *, changes: bool = True) -> Feasibility:
    """Examines every node for a pod whose claims all exist.

    Args:
        changes: also try changes that would be enough.
    """
    notes = tuple(unexamined_features(pod, view.group_of(pod)))
    if not view.cache.snapshot().nodes:
        none = Reason(ReasonKind.NO_NODES, "the cluster has no nodes", "add nodes")
        return Feasibility(reasons=(none,) if view.snapshot.is_complete(NODES) else (), notes=notes)
    claims = pod_devices.read(pod, view.cache.claims, view.cache.classes, view.cache.extended, TIMEOUT)
    if isinstance(claims, Rejection):
        return Feasibility(reasons=tuple(Reason(ReasonKind.OTHER, why, "") for why in claims.reasons), notes=notes)
    found = _NodeExamination(view, pod, claims).feasibility(changes=changes)
    return replace(found, notes=notes + found.notes)


def unexamined_features(pod: PodInfo, group: JSON | None = None) -> Iterator[str]:
    """Yields features of the pod and its PodGroup that are not examined, such as volumes."""
    for why in unsupported.reasons(pod, group):
        yield why.replace(unsupported.PREFIX, "not examined: ")
    if pod.group and group is None:
        yield f"not examined: schedulingPolicy of PodGroup {pod.group}"


class _NodeExamination:
    """The examination of all nodes for one pod and its claims."""

    def __init__(self, view: SchedulerView, pod: PodInfo, claims: PodClaims) -> None:
        self.view, self.pod, self.claims = view, pod, claims
        snapshot = view.cache.snapshot()
        self.nodes = {n.name: n for n in snapshot.nodes}
        self.nominated = snapshot.nominated
        self.untried = False
        self.examined: dict[Hashable, Any] = {}  # results for nodes with equal devices
        resources, self.used, self.order = self._of_nodes()
        known = {*view.cache.extended, *resources}
        self.filters = NodeFilters(pod, list(snapshot.nodes), snapshot.namespaces, claims.by_class, known)
        classes = view.cache.classes
        unallocated = [c for c in claims.claims if not is_allocated(c)]
        used = {str(one["deviceClassName"]) for c in unallocated for _, one in named_requests(c["spec"])}
        used |= set(claims.by_class.values())
        selected = of_selectors([*unallocated, *(classes[name] for name in used if name in classes)])
        self.keys = device_keys(view, selected, of_constraints(unallocated), claims.claims)

    def _of_nodes(self) -> tuple[Set[str], list[str], list[str]]:
        """Returns what is found once for all pods.

        Returns:
            The extended resources of all nodes; the resources of nodes that devices use; the sorted names of the nodes.
        """
        if "nodes" not in self.view.found:
            extended_of = {r for n in self.nodes.values() for r in n.allocatable if is_extended(r)}
            used = sorted(node_resources.names_used(self.view.slices))
            self.view.found["nodes"] = extended_of, used, sorted(self.nodes, key=natural)
        found: tuple[Set[str], list[str], list[str]] = self.view.found["nodes"]
        return found

    def feasibility(self, *, changes: bool) -> Feasibility:
        keys = {name: self._node_key(node) for name, node in self.nodes.items()}
        first: dict[Hashable, str] = {}
        repeated = {name for name, key in keys.items() if first.setdefault(key, name) != name}
        # Without its nominated node, so that the other nodes are examined too
        status = {k: v for k, v in (self.pod.pod.get("status") or {}).items() if k != "nominatedNodeName"}
        pod = pod_info.read({**self.pod.pod, "status": status})
        allocator = RepresentativeAllocator(self.keys, self.view, LIMIT)
        cycle = Cycle(pod, self.view.cache.snapshot(), self.claims, allocator)
        error: SchedulerError | None = None
        fitting: set[Hashable] = set()
        unevaluated: tuple[UnevaluatedPart, ...] = ()
        try:
            feasible = cycle.feasible(len(keys), without=repeated)
            fitting = {keys[n.name] for n in feasible}
            unevaluated = self._unevaluated(feasible)
        except SchedulerError as e:
            error = e
        self.deadline = time.monotonic() + TRIALS_LIMIT
        rejected = {keys[name]: rejection for name, rejection in cycle.rejected.items()}
        too_large = {keys[name]: entries for name, entries in self.claims.too_large.items()}
        late = {keys[name] for name in allocator.late}
        found: dict[Hashable, list[NodeReasons]] = {}
        results = []
        for name in self.order:
            key = keys[name]
            alike = found.setdefault(key, [])
            if len(alike) >= EXAMPLES:
                results.append(replace(alike[0], node=name))
                continue
            # Details that name claims differ between equal nodes, so a few of them are examined.
            if key in fitting:
                alike.append(NodeReasons(name, True))
            else:
                alike.append(
                    self._examine(self.nodes[name], rejected.get(key), too_large.get(key, ()), late=key in late)
                )
            results.append(alike[-1])
        folded = fold(results)
        tried = tuple(self._changes(folded)) if changes and not error else ()
        reasons = (search_error(error, self.view, self.claims, self._open),) if error else ()
        notes = (_UNTRIED_NODES,) if self.untried else ()
        return Feasibility(tuple(g for g, _ in folded), tried, reasons, notes, unevaluated)

    def _unevaluated(self, feasible: Iterable[NodeInfo]) -> tuple[UnevaluatedPart, ...]:
        """Returns the parts of chosen devices that were not evaluated; empty if the devices of one node have no such part."""
        found: dict[UnevaluatedPart, None] = {}
        for node in feasible:
            offer = self.claims.offers.get(node.name)
            results = [r for a in (offer.results if offer else ()) for r in results_of({"status": {"allocation": a}})]
            of_node: list[UnevaluatedPart] = []
            for result in results:
                slices = self.view.slices.by_pool.get((result["driver"], result["pool"]), ())
                of_node += not_evaluated_of_device(self.view.snapshot, slices, str(result["device"]))
            if not of_node:
                return ()
            found.update(dict.fromkeys(of_node))
        return merged(found)

    # --- one node -------------------------------------------------------------------------------

    def _examine(
        self, node: NodeInfo, rejection: Rejection | None, too_large: Sequence[JSON], *, late: bool
    ) -> NodeReasons:
        """Finds the reasons of one node.

        Args:
            too_large: what the devices of the claims use of the node, if that is too much.
            late: whether the search for devices took too long.
        """
        faults = [*self.filters.faults(node)]
        faults += self._with_nominated(node, {f.text for f in faults})
        faults += self._allocated_for_others(node)
        wanted = self._open(node)
        requests = self._requests(node, wanted) if wanted else []
        enough = all(any(option.enough for option in options) for options in requests)
        if rejection and not faults and too_large:
            faults += self.filters.of_claims(node, too_large)
        if rejection and enough and not faults:
            faults = [_TIMED_OUT] if late else self._together(node, wanted, rejection)
        elif requests and not enough and self._never_together(node, wanted, requests):
            faults.append(_NEVER_TOGETHER)
        return NodeReasons(node.name, False, faults, requests)

    def _node_key(self, node: NodeInfo) -> Hashable:
        """Returns a key that is equal for nodes on which the scheduler has the same result, for the same reasons.

        In a cluster of 5,000 nodes most nodes refuse a pod for the same reason. They differ in names, in labels that the pod does not
        read, and in amounts of resources that are enough. Only one node of each key is examined.
        """
        devices = self.keys.of(node)
        if devices is None or node.name in self.nominated:
            return node.name
        allocated = (c["status"]["allocation"].get("nodeSelector") for c in self.claims.claims if is_allocated(c))
        return (
            devices,
            self.filters.key(node),
            tuple(bool(node.allocatable.get(name)) for name in self.claims.by_class),
            tuple(node.allocatable.get(name, 0) - node.requested.get(name, 0) for name in self.used),
            tuple(node_selectors.selector_matches(node.node, s) for s in allocated if s is not None),
        )

    def _requests(self, node: NodeInfo, wanted: Sequence[JSON]) -> Requests:
        """Returns the reasons of the node's devices; the same object for nodes with equal devices.

        If details name claims, a few such nodes are examined themselves, because each is an example.
        """
        found: list[Requests] = self._once("requests", node, list)
        if found and (len(found) >= EXAMPLES or not _names_claims(found[0])):
            return found[0]
        _, mappings = extended.requests_of(self.pod, self._missing(node))
        resources = request_reasons.extended_resources(mappings)
        devices = NodeDevices(self.view, node)
        found.append(request_reasons.examine(devices, wanted, self.view.cache.classes, resources))
        return found[-1]

    def _once(self, what: Hashable, node: NodeInfo, make: Callable[[], T]) -> T:
        """Returns the result of ``make``, or the result for another node whose devices are equal."""
        key = self.keys.of(node)
        if key is None:
            return make()
        known = (what, key, *(bool(node.allocatable.get(r)) for r in self.claims.by_class))
        if known not in self.examined:
            self.examined[known] = make()
        found: T = self.examined[known]
        return found

    def _with_nominated(self, node: NodeInfo, known: Set[str]) -> Iterator[DeviceFault]:
        """Yields the reasons that a node has only because of pods that the scheduler has nominated to the node."""
        there = self.nominated.get(node.name, ())
        first = [p for p in there if p.uid != self.pod.uid and p.priority >= self.pod.priority]
        for other in first:
            node = node.with_pod(other)
        counting = f", counting {join_names(f'pod {p.key}' for p in first)}, which the scheduler has nominated to it"
        for fault in self.filters.faults(node) if first else ():
            if fault.text not in known:
                yield replace(fault, text=fault.text + counting)

    def _open(self, node: NodeInfo) -> list[JSON]:
        """Returns the claims that would have to be allocated on a node."""
        claims = self.claims
        wanted = [c for i, c in enumerate(claims.claims) if not is_allocated(c) and not claims.is_extended(i)]
        missing = self._missing(node)
        if claims.extended is not None and extended.is_draft(claims.extended) and missing:
            wanted.append(extended.for_node(claims.extended, self.pod, missing)[0])
        return wanted

    def _missing(self, node: NodeInfo) -> dict[str, str]:
        """Returns the extended resources that devices have to provide on a node, with their classes."""
        return {r: c for r, c in self.claims.by_class.items() if not node.allocatable.get(r)}

    def _allocated_for_others(self, node: NodeInfo) -> Iterator[DeviceFault]:
        for claim in filter(is_allocated, self.claims.claims):
            selector = claim["status"]["allocation"].get("nodeSelector")
            if selector is not None and not node_selectors.selector_matches(node.node, selector):
                users = ", ".join(u for u in users_of(claim)[:3])
                text = f"claim {name_of(claim)} is allocated for other nodes, and {users or 'no pod'} uses it there"
                change = f"the pod has to run where claim {claim['metadata']['name']} is, or needs a claim of its own"
                if not users:
                    change = "the scheduler removes the allocation and tries again"
                yield DeviceFault(ReasonKind.CLAIM_ON_OTHER_NODE, text, change)

    def _together(self, node: NodeInfo, wanted: Sequence[JSON], rejection: Rejection) -> list[DeviceFault]:
        """Returns reasons why the node refuses the pod although each request alone could be satisfied."""
        if rejection.plugin is not Plugin.DEVICES or not wanted:
            return [DeviceFault(ReasonKind.OTHER, why, "") for why in rejection.reasons]
        if time.monotonic() > self.deadline:
            return [NOT_TOGETHER]
        trials = self._trials(node, wanted)
        return self._once("together", node, lambda: list(trials.together()))

    def _never_together(self, node: NodeInfo, wanted: Sequence[JSON], requests: Requests) -> bool:
        """Returns whether the devices do not suffice for all requests, also if other claims release all their devices.

        Only for requests that depend on each other and that wait for other claims. For a single request, its own reasons say it.
        """
        depend = len(requests) > 1 or any((c["spec"].get("devices") or {}).get("constraints") for c in wanted)
        if not depend or time.monotonic() > self.deadline:
            return False
        short = _short(requests)
        if not all(any(request_reasons.waits_for_claims(f) for _, f in o.faults) for o in chain.from_iterable(short)):
            return False
        trials = self._trials(node, wanted)
        found: bool = self._once("never", node, lambda: not trials.fits_alone())
        return found

    def _trials(self, node: NodeInfo, wanted: Sequence[JSON]) -> WhatIf:
        own = {str(c["metadata"].get("uid")) for c in self.claims.claims} | self.view.kept
        return WhatIf(NodeDevices(self.view, node), wanted, own)

    # --- suggested changes ----------------------------------------------------------------------

    def _changes(self, folded: Sequence[tuple[NodeGroup, list[NodeReasons]]]) -> Iterator[SuggestedChange]:
        found: dict[str, list[tuple[str, Enough]]] = {}
        failing: dict[str, bool] = {}
        nearest: dict[str, int] = {}  # the distance of the nearest node that a change helps
        # Takes one node of each group in turn, so that each group is tried before the time is over.
        in_turn = chain.from_iterable(zip_longest(*([(g, m) for m in members] for g, members in folded)))
        for group, result in filter(None, in_turn):
            if result.fits:
                continue
            if time.monotonic() > self.deadline:
                self.untried = True
                break
            reasons = tuple((f.kind, f.text, f.change) for f in result.faults)
            make: Callable[[], list[Enough]] = partial(list, self._enough(result))
            for change in self._once(reasons, self.nodes[result.node], make):
                if change.text not in failing:
                    failing[change.text] = self._ends_in_error(change, folded)
                if not failing[change.text]:
                    found.setdefault(change.text, []).append((result.node, change))
                    away = distance(group)
                    nearest[change.text] = min(away, nearest.get(change.text, away))
        most: dict[str, Any] = {}
        for what, amount in (where[0][1].less for where in found.values() if where[0][1].less):
            most[what] = max(amount, most.get(what, amount))
        for text, where in sorted(found.items(), key=lambda item: (nearest[item[0]], -len(item[1]))):
            if (less := where[0][1].less) and less[1] != most[less[0]]:
                continue  # on another node, a smaller reduction is enough
            place, change = where[0]
            example = f"{place}: {change.example}" if change.example else place
            yield SuggestedChange(text, len(where), example, change.command)

    def _ends_in_error(self, change: Enough, folded: Sequence[tuple[NodeGroup, list[NodeReasons]]]) -> bool:
        """Returns whether, after a change, an error on one node ends the scheduler's search. True if no time is left to check."""
        if change.claims is None and not change.removes:
            return False
        for result in (member for _, members in folded for member in members):
            refused = {f.text for f in result.faults if f.kind not in OF_DEVICES}
            if refused - {change.removes} or (not refused and change.claims is None):
                continue  # the scheduler does not search the node, or has searched it for the same claims
            if time.monotonic() > self.deadline:
                self.untried = True
                return True
            node = self.nodes[result.node]
            trial = WhatIf(NodeDevices(self.view, node), self._open(node) if change.claims is None else change.claims)
            if self._once(("error", change.text), node, trial.ends_in_error):
                return True
        return False

    def _enough(self, result: NodeReasons) -> Iterator[Enough]:
        """Yields changes, each of which alone would let the pod fit on the node."""
        node, short = self.nodes[result.node], _short(result.requests)
        of_node = [f for f in result.faults if f.kind not in OF_DEVICES]
        wanted = self._open(node)
        trials = self._trials(node, wanted)
        if of_node:
            tried = of_node[0].kind not in _UNTRIED and (not wanted or trials.fits())
            if len(result.faults) == 1 and not short and tried:
                fault = of_node[0]
                removes = "" if fault.kind is ReasonKind.CORDONED else fault.text
                most = fault.subject if fault.kind is ReasonKind.RESOURCES else ""
                yield Enough(fault.change, most, command=fault.command_on(node.name), removes=removes)
            return
        if not wanted:
            return
        faults = [*result.faults, *(f for options in result.requests for o in options for _, f in o.faults)]
        distinct = {(f.kind, f.text): f for f in faults}.values()
        yield from {change.text: change for fault in distinct for change in trials.enough(fault)}.values()
        for option in chain.from_iterable(short or result.requests):
            if time.monotonic() > self.deadline:
                self.untried = True
                return
            yield from trials.fewer(option.request)


def _short(requests: Requests) -> list[Sequence[request_reasons.RequestReasons]]:
    """Returns the alternatives of each request for which the devices do not suffice."""
    return [options for options in requests if not any(o.enough for o in options)]


def _names_claims(requests: Requests) -> bool:
    return any(f.of_node for options in requests for option in options for _, f in option.faults)


_NEVER_TOGETHER = DeviceFault(
    ReasonKind.COMPETITION,
    "the devices do not suffice for all requests together, also when other claims release their devices",
    "ask for fewer devices, or add devices",
)
_TIMED_OUT = DeviceFault(
    ReasonKind.TIMEOUT,
    f"it was not determined within {LIMIT:g} s whether there are devices for the claims; the scheduler stops after {TIME_LIMIT:g} s",
    "use fewer alternatives, constraints or partitions",
)
_UNTRIED_NODES = f"changes were not tried on all nodes, because that took more than {TRIALS_LIMIT:g} s"
_UNTRIED = {ReasonKind.CLAIM_ON_OTHER_NODE, ReasonKind.EXTENDED}  # the devices after such a change are not known
