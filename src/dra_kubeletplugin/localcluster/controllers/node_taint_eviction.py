"""Taints of nodes with effect NoExecute: pods that do not tolerate them are deleted, at once or when their tolerance ends.

Source: KEP-166, KEP-3902; kube-controller-manager's taint-eviction-controller. As there, pods that have finished go too, a tolerance
counts from when the taint is seen, not from its ``timeAdded``, and an end that is set stays set while all taints are tolerated.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...kube import KubeClient
from ...kube.resource import NODES, PODS
from ...scheduling.allocator.taints import tolerates
from ..informer import Informers, ObjectChange
from .base import Controller, Key, key_of
from .disruption import Cause, evict

JSON = dict[str, Any]
_WHY = Cause("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")


@dataclass
class _End:
    """Of one pod: when, on the loop's clock, and what of it was done."""

    uid: str
    at: float
    told: bool = False
    done: bool = False


class NodeTaintEviction(Controller):
    """One key a pod. Needs the index ``node`` of pods."""

    name = "taint-eviction-controller"
    kinds: ClassVar = {PODS: "Pod"}

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers, (PODS, NODES))
        self._ends: dict[Key, _End] = {}
        self.watch(PODS, self._pod_changed)
        self.watch(NODES, self._node_changed)

    def _pod_changed(self, change: ObjectChange) -> None:
        if change.gone or change.before is None or _place(change.before) != _place(change.object):
            self.queue.add(key_of(PODS, change.object))

    def _node_changed(self, change: ObjectChange) -> None:
        if _taints(change.before) != _taints(change.object):
            for pod in self.informers.by(PODS, "node", change.object["metadata"]["name"]):
                self.queue.add(key_of(PODS, pod))

    async def reconcile(self, key: Key) -> None:
        pod = self.informers.find(PODS, key.name, key.namespace)
        uid = pod["metadata"]["uid"] if pod else ""
        end = self._ends.get(key)
        if end is not None and end.uid != uid:  # it is gone, or another of its name is there
            self._cancel(key)
        node = self.informers.find(NODES, str(pod["spec"].get("nodeName") or "")) if pod else None
        if pod is None or node is None:
            return  # with its node gone, the pod garbage collector sees to the pod
        seconds = _borne(_taints(node), pod["spec"].get("tolerations") or [])
        if seconds == math.inf:
            self._cancel(key)
            return
        await self._end(key, pod, self._end_of(key, uid, seconds))

    def _end_of(self, key: Key, uid: str, seconds: float | None) -> _End:
        now = asyncio.get_running_loop().time()
        end = self._ends.get(key)
        if seconds is None and (end is None or not end.told):
            self._cancel(key)
            end = None
        if end is None:
            end = self._ends[key] = _End(uid, now + (seconds or 0.0))
        return end

    async def _end(self, key: Key, pod: JSON, end: _End) -> None:
        left = end.at - asyncio.get_running_loop().time()
        if left > 0:
            self.queue.add_after(key, left)
            return
        if not end.told:
            end.told = True  # once, however often the deletion has to be tried
            self._tell(key, f"Marking for deletion Pod {key.namespace}/{key.name}")
        if not end.done:
            await evict(self.client, pod, _WHY)
            end.done = True

    def _cancel(self, key: Key) -> None:
        end = self._ends.pop(key, None)
        if end is not None and not end.told:
            self._tell(key, f"Cancelling deletion of Pod {key.namespace}/{key.name}")

    def _tell(self, key: Key, text: str) -> None:
        """The event names the pod without its UID: the one of another pod of this name, to who looks for UIDs."""
        about = {"metadata": {"name": key.name, "namespace": key.namespace}}
        self.events.event(about, "Pod", "Normal", "TaintManagerEviction", text)


def _place(pod: JSON) -> tuple[Any, Any]:
    return pod["spec"].get("nodeName"), pod["spec"].get("tolerations")


def _taints(node: JSON | None) -> list[JSON]:
    return [t for t in ((node or {}).get("spec") or {}).get("taints") or [] if t["effect"] == "NoExecute"]


def _borne(taints: Iterable[JSON], tolerations: Iterable[Mapping[str, Any]]) -> float | None:
    """Seconds for which all taints are tolerated, infinite for ever; None where one of them is not at all.

    Of several tolerations for one taint the first counts.
    """
    shortest = math.inf
    for taint in taints:
        found = next((t for t in tolerations if tolerates(t, taint)), None)
        if found is None:
            return None
        if (seconds := found.get("tolerationSeconds")) is not None:
            shortest = min(shortest, max(0.0, float(seconds)))
    return shortest


__all__ = ["NodeTaintEviction"]
