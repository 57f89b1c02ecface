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
from dra_kubeletplugin.kube.resource import PODS

from ...scheduling.framework.pod_info import is_finished
from ..informer import Informers, ObjectChange, conditions_of, owned_by, server_message
from .base import KINDS, Controller, Key, RetryLater
from .zones import ready_of

DEPLOYMENTS = Resource("apps", "v1", "deployments", namespaced=True)
REPLICA_SETS = Resource("apps", "v1", "replicasets", namespaced=True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", namespaced=True)
JOBS = Resource("batch", "v1", "jobs", namespaced=True)
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_INFORMER_TIMEOUT = 30.0  # seconds for which a written object counts while the informer lacks it


class WrittenObjects:
    """The objects that a controller wrote, until the informer has them."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[float, JSON]] = {}  # by UID, with the time of the write

    def add(self, obj: JSON) -> JSON:
        self._written[obj["metadata"]["uid"]] = time.monotonic(), obj
        return obj

    def discard(self, obj: JSON) -> None:
        """Forgets an object when the informer has this version, or when the controller deletes it."""
        uid = obj["metadata"]["uid"]
        if uid in self._written and _version(obj) >= _version(self._written[uid][1]):
            del self._written[uid]

    def with_written(self, known: Iterable[JSON], owner: str) -> list[JSON]:
        """Returns the informer's objects of an owner, and the written objects that are missing there or newer."""
        limit = time.monotonic() - _INFORMER_TIMEOUT
        self._written = {uid: entry for uid, entry in self._written.items() if entry[0] > limit}
        found = {o["metadata"]["uid"]: o for o in known}
        for uid, (_, obj) in self._written.items():
            if owned_by(obj, owner) and (uid not in found or _version(found[uid]) < _version(obj)):
                found[uid] = obj
        return list(found.values())


class Workload(Controller):
    """A controller whose objects own pods. ``resource`` is the resource of these objects."""

    resource: Resource

    def __init__(self, client: KubeClient, informers: Informers, *needs: Resource) -> None:
        super().__init__(client, informers, (self.resource, PODS, *needs))
        self.written = WrittenObjects()
        self.watch(self.resource)
        self.watch(PODS, self._child_changed)

    def _child_changed(self, change: ObjectChange) -> None:
        meta = change.object["metadata"]
        self.written.discard(change.object)
        owner = controller_of(change.object)
        if owner is not None and owner["kind"] == KINDS[self.resource.plural]:
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
        found = self.children(PODS, obj)
        return sorted(found, key=lambda p: (p["metadata"].get("creationTimestamp") or "", p["metadata"]["name"]))

    def children(self, resource: Resource, obj: JSON) -> list[JSON]:
        """Returns the objects of a resource that an object controls."""
        uid = obj["metadata"]["uid"]
        return self.written.with_written(self.informers.by(resource, "controller", uid), uid)

    def owner_reference(self, obj: JSON) -> JSON:
        meta, kind = obj["metadata"], KINDS[self.resource.plural]
        head = {"apiVersion": self.resource.api_version, "kind": kind, "name": meta["name"], "uid": meta["uid"]}
        return {**head, "controller": True, "blockOwnerDeletion": True}

    async def make_pod(self, obj: JSON, template: JSON, meta: JSON | None = None, spec: JSON | None = None) -> JSON:
        """Creates a pod. If the API server rejects the pod, writes an event and raises :class:`RetryLater`.

        Args:
            meta, spec: fields that are added to the template's metadata and spec.
        """
        namespace = obj["metadata"]["namespace"]
        inner = copy.deepcopy(template)
        metadata = {
            k: v for k, v in (inner.get("metadata") or {}).items() if k in {"labels", "annotations", "finalizers"}
        }
        for key, value in (meta or {}).items():
            metadata[key] = {**metadata.get(key, {}), **value} if isinstance(value, Mapping) else value
        metadata.setdefault("generateName", f"{obj['metadata']['name']}-")
        metadata |= {"namespace": namespace, "ownerReferences": [self.owner_reference(obj)]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**inner["spec"], **(spec or {})}}
        try:
            pod = await self.client.create(PODS, body, namespace)
        except ApiError as e:
            if e.unreachable:
                raise
            self.record_event(obj, self.resource, "Warning", "FailedCreate", f"Error creating: {server_message(e)}")
            raise RetryLater(str(e)) from e
        self.written.add(pod)
        text = f"Created pod: {pod['metadata']['name']}"
        self.record_event(obj, self.resource, "Normal", "SuccessfulCreate", text)
        return pod

    async def delete_pod(self, obj: JSON, pod: JSON) -> None:
        self.written.discard(pod)
        if await self.delete(PODS, pod):
            text = f"Deleted pod: {pod['metadata']['name']}"
            self.record_event(obj, self.resource, "Normal", "SuccessfulDelete", text)

    async def write_status(self, obj: JSON, status: JSON) -> None:
        """Writes the status if it changed. Raises ``ApiError`` with a conflict if ``obj`` is outdated."""
        if self.resource is not JOBS:
            status = {"observedGeneration": obj["metadata"].get("generation", 1), **status}
        if obj.get("status") != status:
            await self.client.update(self.resource, {**obj, "status": status}, "status")


def _version(obj: JSON) -> int:
    return int(obj["metadata"]["resourceVersion"])


def controller_of(obj: Mapping[str, Any]) -> JSON | None:
    return next((o for o in obj["metadata"].get("ownerReferences") or [] if o.get("controller")), None)


def controller_uids(obj: JSON) -> Iterable[str]:
    """The index ``controller``: objects by the UID of their controller."""
    owner = controller_of(obj)
    return [owner["uid"]] if owner else []


def is_active(pod: Mapping[str, Any]) -> bool:
    return not is_finished(pod) and not pod["metadata"].get("deletionTimestamp")


def is_ready(pod: Mapping[str, Any]) -> bool:
    return ready_of(pod) == "True"


def available_in(pod: Mapping[str, Any], seconds: float) -> float | None:
    """Returns the seconds until a ready pod counts as available. None if the pod is not ready."""
    if not is_ready(pod):
        return None
    since = conditions_of(pod)["Ready"].get("lastTransitionTime")
    if not seconds or not since:
        return 0.0
    return max(0.0, datetime.fromisoformat(since).timestamp() + seconds - time.time())


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
    before = conditions_of(obj).get(type, {})
    same = before.get("status") == status
    since = before.get("lastTransitionTime") if same else stamp
    out = {"type": type, "status": status, "lastTransitionTime": since or stamp}
    return out | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})
