"""Prevents the deletion of PodGroups while unfinished pods refer to them, because these pods use the group's devices.

Source: kube-controller-manager's podgroup-protection-controller, on which KEP-5729 relies.
"""

from __future__ import annotations

from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import PODS

from ...scheduling.framework import pod_groups
from ...scheduling.framework.pod_info import is_finished
from ..informer import Informers, ObjectChange
from .base import Controller, Key

FINALIZER = "scheduling.k8s.io/podgroup-protection"


class PodGroupProtection(Controller):
    """Reconciles PodGroups."""

    name = "podgroup-protection-controller"

    def __init__(self, client: KubeClient, informers: Informers, groups: Resource) -> None:
        super().__init__(client, informers, (PODS, groups))
        self._groups = groups
        informers.index(PODS, "group", pod_groups.key_of)
        self.watch(groups)
        self.watch(PODS, self._pod_changed)

    def _pod_changed(self, change: ObjectChange) -> None:
        for namespace, name in pod_groups.key_of(change.object):
            self.queue.add(Key(self._groups, namespace, name))

    async def reconcile(self, key: Key) -> None:
        group = self.informers.find(self._groups, key.name, key.namespace)
        if group is None:
            return
        meta = group["metadata"]
        finalizers = meta.get("finalizers") or []
        has_finalizer, is_being_deleted = FINALIZER in finalizers, bool(meta.get("deletionTimestamp"))
        is_used = any(not is_finished(p) for p in self.informers.by(PODS, "group", (key.namespace, key.name)))
        if is_used and not has_finalizer and not is_being_deleted:
            finalizers = [*finalizers, FINALIZER]
        elif has_finalizer and is_being_deleted and not is_used:
            finalizers = [f for f in finalizers if f != FINALIZER]
        else:
            return
        await self.client.update(self._groups, {**group, "metadata": {**meta, "finalizers": finalizers}})
