"""The DaemonSet controller: keeps one pod on each eligible node."""

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
            by_node.setdefault(_node_of(pod), []).append(pod)
        revision = hash_of(template)
        kept: dict[str, JSON] = {}
        try:
            for name, pods in by_node.items():
                alive = [p for p in pods if not p["metadata"].get("deletionTimestamp")]
                for pod in [p for p in alive if name not in wanted or is_finished(p)]:
                    await self.delete_pod(obj, pod)
                alive = [p for p in alive if name in wanted and not is_finished(p)]
                for pod in alive[1:]:
                    await self.delete_pod(obj, pod)
                if alive:
                    kept[name] = alive[0]
            for name in wanted:
                if name not in by_node:
                    meta = {"labels": {_REVISION: revision}}
                    kept[name] = await self.make_pod(obj, template, meta, _pinned_to(template["spec"], name))
            await self._update_pods(obj, kept, wanted, revision)
        finally:
            await self._update_status(obj, by_node, kept, wanted, revision)

    async def _update_pods(self, obj: JSON, kept: Mapping[str, JSON], wanted: Iterable[str], revision: str) -> None:
        """Deletes pods of an older template, within the limit of unavailable pods. The next sync creates their replacements."""
        strategy = obj["spec"].get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        total = len(list(wanted))
        rolling = strategy.get("rollingUpdate") or {}
        max_unavailable = max(1, share_of(rolling.get("maxUnavailable", 1), total, up=True))
        unavailable = total - sum(is_ready(p) for p in kept.values())
        old = [p for p in kept.values() if (p["metadata"].get("labels") or {}).get(_REVISION) != revision]
        for pod in sorted(old, key=is_ready):
            if is_ready(pod):
                if unavailable >= max_unavailable:
                    return
                unavailable += 1
            await self.delete_pod(obj, pod)

    async def _update_status(
        self, obj: JSON, by_node: Iterable[str], kept: Mapping[str, JSON], wanted: list[str], revision: str
    ) -> None:
        ready = sum(is_ready(p) for p in kept.values())
        updated = sum((p["metadata"].get("labels") or {}).get(_REVISION) == revision for p in kept.values())
        status: JSON = {
            "currentNumberScheduled": len(kept),
            "desiredNumberScheduled": len(wanted),
            "numberMisscheduled": len([n for n in by_node if n not in wanted]),
            "numberReady": ready,
        }
        delays = [available_in(p, float(obj["spec"].get("minReadySeconds") or 0)) for p in kept.values()]
        available = delays.count(0.0)
        if pending := [w for w in delays if w]:
            self.queue.add_after(key_of(DAEMON_SETS, obj), min(pending))
        extra = {
            "updatedNumberScheduled": updated,
            "numberAvailable": available,
            "numberUnavailable": len(wanted) - available,
        }
        await self.write_status(obj, status | {key: value for key, value in extra.items() if value})


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
