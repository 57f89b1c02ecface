"""Whether a node's kubelet is still heard: by its Lease, as seen on our own clock. One that is not makes the node's state unknown.

Source: kube-controller-manager's nodelifecycle controller, ``monitorNodeHealth``. A node without a Lease, which somebody made by
hand, is left alone. Looks are counted, and no seconds: a machine that stood still has heard nobody, and no node is away for that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from ...kube import KubeClient
from ...kube.resource import LEASES, NODES, PODS
from ...resourceapi.defaulting import now
from ..informer import Informers, ObjectChange, is_finished
from ..kubelet.node import NOT_HEARD
from ..kubelet.node_lease import NAMESPACE
from .base import Controller, Key

JSON = dict[str, Any]
_OF_KUBELETS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_SILENT = {"reason": NOT_HEARD, "message": "Kubelet stopped posting node status."}
_LOOKS = 10  # in the time of grace: --node-monitor-period is 5 s, a tenth of it


@dataclass
class _Heard:
    """What a node's Lease said, how often we looked since without another word, and when we look again."""

    said: str
    next: float
    looks: int = 0


class NodeMonitor(Controller):
    """Needs the index ``node`` of pods.

    Args:
        grace: seconds without a renewal, --node-monitor-grace-period.
    """

    name = "node-controller"
    kinds: ClassVar = {NODES: "Node"}

    def __init__(self, client: KubeClient, informers: Informers, grace: float) -> None:
        super().__init__(client, informers, (NODES, LEASES, PODS))
        self._grace = grace
        self._heard: dict[str, _Heard] = {}  # by node
        self.watch(LEASES, self._lease)

    def _lease(self, change: ObjectChange) -> None:
        """Clocks of different machines are never compared: a renewal counts from when it is seen."""
        meta, spec = change.object["metadata"], change.object.get("spec") or {}
        if meta.get("namespace") != NAMESPACE:
            return
        if change.gone:
            self._heard.pop(meta["name"], None)
            return
        said = str(spec.get("renewTime"))
        known = self._heard.get(meta["name"])
        if known is None or known.said != said:
            self._heard[meta["name"]] = _Heard(said, time.monotonic() + self._grace / _LOOKS)
        self.queue.add(Key(NODES, "", meta["name"]))

    async def reconcile(self, key: Key) -> None:
        node, heard = self.informers.find(NODES, key.name), self._heard.get(key.name)
        if node is None or heard is None:
            return
        clock = time.monotonic()
        if clock >= heard.next:
            heard.looks, heard.next = heard.looks + 1, clock + self._grace / _LOOKS
        if heard.looks < _LOOKS:
            self.queue.add_after(key, heard.next - clock)
            return
        known = {c["type"]: c for c in (node.get("status") or {}).get("conditions") or []}
        if known.get("Ready", {}).get("status") != "Unknown":
            body = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}}
            conditions = [*({**known, **{kind: _unknown(kind, known) for kind in _OF_KUBELETS}}).values()]
            await self.client.patch(NODES, key.name, {**body, "status": {"conditions": conditions}}, sub="status")
            self.events.event(
                node, "Node", "Normal", "NodeNotReady", f"Node {key.name} status is now: NodeNotReady", "v1"
            )
        for pod in self.informers.by(PODS, "node", key.name):
            if not is_finished(pod):
                await self._not_ready(pod)

    async def _not_ready(self, pod: JSON) -> None:
        conditions = (pod.get("status") or {}).get("conditions") or []
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return
        meta = pod["metadata"]
        changed = {"status": "False", "lastTransitionTime": now()}
        status = {"conditions": [{**c, **changed} if c["type"] == "Ready" else c for c in conditions]}
        body = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "status": status}
        await self.client.patch(PODS, meta["name"], body, meta["namespace"], "status")
        self.events.event(pod, "Pod", "Warning", "NodeNotReady", "Node is not ready", "v1")


def _unknown(kind: str, known: dict[str, JSON]) -> JSON:
    return {**known.get(kind, {}), "type": kind, "status": "Unknown", "lastTransitionTime": now(), **_SILENT}


__all__ = ["NodeMonitor"]
