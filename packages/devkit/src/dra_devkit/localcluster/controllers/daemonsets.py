"""The DaemonSet controller: keeps one pod on each eligible node, and two while an update with ``maxSurge`` replaces a pod."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import NODES
from dra_kubeletplugin.resourceapi import node_selectors

from ...scheduling.allocator.taints import tolerates
from ...scheduling.framework.pod_info import is_finished
from ..informer import Informers, ObjectChange
from .base import key_of
from .workloads import DAEMON_SETS, Workload, available_in, hash_of, is_ready, share_of

_REVISION = "controller-revision-hash"
_TOLERATED_TAINTS = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
]
_TOLERATIONS = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in _TOLERATED_TAINTS]


class DaemonSetController(Workload):
    name = "daemonset-controller"
    resource = DAEMON_SETS

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers, NODES)
        self.watch(NODES, self._node_changed)

    def _node_changed(self, change: ObjectChange) -> None:
        for obj in self.informers.all(DAEMON_SETS):
            self.queue.add(key_of(DAEMON_SETS, obj))

    async def sync(self, obj: JSON) -> None:
        template = obj["spec"]["template"]
        nodes = {n["metadata"]["name"]: n for n in self.informers.all(NODES)}
        wanted = [name for name, node in sorted(nodes.items()) if _is_eligible(template["spec"], node)]
        by_node: dict[str, list[JSON]] = {}
        for pod in self.pods_of(obj):
            if not (is_finished(pod) and pod["metadata"].get("deletionTimestamp")):
                by_node.setdefault(_node_of(pod), []).append(pod)
        update = _Update(obj, wanted)
        try:
            deleted, missing = update.correct(by_node)
            if not (deleted or missing):
                deleted, missing = update.proceed(by_node)
            for pod in deleted:
                await self.delete_pod(obj, pod)
            for name in missing:
                meta = {"labels": {_REVISION: update.revision}}
                pod = await self.make_pod(obj, template, meta, _pinned_to(template["spec"], name))
                by_node.setdefault(name, []).append(pod)
        finally:
            await self._update_status(obj, by_node, update)

    async def _update_status(self, obj: JSON, by_node: Mapping[str, list[JSON]], update: _Update) -> None:
        """Writes the numbers of nodes. The oldest pod of a node counts, as in Kubernetes."""
        oldest = [by_node[name][0] for name in update.wanted if name in by_node]
        status: JSON = {
            "currentNumberScheduled": len(oldest),
            "desiredNumberScheduled": len(update.wanted),
            "numberMisscheduled": len([name for name in by_node if name not in update.wanted]),
            "numberReady": sum(map(is_ready, oldest)),
        }
        delays = [available_in(pod, update.min_ready) for pods in by_node.values() for pod in pods]
        if pending := [w for w in delays if w]:
            self.queue.add_after(key_of(DAEMON_SETS, obj), min(pending))
        available = sum(map(update.is_available, oldest))
        extra = {
            "updatedNumberScheduled": sum(map(update.is_new, oldest)),
            "numberAvailable": available,
            "numberUnavailable": len(update.wanted) - available,
        }
        await self.write_status(obj, status | {key: value for key, value in extra.items() if value})


class _Update:
    """Decides which pods of a DaemonSet to delete, and which nodes get a pod.

    Both steps take the pods of each node, oldest first, and return the pods to delete and the nodes that get a new pod.
    Source: ``podsShouldBeOnNode`` and ``rollingUpdate`` in ``pkg/controller/daemon`` of Kubernetes.
    """

    def __init__(self, obj: JSON, wanted: list[str]) -> None:
        spec = obj["spec"]
        strategy = spec.get("updateStrategy") or {}
        rolling = strategy.get("rollingUpdate") or {}
        self.wanted = wanted
        self.revision = hash_of(spec["template"])
        self.min_ready = float(spec.get("minReadySeconds") or 0)
        self.is_rolling = strategy.get("type") != "OnDelete"
        self.max_surge = share_of(rolling.get("maxSurge", 0), len(wanted), up=True) if self.is_rolling else 0
        self.max_unavailable = share_of(rolling.get("maxUnavailable", 1), len(wanted), up=True)

    def is_new(self, pod: Mapping[str, Any]) -> bool:
        return (pod["metadata"].get("labels") or {}).get(_REVISION) == self.revision

    def is_available(self, pod: Mapping[str, Any]) -> bool:
        return available_in(pod, self.min_ready) == 0.0

    def correct(self, by_node: Mapping[str, list[JSON]]) -> tuple[list[JSON], list[str]]:
        """Keeps one pod on each wanted node; or an old and a new pod while the old pod is ready and the new pod is unavailable."""
        deleted: list[JSON] = []
        missing = [name for name in self.wanted if name not in by_node]
        for name, pods in by_node.items():
            alive = [p for p in pods if not p["metadata"].get("deletionTimestamp")]
            running = [p for p in alive if name in self.wanted and not is_finished(p)]
            deleted += [p for p in alive if p not in running]
            if not self.max_surge:
                deleted += running[1:]
                continue
            if name in self.wanted and not running:
                missing.append(name)
            new, old = self._split(running)
            deleted += new[1:] + old[1:]
            if new and old and (not is_ready(old[0]) or self.is_available(new[0])):
                deleted.append(old[0])
        return deleted, missing

    def proceed(self, by_node: Mapping[str, list[JSON]]) -> tuple[list[JSON], list[str]]:
        """Continues a rolling update on nodes that :meth:`correct` leaves unchanged. Unavailable old pods are always replaced."""
        if not self.is_rolling:
            return [], []
        on_nodes = {name: self._split(by_node[name]) for name in sorted(by_node) if name in self.wanted}
        old_only = {name: old[0] for name, (new, old) in on_nodes.items() if old and not new}
        outdated = [name for name, pod in old_only.items() if self.is_available(pod)]
        broken = [name for name in old_only if name not in outdated]
        if self.max_surge:
            surging = sum(bool(new and old) for new, old in on_nodes.values())
            return [], broken + outdated[: max(0, self.max_surge - surging)]
        available = sum(self.is_available(pod) for new, old in on_nodes.values() for pod in new + old)
        allowed = max(1, self.max_unavailable) - (len(on_nodes) - available)
        return [old_only[name] for name in broken + outdated[: max(0, allowed)]], []

    def _split(self, pods: Iterable[JSON]) -> tuple[list[JSON], list[JSON]]:
        """Returns the pods that are not being deleted: those of the current template, and those of older templates."""
        alive = [p for p in pods if not p["metadata"].get("deletionTimestamp")]
        return [p for p in alive if self.is_new(p)], [p for p in alive if not self.is_new(p)]


def _is_eligible(spec: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Returns whether a pod with this spec may run on a node with these labels and taints. A cordoned node is eligible."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(k) != v for k, v in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not node_selectors.selector_matches(dict(node), required):
        return False
    tolerations = [*(spec.get("tolerations") or []), *_TOLERATIONS]
    taints = (node.get("spec") or {}).get("taints") or []
    return all(t["effect"] == "PreferNoSchedule" or any(tolerates(o, t) for o in tolerations) for t in taints)


def _pinned_to(spec: Mapping[str, Any], node: str) -> JSON:
    """Returns the affinity and tolerations with which a pod can run only on this node."""
    affinity = copy.deepcopy(spec.get("affinity") or {})
    requirement = {"key": "metadata.name", "operator": "In", "values": [node]}
    wanted = affinity.setdefault("nodeAffinity", {}).setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = wanted.get("nodeSelectorTerms") or [{}]
    wanted["nodeSelectorTerms"] = [{**term, "matchFields": [requirement]} for term in terms]
    return {"affinity": affinity, "tolerations": [*(spec.get("tolerations") or []), *_TOLERATIONS]}


def _node_of(pod: Mapping[str, Any]) -> str:
    """Returns the node that a pod runs on or has an affinity to; empty if there is none."""
    if name := pod["spec"].get("nodeName"):
        return str(name)
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    for term in terms:
        for field in term.get("matchFields") or []:
            if field["key"] == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""
