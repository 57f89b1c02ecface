"""The scheduler's cache of the cluster: objects from the watch, and the scheduler's own decisions that the watch has not
shown yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_kubeletplugin.base.json_types import JSON

from . import extended, node_info, queueing_hints
from .claim_cache import ClaimCache
from .cycle import CycleSnapshot
from .node_allocation import DeviceSnapshot
from .node_info import NodeInfo
from .pod_info import PodInfo
from .queueing_hints import ChangeKind, ClusterChange
from .slice_cache import SliceCache


class Cache:
    """The cache. A method that takes a changed object returns the cluster changes that may help waiting pods."""

    def __init__(self) -> None:
        self.claims = ClaimCache()
        self.slices = SliceCache()
        self.classes: Mapping[str, JSON] = {}
        self.extended: Mapping[str, str] = {}  # extended resource name → class
        self._nodes: dict[str, NodeInfo] = {}
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._orphaned: dict[str, dict[str, PodInfo]] = {}  # pods of unknown nodes, by node name
        self._placed: dict[str, str] = {}  # pod UID → node
        self._nominated: dict[str, tuple[str, PodInfo]] = {}  # pod UID → its nominated node

    def devices(self) -> DeviceSnapshot:
        """Returns the present input of an allocation."""
        return DeviceSnapshot(self.slices.slices, self.classes, self.claims.use)

    # --- nodes ----------------------------------------------------------------------------------

    def node_changed(self, node: JSON) -> list[ClusterChange]:
        name = str(node["metadata"]["name"])
        before = self._nodes.get(name)
        if before is None:
            after = node_info.read(node)
            for pod in self._orphaned.pop(name, {}).values():
                after = after.with_pod(pod)
        else:
            after = before.as_node(node)
        self._nodes[name] = after
        return queueing_hints.of_node(before, after)

    def node_gone(self, name: str) -> None:
        node = self._nodes.pop(name, None)
        if node is not None and node.pods:
            self._orphaned[name] = dict(node.pods)

    # --- pods on nodes --------------------------------------------------------------------------

    def place(self, pod: PodInfo, name: str) -> None:
        """Records that the pod is on a node, or will be."""
        if self._placed.get(pod.uid) not in {None, name}:
            self.displace(pod.uid)
        self._placed[pod.uid] = name
        self._nominated.pop(pod.uid, None)
        if name in self._nodes:
            self._nodes[name] = self._nodes[name].with_pod(pod)
        else:
            self._orphaned.setdefault(name, {})[pod.uid] = pod

    def place_all(self, pods: Sequence[PodInfo], name: str) -> None:
        """Records several pods on a node, which must be on no node yet."""
        self._placed |= dict.fromkeys((p.uid for p in pods), name)
        if name in self._nodes:
            self._nodes[name] = self._nodes[name].with_pods(pods)
        else:
            self._orphaned.setdefault(name, {}).update({p.uid: p for p in pods})

    def displace(self, uid: str) -> bool:
        """Records that the pod is no longer on a node. Returns whether it was on a node."""
        name = self._placed.pop(uid, None)
        if name is None:
            return False
        if name in self._nodes:
            self._nodes[name] = self._nodes[name].without_pod(uid)
        elif name in self._orphaned:
            self._orphaned[name].pop(uid, None)
        return True

    def has_another_of(self, pod: PodInfo) -> bool:
        """Returns whether another pod of ``pod``'s PodGroup is on a node, or will be."""
        nodes = (*(n.pods for n in self._nodes.values()), *self._orphaned.values())
        own_group = (pod.namespace, pod.group)
        return any((p.namespace, p.group) == own_group and p.uid != pod.uid for pods in nodes for p in pods.values())

    def is_placed(self, uid: str) -> bool:
        return uid in self._placed

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Records the pod's nominated node; an empty name removes it."""
        if node:
            self._nominated[pod.uid] = (node, pod)
        else:
            self._nominated.pop(pod.uid, None)

    # --- other objects --------------------------------------------------------------------------

    def namespace_changed(self, obj: JSON, *, gone: bool) -> list[ClusterChange]:
        name, labels = str(obj["metadata"]["name"]), dict(obj["metadata"].get("labels") or {})
        before = self._namespaces.get(name)
        self._namespaces = {n: known for n, known in self._namespaces.items() if n != name} | (
            {} if gone else {name: labels}
        )
        return [ClusterChange(ChangeKind.NAMESPACE)] if not gone and before != labels else []

    def class_changed(self, obj: JSON, *, gone: bool) -> list[ClusterChange]:
        name = str(obj["metadata"]["name"])
        self.classes = {n: c for n, c in self.classes.items() if n != name} | ({} if gone else {name: obj})
        self.extended = extended.class_names(self.classes.values())
        return [] if gone else [ClusterChange(ChangeKind.CLASS)]

    def slice_changed(self, obj: JSON, *, gone: bool) -> list[ClusterChange]:
        if gone:
            self.slices.forget(obj)
            return []
        self.slices.observe(obj)
        return [ClusterChange(ChangeKind.SLICE)]

    def snapshot(self) -> CycleSnapshot:
        nominated: dict[str, list[PodInfo]] = {}
        for name, pod in self._nominated.values():
            nominated.setdefault(name, []).append(pod)
        return CycleSnapshot(self._sorted(), self._namespaces, nominated)

    def _sorted(self) -> Sequence[NodeInfo]:
        return [self._nodes[name] for name in sorted(self._nodes)]
