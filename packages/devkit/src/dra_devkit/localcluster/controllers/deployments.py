"""The Deployment controller: keeps a ReplicaSet for each version of the pod template, and performs rolling updates."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.resourceapi.defaulting import now

from ..informer import Informers
from .base import key_of
from .workloads import (
    DEPLOYMENTS,
    REPLICA_SETS,
    Workload,
    condition,
    hash_of,
    number_of,
    share_of,
)

_HASH = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"
_CAUSE = "kubernetes.io/change-cause"


class DeploymentController(Workload):
    name = "deployment-controller"
    resource = DEPLOYMENTS

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers, REPLICA_SETS)
        # By UID: the last observed state, and the time at which it began
        self._progress: dict[str, tuple[Any, float]] = {}
        self.watch(REPLICA_SETS, self._child_changed)

    def _sets_of(self, obj: JSON) -> list[JSON]:
        return sorted(self.children(REPLICA_SETS, obj), key=lambda s: s["metadata"]["name"])

    async def sync(self, obj: JSON) -> None:
        spec = obj["spec"]
        sets = self._sets_of(obj)
        name = f"{obj['metadata']['name']}-{hash_of(spec['template'])}"
        newest = next((s for s in sets if s["metadata"]["name"] == name), None)
        old = [s for s in sets if s["metadata"]["name"] != name]
        if newest is None and not spec.get("paused"):
            newest = await self._create_set(obj, name)
            sets.append(newest)
        if newest is not None:
            newest = await self._set_revision(obj, newest, old)
            await self._scale(obj, newest, old)
            await self._delete_oldest(obj, newest, old)
        await self._update_status(obj, self._sets_of(obj), name)

    async def _set_revision(self, obj: JSON, newest: JSON, old: list[JSON]) -> JSON:
        """Sets the highest revision on the newest ReplicaSet, also after a rollback, because ``kubectl rollout`` reads the revisions."""
        highest = max(map(_revision, old), default=0)
        wanted = {_REVISION: str(max(_revision(newest), highest + 1))}
        if cause := (obj["metadata"].get("annotations") or {}).get(_CAUSE):
            wanted[_CAUSE] = cause
        known = newest["metadata"].get("annotations") or {}
        if any(known.get(k) != v for k, v in wanted.items()):
            meta = newest["metadata"]
            body = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": wanted}}
            newest = self.written.add(await self.client.patch(REPLICA_SETS, meta["name"], body, meta["namespace"]))
        if (obj["metadata"].get("annotations") or {}).get(_REVISION) != wanted[_REVISION]:
            meta = obj["metadata"]
            body = {"metadata": {"uid": meta["uid"], "annotations": {_REVISION: wanted[_REVISION]}}}
            obj["metadata"] = (await self.client.patch(DEPLOYMENTS, meta["name"], body, meta["namespace"]))["metadata"]
        return newest

    async def _delete_oldest(self, obj: JSON, newest: JSON, old: list[JSON]) -> None:
        """If the rollout is complete, deletes the oldest unused ReplicaSets, so that their number is within the revision history limit."""
        if (newest.get("status") or {}).get("availableReplicas", 0) < obj["spec"].get("replicas", 1):
            return
        idle = [s for s in old if not s["spec"].get("replicas") and not (s.get("status") or {}).get("replicas")]
        idle.sort(key=_revision)
        for found in idle[: max(0, len(idle) - int(obj["spec"].get("revisionHistoryLimit", 10)))]:
            self.written.discard(found)
            await self.delete(REPLICA_SETS, found)

    async def _create_set(self, obj: JSON, name: str) -> JSON:
        template = copy.deepcopy(obj["spec"]["template"])
        meta = template.setdefault("metadata", {})
        label = {_HASH: name.rpartition("-")[2]}
        meta["labels"] = {**(meta.get("labels") or {}), **label}
        selector = copy.deepcopy(obj["spec"]["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), **label}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "namespace": obj["metadata"]["namespace"],
                "labels": meta["labels"],
                "ownerReferences": [self.owner_reference(obj)],
            },
            "spec": {
                "replicas": 0,
                "selector": selector,
                "template": template,
                "minReadySeconds": int(obj["spec"].get("minReadySeconds") or 0),
            },
        }
        return self.written.add(await self.client.create(REPLICA_SETS, body, obj["metadata"]["namespace"]))

    async def _scale(self, obj: JSON, newest: JSON, old: list[JSON]) -> None:
        wanted = obj["spec"].get("replicas", 1)
        strategy = obj["spec"].get("strategy") or {}
        old_pods = sum(map(_wanted, old))
        if strategy.get("type") == "Recreate":
            for found in old:
                await self._set_replicas(obj, found, 0)
            running = sum((s.get("status") or {}).get("replicas", 0) for s in old)
            if not running:
                await self._set_replicas(obj, newest, wanted)
            return
        rolling = strategy.get("rollingUpdate") or {}
        surge = share_of(rolling.get("maxSurge", "25%"), wanted, up=True)
        unavailable = share_of(rolling.get("maxUnavailable", "25%"), wanted, up=False)
        if not surge and not unavailable:
            unavailable = 1
        current = newest["spec"].get("replicas", 0)
        # One write scales the newest set up as far as maxSurge allows, or down to the wanted number.
        grown = max(current, min(wanted, wanted + surge - old_pods)) if current <= wanted else wanted
        await self._set_replicas(obj, newest, grown)
        await self._shrink(obj, {**newest, "spec": {**newest["spec"], "replicas": grown}}, old, wanted - unavailable)

    async def _shrink(self, obj: JSON, newest: JSON, old: list[JSON], minimum: int) -> None:
        """Scales old ReplicaSets down, unavailable pods first, and keeps at least ``minimum`` pods available."""
        sets = [newest, *old]
        spare = sum(_wanted(s) for s in sets) - minimum - (_wanted(newest) - _available(newest))
        targets = {s["metadata"]["uid"]: _wanted(s) for s in old}
        for found in sorted(old, key=_revision):
            reduction = max(0, min(spare, _wanted(found) - _available(found)))
            targets[found["metadata"]["uid"]] -= reduction
            spare -= reduction
        spare = min(spare, sum(map(_available, sets)) - minimum)
        for found in sorted(old, key=_revision):
            reduction = max(0, min(spare, targets[found["metadata"]["uid"]]))
            targets[found["metadata"]["uid"]] -= reduction
            spare -= reduction
        for found in old:
            await self._set_replicas(obj, found, targets[found["metadata"]["uid"]])

    async def _set_replicas(self, obj: JSON, found: JSON, replicas: int) -> None:
        before = found["spec"].get("replicas", 0)
        if before == replicas:
            return
        meta = found["metadata"]
        body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"replicas": replicas}}
        self.written.add(await self.client.patch(REPLICA_SETS, meta["name"], body, meta["namespace"]))
        direction = "up" if replicas > before else "down"
        text = f"Scaled {direction} replica set {meta['name']} from {before} to {replicas}"
        self.record_event(obj, DEPLOYMENTS, "Normal", "ScalingReplicaSet", text)

    async def _update_status(self, obj: JSON, sets: list[JSON], name: str) -> None:
        wanted = obj["spec"].get("replicas", 1)

        def total(field: str, only: str = "") -> int:
            found = [s for s in sets if not only or s["metadata"]["name"] == only]
            return sum((s.get("status") or {}).get(field, 0) for s in found)

        replicas, available = total("replicas"), total("availableReplicas")
        updated, ready = total("replicas", name), total("readyReplicas")
        counts = {"replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready}
        counts |= {"availableReplicas": available, "unavailableReplicas": max(0, max(wanted, replicas) - available)}
        status: JSON = {key: value for key, value in counts.items() if value}
        rolling = (obj["spec"].get("strategy") or {}).get("rollingUpdate") or {}
        minimum = wanted - share_of(rolling.get("maxUnavailable", "25%"), wanted, up=False)
        is_available = available >= minimum
        message = (
            "Deployment has minimum availability." if is_available else "Deployment does not have minimum availability."
        )
        reason = "MinimumReplicasAvailable" if is_available else "MinimumReplicasUnavailable"
        done = updated == replicas == available == wanted
        progress = ("NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.')
        if not done:
            progress = ("ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
            if (remaining := self._remaining_time(obj, counts)) <= 0:
                progress = ("ProgressDeadlineExceeded", f'ReplicaSet "{name}" has timed out progressing.')
            else:
                self.queue.add_after(key_of(DEPLOYMENTS, obj), remaining + 0.1)
        status["conditions"] = [
            condition(obj, "Available", "True" if is_available else "False", reason, message, now()),
            condition(obj, "Progressing", "False" if "Exceeded" in progress[0] else "True", *progress, now()),
        ]
        await self.write_status(obj, status)

    def _remaining_time(self, obj: JSON, counts: Mapping[str, int]) -> float:
        """Returns the seconds until the progress deadline, counted from the last observed change."""
        uid, clock = obj["metadata"]["uid"], time.monotonic()
        state = (obj["metadata"].get("generation"), *counts.values())
        before, since = self._progress.get(uid, (None, clock))
        if before != state:
            self._progress[uid] = state, clock
            since = clock
        return since + float(obj["spec"].get("progressDeadlineSeconds") or 600) - clock


def _revision(found: Mapping[str, Any]) -> int:
    return number_of(str((found["metadata"].get("annotations") or {}).get(_REVISION, "")))


def _wanted(found: Mapping[str, Any]) -> int:
    return int(found["spec"].get("replicas", 0))


def _available(found: Mapping[str, Any]) -> int:
    return int((found.get("status") or {}).get("availableReplicas", 0))
