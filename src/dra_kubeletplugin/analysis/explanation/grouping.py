"""Groups nodes with equal reasons, with examples of the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from .device_reasons import DeviceFault
from .model import Example, NodeGroup, Reason, ReasonKind, RequestOnNodes
from .request_reasons import RequestReasons

_EXAMPLES = 3
# Reasons that count nodes, not devices
_OF_NODES = {ReasonKind.NO_DEVICES, ReasonKind.TOO_FEW, ReasonKind.POOL_INCOMPLETE, ReasonKind.POOL_INVALID}


@dataclass(frozen=True)
class NodeReasons:
    """The result for one node. If the pod does not fit: reasons of the node, and reasons of devices by request and alternative."""

    node: str
    fits: bool
    faults: Sequence[DeviceFault] = ()
    requests: Sequence[Sequence[RequestReasons]] = ()

    @property
    def key(self) -> Hashable:
        """A key that is equal for nodes with equal reasons."""
        if self.fits:
            return True
        node_keys = tuple((f.kind, f.text) for f in self.faults)
        request_keys = tuple(
            (r.claim, r.request, r.enough, frozenset((f.kind, f.text) for _, f in r.faults))
            for q in self.requests
            for r in q
        )
        return node_keys, request_keys


@dataclass
class _Folded:
    """One reason and the places where it was found."""

    fault: DeviceFault
    count: int = 0
    details: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # the first place of each detail

    def add(self, where: str, detail: str) -> None:
        self.count += 1
        self.details[detail] += 1
        self.first.setdefault(detail, where)

    def reason(self, *, devices: bool) -> Reason:
        common = self.details.most_common(_EXAMPLES)
        examples = tuple(Example(self.first[detail], detail, count) for detail, count in common)
        count = self.count if devices and self.fault.kind not in _OF_NODES else 0
        return Reason(self.fault.kind, self.fault.text, self.fault.change, count, examples)


def fold(results: Iterable[NodeReasons]) -> list[tuple[NodeGroup, list[NodeReasons]]]:
    """Groups nodes with equal reasons. Groups that fit come first, then the groups with the fewest reasons."""
    by_key: dict[Hashable, list[NodeReasons]] = {}
    for result in results:
        by_key.setdefault(result.key, []).append(result)
    groups = [(_group(members), members) for members in by_key.values()]
    return sorted(groups, key=lambda g: (not g[0].fits, _distance(g[0]), -len(g[0].nodes), g[0].nodes))


def _distance(group: NodeGroup) -> tuple[int, int]:
    """A sort key for the distance of a group from fitting: reasons of nodes, and requests with too few devices."""
    short = sum(1 for q in group.requests if q.reasons)
    usable = sum(q.usable for q in group.requests)
    return len(group.reasons) + short, -usable


def _group(members: Sequence[NodeReasons]) -> NodeGroup:
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


def _reasons(places: Iterable[tuple[str, DeviceFault]], *, devices: bool) -> tuple[Reason, ...]:
    found: dict[Hashable, _Folded] = {}
    for where, fault in places:
        found.setdefault((fault.kind, fault.text), _Folded(fault)).add(where, fault.detail)
    folded = [f.reason(devices=devices) for f in found.values()]
    return tuple(sorted(folded, key=lambda r: (r.kind is not ReasonKind.TOO_FEW, -r.devices)) if devices else folded)
