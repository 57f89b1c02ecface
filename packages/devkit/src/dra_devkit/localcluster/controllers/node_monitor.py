"""Sets the conditions of a node to unknown when its kubelet stops renewing the node's Lease.

Source: kube-controller-manager's nodelifecycle controller, ``monitorNodeHealth``.
Nodes without a Lease, such as nodes that a user created, are ignored.
The monitor counts checks instead of seconds. So the time for which the machine was suspended does not count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import LEASES, NODES, PODS
from dra_kubeletplugin.resourceapi.defaulting import now

from ...scheduling.framework.pod_info import is_finished
from ..informer import Informers, ObjectChange, conditions_of
from ..kubelet.node import STATUS_UNKNOWN
from ..kubelet.node_lease import NAMESPACE
from .base import Controller, Key
from .zones import ready_of

_KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_NO_STATUS = {"reason": STATUS_UNKNOWN, "message": "Kubelet stopped posting node status."}
_CHECKS = (
    10  # checks in one grace period, as in Kubernetes, where --node-monitor-period is 5 s and the grace period is 50 s
)


@dataclass
class _LeaseState:
    """The state of a node's Lease.

    Attributes:
        renew_time: the last ``renewTime``.
        next: time of the next check, on the monotonic clock.
        checks: number of checks since the last renewal.
    """

    renew_time: str
    next: float
    checks: int = 0


class NodeMonitor(Controller):
    """Sets the conditions of nodes to unknown, and their pods to not ready. Needs the index ``node`` of pods.

    Args:
        grace: seconds without a renewal until a node's conditions become unknown (--node-monitor-grace-period).
    """

    name = "node-controller"

    def __init__(self, client: KubeClient, informers: Informers, grace: float) -> None:
        super().__init__(client, informers, (NODES, LEASES, PODS))
        self._grace = grace
        self._leases: dict[str, _LeaseState] = {}  # by node
        self.watch(LEASES, self._lease_changed)

    def _lease_changed(self, change: ObjectChange) -> None:
        """Records a renewal with the local time of its arrival, because the clocks of machines may differ."""
        meta, spec = change.object["metadata"], change.object.get("spec") or {}
        if meta.get("namespace") != NAMESPACE:
            return
        if change.gone:
            self._leases.pop(meta["name"], None)
            return
        renew_time = str(spec.get("renewTime"))
        known = self._leases.get(meta["name"])
        if known is None or known.renew_time != renew_time:
            self._leases[meta["name"]] = _LeaseState(renew_time, time.monotonic() + self._grace / _CHECKS)
        self.queue.add(Key(NODES, "", meta["name"]))

    async def reconcile(self, key: Key) -> None:
        node, lease = self.informers.find(NODES, key.name), self._leases.get(key.name)
        if node is None or lease is None:
            return
        clock = time.monotonic()
        if clock >= lease.next:
            lease.checks, lease.next = lease.checks + 1, clock + self._grace / _CHECKS
        if lease.checks < _CHECKS:
            self.queue.add_after(key, lease.next - clock)
            return
        known = conditions_of(node)
        if known.get("Ready", {}).get("status") != "Unknown":
            body = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}}
            conditions = [*({**known, **{kind: _unknown(kind, known) for kind in _KUBELET_CONDITIONS}}).values()]
            await self.client.patch(NODES, key.name, {**body, "status": {"conditions": conditions}}, sub="status")
            text = f"Node {key.name} status is now: NodeNotReady"
            self.record_event(node, NODES, "Normal", "NodeNotReady", text)
        for pod in self.informers.by(PODS, "node", key.name):
            if not is_finished(pod):
                await self._mark_pod_not_ready(pod)

    async def _mark_pod_not_ready(self, pod: JSON) -> None:
        conditions = conditions_of(pod)
        if ready_of(pod) != "True":
            return
        meta = pod["metadata"]
        conditions["Ready"] = {**conditions["Ready"], "status": "False", "lastTransitionTime": now()}
        status = {"conditions": [*conditions.values()]}
        body = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "status": status}
        await self.client.patch(PODS, meta["name"], body, meta["namespace"], "status")
        self.record_event(pod, PODS, "Warning", "NodeNotReady", "Node is not ready")


def _unknown(kind: str, known: dict[str, JSON]) -> JSON:
    return {**known.get(kind, {}), "type": kind, "status": "Unknown", "lastTransitionTime": now(), **_NO_STATUS}
