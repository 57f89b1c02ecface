"""Writes Events about claims, pods and nodes. Events are best effort: no other part depends on them.

An Event about a failed prepare is not written here. The kubelet writes it, with the text of :meth:`.DraError.event` in the response.

A repeated fault of one object is one Event with a growing count. The Event's name contains a hash of its content, so neither
a retry nor another process creates a second Event. Writes are rate limited per object, as in client-go.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..base.bounded_dict import BoundedDict
from ..base.json_types import JSON
from ..base.telemetry.log_once import LogOnce
from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..base.wakeup import is_set_within
from ..errors import ApiError, clip, describe
from . import KubeClient
from .errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError
from .resource import EVENTS

log = logging.getLogger(__name__)
_MAX_MESSAGE = 1024  # bytes; the server accepts no more in events.k8s.io, to which it converts these Events
_MAX_NAME = 200
_MAX_EVENTS = 1_000  # limit of pending Events and of remembered objects; the oldest is dropped
_CONSUMERS = 8  # maximum number of pods and pod groups of a claim that get an Event
_BURST, _EACH = 25.0, 300.0  # rate limit for one object, as in client-go: Events at once, then seconds for each Event
_LOG_AGAIN = 3600.0  # seconds until the same error is logged again
_RETRY = 10.0
# PodGroup has no API version here, because it is not stable yet.
_KINDS = {("", "pods"): ("v1", "Pod"), ("scheduling.k8s.io", "podgroups"): ("", "PodGroup")}


class Subject(NamedTuple):
    """The object that an Event is about."""

    kind: str
    name: str
    uid: str
    namespace: str = ""
    api_version: str = "v1"

    @property
    def event_namespace(self) -> str:
        """Namespace of the subject's Events."""
        return self.namespace or "default"

    def json(self) -> JSON:
        found = {"apiVersion": self.api_version, "kind": self.kind, "namespace": self.namespace}
        return {k: v for k, v in (found | {"name": self.name, "uid": self.uid}).items() if v}


def claim_subject(namespace: str, name: str, uid: str) -> Subject:
    """Returns a ResourceClaim as a subject. The API version is always v1, although the server may serve another version."""
    return Subject("ResourceClaim", name, uid, namespace, "resource.k8s.io/v1")


def node_subject(name: str) -> Subject:
    """Returns a Node as a subject. Its UID is its name, as in the kubelet's Events, so that `kubectl describe node` finds the Event."""
    return Subject("Node", name, name)


@dataclass
class _Budget:
    """The rate limit of one object."""

    tokens: float = _BURST
    at: float = field(default_factory=time.monotonic)

    def take(self) -> bool:
        """Whether one more write is allowed now. It then counts as done."""
        now = time.monotonic()
        self.tokens, self.at = min(_BURST, self.tokens + (now - self.at) / _EACH), now
        is_allowed = self.tokens >= 1
        self.tokens -= is_allowed
        return is_allowed


@dataclass
class _RecordedEvent:
    """One Event: its content, how often it occurred, and how many occurrences were written."""

    about: Subject
    reason: str
    message: str
    related: Subject | None
    type: str  # "Warning" or "Normal"
    consumers: bool  # whether the claim's pods get the Event too
    first: str
    last: str
    times: int = 1
    written: int = 0
    created_here: bool = False  # this process created it and therefore knows its count
    not_before: float = 0.0


class EventRecorder:
    """Records Events of one driver on one node. ``component`` is the driver's name, ``instance`` the node's.

    All methods must be called on the event loop; :meth:`warn`, :meth:`warn_claim` and :meth:`inform` return at once.

    Attributes:
        count_interval: seconds until the count of an Event is written again.
    """

    def __init__(self, client: KubeClient, component: str, instance: str, metrics: Metrics) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._metrics = metrics
        self.count_interval = 60.0
        # From the start, because increase() of Prometheus does not see the first value of a series.
        for result in ("written", "failed", "forbidden", "dropped"):
            metrics.inc("events_total", 0, result=result)
        self._events = BoundedDict[str, _RecordedEvent](_MAX_EVENTS)
        self._budgets = BoundedDict[Subject, _Budget](_MAX_EVENTS)
        self._wake = asyncio.Event()
        self._logged = LogOnce(_LOG_AGAIN)

    def warn(self, about: Subject, reason: str, message: str) -> None:
        """Queues a warning. A repeated warning increases the count of its Event."""
        self._add(about, reason, message)

    def inform(self, about: Subject, reason: str, message: str) -> None:
        """Queues an Event of type Normal."""
        self._add(about, reason, message, type="Normal")

    def warn_claim(self, claim: Subject, reason: str, message: str) -> None:
        """Queues a warning about a claim. The pods and pod groups for which the claim is reserved at that time get the same warning.

        Does nothing if the claim's name or namespace is unknown.
        """
        if claim.namespace and claim.name:
            self._add(claim, reason, message, consumers=True)

    async def run(self) -> None:
        """Writes queued Events. Never returns; external failures do not end it."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            for event in [t for t in self._events.values() if t.times > t.written and t.not_before <= now]:
                event.not_before = time.monotonic() + (self.count_interval if await self._write(event) else _RETRY)
            now = time.monotonic()
            due = [t.not_before - now for t in self._events.values() if t.times > t.written]
            await is_set_within(self._wake, max(0.05, min([self.count_interval, *due])))

    # --- queue ----------------------------------------------------------------------------------

    def _add(
        self,
        about: Subject,
        reason: str,
        message: str,
        related: Subject | None = None,
        *,
        type: str = "Warning",
        consumers: bool = False,
    ) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = _RecordedEvent(about, reason, clip(message, _MAX_MESSAGE), related, type, consumers, now, now)
        key = self._name(event)
        if known := self._events.get(key):
            event, known.times, known.last = known, known.times + 1, now
        dropped = self._events.put(key, event)
        if dropped and dropped.times > dropped.written:
            self._metrics.inc("events_total", result="dropped")
        self._wake.set()

    def _name(self, event: _RecordedEvent) -> str:
        content = "\0".join((self._component, *event.about, event.reason, event.message))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return f"{event.about.name[:_MAX_NAME].rstrip('-.')}.{digest}"

    # --- writing --------------------------------------------------------------------------------

    async def _write(self, event: _RecordedEvent) -> bool:
        times = event.times
        # A driver may report another text at each check of a device.
        budget = self._budgets.get(event.about) or _Budget()
        self._budgets.put(event.about, budget)
        if not budget.take():
            return False
        try:
            consumers = await self._consumers(event.about) if event.consumers else []
            event.related = event.related or (consumers[0] if consumers else None)
            await self._send(event, times)
        except ApiError as e:
            self._failed(event, e)
            return False
        event.written = times
        self._metrics.inc("events_total", result="written")
        for consumer in consumers:
            self._add(consumer, event.reason, event.message, event.about)
        return True

    def _failed(self, event: _RecordedEvent, e: ApiError) -> None:
        is_forbidden = isinstance(e, ForbiddenError)
        self._metrics.inc("events_total", result="forbidden" if is_forbidden else "failed")
        if not e.unreachable and not isinstance(e, ConflictError):
            event.written = event.times  # a retry cannot succeed
        if self._logged.is_new(event.about.event_namespace, str(e)):
            hint = ": see docs/deploy.md for the permission" if is_forbidden else ""
            log.warning("cannot write an Event: %s%s", e, hint)

    async def _send(self, event: _RecordedEvent, times: int) -> None:
        name, namespace = self._name(event), event.about.event_namespace
        changes: JSON = {"lastTimestamp": event.last}
        if event.created_here:
            changes["count"] = times
        if event.written:
            try:
                await self._client.patch(EVENTS, name, changes, namespace)
            except NotFoundError:
                pass  # created again below
            else:
                return
        try:
            await self._client.create(EVENTS, self._event(event, name, namespace, times), namespace)
            event.created_here = True
        except AlreadyExistsError:
            await self._client.patch(EVENTS, name, {"lastTimestamp": event.last}, namespace)

    def _event(self, event: _RecordedEvent, name: str, namespace: str, times: int) -> JSON:
        out = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": event.about.json(),
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,  # reportingController in events.k8s.io
            "reportingInstance": self._instance,
            "firstTimestamp": event.first,
            "lastTimestamp": event.last,
            "count": times,
        }
        return out | ({"related": event.related.json()} if event.related else {})

    async def _consumers(self, claim: Subject) -> list[Subject]:
        """Returns the pods and pod groups that use the claim. Empty if the claim was deleted or replaced, or cannot be read."""
        try:
            resource = await self._client.dra("resourceclaims")
            found = await self._client.get(resource, claim.name, claim.namespace)
            if found["metadata"]["uid"] != claim.uid:
                return []
            reserved = (found.get("status") or {}).get("reservedFor") or []
            return [s for r in reserved[:_CONSUMERS] if (s := _consumer(r, claim.namespace))]
        except (ApiError, KeyError, TypeError, AttributeError) as e:
            log.debug("cannot read which pods use a claim: %s", describe(e), extra=claim_fields(claim))
            return []


def _consumer(reference: Mapping[str, Any], namespace: str) -> Subject | None:
    """Returns a pod or a pod group, or None for an unknown resource: the kind cannot be derived from a resource's name."""
    version, kind = _KINDS.get((str(reference.get("apiGroup") or ""), str(reference.get("resource"))), ("", ""))
    name, uid = reference.get("name"), reference.get("uid")
    if not kind or not isinstance(name, str) or not isinstance(uid, str):
        return None
    return Subject(kind, name, uid, namespace, version)
