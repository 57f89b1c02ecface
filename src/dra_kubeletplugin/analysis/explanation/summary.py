"""Sets the state and summary of an explanation from the results of nodes and from the kinds that could be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...base.text import counted, join_names
from ...kube.resource import CLAIMS, CLASSES, NODES, PODS, SLICES
from ..snapshot import Gap
from .model import Explanation, ExplanationState, NodeGroup, ReasonKind

# If one of these kinds may not be read, more nodes seem to fit than really do.
_OCCUPYING = {CLAIMS.plural, CLASSES.plural, NODES.plural, PODS.plural}
_UNREAD = "the result depends on objects that could not be read"


def summarize(known: Explanation, gaps: Iterable[Gap]) -> Explanation:
    """Returns the explanation of a waiting pod with its state and summary."""
    unread = {g.resource for g in gaps}
    if known.reasons:
        return replace(known, summary=known.reasons[0].text)
    if SLICES.plural in unread:
        return undecided(known)
    if known.nodes:
        return _fits(known, incomplete=bool(unread & _OCCUPYING))
    late = [r.text for g in known.groups for r in g.reasons if r.kind is ReasonKind.TIMEOUT]
    if late:
        return replace(known, state=ExplanationState.UNKNOWN, summary=late[0])
    return replace(known, summary=_refused(known.groups))


def undecided(known: Explanation) -> Explanation:
    """Returns an explanation without a conclusion, because objects that decide it could not be read."""
    return replace(known, state=ExplanationState.UNKNOWN, summary=_UNREAD, groups=(), changes=())


def _fits(known: Explanation, *, incomplete: bool) -> Explanation:
    number = sum(len(g.nodes) for g in known.groups)
    shown = f"{len(known.nodes)} of {counted(number, 'node')} would take it now: {join_names(known.nodes)}"
    if incomplete:
        return replace(known, state=ExplanationState.UNKNOWN, summary=f"as far as can be seen, {shown}")
    return replace(known, state=ExplanationState.FITS, summary=shown)


def _refused(groups: tuple[NodeGroup, ...]) -> str:
    number = sum(len(g.nodes) for g in groups)
    largest = max(groups, key=lambda g: len(g.nodes))
    if number == 1:
        return f"the only node does not take it: {_main(largest)}"
    share = "on all of them" if len(groups) == 1 else f"on {len(largest.nodes)} of them"
    return f"none of {number} nodes takes it; {share}: {_main(largest)}"


def _main(group: NodeGroup) -> str:
    """Returns the first reason of the group as a sentence."""
    for reason in group.reasons:
        return reason.text
    for request in group.requests:
        for reason in request.reasons:
            return f"too few devices for request {request.request} ({reason.text})" if reason.devices else reason.text
    return ""
