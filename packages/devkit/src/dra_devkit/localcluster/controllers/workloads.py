"""The base class of workload controllers: finds, creates and deletes an object's pods, and writes the object's status."""

from __future__ import annotations

import copy
import hashlib
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.errors import ConflictError, NotFoundError
from dra_kubeletplugin.kube.resource import PODS

from ...scheduling.framework.pod_info import is_finished
from ..informer import Informers, ObjectChange, server_message
from .base import Controller, Key, RetryLater

DEPLOYMENTS = Resource("apps", "v1", "deployments", namespaced=True)
REPLICA_SETS = Resource("apps", "v1", "replicasets", namespaced=True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", namespaced=True)
JOBS = Resource("batch", "v1", "jobs", namespaced=True)
KINDS = {DEPLOYMENTS: "Deployment", REPLICA_SETS: "ReplicaSet", DAEMON_SETS: "DaemonSet", JOBS: "Job"}
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_INFORMER_TIMEOUT = 30.0  # seconds for which a created pod counts as existing while the informer lacks it


class Workload(Controller):
    """A controller whose objects own pods. ``resource`` is the resource of these objects."""

    resource: Resource

    def __init__(self, client: KubeClient, informers: Informers, *needs: Resource) -> None:
        super().__init__(client, informers, (self.resource, PODS, *needs))
        # By UID: created pods that the informer does not have yet, each with the time of its creation
        self._created: dict[str, tuple[float, JSON]] = {}
        self.watch(self.resource)
        self.watch(PODS, self._pod_changed)

    def _pod_changed(self, change: ObjectChange) -> None:
        meta = change.object["metadata"]
        self._created.pop(meta["uid"], None)
        owner = controller_of(change.object)
        if owner is not None and owner["kind"] == KINDS[self.resource]:
            self.queue.add(Key(self.resource, meta["namespace"], owner["name"]))

    async def reconcile(self, key: Key) -> None:
        obj = self.informers.find(key.resource, key.name, key.namespace)
        if obj is not None and not obj["metadata"].get("deletionTimestamp"):
            await self.sync(obj)

    @abstractmethod
    async def sync(self, obj: JSON) -> None:
        """Creates and deletes pods to match the object's spec, and writes the object's status."""

    def pods_of(self, obj: JSON) -> list[JSON]:
        """Returns all pods of an object, oldest first, including created pods that the informer does not have yet."""
        uid = obj["metadata"]["uid"]
        found = {p["metadata"]["uid"]: p for p in self.informers.by(PODS, "controller", uid)}
        limit = time.monotonic() - _INFORMER_TIMEOUT
        self._created = {k: v for k, v in self._created.items() if v[0] > limit}
        for created_uid, (_, pod) in self._created.items():
            owner = controller_of(pod)
            if created_uid not in found and owner is not None and owner["uid"] == uid:
                found[created_uid] = pod
        return sorted(
            found.values(), key=lambda p: (p["metadata"].get("creationTimestamp") or "", p["metadata"]["name"])
        )

    async def make_pod(self, obj: JSON, template: JSON, meta: JSON | None = None, spec: JSON | None = None) -> JSON:
        """Creates a pod. If the API server rejects the pod, writes an event and raises :class:`RetryLater`.

        Args:
            meta, spec: fields that are added to the template's metadata and spec.
        """
        namespace = obj["metadata"]["namespace"]
        inner = copy.deepcopy(template)
        kind = KINDS[self.resource]
        owner = {"apiVersion": self.resource.api_version, "kind": kind, "name": obj["metadata"]["name"]}
        owner |= {"uid": obj["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
        metadata = {
            k: v for k, v in (inner.get("metadata") or {}).items() if k in {"labels", "annotations", "finalizers"}
        }
        for key, value in (meta or {}).items():
            metadata[key] = {**metadata.get(key, {}), **value} if isinstance(value, Mapping) else value
        metadata.setdefault("generateName", f"{obj['metadata']['name']}-")
        metadata |= {"namespace": namespace, "ownerReferences": [owner]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**inner["spec"], **(spec or {})}}
        try:
            pod = await self.client.create(PODS, body, namespace)
        except ApiError as e:
            if e.unreachable:
                raise
            self.record_event(obj, "Warning", "FailedCreate", f"Error creating: {server_message(e)}")
            raise RetryLater(str(e)) from e
        self._created[pod["metadata"]["uid"]] = time.monotonic(), pod
        self.record_event(obj, "Normal", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        return pod

    async def delete_pod(self, obj: JSON, pod: JSON) -> None:
        meta = pod["metadata"]
        self._created.pop(meta["uid"], None)
        try:
            await self.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except (NotFoundError, ConflictError):
            return
        self.record_event(obj, "Normal", "SuccessfulDelete", f"Deleted pod: {meta['name']}")

    def record_event(self, obj: JSON, type: str, reason: str, text: str) -> None:
        self.events.event(obj, KINDS[self.resource], type, reason, text, self.resource.api_version)

    async def write_status(self, obj: JSON, status: JSON) -> None:
        """Writes the status if it changed. Raises ``ApiError`` with a conflict if ``obj`` is outdated."""
        meta = obj["metadata"]
        status = {"observedGeneration": meta.get("generation", 1), **status} if self.resource is not JOBS else status
        if obj.get("status") == status:
            return
        known = {"resourceVersion": meta["resourceVersion"]}
        await self.client.update(self.resource, {**obj, "metadata": {**meta, **known}, "status": status}, "status")


def controller_of(obj: Mapping[str, Any]) -> JSON | None:
    return next((o for o in obj["metadata"].get("ownerReferences") or [] if o.get("controller")), None)


def controller_uids(obj: JSON) -> Iterable[str]:
    """The index ``controller``: objects by the UID of their controller."""
    owner = controller_of(obj)
    return [owner["uid"]] if owner else []


def is_active(pod: Mapping[str, Any]) -> bool:
    return not is_finished(pod) and not pod["metadata"].get("deletionTimestamp")


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def available_in(pod: Mapping[str, Any], seconds: float) -> float | None:
    """Returns the seconds until a ready pod counts as available. None if the pod is not ready."""
    for c in (pod.get("status") or {}).get("conditions") or []:
        if c.get("type") == "Ready" and c.get("status") == "True":
            if not seconds or not c.get("lastTransitionTime"):
                return 0.0
            return max(0.0, datetime.fromisoformat(c["lastTransitionTime"]).timestamp() + seconds - time.time())
    return None


def hash_of(template: Mapping[str, Any]) -> str:
    """Returns a hash of a pod template, in characters that are valid in names."""
    digest = hashlib.sha256(msgspec.json.encode(template, order="deterministic")).digest()
    return "".join(_ALPHABET[b % len(_ALPHABET)] for b in digest[:10])


def number_of(digits: str) -> int:
    """Returns a decimal number as an integer; 0 for other texts, and for numbers of 19 or more digits.

    Kubernetes uses 0 for numbers above an int64, which has up to 19 digits.
    """
    return int(digits) if digits.isdecimal() and len(digits) < 19 else 0


def share_of(value: Any, whole: int, *, up: bool) -> int:
    """Returns ``value`` as a number. A percentage becomes this share of ``whole``, rounded up, or down if ``up`` is false."""
    if isinstance(value, str) and value.endswith("%"):
        exact = number_of(value[:-1]) * whole
        return -(-exact // 100) if up else exact // 100
    return int(value)


def condition(obj: Mapping[str, Any], type: str, status: str, reason: str, message: str, stamp: str) -> JSON:
    """Returns a condition. Keeps the time of the last transition if the status did not change."""
    known = (obj.get("status") or {}).get("conditions") or []
    before: Mapping[str, Any] = next((c for c in known if c.get("type") == type), {})
    same = before.get("status") == status
    since = before.get("lastTransitionTime") if same else stamp
    out = {"type": type, "status": status, "lastTransitionTime": since or stamp}
    return out | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})
