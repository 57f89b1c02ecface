"""One scheduling cycle: finds a node for one pod on a snapshot. It does no I/O, so it may run in a thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    """The cluster at one moment. ``nominated`` has the pods with a nominated node, by node name."""

    nodes: Sequence[NodeInfo]
    namespaces: NamespaceLabels
    nominated: Mapping[str, Sequence[PodInfo]]


class Cycle:
    """Finds the nodes that accept ``pod``; ``rejected`` has the reasons of the other nodes."""

    def __init__(self, pod: PodInfo, snapshot: CycleSnapshot, claims: PodClaims, allocations: NodeAllocator) -> None:
        self.pod = pod
        self.snapshot = snapshot
        self.claims = claims
        self.allocations = allocations
        self.rejected: dict[str, Rejection] = {}
        self._before_fit = filters.before_fit(pod)

    def feasible(self, enough: int | None = None, *, without: Collection[str] = ()) -> list[NodeInfo]:
        """Returns the pod's nominated node if it accepts the pod, else all nodes that accept the pod.

        Args:
            enough: the search stops after this number of nodes. The default is Kubernetes' rule: all nodes, or a share
                of them in a large cluster.
            without: names of nodes that are known to reject the pod.

        Raises :class:`SchedulerError`.
        """
        pod, nodes = self.pod, self.snapshot.nodes
        affinity, spread = PodAffinity(pod, nodes, self.snapshot.namespaces), Spread(pod, nodes)
        if pod.nominated:
            nominated_nodes = [n for n in nodes if n.name == pod.nominated]
            if nominated_nodes and self._rejects(nominated_nodes[0], affinity, spread) is None:
                return nominated_nodes
        enough = enough or _enough(len(nodes))
        found = []
        for node in nodes:
            if node.name in without:
                continue
            rejection = self._rejects(node, affinity, spread)
            if rejection is None:
                found.append(node)
                if len(found) >= enough:
                    break
            else:
                self.rejected[node.name] = rejection
        return found

    def rejects_changed(self, node: NodeInfo) -> Rejection | None:
        """Returns why a changed version of a node rejects the pod, e.g. the node without some of its pods."""
        nodes = [node if n.name == node.name else n for n in self.snapshot.nodes]
        return self._rejects(node, PodAffinity(self.pod, nodes, self.snapshot.namespaces), Spread(self.pod, nodes))

    def _rejects(self, node: NodeInfo, affinity: PodAffinity, spread: Spread) -> Rejection | None:
        """Checks a node twice: with the pods nominated to it, and without them.

        Nominated pods of higher or equal priority have precedence, but they may never arrive.
        """
        before = [
            p
            for p in self.snapshot.nominated.get(node.name, ())
            if p.uid != self.pod.uid and p.priority >= self.pod.priority
        ]
        if before:
            with_nominated = node
            for other in before:
                with_nominated = with_nominated.with_pod(other)
            nodes = [with_nominated if n.name == node.name else n for n in self.snapshot.nodes]
            rejection = self._filter(
                with_nominated, PodAffinity(self.pod, nodes, self.snapshot.namespaces), Spread(self.pod, nodes)
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
    """Returns how many feasible nodes suffice: all up to 100, then a share that shrinks with the size of the cluster."""
    if nodes <= 100:
        return nodes
    return max(100, nodes * max(5, 50 - nodes // 125) // 100)
