"""Taints that say what a node's conditions and its being cordoned mean for new pods.

Source: kube-controller-manager's node lifecycle controller. A node without conditions is one of which nothing bad is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ...errors import ApiError
from ...kube import KubeClient
from ..informer import NODES, Informers
from .base import Controller, Key

JSON = dict[str, Any]
_PREFIX = "node.kubernetes.io/"
_EFFECT = "NoSchedule"
UNSCHEDULABLE = f"{_PREFIX}unschedulable"
_BY_CONDITION = {
    ("Ready", "False"): f"{_PREFIX}not-ready",
    ("Ready", "Unknown"): f"{_PREFIX}unreachable",
    ("MemoryPressure", "True"): f"{_PREFIX}memory-pressure",
    ("DiskPressure", "True"): f"{_PREFIX}disk-pressure",
    ("PIDPressure", "True"): f"{_PREFIX}pid-pressure",
    ("NetworkUnavailable", "True"): f"{_PREFIX}network-unavailable",
}
_OURS = {*_BY_CONDITION.values(), UNSCHEDULABLE}


class NodeLifecycle(Controller):
    """One key a node."""

    name = "node-controller"
    kinds: ClassVar = {NODES: "Node"}

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers, (NODES,))
        self.watch(NODES)

    async def reconcile(self, key: Key) -> None:
        node = self.informers.find(NODES, key.name)
        if node is None:
            return
        taints = list((node.get("spec") or {}).get("taints") or [])
        wanted = set(_wanted(node))
        kept = [t for t in taints if not _is_ours(t) or t["key"] in wanted]
        missing = sorted(wanted - {t["key"] for t in kept if _is_ours(t)})
        fresh = [*kept, *({"key": name, "effect": _EFFECT} for name in missing)]
        if fresh == taints:
            return
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}  # another's taints must not be lost
        try:
            await self.client.patch(NODES, key.name, {"metadata": version, "spec": {"taints": fresh or None}})
        except ApiError as e:
            if e.status != 404:
                raise


def _is_ours(taint: JSON) -> bool:
    return taint.get("key") in _OURS and taint.get("effect") == _EFFECT


def _wanted(node: JSON) -> Iterable[str]:
    if (node.get("spec") or {}).get("unschedulable"):
        yield UNSCHEDULABLE
    for condition in (node.get("status") or {}).get("conditions") or []:
        if key := _BY_CONDITION.get((condition.get("type"), condition.get("status"))):
            yield key
