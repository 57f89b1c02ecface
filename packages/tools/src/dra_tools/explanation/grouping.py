"""Groups nodes with equal reasons, with examples of the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dra_kubeletplugin.base.text import natural

from .device_reasons import DeviceFault
from .model import OF_DEVICES, Example, NodeGroup, Reason, ReasonKind, RequestOnNodes
from .request_reasons import RequestReasons

EXAMPLES = 3
# Reasons of nodes that the author of the pod did not mean: they have no devices, devices of another class, or other labels.
OTHER_NODES = {ReasonKind.NO_DEVICES, ReasonKind.CLASS_SELECTOR, ReasonKind.NOT_HERE, ReasonKind.NODE_AFFINITY}
_NOT_SELECTED = OTHER_NODES | {ReasonKind.SELECTOR}
OTHER_DEVICES = 2  # the distance of nodes whose devices the request does not select
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
            (r.request.claim, r.request.request, r.enough, frozenset((f.kind, f.text) for _, f in r.faults))
            for options in self.requests
            for r in options
        )
        return node_keys, request_keys


@dataclass
class _Folded:
    """One reason and the places where it was found."""

    fault: DeviceFault
    place: str  # the first place
    count: int = 0
    details: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # the first place of each detail

    def add(self, where: str, fault: DeviceFault, nodes: int) -> None:
        """Counts a reason that was found at ``where``, and that ``nodes`` nodes with equal devices have."""
        self.count += nodes
        self.details[fault.detail] += 1 if fault.of_node else nodes
        self.first.setdefault(fault.detail, where)

    def reason(self, *, devices: bool) -> Reason:
        common = self.details.most_common(EXAMPLES)
        examples = tuple(Example(self.first[detail], detail, count) for detail, count in common)
        count = self.count if devices and self.fault.kind not in _OF_NODES else 0
        command = "" if devices else self.fault.command_on(self.place)
        return Reason(self.fault.kind, self.fault.text, self.fault.change, count, examples, command)


def fold(results: Iterable[NodeReasons]) -> list[tuple[NodeGroup, list[NodeReasons]]]:
    """Groups nodes with equal reasons. Groups that fit come first, then the groups that are nearest to taking the pod.

    Args:
        results: in the order in which a group names its nodes. Equal nodes share the lists of their reasons.
    """
    by_lists: dict[tuple[bool, int, int], list[NodeReasons]] = {}
    by_key: dict[Hashable, list[NodeReasons]] = {}
    for result in results:
        lists = (result.fits, id(result.faults), id(result.requests))
        if lists not in by_lists:
            by_lists[lists] = by_key.setdefault(result.key, [])
        by_lists[lists].append(result)
    groups = [(_group(members), members) for members in by_key.values()]
    return sorted(groups, key=lambda g: (not g[0].fits, _sort_key(g[0]), -len(g[0].nodes), natural(g[0].nodes[0])))


def distance(group: NodeGroup) -> int:
    """Returns how far nodes are from taking the pod.

    0: each request alone could be satisfied. 1: selected devices are not usable, or the node has a reason of its own.
    2: the request selects none of the devices. 3: the pod is not meant for the nodes, so they are not the cause.
    """
    if any(r.kind in OTHER_NODES for r in group.reasons):
        return 3
    of_node = int(any(r.kind not in OF_DEVICES for r in group.reasons))
    return max(of_node, device_distance(group))


def device_distance(group: NodeGroup) -> int:
    """Returns how far the devices of nodes are from taking the pod, as :func:`distance` counts it."""
    return max((min(map(request_distance, options)) for options in short_requests(group)), default=0)


def short_requests(group: NodeGroup) -> list[list[RequestOnNodes]]:
    """Returns the alternatives of each request for which the devices do not suffice."""
    by_request: dict[tuple[str, str], list[RequestOnNodes]] = {}
    for request in group.requests:
        by_request.setdefault((request.claim, request.request.partition("/")[0]), []).append(request)
    return [options for options in by_request.values() if all(option.reasons for option in options)]


def request_distance(request: RequestOnNodes) -> int:
    kinds = {r.kind for r in request.reasons}
    # TOO_FEW counts only if it is the only reason: otherwise there are too few devices because of the other reasons.
    kinds = kinds - {ReasonKind.TOO_FEW} or kinds
    return 3 if kinds <= OTHER_NODES else OTHER_DEVICES if kinds <= _NOT_SELECTED else 1


def _sort_key(group: NodeGroup) -> tuple[int, int, int]:
    """A sort key for groups: the group that is nearest to taking the pod comes first, then the group with the fewest reasons."""
    short = sum(1 for q in group.requests if q.reasons)
    usable = sum(q.usable for q in group.requests)
    return distance(group), len(group.reasons) + short, -usable


def _group(members: Sequence[NodeReasons]) -> NodeGroup:
    first = members[0]
    nodes = tuple(m.node for m in members)
    if first.fits:
        return NodeGroup(nodes, True, (), ())
    # Nodes that are equal for the pod share the list of faults, and nodes with equal devices share the list of requests.
    by_faults: dict[int, list[NodeReasons]] = {}
    for member in members:
        by_faults.setdefault(id(member.faults), []).append(member)
    reasons = _reasons(((m[0].node, f, len(m)) for m in by_faults.values() for f in m[0].faults), devices=False)
    number = Counter(id(m.requests) for m in members)
    distinct = [(requests, number[i]) for i, requests in {id(m.requests): m.requests for m in members}.items()]
    requests = []
    for i, options in enumerate(first.requests):
        for k, one in enumerate(options):
            same = [(found[i][k], count) for found, count in distinct]
            folded = _reasons(((where, f, count) for r, count in same for where, f in r.faults), devices=True)
            usable = max(r.request.usable for r, _ in same)
            devices = sum(r.request.devices * count for r, count in same)
            requests.append(replace(one.request, usable=usable, devices=devices, reasons=folded))
    return NodeGroup(nodes, False, reasons, tuple(requests))


def _reasons(places: Iterable[tuple[str, DeviceFault, int]], *, devices: bool) -> tuple[Reason, ...]:
    found: dict[Hashable, _Folded] = {}
    for where, fault, nodes in places:
        key = (fault.kind, fault.text)
        if key not in found:
            found[key] = _Folded(fault, where)
        found[key].add(where, fault, nodes)
    folded = [f.reason(devices=devices) for f in found.values()]
    return tuple(sorted(folded, key=_order) if devices else folded)


def _order(reason: Reason) -> tuple[bool, bool, bool, int]:
    """A sort key for reasons of devices.

    An invalid pool comes first, like in the scheduler. Devices that the request does not select come last, because they are not
    the cause.
    """
    kind = reason.kind
    return (
        kind is not ReasonKind.POOL_INVALID,
        kind is not ReasonKind.TOO_FEW,
        kind in _NOT_SELECTED,
        -reason.devices,
    )
