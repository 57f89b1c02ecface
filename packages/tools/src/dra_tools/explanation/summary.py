"""Sets the state and summary of an explanation from the results of nodes, and from the kinds of objects that could not be read.

The summary of a waiting pod, which is the headline of ``dra explain``, is the first of these that applies:

1. a reason of the pod or its claims, in the scheduler's order (`cluster_reasons.py`);
2. a reason for all nodes, such as a selector that fails (`node_feasibility.py`);
3. if objects could not be read with which a node might take the pod: that the result depends on them (`unread_objects.py`);
4. the nodes that would take the pod;
5. a search that ended with a timeout;
6. the cause of most nodes among the nodes that are nearest to taking the pod (`grouping.distance`). Of two equally frequent causes, a
   cause of devices comes before a cause of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dra_kubeletplugin.base.text import counted, join_names

from .grouping import OTHER_DEVICES, OTHER_NODES, device_distance, distance, request_distance, short_requests
from .model import NOT_BLOCKING, OF_DEVICES, Explanation, ExplanationState, NodeGroup, ReasonKind

_UNREAD = "the result depends on objects that could not be read"


def summarize(known: Explanation, *, may_fit: bool = False, may_not_fit: bool = False) -> Explanation:
    """Returns the explanation of a waiting pod with its state and summary.

    Args:
        may_fit: whether a node may take the pod because of objects that could not be read.
        may_not_fit: whether a node that would take the pod may refuse it because of such objects.
    """
    if known.reasons:
        return replace(known, summary=known.reasons[0].text, apart="" if may_fit or may_not_fit else _apart(known))
    if known.nodes:
        return _fits(known, incomplete=may_not_fit)
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


def undecided(known: Explanation) -> Explanation:
    """Returns an explanation without a conclusion, because objects that decide it could not be read."""
    return replace(known, state=ExplanationState.UNKNOWN, summary=_UNREAD, groups=(), changes=())


def _fits(known: Explanation, *, incomplete: bool) -> Explanation:
    shown = _taking(known)
    if incomplete:
        return replace(known, state=ExplanationState.UNKNOWN, summary=f"as far as can be seen, {shown}")
    return replace(known, state=ExplanationState.FITS, summary=shown)


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
