"""What controllers of workloads share: their resources, their pods, and pods that our copies do not show yet."""

from __future__ import annotations

import copy
import hashlib
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from ...errors import ApiError
from ...kube import KubeClient, Resource
from ...kube.resource import PODS
from ..informer import Informers, ObjectChange, is_finished, words_of
from .base import Controller, Key, RetryLater

JSON = dict[str, Any]
DEPLOYMENTS = Resource("apps", "v1", "deployments", namespaced=True)
REPLICA_SETS = Resource("apps", "v1", "replicasets", namespaced=True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", namespaced=True)
JOBS = Resource("batch", "v1", "jobs", namespaced=True)
KINDS = {DEPLOYMENTS: "Deployment", REPLICA_SETS: "ReplicaSet", DAEMON_SETS: "DaemonSet", JOBS: "Job"}
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SEEN_BY = 30.0  # seconds after which a pod that we made and that our copies never showed is taken to be gone


class Workload(Controller):
    """A controller whose objects own pods. ``resource`` is what it looks after."""

    resource: Resource

    def __init__(self, client: KubeClient, informers: Informers, *needs: Resource) -> None:
        super().__init__(client, informers, (self.resource, PODS, *needs))
        self._made: dict[str, tuple[float, JSON]] = {}  # pods by UID that our copies do not show yet, since when
        self.watch(self.resource)
        self.watch(PODS, self._pod_changed)

    def _pod_changed(self, change: ObjectChange) -> None:
        meta = change.object["metadata"]
        self._made.pop(meta["uid"], None)
        owner = controller_of(change.object)
        if owner is not None and owner["kind"] == KINDS[self.resource]:
            self.queue.add(Key(self.resource, meta["namespace"], owner["name"]))

    async def reconcile(self, key: Key) -> None:
        obj = self.informers.find(key.resource, key.name, key.namespace)
        if obj is not None and not obj["metadata"].get("deletionTimestamp"):
            await self.sync(obj)

    @abstractmethod
    async def sync(self, obj: JSON) -> None:
        """Brings the object's pods and status to what it asks for."""

    def pods_of(self, obj: JSON) -> list[JSON]:
        """All its pods, those included that were made just now; oldest first."""
        uid = obj["metadata"]["uid"]
        found = {p["metadata"]["uid"]: p for p in self.informers.by(PODS, "controller", uid)}
        limit = time.monotonic() - _SEEN_BY
        self._made = {k: v for k, v in self._made.items() if v[0] > limit}
        for made_uid, (_, pod) in self._made.items():
            owner = controller_of(pod)
            if made_uid not in found and owner is not None and owner["uid"] == uid:
                found[made_uid] = pod
        return sorted(
            found.values(), key=lambda p: (p["metadata"].get("creationTimestamp") or "", p["metadata"]["name"])
        )

    async def make_pod(self, obj: JSON, template: JSON, meta: JSON | None = None, spec: JSON | None = None) -> JSON:
        """Raises :class:`RetryLater` where the server refuses it, told in an event."""
        namespace = obj["metadata"]["namespace"]
        inner = copy.deepcopy(template)
        kind = KINDS[self.resource]
        owner = {"apiVersion": self.resource.api_version, "kind": kind, "name": obj["metadata"]["name"]}
        owner |= {"uid": obj["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
        made = {k: v for k, v in (inner.get("metadata") or {}).items() if k in {"labels", "annotations", "finalizers"}}
        for key, value in (meta or {}).items():
            made[key] = {**made.get(key, {}), **value} if isinstance(value, Mapping) else value
        made.setdefault("generateName", f"{obj['metadata']['name']}-")
        made |= {"namespace": namespace, "ownerReferences": [owner]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": {**inner["spec"], **(spec or {})}}
        try:
            pod = await self.client.create(PODS, body, namespace)
        except ApiError as e:
            if e.unreachable:
                raise
            self.tell(obj, "Warning", "FailedCreate", f"Error creating: {words_of(e)}")
            raise RetryLater(str(e)) from e
        self._made[pod["metadata"]["uid"]] = time.monotonic(), pod
        self.tell(obj, "Normal", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        return pod

    async def delete_pod(self, obj: JSON, pod: JSON) -> None:
        meta = pod["metadata"]
        self._made.pop(meta["uid"], None)
        try:
            await self.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except ApiError as e:
            if e.status not in {404, 409}:
                raise
            return
        self.tell(obj, "Normal", "SuccessfulDelete", f"Deleted pod: {meta['name']}")

    def tell(self, obj: JSON, type: str, reason: str, text: str) -> None:
        self.events.event(obj, KINDS[self.resource], type, reason, text, self.resource.api_version)

    async def write_status(self, obj: JSON, status: JSON) -> None:
        """Where it is another than it was. Raises ``ApiError`` where ``obj`` is not the newest."""
        meta = obj["metadata"]
        status = {"observedGeneration": meta.get("generation", 1), **status} if self.resource is not JOBS else status
        if obj.get("status") == status:
            return
        known = {"resourceVersion": meta["resourceVersion"]}
        await self.client.update(self.resource, {**obj, "metadata": {**meta, **known}, "status": status}, "status")


def controller_of(obj: Mapping[str, Any]) -> JSON | None:
    return next((o for o in obj["metadata"].get("ownerReferences") or [] if o.get("controller")), None)


def controller_uids(obj: JSON) -> Iterable[str]:
    """The index ``controller``."""
    owner = controller_of(obj)
    return [owner["uid"]] if owner else []


def is_active(pod: Mapping[str, Any]) -> bool:
    return not is_finished(pod) and not pod["metadata"].get("deletionTimestamp")


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def available_in(pod: Mapping[str, Any], seconds: float) -> float | None:
    """Seconds until a pod has been ready for so long: 0 where it has, None where it is not ready."""
    for c in (pod.get("status") or {}).get("conditions") or []:
        if c.get("type") == "Ready" and c.get("status") == "True":
            if not seconds or not c.get("lastTransitionTime"):
                return 0.0
            return max(0.0, datetime.fromisoformat(c["lastTransitionTime"]).timestamp() + seconds - time.time())
    return None


def hash_of(template: Mapping[str, Any]) -> str:
    """Tells pod templates apart, in characters that a name may have."""
    digest = hashlib.sha256(msgspec.json.encode(template, order="deterministic")).digest()
    return "".join(_ALPHABET[b % len(_ALPHABET)] for b in digest[:10])


_INT64_DIGITS = 19


def share_of(value: Any, whole: int, *, up: bool) -> int:
    """A number, or a percentage of ``whole``."""
    if isinstance(value, str) and value.endswith("%"):
        digits = value[:-1]
        exact = (int(digits) if len(digits) < _INT64_DIGITS else 0) * whole  # as Kubernetes, where Go cannot read it
        return -(-exact // 100) if up else exact // 100
    return int(value)


def condition(obj: Mapping[str, Any], type: str, status: str, reason: str, message: str, stamp: str) -> JSON:
    """With the time of its last change kept where it is none."""
    known = (obj.get("status") or {}).get("conditions") or []
    before: Mapping[str, Any] = next((c for c in known if c.get("type") == type), {})
    same = before.get("status") == status
    since = before.get("lastTransitionTime") if same else stamp
    out = {"type": type, "status": status, "lastTransitionTime": since or stamp}
    return out | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})
