"""Formats an explanation as text that fits on one screen for any number of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from dra_devkit.commands.style import Style, wrapped
from dra_devkit.event_messages import age, ago
from dra_kubeletplugin.base.text import counted, join_names

from .. import ClaimState, Example, Explanation, ExplanationState, NodeGroup, Reason, ReasonKind, RequestOnNodes
from ..explanation.model import NOT_TRIED

_GROUPS = 5
_REASONS = 4
_EXAMPLES = 3
_TAKEN = {ReasonKind.HELD, ReasonKind.COUNTERS}  # the holders are different on each node, so one example is enough
_GOOD = {ExplanationState.RUNS, ExplanationState.ENDED, ExplanationState.SCHEDULED, ExplanationState.FITS}


def text(found: Explanation, style: Style) -> list[str]:
    shown = (
        style.green if found.state in _GOOD else style.yellow if found.state is ExplanationState.UNKNOWN else style.red
    )
    summary = found.summary + ago(found.reported)
    lines = [*wrapped(f"{style.bold(found.subject)} {shown(str(found.state))}: {summary}", 0)]
    for number, reason in enumerate(found.reasons):
        if number or reason.text != found.summary:
            lines += ["", *wrapped(reason.text + ago(reason.time), 0, "! ")]
        if reason.change:
            lines += _advice(f"to change: {reason.change}", reason.command, 2)
    for claim in found.claims:
        lines += _claim(claim)
    if found.apart:
        lines += ["", *wrapped(found.apart, 0)]
    # The nodes that fit are in the summary, or in the sentence above.
    groups = [g for g in found.groups if not (found.apart and found.nodes)]
    for group in groups[:_GROUPS]:
        lines += ["", *_group(group, style)]
    if rest := groups[_GROUPS:]:
        number = sum(len(g.nodes) for g in rest)
        lines += [
            "",
            f"{counted(number, 'more node')} with {counted(len(rest), 'other set')} of reasons: -o json lists them",
        ]
    lines += _changes(found, style)
    if found.state is ExplanationState.FITS and found.message:
        lines += ["", "The scheduler tries the pod again after a change that may help, or after five minutes."]
    is_shown = any(found.message in r.text or r.kind is ReasonKind.QUOTA for r in found.reasons)
    if found.message and not is_shown:
        since = f", {since} ago" if (since := age(found.message_time)) else ""
        lines += ["", *wrapped(f"Kubernetes says{since}: {found.message}", 0)]
    for part in map(str, found.unevaluated):
        lines += wrapped(part, 0) if part not in found.summary else []
    for note in (*found.notes, *(g.why for g in found.gaps)):
        lines += wrapped(f"note: {note}", 0)
    return lines


def _changes(found: Explanation, style: Style) -> Iterator[str]:
    if found.changes:
        yield from ("", style.bold("each of these changes alone would be enough (tried with the allocator):"))
    for change in found.changes[:_GROUPS]:
        where = f"on {change.example}" if change.nodes == 1 else f"on {change.nodes} nodes, such as {change.example}"
        yield from _advice(f"{change.text} ({where})", change.command, 2, "- ")
    if found.changes or found.reasons or any(g.fits for g in found.groups):
        return
    for nearest in found.groups[:1]:
        reasons = [*nearest.reasons, *(r for q in nearest.requests for r in q.reasons)]
        wanted = {r.change: r.command for r in reversed(reasons) if r.change}
        if wanted:
            tried = "" if NOT_TRIED in found.notes else "no single change that was tried is enough; "
            head = f"{tried}on {nearest.nodes[0]} each of these removes a reason:"
            yield from ("", style.bold(head))
        for text, command in [*reversed(wanted.items())][:_GROUPS]:
            yield from _advice(text, command, 2, "- ")


def _advice(text: str, command: str, indent: int, mark: str = "") -> list[str]:
    """Formats a change. A command has a line of its own, which is never wrapped, so that users can paste it."""
    lines = wrapped(f"{text}:" if command else text, indent, mark)
    return [*lines, f"{' ' * (indent + 4)}{command}"] if command else lines


def _claim(claim: ClaimState) -> Iterator[str]:
    if not claim.devices:
        return
    by = f" for {join_names(claim.users)}" if claim.users else ""
    yield f"  claim {claim.name or claim.entry}{by}"
    for d in claim.devices:
        where = f" on {d.node}" if d.node else ""
        more = f" ({d.detail})" if d.detail else ""
        source = f", slice {d.slice}" if d.slice else ""
        yield f"    {d.shown}: {d.driver}/{d.pool}/{d.device}{where}{source}{more}"


def _group(group: NodeGroup, style: Style) -> Iterator[str]:
    number = counted(len(group.nodes), "node")
    if group.fits:
        yield from wrapped(f"{style.green(number + ' would take it')}: {join_names(group.nodes)}", 0)
        return
    yield from wrapped(f"{style.bold(number)}: {join_names(group.nodes)}", 0)
    for reason in group.reasons:
        yield from wrapped(reason.text + _examples(reason.examples, "node"), 2, "- ")
    if not group.reasons and not any(r.reasons for r in group.requests):
        yield "  - no reason of their own: the error above ends the search on all nodes"
    for alike, requests in groupby((r for r in group.requests if r.reasons), lambda r: replace(r, request="")):
        yield from _request(alike, [r.request for r in requests])


def _request(request: RequestOnNodes, names: list[str]) -> Iterator[str]:
    """Formats one request, or several consecutive requests with the same reasons."""
    wanted = "all devices" if request.wanted is None else counted(request.wanted, "device")
    have = (
        "these nodes have no usable device" if not request.usable else f"each node has at most {request.usable} usable"
    )
    head = f"claim {request.claim.partition('/')[2]}, request{'s' if len(names) > 1 else ''} {', '.join(names)}"
    each = " each" if len(names) > 1 else ""
    line = f"{head}: {wanted}{each} of class {request.device_class}; {have}"
    if request.resource:
        line = f"{request.resource}: {request.wanted} in container {request.container}, of class {request.device_class}; {have}"
    yield from wrapped(line, 2, "- ")
    for reason in request.reasons[:_REASONS]:
        yield from wrapped(_of_devices(reason), 6)
    if more := request.reasons[_REASONS:]:
        yield f"      {counted(sum(r.devices for r in more), 'device')} with {counted(len(more), 'other reason')}: -o json lists them"


def _of_devices(reason: Reason) -> str:
    number = f"{reason.devices}x " if reason.devices else ""
    most = 1 if reason.kind in _TAKEN else _EXAMPLES
    return f"{number}{reason.text}{_examples(reason.examples, 'device' if reason.devices else 'node', most)}"


def _examples(examples: Iterable[Example], place: str, most: int = _EXAMPLES) -> str:
    """Formats examples of a reason. ``place``: where the reason was found, ``node`` or ``device``."""
    texts = [
        f"{e.where}: {e.detail}" + (f", and {counted(e.count - 1, f'more {place}')}" if e.count > 1 else "")
        for e in examples
        if e.detail
    ]
    shown = [*texts[:most], *(["..."] if texts[most:] else [])]
    return f" ({'; '.join(shown)})" if texts else ""
