"""Adds taints to nodes: NoSchedule if they are not ready, under pressure or cordoned; NoExecute if they are not ready or unreachable.

Source: kube-controller-manager's nodelifecycle controller, ``doNoScheduleTaintingPass`` and ``processTaintBaseEviction``.
Kubernetes checks every five seconds and adds NoExecute to at most one node of a zone in ten seconds; this controller adds it at once.
"""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import NODES
from dra_kubeletplugin.resourceapi.defaulting import now

from ..informer import Informers, ObjectChange
from .base import Controller, Key, key_of
from .zones import Eviction, eviction_from, ready_of

Taint = tuple[str, str]  # key, effect
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_FAILED = {"False": NOT_READY, "Unknown": UNREACHABLE}
_BY_CONDITION = {
    **{("Ready", status): key for status, key in _FAILED.items()},
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
_NO_SCHEDULE, _NO_EXECUTE = "NoSchedule", "NoExecute"
_MANAGED = {(key, _NO_SCHEDULE) for key in (_UNSCHEDULABLE, *_BY_CONDITION.values())}
_MANAGED |= {(key, _NO_EXECUTE) for key in _FAILED.values()}
# Seconds before a taint is removed. As in Kubernetes, the scheduler then sees the tainted node for a short time.
_REMOVAL_DELAY = 0.02


class NodeLifecycle(Controller):
    name = "node-controller"

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers, (NODES,))
        self._delayed: set[str] = set()  # names of nodes for which _REMOVAL_DELAY has begun
        self.watch(NODES, self._node_changed)

    def _node_changed(self, change: ObjectChange) -> None:
        """Queues the node. If its readiness changed, also queues all failed nodes, because their taints depend on the whole zone."""
        self.queue.add(key_of(NODES, change.object))
        if change.gone or change.before is None or ready_of(change.before) != ready_of(change.object):
            for node in self.informers.all(NODES):
                if ready_of(node) in _FAILED:
                    self.queue.add(key_of(NODES, node))

    async def reconcile(self, key: Key) -> None:
        node = self.informers.find(NODES, key.name)
        if node is None or node["metadata"].get("deletionTimestamp"):
            return
        taints = (node.get("spec") or {}).get("taints") or []
        known = {taint for t in taints if (taint := (t["key"], t["effect"])) in _MANAGED}
        wanted = _no_schedule_taints(node) | self._no_execute_taint(node, known)
        missing, extra = wanted - known, known - wanted
        if not missing and not extra:
            self._delayed.discard(key.name)
            return
        if extra and key.name not in self._delayed:
            self._delayed.add(key.name)
            self.queue.add_after(key, _REMOVAL_DELAY)
            return
        kept = [t for t in taints if (t["key"], t["effect"]) not in extra]
        kept += [{"key": name, "effect": effect, "timeAdded": now()} for name, effect in sorted(missing)]
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        await self.client.patch(NODES, key.name, {"metadata": version, "spec": {"taints": kept or None}})

    def _no_execute_taint(self, node: JSON, known: set[Taint]) -> set[Taint]:
        """Returns the NoExecute taint that the node should have, at most one."""
        before = {taint for taint in known if taint[1] == _NO_EXECUTE}
        ready = ready_of(node)
        if ready is None:
            return before
        if ready not in _FAILED:
            return set()
        match eviction_from(node, self.informers.all(NODES)):
            case Eviction.STOPPED:
                return set()
            case Eviction.ONLY_TAINTED if not before:
                return set()
        return {(_FAILED[ready], _NO_EXECUTE)}


def _no_schedule_taints(node: JSON) -> set[Taint]:
    """Returns the NoSchedule taints that the node should have."""
    conditions = [(c["type"], c["status"]) for c in (node.get("status") or {}).get("conditions") or []]
    keys = {_BY_CONDITION[c] for c in conditions if c in _BY_CONDITION}
    keys |= {_UNSCHEDULABLE} if (node.get("spec") or {}).get("unschedulable") else set()
    return {(key, _NO_SCHEDULE) for key in keys}
