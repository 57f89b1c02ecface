"""What every controller is: a queue of keys, workers, and an error that belongs to one object alone."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import ApiError
from ...kube import KubeClient, Resource
from ..event_recorder import EventRecorder
from ..informer import Informers, ObjectChange
from ..work_queue import Backoff, WorkQueue

log = logging.getLogger(__name__)
JSON = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """An object to look at."""

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
    """What is in an object's way was told in an event already: it is tried again, and nothing more is said."""


class Controller(ABC):
    """Brings objects to the state that they ask for, one key at a time.

    Args:
        informers: shared with other controllers.
        needs: what has to be listed before the first key is worked on.
    """

    name: ClassVar[str]
    kinds: ClassVar[Mapping[Resource, str]] = {}  # for events about objects with which something is wrong

    def __init__(
        self, client: KubeClient, informers: Informers, needs: tuple[Resource, ...], backoff: Backoff | None = None
    ) -> None:
        self.client = client
        self.informers = informers
        self.needs = needs
        self.queue: WorkQueue[Key] = WorkQueue(backoff)
        self.events = EventRecorder(client, self.name)
        self._told: dict[Key, str] = {}

    @abstractmethod
    async def reconcile(self, key: Key) -> None:
        """Looks at one object and does what is to be done. What it raises is retried for this key alone."""

    def watch(self, resource: Resource, handler: Callable[[ObjectChange], None] | None = None) -> None:
        """Has objects of a resource looked at when they change, or calls ``handler`` for each change."""

        def look(change: ObjectChange) -> None:
            self.queue.add(key_of(resource, change.object))

        self.informers.on(resource, handler or look)

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.events.run())
            await self.informers.wait_synced(*self.needs)
            await self.queue.work(self._once, self._failed)

    async def _once(self, key: Key) -> None:
        await self.reconcile(key)
        self._told.pop(key, None)

    def _failed(self, key: Key, error: Exception) -> None:
        """Tells what is wrong once for the same text. A lost race is no fault: the newer object, or its end, comes by itself."""
        if isinstance(error, RetryLater) or (isinstance(error, ApiError) and _lost_race(key, error)):
            log.debug("%s: %s: %s", self.name, key, error)
            return
        text = f"{type(error).__name__}: {error}"
        if self._told.get(key) == text:
            return
        self._told[key] = text
        if isinstance(error, ApiError):
            log.warning("%s: %s: %s", self.name, key, error)
            return
        log.error("%s: %s cannot be handled: %s", self.name, key, text, exc_info=error)
        obj = self.informers.find(key.resource, key.name, key.namespace)
        if obj is not None and (kind := self.kinds.get(key.resource)):
            text = f"{self.name} cannot handle this object, is it well-formed? {text}"
            self.events.event(obj, kind, "Warning", "FailedSync", text, key.resource.api_version)


def _lost_race(key: Key, error: ApiError) -> bool:
    """Whether the object that was looked at is another by now, or gone, or goes with its namespace."""
    about = error.details.get("details")
    about = about if isinstance(about, dict) else {}
    if error.status == 404:
        return (about.get("name"), about.get("kind")) == (key.name, key.resource.plural)
    ends = any(c.get("reason") == "NamespaceTerminating" for c in about.get("causes") or ())
    return error.status == 409 or (error.status == 403 and ends)
