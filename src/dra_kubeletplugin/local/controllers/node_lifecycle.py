"""Taints that follow from a node's state: not ready, short of something, or cordoned. Nothing is evicted from a node that is away.

Source: kube-controller-manager's nodelifecycle controller, ``doNoScheduleTaintingPass``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...kube import KubeClient
from ...kube.resource import NODES
from ...resources.defaults import now
from ..informer import Informers
from .base import Controller, Key

JSON = dict[str, Any]
NOT_READY = "node.kubernetes.io/not-ready"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_BY_CONDITION = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): "node.kubernetes.io/unreachable",
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
_OURS = {UNSCHEDULABLE, *_BY_CONDITION.values()}
_EFFECT = "NoSchedule"
_PAUSE = 0.02  # seconds until a taint goes: who schedules sees a node with it for a moment, as in Kubernetes


class NodeLifecycle(Controller):
    name = "node-controller"
    kinds: ClassVar = {NODES: "Node"}

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers, (NODES,))
        self._later: set[str] = set()  # nodes that have waited for the pause
        self.watch(NODES)

    async def reconcile(self, key: Key) -> None:
        node = self.informers.find(NODES, key.name)
        if node is None or node["metadata"].get("deletionTimestamp"):
            return
        spec = node.get("spec") or {}
        taints = spec.get("taints") or []
        conditions = [(c["type"], c["status"]) for c in (node.get("status") or {}).get("conditions") or []]
        wanted = {_BY_CONDITION[c] for c in conditions if c in _BY_CONDITION}
        wanted |= {UNSCHEDULABLE} if spec.get("unschedulable") else set()
        known = {t["key"] for t in taints if t["effect"] == _EFFECT and t["key"] in _OURS}
        missing, extra = wanted - known, known - wanted
        if not missing and not extra:
            self._later.discard(key.name)
            return
        if extra and key.name not in self._later:
            self._later.add(key.name)
            self.queue.add_after(key, _PAUSE)
            return
        kept = [t for t in taints if t["effect"] != _EFFECT or t["key"] not in extra]
        kept += [{"key": name, "effect": _EFFECT, "timeAdded": now()} for name in sorted(missing)]
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        await self.client.patch(NODES, key.name, {"metadata": version, "spec": {"taints": kept or None}})


__all__ = ["NOT_READY", "NodeLifecycle"]
