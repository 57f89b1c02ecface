"""Many nodes folded: those that say the same are one group, with examples of what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from .device_reasons import Fault
from .model import Example, Kind, NodeGroup, Reason, RequestOnNodes
from .request_reasons import RequestLook

_EXAMPLES = 3
_OF_NODES = {Kind.NO_DEVICES, Kind.TOO_FEW, Kind.POOL_INCOMPLETE, Kind.POOL_INVALID}  # they count no devices


@dataclass(frozen=True)
class NodeLook:
    """One node: whether it takes the pod; else what is said of the node, and of devices by request and alternative."""

    node: str
    fits: bool
    faults: Sequence[Fault] = ()
    requests: Sequence[Sequence[RequestLook]] = ()

    @property
    def key(self) -> Hashable:
        """Equal for nodes that say the same."""
        if self.fits:
            return True
        said = tuple((f.kind, f.text) for f in self.faults)
        asked = tuple(
            (r.claim, r.request, r.enough, frozenset((f.kind, f.text) for _, f in r.faults))
            for q in self.requests
            for r in q
        )
        return said, asked


@dataclass
class _Folded:
    """One reason with where it was seen."""

    fault: Fault
    count: int = 0
    details: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # where each detail was first seen

    def add(self, where: str, detail: str) -> None:
        self.count += 1
        self.details[detail] += 1
        self.first.setdefault(detail, where)

    def reason(self, *, devices: bool) -> Reason:
        common = self.details.most_common(_EXAMPLES)
        examples = tuple(Example(self.first[detail], detail, count) for detail, count in common)
        count = self.count if devices and self.fault.kind not in _OF_NODES else 0
        return Reason(self.fault.kind, self.fault.text, self.fault.change, count, examples)


def fold(looks: Iterable[NodeLook]) -> list[tuple[NodeGroup, list[NodeLook]]]:
    """Groups with their nodes: those that take the pod first, then those with the fewest reasons against it."""
    by_key: dict[Hashable, list[NodeLook]] = {}
    for look in looks:
        by_key.setdefault(look.key, []).append(look)
    groups = [(_group(members), members) for members in by_key.values()]
    return sorted(groups, key=lambda g: (not g[0].fits, _distance(g[0]), -len(g[0].nodes), g[0].nodes))


def _distance(group: NodeGroup) -> tuple[int, int]:
    """How far its nodes are from taking the pod: reasons of the nodes, and requests that have too few devices."""
    short = sum(1 for q in group.requests if q.reasons)
    usable = sum(q.usable for q in group.requests)
    return len(group.reasons) + short, -usable


def _group(members: Sequence[NodeLook]) -> NodeGroup:
    first = members[0]
    nodes = tuple(m.node for m in members)
    if first.fits:
        return NodeGroup(nodes, True, (), ())
    reasons = _reasons(((m.node, f) for m in members for f in m.faults), devices=False)
    requests = []
    for i, options in enumerate(first.requests):
        for k, one in enumerate(options):
            same = [m.requests[i][k] for m in members]
            folded = _reasons((place for r in same for place in r.faults), devices=True)
            usable, devices = max(r.usable for r in same), sum(r.devices for r in same)
            requests.append(
                RequestOnNodes(one.claim, one.request, one.device_class, one.wanted, usable, devices, folded)
            )
    return NodeGroup(nodes, False, reasons, tuple(requests))


def _reasons(places: Iterable[tuple[str, Fault]], *, devices: bool) -> tuple[Reason, ...]:
    found: dict[Hashable, _Folded] = {}
    for where, fault in places:
        found.setdefault((fault.kind, fault.text), _Folded(fault)).add(where, fault.detail)
    folded = [f.reason(devices=devices) for f in found.values()]
    return tuple(sorted(folded, key=lambda r: (r.kind is not Kind.TOO_FEW, -r.devices)) if devices else folded)
