"""Required topology spread constraints (``whenUnsatisfiable: DoNotSchedule``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ...label_selectors import selected, with_keys
from . import filters
from .node_info import NodeInfo
from .pod_info import PodInfo
from .status import Plugin, Rejection

_REASON = "node(s) didn't match pod topology spread constraints"
KNOWN = {
    "maxSkew",
    "minDomains",
    "topologyKey",
    "whenUnsatisfiable",
    "labelSelector",
    "matchLabelKeys",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
}


@dataclass
class _Constraint:
    key: str
    skew: int
    domains: int
    selector: ReadOnlyJSON | None
    self_match: int  # 1 if the selector matches the new pod, else 0
    counts: dict[str, int] = field(default_factory=dict)  # value of the topology key → number of matching pods

    @property
    def min_count(self) -> int:
        return 0 if len(self.counts) < self.domains or not self.counts else min(self.counts.values())


class Spread:
    """The distribution of all placed pods with respect to one new pod's constraints."""

    def __init__(self, pod: PodInfo, nodes: Iterable[NodeInfo]) -> None:
        specs = [
            s
            for s in pod.spec.get("topologySpreadConstraints") or []
            if (s.get("whenUnsatisfiable") or "DoNotSchedule") == "DoNotSchedule"
        ]
        self._constraints = [_constraint(s, pod) for s in specs]
        if not self._constraints:
            return
        keys = {c.key for c in self._constraints}
        for node in nodes:
            if not keys <= node.labels.keys():
                continue
            for spec, constraint in zip(specs, self._constraints, strict=True):
                if _counts(spec, pod, node):
                    value = node.labels[constraint.key]
                    constraint.counts[value] = constraint.counts.get(value, 0) + _matching(constraint, pod, node)

    @property
    def matters(self) -> bool:
        return bool(self._constraints)

    def rejects(self, node: NodeInfo) -> Rejection | None:
        for c in self._constraints:
            value = node.labels.get(c.key)
            if value is None:
                return Rejection.of(Plugin.SPREAD, f"{_REASON} (missing required label)")
            if c.counts.get(value, 0) + c.self_match - c.min_count > c.skew:
                return Rejection.of(Plugin.SPREAD, _REASON, resolvable=True)
        return None


def _constraint(spec: ReadOnlyJSON, pod: PodInfo) -> _Constraint:
    selector = with_keys(spec.get("labelSelector"), pod.labels, spec.get("matchLabelKeys") or [], [])
    self_match = int(selected(pod.labels, selector))
    return _Constraint(
        str(spec["topologyKey"]), int(spec["maxSkew"]), int(spec.get("minDomains") or 1), selector, self_match
    )


def _counts(spec: ReadOnlyJSON, pod: PodInfo, node: NodeInfo) -> bool:
    """Returns whether a node's pods count for a constraint."""
    if (spec.get("nodeAffinityPolicy") or "Honor") == "Honor" and filters.node_affinity(pod, node):
        return False
    return (spec.get("nodeTaintsPolicy") or "Ignore") != "Honor" or not filters.taints(pod, node)


def _matching(constraint: _Constraint, pod: PodInfo, node: NodeInfo) -> int:
    return sum(
        1
        for other in node.pods.values()
        if other.namespace == pod.namespace and not other.terminating and selected(other.labels, constraint.selector)
    )
