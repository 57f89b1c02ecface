"""Deletes pods that no kubelet will stop: their node was deleted or is out of service, or they were deleted before they were bound.

Source: kube-controller-manager's pod-garbage-collector-controller. Kubernetes checks every 20 s; this controller deletes
a pod as soon as it is due. The limit of finished pods (``--terminated-pod-gc-threshold``, 12,500) is not implemented.
"""

from __future__ import annotations

import asyncio

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import NODES, PODS

from ..informer import Informers, ObjectChange
from .base import Controller, Key, key_of
from .disruption import Cause, remove
from .zones import ready_of

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_CAUSE = Cause("DeletionByPodGC", "PodGC: node no longer exists")


class PodGarbageCollector(Controller):
    """Reconciles pods. Needs the index ``node`` of pods.

    Args:
        quarantine: seconds for which a node must be missing before its pods are deleted.
    """

    name = "pod-garbage-collector"

    def __init__(self, client: KubeClient, informers: Informers, quarantine: float) -> None:
        super().__init__(client, informers, (PODS, NODES))
        self._quarantine = quarantine
        # By name of a missing node: when it was found missing, on the event loop's clock
        self._missing: dict[str, float] = {}
        self.watch(PODS)
        self.watch(NODES, self._node_changed)

    def _node_changed(self, change: ObjectChange) -> None:
        name = change.object["metadata"]["name"]
        if not change.gone:
            self._missing.pop(name, None)
        if change.gone or _is_out_of_service(change.object):
            for pod in self.informers.by(PODS, "node", name):
                self.queue.add(key_of(PODS, pod))

    async def reconcile(self, key: Key) -> None:
        pod = self.informers.find(PODS, key.name, key.namespace)
        if pod is None:
            return
        name = str(pod["spec"].get("nodeName") or "")
        terminating = bool(pod["metadata"].get("deletionTimestamp"))
        node = self.informers.find(NODES, name)
        if not name or node is not None:
            if terminating and (node is None or _is_out_of_service(node)):
                await remove(self.client, pod)
            return
        now = asyncio.get_running_loop().time()
        remaining = self._missing.setdefault(name, now) + self._quarantine - now
        if remaining > 0:
            self.queue.add_after(key, remaining)
        elif await self._is_gone(name):
            await remove(self.client, pod, _CAUSE)

    async def _is_gone(self, node: str) -> bool:
        """Asks the server whether a node is missing, because the informer's state may be old. Raises ``ApiError``."""
        try:
            await self.client.get(NODES, node)
        except NotFoundError:
            return True
        return False


def _is_out_of_service(node: JSON) -> bool:
    """Returns whether an operator marked the node as out of service and it is not ready."""
    taints = (node.get("spec") or {}).get("taints") or []
    return ready_of(node) != "True" and any(t["key"] == OUT_OF_SERVICE for t in taints)
