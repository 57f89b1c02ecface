"""Why a pod waits, what would have to change, or which devices it has: asked of a snapshot, answered as the scheduler would."""

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
LIMIT = 2.0  # seconds for the devices of one node, where the scheduler gives ten
TRYING = 2.0  # seconds for all trials together: what is not tried then is not told
_FEWER = "ask for {} in request {} in place of {}"


@dataclass(frozen=True)
class Feasibility:
    """What all nodes say. ``reasons`` end the search for a node at once, whatever the others say."""

    groups: tuple[NodeGroup, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()


# What ends a look at all nodes, by the scheduler's words for it, and what mends it.
_FATAL = {
    "CEL ": ReasonKind.SELECTOR_ERROR,
    "currently being updated": ReasonKind.POOL_INCOMPLETE,
    "currently invalid": ReasonKind.POOL_INVALID,
    "constraint would not be satisfied": ReasonKind.CONSTRAINT,
    "exceeds the claim limit": ReasonKind.TOO_MANY,
}
_MENDS = {
    ReasonKind.POOL_INCOMPLETE: "the driver has to publish the rest of the pool; a request for all devices waits for it",
    ReasonKind.POOL_INVALID: "the driver has to publish a pool that does not contradict itself",
    ReasonKind.CONSTRAINT: "a request for all devices has to do without the constraint",
    ReasonKind.TOO_MANY: "several claims",
}


def examine_nodes(scene: SchedulerView, pod: PodInfo, *, changes: bool = True) -> Feasibility:
    """The scheduler's look at every node for a pod whose claims are all there, with what was in the way.

    ``changes``: also try what would be enough.
    """
    return _NodeExamination(scene, pod, changes).verdict()


def not_looked_at(pod: PodInfo) -> Iterator[str]:
    """What a pod asks for that is not judged here, such as volumes."""
    for why in unsupported.reasons(pod):
        yield why.replace(unsupported.PREFIX, "not looked at: ")
    if pod.group:
        yield f"not looked at: schedulingPolicy of PodGroup {pod.group}"


@dataclass
class _NodeExamination:
    scene: SchedulerView
    pod: PodInfo
    tries: bool
    until: float = 0.0
    untried: bool = False

    def verdict(self) -> Feasibility:
        scene = self.scene
        snapshot = scene.cache.snapshot()
        notes = list(not_looked_at(self.pod))
        if not snapshot.nodes:
            return Feasibility(
                reasons=(Reason(ReasonKind.NO_NODES, "the cluster has no nodes", "nodes"),), notes=tuple(notes)
            )
        claims = pod_devices.read(self.pod, scene.cache.claims, scene.cache.classes, scene.cache.extended, TIMEOUT)
        if isinstance(claims, Rejection):
            return Feasibility(
                reasons=tuple(Reason(ReasonKind.OTHER, why, "") for why in claims.reasons), notes=tuple(notes)
            )
        cycle = Cycle(self._free_to_go(), snapshot, claims, scene.allocations(LIMIT))
        error = ""
        try:
            fitting = {n.name for n in cycle.feasible(len(snapshot.nodes))}
        except SchedulerError as e:
            fitting, error = set(), str(e)
        self.until = time.monotonic() + TRYING
        filters = NodeFilters(self.pod, list(snapshot.nodes), scene.cache.snapshot().namespaces, claims.by_class)
        looks = [
            NodeReasons(n.name, True)
            if n.name in fitting
            else self._look(n, claims, filters, cycle.rejected.get(n.name))
            for n in snapshot.nodes
        ]
        folded = fold(looks)
        nodes = {n.name: n for n in snapshot.nodes}
        changes = () if error or not self.tries else tuple(self._changes(folded, claims, nodes))
        reasons = (self._fatal(error, claims),) if error else ()
        if self.untried:
            notes.append(_UNTRIED_NODES)
        return Feasibility(tuple(g for g, _ in folded), changes, reasons, tuple(notes))

    def _free_to_go(self) -> PodInfo:
        """The pod without the node that it was promised, so that the others are looked at too."""
        status = {k: v for k, v in (self.pod.pod.get("status") or {}).items() if k != "nominatedNodeName"}
        return pod_info.read({**self.pod.pod, "status": status})

    def _fatal(self, error: str, claims: PodClaims) -> Reason:
        """What ends the scheduler's look at nodes with an error, for all of them."""
        said = error.partition("filter plugin: ")[2] or error
        kind = next((k for words, k in _FATAL.items() if words in said), ReasonKind.OTHER)
        change = _MENDS.get(kind, "what the message names")
        if kind is ReasonKind.SELECTOR_ERROR and (found := self._failing(claims, said)):
            where, fault = found
            said, change = fault.text, f"{fault.change} (seen at {where})"
        return Reason(kind, f"the scheduler ends with an error for all nodes: {said}", change)

    def _failing(self, claims: PodClaims, said: str) -> request_reasons.Place | None:
        """A device for which a selector cannot be evaluated, as the scheduler says it."""
        for node in self.scene.cache.snapshot().nodes:
            there = NodeDevices(self.scene, node)
            for where, fault in request_reasons.failing(there, self._open(node, claims), self.scene.cache.classes):
                if fault.subject in said:
                    return where, fault
        return None

    # --- one node -------------------------------------------------------------------------------

    def _look(self, node: NodeInfo, claims: PodClaims, filters: NodeFilters, told: Rejection | None) -> NodeReasons:
        faults = list(filters.faults(node))
        faults += self._elsewhere(node, claims)
        wanted = self._open(node, claims)
        asked: list[list[request_reasons.RequestReasons]] = []
        if wanted:
            asked = request_reasons.looks(NodeDevices(self.scene, node), wanted, self.scene.cache.classes)
        enough = all(any(option.enough for option in options) for options in asked)
        if told and enough and not faults:
            faults = self._together(node, wanted, told)
        return NodeReasons(node.name, False, faults, asked)

    def _open(self, node: NodeInfo, claims: PodClaims) -> list[JSON]:
        """Claims that would have to be allocated on a node."""
        wanted = [c for i, c in enumerate(claims.claims) if not is_allocated(c) and not claims.is_extended(i)]
        missing = {r: c for r, c in claims.by_class.items() if not node.allocatable.get(r)}
        if claims.extended is not None and extended.is_draft(claims.extended) and missing:
            wanted.append(extended.for_node(claims.extended, self.pod, missing)[0])
        return wanted

    def _elsewhere(self, node: NodeInfo, claims: PodClaims) -> Iterator[DeviceFault]:
        for claim in claims.claims:
            if not is_allocated(claim):
                continue
            selector = claim["status"]["allocation"].get("nodeSelector")
            if selector is not None and not node_selectors.selector_matches(node.node, selector):
                users = ", ".join(u for u in users_of(claim)[:3])
                text = f"claim {name_of(claim)} is allocated for other nodes, and {users or 'no pod'} uses it there"
                change = f"the pod has to go where claim {claim['metadata']['name']} is, or needs a claim of its own"
                if not users:
                    change = "the scheduler takes the allocation back, and tries again"
                yield DeviceFault(ReasonKind.CLAIM_ELSEWHERE, text, change)

    def _together(self, node: NodeInfo, wanted: Sequence[JSON], told: Rejection) -> list[DeviceFault]:
        """Why a node refuses the pod where nothing stands against it one by one."""
        if "timed out" in told.reasons[0]:
            return [_LATE]
        if told.plugin is not Plugin.DEVICES or not wanted:
            return [DeviceFault(ReasonKind.OTHER, why, "") for why in told.reasons]
        if time.monotonic() > self.until:
            return [NOT_TOGETHER]
        return list(WhatIf(NodeDevices(self.scene, node), wanted).together())

    # --- what would be enough -------------------------------------------------------------------

    def _changes(
        self, folded: Sequence[tuple[NodeGroup, list[NodeReasons]]], claims: PodClaims, nodes: Mapping[str, NodeInfo]
    ) -> Iterator[SuggestedChange]:
        found: dict[str, list[str]] = {}
        # Of each group one after the other, so that each is heard before the time is up.
        in_turn = chain.from_iterable(zip_longest(*(members for _, members in folded)))
        for look in in_turn:
            if look is None or look.fits:
                continue
            if time.monotonic() > self.until:
                self.untried = True
                break
            for text, example in self._enough(look, claims, nodes[look.node]):
                found.setdefault(text, []).append(f"{look.node}: {example}" if example else look.node)
        for text, where in sorted(found.items(), key=lambda item: -len(item[1])):
            yield SuggestedChange(text, len(where), where[0])

    def _enough(self, look: NodeReasons, claims: PodClaims, node: NodeInfo) -> Iterator[tuple[str, str]]:
        """What alone would let the node take the pod, with an example."""
        short = [options for options in look.requests if not any(o.enough for o in options)]
        of_node = [f for f in look.faults if f.kind not in _OF_DEVICES]
        wanted = self._open(node, claims)
        own = {str(c["metadata"].get("uid")) for c in claims.claims}
        trials = WhatIf(NodeDevices(self.scene, node), wanted, own)
        if of_node:
            tried = of_node[0].kind not in _UNTRIED and (not wanted or trials.fits())
            if len(look.faults) == 1 and not short and tried:
                yield of_node[0].change, ""
            return
        if not wanted:
            return
        faults = [*look.faults, *(f for options in look.requests for o in options for _, f in o.faults)]
        distinct = {(f.kind, f.text): f for f in faults}.values()
        yield from dict(found for fault in distinct for found in trials.enough(fault)).items()
        for option in (option for options in short for option in options):
            if option.wanted and 0 < option.usable < option.wanted and trials.fits(fewer(wanted, option)):
                yield _FEWER.format(option.usable, option.request, option.wanted), ""


_LATE = DeviceFault(
    ReasonKind.TIMEOUT,
    f"whether there are devices for the claims was not found out within {LIMIT:g} s; the scheduler gives up after {TIME_LIMIT:g} s",
    "fewer alternatives, constraints or partitions to choose from",
)
_UNTRIED_NODES = f"what would be enough was not tried on all nodes, as that took more than {TRYING:g} s"
_UNTRIED = {ReasonKind.CLAIM_ELSEWHERE, ReasonKind.EXTENDED}  # nobody knows which devices would be had then
_OF_DEVICES = {ReasonKind.CONSTRAINT, ReasonKind.COUNTERS, ReasonKind.COMPETITION, ReasonKind.TIMEOUT}


def fewer(claims: Sequence[JSON], option: request_reasons.RequestReasons) -> list[JSON]:
    """The claims with as many devices in a request as there are."""
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
