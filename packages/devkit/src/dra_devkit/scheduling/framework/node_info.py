"""A node with its pods, as filters and scores read it. Immutable, so that a cycle keeps its snapshot."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dra_kubeletplugin.base.json_types import JSON

from .pod_info import ANY_ADDRESS, PODS, PodInfo, Port, amount_of


@dataclass(frozen=True, eq=False)
class NodeInfo:
    node: JSON
    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    taints: tuple[JSON, ...]
    unschedulable: bool
    pods: Mapping[str, PodInfo]  # by UID
    requested: Mapping[str, int]
    nonzero_requested: tuple[int, int]  # requested millicores and bytes, for comparing nodes

    @cached_property
    def ports(self) -> frozenset[Port]:
        return frozenset(p for pod in self.pods.values() for p in pod.ports)

    @cached_property
    def scores(self) -> dict[tuple[int, int, int, int], int]:
        """Scores by pod size, cached because most nodes do not change between two pods."""
        return {}

    @cached_property
    def pods_with_anti_affinity(self) -> tuple[PodInfo, ...]:
        """Pods with required anti-affinity."""
        return tuple(p for p in self.pods_with_affinity if p.terms("podAntiAffinity"))

    @cached_property
    def restrictions(self) -> Hashable:
        """A value that is equal for nodes with the same taints and the same ``unschedulable``."""
        return self.unschedulable, tuple((t["key"], t.get("value"), t["effect"]) for t in self.taints)

    @cached_property
    def softly_tainted(self) -> bool:
        return any(t["effect"] == "PreferNoSchedule" for t in self.taints)

    @cached_property
    def pods_with_affinity(self) -> tuple[PodInfo, ...]:
        """Pods with affinity or anti-affinity."""
        return tuple(p for p in self.pods.values() if p.has_affinity)

    def with_pod(self, pod: PodInfo) -> NodeInfo:
        """Returns this node with one more pod, which replaces a pod of the same UID."""
        base = self.without_pod(pod.uid) if pod.uid in self.pods else self
        return base.with_pods((pod,))

    def with_pods(self, pods: Sequence[PodInfo]) -> NodeInfo:
        """Returns this node with more pods, none of which is on the node."""
        requested = dict(self.requested)
        cpu, memory = self.nonzero_requested
        for pod in pods:
            for name, amount in pod.requests.items():
                requested[name] = requested.get(name, 0) + amount
            cpu, memory = cpu + pod.nonzero_requested[0], memory + pod.nonzero_requested[1]
        all_pods = {**self.pods, **{p.uid: p for p in pods}}
        return replace(self, pods=all_pods, requested=requested, nonzero_requested=(cpu, memory))

    def without_pod(self, uid: str) -> NodeInfo:
        pod = self.pods.get(uid)
        if pod is None:
            return self
        requested = dict(self.requested)
        for name, amount in pod.requests.items():
            requested[name] -= amount
        nonzero_requested = (
            self.nonzero_requested[0] - pod.nonzero_requested[0],
            self.nonzero_requested[1] - pod.nonzero_requested[1],
        )
        pods = {k: p for k, p in self.pods.items() if k != uid}
        return replace(self, pods=pods, requested=requested, nonzero_requested=nonzero_requested)

    def as_node(self, node: JSON) -> NodeInfo:
        """Returns the changed object ``node`` as a NodeInfo with the pods of this one."""
        changed = read(node)
        return replace(changed, pods=self.pods, requested=self.requested, nonzero_requested=self.nonzero_requested)

    def conflicts(self, ports: Iterable[Port]) -> bool:
        return any(
            protocol == used and number == taken and (address == at or ANY_ADDRESS in {address, at})
            for protocol, address, number in ports
            for used, at, taken in self.ports
        )


def read(node: JSON) -> NodeInfo:
    """Reads a node. Raises ``TypeError``, ``KeyError``, ``ValueError`` or ``AttributeError`` if the object is malformed."""
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    amounts = status.get("allocatable") or status.get("capacity") or {}
    taints = [dict(t) for t in spec.get("taints") or []]
    return NodeInfo(
        node,
        str(meta["name"]),
        dict(meta.get("labels") or {}),
        {str(name): amount_of(name, amount) for name, amount in amounts.items()},
        tuple(taints),
        bool(spec.get("unschedulable")),
        {},
        {},
        (0, 0),
    )


def pods_allowed(node: NodeInfo) -> int:
    return node.allocatable.get(PODS, 0)
