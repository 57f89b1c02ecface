"""Evicts pods from nodes with a NoExecute taint: at once, or when the pod's toleration ends.

Source: KEP-166, KEP-3902; kube-controller-manager's taint-eviction-controller. As in Kubernetes, finished pods are evicted too.
The time of a toleration begins when this controller sees the taint, not at ``timeAdded``. Later changes of the taints
do not change the time of a scheduled eviction, as long as the pod tolerates each taint for some time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import NODES, PODS

from ...scheduling.allocator.taints import tolerates
from ..informer import Informers, ObjectChange
from .base import Controller, Key, key_of
from .disruption import Cause, evict

_CAUSE = Cause("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")


@dataclass
class _Eviction:
    """The scheduled eviction of one pod.

    Attributes:
        at: the time of the eviction, on the event loop's clock.
        event_sent: whether the event was sent.
        deleted: whether the pod was deleted.
    """

    uid: str
    at: float
    event_sent: bool = False
    deleted: bool = False


class NodeTaintEviction(Controller):
    """Reconciles pods. Needs the index ``node`` of pods."""

    name = "taint-eviction-controller"

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers, (PODS, NODES))
        self._evictions: dict[Key, _Eviction] = {}
        self.watch(PODS, self._pod_changed)
        self.watch(NODES, self._node_changed)

    def _pod_changed(self, change: ObjectChange) -> None:
        if change.gone or change.before is None or _placement(change.before) != _placement(change.object):
            self.queue.add(key_of(PODS, change.object))

    def _node_changed(self, change: ObjectChange) -> None:
        if _taints(change.before) != _taints(change.object):
            for pod in self.informers.by(PODS, "node", change.object["metadata"]["name"]):
                self.queue.add(key_of(PODS, pod))

    async def reconcile(self, key: Key) -> None:
        pod = self.informers.find(PODS, key.name, key.namespace)
        uid = pod["metadata"]["uid"] if pod else ""
        eviction = self._evictions.get(key)
        if eviction is not None and eviction.uid != uid:  # the pod was deleted, or another pod has its name
            self._cancel(key)
        node = self.informers.find(NODES, str(pod["spec"].get("nodeName") or "")) if pod else None
        if pod is None or node is None:
            return  # if the node was deleted, the pod garbage collector deletes the pod
        seconds = _tolerated_seconds(_taints(node), pod["spec"].get("tolerations") or [])
        if seconds == math.inf:
            self._cancel(key)
            return
        await self._run_eviction(key, pod, self._eviction_of(key, uid, seconds))

    def _eviction_of(self, key: Key, uid: str, seconds: float | None) -> _Eviction:
        now = asyncio.get_running_loop().time()
        eviction = self._evictions.get(key)
        if seconds is None and (eviction is None or not eviction.event_sent):
            self._cancel(key)
            eviction = None
        if eviction is None:
            eviction = self._evictions[key] = _Eviction(uid, now + (seconds or 0.0))
        return eviction

    async def _run_eviction(self, key: Key, pod: JSON, eviction: _Eviction) -> None:
        remaining = eviction.at - asyncio.get_running_loop().time()
        if remaining > 0:
            self.queue.add_after(key, remaining)
            return
        if not eviction.event_sent:
            eviction.event_sent = True  # A repeated deletion must not send the event again.
            self._record_about(key, f"Marking for deletion Pod {key.namespace}/{key.name}")
        if not eviction.deleted:
            await evict(self.client, pod, _CAUSE)
            eviction.deleted = True

    def _cancel(self, key: Key) -> None:
        eviction = self._evictions.pop(key, None)
        if eviction is not None and not eviction.event_sent:
            self._record_about(key, f"Cancelling deletion of Pod {key.namespace}/{key.name}")

    def _record_about(self, key: Key, text: str) -> None:
        """Sends an event without the pod's UID, as Kubernetes does. A search for events by the pod's UID does not find it."""
        about = {"metadata": {"name": key.name, "namespace": key.namespace}}
        self.record_event(about, PODS, "Normal", "TaintManagerEviction", text)


def _placement(pod: JSON) -> tuple[Any, Any]:
    return pod["spec"].get("nodeName"), pod["spec"].get("tolerations")


def _taints(node: JSON | None) -> list[JSON]:
    return [t for t in ((node or {}).get("spec") or {}).get("taints") or [] if t["effect"] == "NoExecute"]


def _tolerated_seconds(taints: Iterable[JSON], tolerations: Iterable[Mapping[str, Any]]) -> float | None:
    """Returns the seconds for which all taints are tolerated: infinity if there is no limit; None if a taint is not tolerated.

    If several tolerations match a taint, the first toleration applies.
    """
    shortest = math.inf
    for taint in taints:
        found = next((t for t in tolerations if tolerates(t, taint)), None)
        if found is None:
            return None
        if (seconds := found.get("tolerationSeconds")) is not None:
            shortest = min(shortest, max(0.0, float(seconds)))
    return shortest
