"""The base class of all controllers: a work queue of keys, workers, and the handling of errors."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError

from ..event_recorder import EventRecorder
from ..informer import Informers, ObjectChange
from ..work_queue import WorkQueue

log = logging.getLogger(__name__)
KINDS = {
    "daemonsets": "DaemonSet",
    "deployments": "Deployment",
    "jobs": "Job",
    "nodes": "Node",
    "podgroups": "PodGroup",
    "pods": "Pod",
    "replicasets": "ReplicaSet",
    "resourceclaims": "ResourceClaim",
    "resourcepoolstatusrequests": "ResourcePoolStatusRequest",
}
"""The kinds of the objects that the controllers process, by the plural name of the resource."""


@dataclass(frozen=True)
class Key:
    """Identifies an object to reconcile."""

    resource: Resource
    namespace: str
    name: str

    def __str__(self) -> str:
        return (
            f"{self.resource.plural} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.resource.plural} {self.name}"
        )


def key_of(resource: Resource, obj: Mapping[str, Any]) -> Key:
    return Key(resource, obj["metadata"].get("namespace") or "", obj["metadata"]["name"])


class RetryLater(Exception):
    """The object cannot be processed now. The key is retried without a log entry, because an event states the reason."""


class Controller(ABC):
    """Brings objects to their desired state, one key at a time.

    Args:
        informers: shared with other controllers.
        needs: resources that must be listed before the first key is processed.
    """

    name: ClassVar[str]

    def __init__(self, client: KubeClient, informers: Informers, needs: tuple[Resource, ...]) -> None:
        self.client = client
        self.informers = informers
        self.needs = needs
        self.queue: WorkQueue[Key] = WorkQueue()
        self.events = EventRecorder(client, self.name)

    @abstractmethod
    async def reconcile(self, key: Key) -> None:
        """Reconciles one object. An exception causes a retry of this key only."""

    def watch(self, resource: Resource, handler: Callable[[ObjectChange], None] | None = None) -> None:
        """Queues objects of a resource when they change, or calls ``handler`` for each change."""

        def enqueue(change: ObjectChange) -> None:
            self.queue.add(key_of(resource, change.object))

        self.informers.on(resource, handler or enqueue)

    def record_event(self, obj: JSON, resource: Resource, type: str, reason: str, text: str) -> None:
        self.events.event(obj, KINDS[resource.plural], type, reason, text, resource.api_version)

    async def current(self, resource: Resource, reference: JSON, namespace: str) -> JSON | None:
        """Returns the object with the name and the UID of a reference; None if it does not exist.

        If the informer does not have the object, asks the API server, because the object may be newer than the informer's state.
        """
        name, uid = reference["name"], reference["uid"]
        found = self.informers.find(resource, name, namespace)
        if found is None or found["metadata"]["uid"] != uid:
            try:
                found = await self.client.get(resource, name, namespace)
            except NotFoundError:
                return None
        return found if found["metadata"]["uid"] == uid else None

    async def delete(self, resource: Resource, obj: JSON) -> bool:
        """Deletes an object. Returns False if it was already deleted, also if another object has its name."""
        meta = obj["metadata"]
        try:
            await self.client.delete(resource, meta["name"], meta.get("namespace") or "", uid=meta["uid"])
        except (NotFoundError, ConflictError):
            return False
        return True

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.events.run())
            await self.informers.wait_synced(*self.needs)
            await self.queue.work(self.reconcile, self.report_failure)

    def report_failure(self, key: Key, error: Exception) -> None:
        """Logs an error, and writes an event about it if it is unexpected.

        A conflict or a deleted object is not logged, because the informer will deliver the newer state.
        """
        if isinstance(error, RetryLater) or (isinstance(error, ApiError) and _is_outdated(key, error)):
            log.debug("cannot process an object: %s: %s: %s", self.name, key, error)
            return
        if isinstance(error, ApiError):
            log.warning("cannot process an object: %s: %s: %s", self.name, key, error)
            return
        text = f"{type(error).__name__}: {error}"
        log.error("cannot process an object: %s: %s: %s", self.name, key, text, exc_info=error)
        obj = self.informers.find(key.resource, key.name, key.namespace)
        if obj is not None:
            text = f"{self.name} cannot process this object; it may be malformed: {text}"
            self.record_event(obj, key.resource, "Warning", "FailedSync", text)


def _is_outdated(key: Key, error: ApiError) -> bool:
    """Returns whether an error shows that the object was changed, deleted or replaced, or that its namespace is terminating."""
    about = error.details.get("details")
    about = about if isinstance(about, dict) else {}
    if isinstance(error, NotFoundError):
        return (about.get("name"), about.get("kind")) == (key.name, key.resource.plural)
    causes = about.get("causes") or ()
    if isinstance(error, InvalidError):  # a patch whose UID belongs to a deleted object of the same name
        return any(c.get("field") == "metadata.uid" for c in causes)
    is_terminating = any(c.get("reason") == "NamespaceTerminating" for c in causes)
    return isinstance(error, ConflictError) or (isinstance(error, ForbiddenError) and is_terminating)
