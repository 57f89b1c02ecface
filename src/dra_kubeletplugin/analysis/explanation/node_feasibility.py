"""Examines all nodes for a waiting pod with the scheduler's filters and allocator, and finds changes that would be enough."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from ...resourceapi import node_selectors
from ...scheduling.allocator.allocator import TIME_LIMIT
from ...scheduling.framework import devices as pod_devices
from ...scheduling.framework import extended, pod_info, unsupported
from ...scheduling.framework.binding import TIMEOUT
from ...scheduling.framework.claim_cache import is_allocated
from ...scheduling.framework.cycle import Cycle
from ...scheduling.framework.devices import PodClaims
from ...scheduling.framework.node_info import NodeInfo
from ...scheduling.framework.pod_info import PodInfo
from ...scheduling.framework.status import Plugin, Rejection, SchedulerError
from ..scheduler_view import SchedulerView, name_of, users_of
from . import request_reasons
from .device_reasons import DeviceFault, NodeDevices
from .grouping import NodeReasons, fold
from .model import NodeGroup, Reason, ReasonKind, SuggestedChange
from .node_reasons import NodeFilters
from .what_if import NOT_TOGETHER, WhatIf

JSON = dict[str, Any]
LIMIT = 2.0  # seconds for the devices of one node; the scheduler has ten
TRYING = 2.0  # seconds for all trials together; later trials are omitted
_FEWER = "ask for {} in request {} in place of {}"


@dataclass(frozen=True)
class Feasibility:
    """The result for all nodes. ``reasons`` are those for which the scheduler refuses all nodes at once."""

    groups: tuple[NodeGroup, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()


# Texts in errors that end the scheduler's search on all nodes, with the kind of the reason.
_FATAL = {
    "CEL ": ReasonKind.SELECTOR_ERROR,
    "currently being updated": ReasonKind.POOL_INCOMPLETE,
    "currently invalid": ReasonKind.POOL_INVALID,
    "constraint would not be satisfied": ReasonKind.CONSTRAINT,
    "exceeds the claim limit": ReasonKind.TOO_MANY,
}
_REMEDIES = {
    ReasonKind.POOL_INCOMPLETE: "the driver has to publish the rest of the pool; a request for all devices waits for it",
    ReasonKind.POOL_INVALID: "the driver has to publish a pool that does not contradict itself",
    ReasonKind.CONSTRAINT: "a request for all devices has to do without the constraint",
    ReasonKind.TOO_MANY: "use several claims",
}


def examine_nodes(view: SchedulerView, pod: PodInfo, *, changes: bool = True) -> Feasibility:
    """Examines every node for a pod whose claims all exist.

    Args:
        changes: also try changes that would be enough.
    """
    return _NodeExamination(view, pod, changes).feasibility()


def not_looked_at(pod: PodInfo) -> Iterator[str]:
    """Yields features of the pod that are not examined, such as volumes."""
    for why in unsupported.reasons(pod):
        yield why.replace(unsupported.PREFIX, "not examined: ")
    if pod.group:
        yield f"not examined: schedulingPolicy of PodGroup {pod.group}"


@dataclass
class _NodeExamination:
    view: SchedulerView
    pod: PodInfo
    tries: bool
    deadline: float = 0.0
    untried: bool = False

    def feasibility(self) -> Feasibility:
        view = self.view
        snapshot = view.cache.snapshot()
        notes = list(not_looked_at(self.pod))
        if not snapshot.nodes:
            return Feasibility(
                reasons=(Reason(ReasonKind.NO_NODES, "the cluster has no nodes", "add nodes"),), notes=tuple(notes)
            )
        claims = pod_devices.read(self.pod, view.cache.claims, view.cache.classes, view.cache.extended, TIMEOUT)
        if isinstance(claims, Rejection):
            return Feasibility(
                reasons=tuple(Reason(ReasonKind.OTHER, why, "") for why in claims.reasons), notes=tuple(notes)
            )
        cycle = Cycle(self._without_nomination(), snapshot, claims, view.allocations(LIMIT))
        error = ""
        try:
            fitting = {n.name for n in cycle.feasible(len(snapshot.nodes))}
        except SchedulerError as e:
            fitting, error = set(), str(e)
        self.deadline = time.monotonic() + TRYING
        filters = NodeFilters(self.pod, list(snapshot.nodes), view.cache.snapshot().namespaces, claims.by_class)
        results = [
            NodeReasons(n.name, True)
            if n.name in fitting
            else self._examine(n, claims, filters, cycle.rejected.get(n.name))
            for n in snapshot.nodes
        ]
        folded = fold(results)
        nodes = {n.name: n for n in snapshot.nodes}
        changes = () if error or not self.tries else tuple(self._changes(folded, claims, nodes))
        reasons = (self._fatal(error, claims),) if error else ()
        if self.untried:
            notes.append(_UNTRIED_NODES)
        return Feasibility(tuple(g for g, _ in folded), changes, reasons, tuple(notes))

    def _without_nomination(self) -> PodInfo:
        """Returns the pod without its nominated node, so that the other nodes are examined too."""
        status = {k: v for k, v in (self.pod.pod.get("status") or {}).items() if k != "nominatedNodeName"}
        return pod_info.read({**self.pod.pod, "status": status})

    def _fatal(self, error: str, claims: PodClaims) -> Reason:
        """Builds the reason for an error that ends the scheduler's search on all nodes."""
        message = error.partition("filter plugin: ")[2] or error
        kind = next((k for words, k in _FATAL.items() if words in message), ReasonKind.OTHER)
        change = _REMEDIES.get(kind, "repair the cause that the message names")
        if kind is ReasonKind.SELECTOR_ERROR and (found := self._failing(claims, message)):
            where, fault = found
            message, change = fault.text, f"{fault.change} (seen at {where})"
        return Reason(kind, f"the scheduler ends with an error for all nodes: {message}", change)

    def _failing(self, claims: PodClaims, message: str) -> request_reasons.Place | None:
        """Returns a device for which the selector in the scheduler's message cannot be evaluated."""
        for node in self.view.cache.snapshot().nodes:
            there = NodeDevices(self.view, node)
            for where, fault in request_reasons.failing(there, self._open(node, claims), self.view.cache.classes):
                if fault.subject in message:
                    return where, fault
        return None

    # --- one node -------------------------------------------------------------------------------

    def _examine(
        self, node: NodeInfo, claims: PodClaims, filters: NodeFilters, rejection: Rejection | None
    ) -> NodeReasons:
        faults = list(filters.faults(node))
        faults += self._allocated_for_others(node, claims)
        wanted = self._open(node, claims)
        requests: list[list[request_reasons.RequestReasons]] = []
        if wanted:
            requests = request_reasons.examine(NodeDevices(self.view, node), wanted, self.view.cache.classes)
        enough = all(any(option.enough for option in options) for options in requests)
        if rejection and enough and not faults:
            faults = self._together(node, wanted, rejection)
        return NodeReasons(node.name, False, faults, requests)

    def _open(self, node: NodeInfo, claims: PodClaims) -> list[JSON]:
        """Returns the claims that would have to be allocated on a node."""
        wanted = [c for i, c in enumerate(claims.claims) if not is_allocated(c) and not claims.is_extended(i)]
        missing = {r: c for r, c in claims.by_class.items() if not node.allocatable.get(r)}
        if claims.extended is not None and extended.is_draft(claims.extended) and missing:
            wanted.append(extended.for_node(claims.extended, self.pod, missing)[0])
        return wanted

    def _allocated_for_others(self, node: NodeInfo, claims: PodClaims) -> Iterator[DeviceFault]:
        for claim in claims.claims:
            if not is_allocated(claim):
                continue
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
        if "timed out" in rejection.reasons[0]:
            return [_TIMED_OUT]
        if rejection.plugin is not Plugin.DEVICES or not wanted:
            return [DeviceFault(ReasonKind.OTHER, why, "") for why in rejection.reasons]
        if time.monotonic() > self.deadline:
            return [NOT_TOGETHER]
        return list(WhatIf(NodeDevices(self.view, node), wanted).together())

    # --- suggested changes ----------------------------------------------------------------------

    def _changes(
        self, folded: Sequence[tuple[NodeGroup, list[NodeReasons]]], claims: PodClaims, nodes: Mapping[str, NodeInfo]
    ) -> Iterator[SuggestedChange]:
        found: dict[str, list[str]] = {}
        # Takes one node of each group in turn, so that each group is tried before the time is over.
        in_turn = chain.from_iterable(zip_longest(*(members for _, members in folded)))
        for result in in_turn:
            if result is None or result.fits:
                continue
            if time.monotonic() > self.deadline:
                self.untried = True
                break
            for text, example in self._enough(result, claims, nodes[result.node]):
                found.setdefault(text, []).append(f"{result.node}: {example}" if example else result.node)
        for text, where in sorted(found.items(), key=lambda item: -len(item[1])):
            yield SuggestedChange(text, len(where), where[0])

    def _enough(self, result: NodeReasons, claims: PodClaims, node: NodeInfo) -> Iterator[tuple[str, str]]:
        """Yields changes, each of which alone would let the pod fit on the node, and an example for each."""
        short = [options for options in result.requests if not any(o.enough for o in options)]
        of_node = [f for f in result.faults if f.kind not in _OF_DEVICES]
        wanted = self._open(node, claims)
        own = {str(c["metadata"].get("uid")) for c in claims.claims}
        trials = WhatIf(NodeDevices(self.view, node), wanted, own)
        if of_node:
            tried = of_node[0].kind not in _UNTRIED and (not wanted or trials.fits())
            if len(result.faults) == 1 and not short and tried:
                yield of_node[0].change, ""
            return
        if not wanted:
            return
        faults = [*result.faults, *(f for options in result.requests for o in options for _, f in o.faults)]
        distinct = {(f.kind, f.text): f for f in faults}.values()
        yield from dict(found for fault in distinct for found in trials.enough(fault)).items()
        for option in (option for options in short for option in options):
            if option.wanted and 0 < option.usable < option.wanted and trials.fits(fewer(wanted, option)):
                yield _FEWER.format(option.usable, option.request, option.wanted), ""


_TIMED_OUT = DeviceFault(
    ReasonKind.TIMEOUT,
    f"it was not determined within {LIMIT:g} s whether there are devices for the claims; the scheduler stops after {TIME_LIMIT:g} s",
    "use fewer alternatives, constraints or partitions",
)
_UNTRIED_NODES = f"changes were not tried on all nodes, because that took more than {TRYING:g} s"
_UNTRIED = {ReasonKind.CLAIM_ON_OTHER_NODE, ReasonKind.EXTENDED}  # the devices after such a change are not known
_OF_DEVICES = {ReasonKind.CONSTRAINT, ReasonKind.COUNTERS, ReasonKind.COMPETITION, ReasonKind.TIMEOUT}


def fewer(claims: Sequence[JSON], option: request_reasons.RequestReasons) -> list[JSON]:
    """Returns the claims with the number of devices of a request reduced to the usable devices."""
    out = []
    for claim in claims:
        devices = claim["spec"].get("devices") or {}
        changed = [
            {**r, "exactly": {**r["exactly"], "count": option.usable}}
            if name_of(claim) == option.claim and r["name"] == option.request and r.get("exactly")
            else r
            for r in devices.get("requests") or []
        ]
        out.append({**claim, "spec": {**claim["spec"], "devices": {**devices, "requests": changed}}})
    return out
