"""Decides the state and the summary of an explanation, after the nodes were examined: also if objects could not be read or evaluated.

The summary of a waiting pod, which is the headline of ``dra explain``, is the first of these that applies:

1. a reason of the pod or its claims, in the scheduler's order (`cluster_reasons.py`);
2. a reason for all nodes, such as a selector that fails (`node_feasibility.py`);
3. if objects could not be read with which a node might take the pod: that the result depends on them;
4. the nodes that would take the pod;
5. a search that ended with a timeout;
6. the cause of most nodes among the nodes that are nearest to taking the pod (`grouping.distance`). Of two equally frequent causes, a
   cause of devices comes before a cause of nodes.

The scheduler view replaces unread nodes and classes: by a node without taints and labels for each node name in slices, and by a class
that selects every device. So most unread objects can only make a node refuse the pod; :func:`_may_fit` finds the exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dra_devkit.near_names import impossible_keys
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.base.text import counted, join_names
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, NAMESPACES, NODES, PODS, SLICES, TAINT_RULES

from ..scheduler_view import SchedulerView, name_of, named_requests
from ..unevaluated.objects import not_evaluated
from ..unevaluated.parts import UnevaluatedPart, merged
from ..waiting_pods import extended_requests
from .cluster_reasons import open_claims, open_claims_and_classes
from .grouping import OTHER_DEVICES, OTHER_NODES, device_distance, distance, request_distance, short_requests
from .model import NOT_BLOCKING, NOT_TRIED, OF_DEVICES, Explanation, ExplanationState, NodeGroup, ReasonKind
from .node_feasibility import Feasibility, unexamined_features

_UNREAD = "the result depends on objects that could not be read"
_DECIDED = {ExplanationState.FITS, ExplanationState.WAITS}
_DECIDING = {r.plural for r in (CLAIMS, CLASSES, NODES, PODS, SLICES, TAINT_RULES)}
"""The kinds that decide which nodes take a pod. Namespaces are not among them, because few pods need their labels."""


def conclude(view: SchedulerView, pod: PodInfo, known: Explanation, feasibility: Feasibility) -> Explanation:
    """Returns the explanation of a waiting pod with the results of its nodes, its state and its summary.

    A part of a claim or its class that is not evaluated may change any result. A part of the pod or of a device only adds a condition, so a
    node that refuses the pod still refuses it.
    """
    own = known.reasons
    known = replace(
        known,
        reasons=(*own, *feasibility.reasons),
        groups=feasibility.groups,
        changes=feasibility.changes,
        notes=(*feasibility.notes, *known.notes, *dict.fromkeys(_impossible_keys(view, pod))),
    )
    unseen = _may_fit(view, pod, known)
    if unseen and not own:
        known = replace(known, reasons=())
    found = _summarize(known, may_fit=unseen, may_not_fit=not can_try(view) or _needs_unread_namespaces(view, pod))
    if found.groups and not found.nodes and not can_try(view):
        found = replace(found, notes=(*found.notes, NOT_TRIED))
    wanted = open_claims_and_classes(view, pod)
    of_claims = [part for obj in wanted for part in not_evaluated(view.snapshot, obj)]
    if of_claims and found.state in _DECIDED and not own:
        return replace(_not_evaluated(found, of_claims), reasons=(), groups=(), changes=())
    if found.state is not ExplanationState.FITS:
        return found
    features = list(unexamined_features(pod, view.group_of(pod)))
    subject = f"Pod {pod.key}"
    conditions = [*feasibility.unevaluated, *not_evaluated(view.snapshot, pod.pod)]
    conditions += [UnevaluatedPart(subject, text.removeprefix("not examined: ")) for text in features]
    if not conditions:
        return found
    return _not_evaluated(replace(found, notes=tuple(n for n in found.notes if n not in features)), conditions)


def _impossible_keys(view: SchedulerView, pod: PodInfo) -> Iterator[str]:
    """Yields a sentence for each key that no device can have, in the selectors of the pod's open claims and their classes."""
    for claim in open_claims(view, pod):
        for name, one in named_requests(claim["spec"]):
            device_class = view.cache.classes.get(str(one["deviceClassName"])) or {"spec": {}}
            for where, owner in (
                (f"claim {name_of(claim)}, request {name}", one),
                (f"class {one['deviceClassName']}", device_class["spec"]),
            ):
                for expression in (s["cel"]["expression"] for s in owner.get("selectors") or [] if s.get("cel")):
                    yield from (f"{where}: {sentence}" for sentence in impossible_keys(expression))


def _not_evaluated(found: Explanation, parts: Sequence[UnevaluatedPart]) -> Explanation:
    unevaluated = merged(parts)
    first = unevaluated[0]
    return replace(
        found,
        state=ExplanationState.UNKNOWN,
        summary=f"it is not known whether it fits: {first}",
        unevaluated=unevaluated,
    )


def undecided(known: Explanation) -> Explanation:
    """Returns an explanation without a conclusion, because objects that decide it could not be read."""
    return replace(known, state=ExplanationState.UNKNOWN, summary=_UNREAD, groups=(), changes=())


# --- objects that could not be read ---------------------------------------------------------------


def can_try(view: SchedulerView) -> bool:
    """Returns whether changes can be tried: all objects that decide the result of a trial were read."""
    return not view.snapshot.incomplete & _DECIDING


def _may_fit(view: SchedulerView, pod: PodInfo, known: Explanation) -> bool:
    """Returns whether a node may take the pod because of unread objects, although every known node refuses it.

    Args:
        known: the reasons of the nodes.
    """
    unread = view.snapshot.incomplete
    if SLICES.plural in unread or _needs_unread_namespaces(view, pod):
        return True
    if PODS.plural in unread and any(pod.terms("podAffinity")):
        return True
    if NODES.plural in unread:
        # Only if slices name their nodes, the substitutes are all nodes with devices. They lack the labels of the nodes.
        of_named_nodes = all(s["spec"].get("nodeName") for s in view.snapshot.slices)
        if known.reasons or not of_named_nodes or not known.groups or any(g.reasons for g in known.groups):
            return True
    if CLASSES.plural not in unread:
        return False
    # A class that selects every device makes a request for all devices larger, and its requests see devices of other classes.
    requests = [one for claim in open_claims(view, pod) for _, one in named_requests(claim["spec"])]
    is_larger = any(one.get("allocationMode") == "All" for one in requests)
    return bool(known.reasons) or is_larger or any(name not in view.cache.extended for name in extended_requests(pod))


def _needs_unread_namespaces(view: SchedulerView, pod: PodInfo) -> bool:
    """Returns whether the pod needs the labels of a namespace that was not read."""
    requests = (one for claim in open_claims(view, pod) for _, one in named_requests(claim["spec"]))
    is_complete = view.snapshot.is_complete(NAMESPACES)
    is_absent = pod.namespace not in view.namespaces and bool(view.namespaces or not is_complete)
    if is_absent and any(one.get("adminAccess") for one in requests):
        return True
    return not is_complete and any(
        "namespaceSelector" in term for kind in ("podAffinity", "podAntiAffinity") for term in pod.terms(kind)
    )


# --- the summary ----------------------------------------------------------------------------------


def _summarize(known: Explanation, *, may_fit: bool = False, may_not_fit: bool = False) -> Explanation:
    """Returns the explanation with its state and summary.

    Args:
        may_fit: whether a node may take the pod because of objects that could not be read.
        may_not_fit: whether a node that would take the pod may refuse it because of such objects.
    """
    if known.reasons:
        return replace(known, summary=known.reasons[0].text, apart="" if may_fit or may_not_fit else _apart(known))
    if known.nodes:
        shown = _taking(known)
        if may_not_fit:
            return replace(known, state=ExplanationState.UNKNOWN, summary=f"as far as can be seen, {shown}")
        return replace(known, state=ExplanationState.FITS, summary=shown)
    if may_fit:
        return undecided(known)
    if late := _late(known.groups):
        return replace(known, state=ExplanationState.UNKNOWN, summary=late)
    return replace(known, summary=_refused(known.groups))


def _apart(known: Explanation) -> str:
    """Returns a sentence about the nodes for a pod that waits for a reason of its own, such as a scheduling gate.

    Empty if that reason blocks the pod on every node, or if nodes were not examined.
    """
    if not known.groups or any(r.kind not in NOT_BLOCKING for r in known.reasons):
        return ""
    if known.nodes:
        return f"apart from that, {_taking(known)}"
    return f"apart from that, no node would take it now: {_late(known.groups) or _refused(known.groups)}"


def _late(groups: Iterable[NodeGroup]) -> str:
    return next((r.text for g in groups for r in g.reasons if r.kind is ReasonKind.TIMEOUT), "")


def _taking(known: Explanation) -> str:
    number = _nodes(known.groups)
    return f"{len(known.nodes)} of {counted(number, 'node')} would take it now: {join_names(known.nodes)}"


def _refused(groups: tuple[NodeGroup, ...]) -> str:
    """Returns the cause on the nodes that are nearest to taking the pod, the number of all nodes with this cause, and the main
    cause of the other nodes.

    If the other nodes have no device that the request selects, the text says only `no such device` about them.
    """
    number = _nodes(groups)
    nearest = min(map(distance, groups), default=0)
    cause = _cause([g for g in groups if distance(g) == nearest])
    others = [g for g in groups if cause not in dict(_causes(g))]
    if not others:
        return f"{cause}, on the only node" if number == 1 else f"{cause}, on all {number} nodes"
    having = number - _nodes(others)
    if nearest < OTHER_DEVICES and all(device_distance(g) >= OTHER_DEVICES for g in others):
        rest = "the other node has" if number - having == 1 else f"the other {number - having} have"
        return f"{cause}, on {having} of {number} nodes; {rest} no such device"
    next_cause = _cause(others)
    more = _nodes(g for g in others if next_cause in dict(_causes(g)))
    return f"{cause}, on {having} of {number} nodes; on {more} more: {next_cause}"


def _nodes(groups: Iterable[NodeGroup]) -> int:
    return sum(len(g.nodes) for g in groups)


def _cause(groups: Sequence[NodeGroup]) -> str:
    """Returns the cause of most nodes. Of equally frequent causes, devices come before nodes."""
    causes: dict[str, tuple[int, bool]] = {}  # the number of nodes, and whether it is about devices
    for group in groups:
        for text, of_devices in _causes(group):
            causes[text] = (causes.get(text, (0, False))[0] + len(group.nodes), of_devices)
    return max(causes, key=lambda text: causes[text], default="")


def _causes(group: NodeGroup) -> Iterator[tuple[str, bool]]:
    """Yields the reasons of the nodes, and the reason of the first request without devices.

    If some devices pass the selector but cannot be used, for example because a claim holds them, that is the reason and not the
    selector.
    """
    yield from ((reason.text, reason.kind in OF_DEVICES) for reason in group.reasons)
    for options in short_requests(group)[:1]:
        request = min(options, key=request_distance)
        selected = [r for r in request.reasons if r.kind not in OTHER_NODES | {ReasonKind.SELECTOR}]
        reason = (selected or request.reasons)[0]
        text = f"too few devices for {request.shown} ({reason.text})" if reason.devices else reason.text
        if reason.kind is ReasonKind.CLASS_SELECTOR:
            text = f"there is no device of class {request.device_class} for {request.shown}"
        yield text, True
