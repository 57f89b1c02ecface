"""Deletes objects that were created after their owner was deleted.

Dependents that exist when the owner is deleted are deleted by the local API server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CLAIMS, PODS

from ...scheduling.framework import pod_groups
from ..informer import Informers, ObjectChange
from .base import Controller, Key, key_of
from .workloads import DAEMON_SETS, DEPLOYMENTS, JOBS, REPLICA_SETS

_OWNERS = {
    ("v1", "Pod"): PODS,
    ("apps/v1", "Deployment"): DEPLOYMENTS,
    ("apps/v1", "ReplicaSet"): REPLICA_SETS,
    ("apps/v1", "DaemonSet"): DAEMON_SETS,
    ("batch/v1", "Job"): JOBS,
}
_DEPENDENTS = (PODS, CLAIMS, REPLICA_SETS)


class GarbageCollector(Controller):
    """Checks objects with owners of known kinds when they are created, and when an owner is deleted."""

    name = "garbage-collector"

    def __init__(self, client: KubeClient, informers: Informers, groups: Resource | None) -> None:
        super().__init__(client, informers, _DEPENDENTS)
        extra = {(groups.api_version, pod_groups.KIND): groups} if groups else {}
        self._owners = {**_OWNERS, **extra}
        for resource in _DEPENDENTS:
            informers.index(resource, "owners", _owners_of)
            self.watch(resource, self._on(resource))
        for owner in self._owners.values():
            self.watch(owner, self._owner_changed)

    def _on(self, resource: Resource) -> Any:
        def changed(change: ObjectChange) -> None:
            if change.before is None and change.object["metadata"].get("ownerReferences"):
                self.queue.add(key_of(resource, change.object))

        return changed

    def _owner_changed(self, change: ObjectChange) -> None:
        """Queues the dependents of a deleted owner.

        When such a dependent was created during the deletion, the informer still had the owner, so it must be checked again.
        """
        if change.gone:
            for resource in _DEPENDENTS:
                for obj in self.informers.by(resource, "owners", change.object["metadata"]["uid"]):
                    self.queue.add(key_of(resource, obj))

    async def reconcile(self, key: Key) -> None:
        obj = self.informers.find(key.resource, key.name, key.namespace)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            return
        owners = obj["metadata"].get("ownerReferences") or []
        if owners and all([await self._is_gone(o, key.namespace) for o in owners]):
            await self.delete(key.resource, obj)

    async def _is_gone(self, owner: JSON, namespace: str) -> bool:
        """Returns whether an owner no longer exists. Owners of other kinds are assumed to exist."""
        resource = self._owners.get((owner["apiVersion"], owner["kind"]))
        return resource is not None and await self.current(resource, owner, namespace) is None


def _owners_of(obj: JSON) -> Iterable[str]:
    return [o["uid"] for o in obj["metadata"].get("ownerReferences") or []]
