"""The ReplicaSet controller: keeps the wanted number of pods of one template."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import JSON

from .base import key_of
from .workloads import REPLICA_SETS, Workload, available_in, is_active, is_ready

_MAX_NEW_PODS = 50  # pods created in one sync; the next sync continues


class ReplicaSetController(Workload):
    name = "replicaset-controller"
    resource = REPLICA_SETS

    async def sync(self, obj: JSON) -> None:
        wanted = obj["spec"].get("replicas", 1)
        pods = [p for p in self.pods_of(obj) if is_active(p)]
        try:
            for _ in range(min(_MAX_NEW_PODS, wanted - len(pods))):
                pods.append(await self.make_pod(obj, obj["spec"]["template"]))
            if len(pods) > wanted:
                # The first pods are deleted: unbound pods, then pods that are not ready.
                pods.sort(key=lambda p: (bool(p["spec"].get("nodeName")), is_ready(p)))
                for pod in pods[: len(pods) - wanted]:
                    await self.delete_pod(obj, pod)
                pods = pods[len(pods) - wanted :]
        finally:
            delays = [available_in(p, float(obj["spec"].get("minReadySeconds") or 0)) for p in pods]
            counts = {"readyReplicas": sum(w is not None for w in delays), "availableReplicas": delays.count(0.0)}
            status: JSON = {"replicas": len(pods), "fullyLabeledReplicas": len(pods)}
            await self.write_status(obj, status | {k: v for k, v in counts.items() if v})
            if pending := [w for w in delays if w]:
                self.queue.add_after(key_of(REPLICA_SETS, obj), min(pending))
        if len(pods) < wanted:
            self.queue.add_after(key_of(REPLICA_SETS, obj), 0.01)
