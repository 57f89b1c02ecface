"""Taints that follow from a node's state: not ready, or cordoned. Nothing is evicted from a node that is away.

Source: kube-controller-manager's nodelifecycle controller, ``doNoScheduleTaintingPass``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...kube import KubeClient
from ...resources.defaults import now
from ..informer import NODES, Informers
from .base import Controller, Key

JSON = dict[str, Any]
NOT_READY = "node.kubernetes.io/not-ready"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
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
        conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or []}
        wanted = {UNSCHEDULABLE: bool(spec.get("unschedulable")), NOT_READY: conditions.get("Ready", "True") != "True"}
        known = {t["key"] for t in taints if t["effect"] == _EFFECT and t["key"] in wanted}
        missing = {key for key, there in wanted.items() if there} - known
        extra = known - {key for key, there in wanted.items() if there}
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
