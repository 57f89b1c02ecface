"""One look for a node for one pod, on the state of one moment. Nothing here talks to anybody: it may run in a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import filters
from .affinity import NamespaceLabels, PodAffinity
from .devices import PodClaims
from .node_allocation import NodeAllocator
from .node_info import NodeInfo
from .pod_info import PodInfo
from .spread import Spread
from .status import Rejection


@dataclass(frozen=True, eq=False)
class CycleSnapshot:
    """``nominated`` are pods that have been promised a node, by its name."""

    nodes: Sequence[NodeInfo]
    namespaces: NamespaceLabels
    nominated: Mapping[str, Sequence[PodInfo]]


class Cycle:
    """Finds the nodes that would take ``pod``; ``rejected`` says why the others would not."""

    def __init__(self, pod: PodInfo, snapshot: CycleSnapshot, claims: PodClaims, allocations: NodeAllocator) -> None:
        self.pod = pod
        self.snapshot = snapshot
        self.claims = claims
        self.allocations = allocations
        self.rejected: dict[str, Rejection] = {}
        self._before_fit = filters.before_fit(pod)

    def feasible(self, enough: int | None = None) -> list[NodeInfo]:
        """The node that was promised, where it fits; all that fit otherwise, or ``enough``: as many as it takes to choose well.

        Raises :class:`SchedulerError`.
        """
        pod, nodes = self.pod, self.snapshot.nodes
        affinity, spread = PodAffinity(pod, nodes, self.snapshot.namespaces), Spread(pod, nodes)
        if pod.nominated:
            promised = [n for n in nodes if n.name == pod.nominated]
            if promised and self._rejects(promised[0], affinity, spread) is None:
                return promised
        enough = enough or _enough(len(nodes))
        found = []
        for node in nodes:
            rejection = self._rejects(node, affinity, spread)
            if rejection is None:
                found.append(node)
                if len(found) >= enough:
                    break
            else:
                self.rejected[node.name] = rejection
        return found

    def rejects_changed(self, node: NodeInfo) -> Rejection | None:
        """As if ``node`` were so: for one without some of its pods."""
        nodes = [node if n.name == node.name else n for n in self.snapshot.nodes]
        return self._rejects(node, PodAffinity(self.pod, nodes, self.snapshot.namespaces), Spread(self.pod, nodes))

    def _rejects(self, node: NodeInfo, affinity: PodAffinity, spread: Spread) -> Rejection | None:
        """With the pods that were promised the node before this one, and without: they may never come."""
        before = [
            p
            for p in self.snapshot.nominated.get(node.name, ())
            if p.uid != self.pod.uid and p.priority >= self.pod.priority
        ]
        if before:
            crowded = node
            for other in before:
                crowded = crowded.with_pod(other)
            nodes = [crowded if n.name == node.name else n for n in self.snapshot.nodes]
            rejection = self._filter(
                crowded, PodAffinity(self.pod, nodes, self.snapshot.namespaces), Spread(self.pod, nodes)
            )
            if rejection is not None:
                return rejection
        return self._filter(node, affinity, spread)

    def _filter(self, node: NodeInfo, affinity: PodAffinity, spread: Spread) -> Rejection | None:
        pod = self.pod
        for check in self._before_fit:
            if rejection := check(pod, node):
                return rejection
        if rejection := filters.fit(pod, node, self.claims.by_class):
            return rejection
        if spread.matters and (rejection := spread.rejects(node)):
            return rejection
        if affinity.matters and (rejection := affinity.rejects(node)):
            return rejection
        return self.claims.rejects(pod, node, self.allocations)


def _enough(nodes: int) -> int:
    """How many nodes that fit are enough to choose from: all up to 100, then a share that shrinks."""
    if nodes <= 100:
        return nodes
    return max(100, nodes * max(5, 50 - nodes // 125) // 100)
