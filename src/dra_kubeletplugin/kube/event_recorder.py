"""Writes Events about claims, pods and nodes. Events are best effort: no other part depends on them.

A repeated fault of one object is one Event with a growing count. The Event's name contains a hash of its content, so neither
a retry nor another process creates a second Event. Writes are rate limited per object and in total, as in client-go.
After a 403, no Event is written to that namespace for an hour. Causes are missing permissions, a quota, or a namespace that
is being deleted. Events of other namespaces are still written.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..base.json_types import JSON
from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
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
_BURST_OF_ALL, _EACH_OF_ALL = 100.0, 1.0  # the same for all objects together
_COUNT_INTERVAL = 60.0  # seconds until the count of an Event is written again
_FORGET_AFTER = 3000.0  # seconds without repetition until an Event is forgotten; the server deletes it after an hour
_FORBIDDEN_PAUSE = 3600.0  # seconds without Events in a namespace whose Events are forbidden
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
    """A rate limit: ``burst`` writes at once, then one write per ``each`` seconds."""

    burst: float
    each: float
    tokens: float = field(init=False)
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def refilled(self) -> float:
        """Refills the budget and returns the number of writes that are allowed now."""
        now = time.monotonic()
        self.tokens, self.at = min(self.burst, self.tokens + (now - self.at) / self.each), now
        return self.tokens


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
    seen: float
    times: int = 1
    written: int = 0
    created_here: bool = False  # this process created it and therefore knows its count
    not_before: float = 0.0


class EventRecorder:
    """Records Events of one driver on one node. ``component`` is the driver's name, ``instance`` the node's.

    All methods must be called on the event loop; :meth:`warn`, :meth:`warn_claim` and :meth:`inform` return at once.
    """

    def __init__(self, client: KubeClient, component: str, instance: str, metrics: Metrics) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._metrics = metrics
        # From the start, because increase() of Prometheus does not see the first value of a series.
        for result in ("written", "failed", "forbidden", "dropped"):
            metrics.inc("events_total", 0, result=result)
        self._events: dict[str, _RecordedEvent] = {}
        self._budgets: dict[Subject, _Budget] = {}
        self._all = _Budget(_BURST_OF_ALL, _EACH_OF_ALL)
        self._wake = asyncio.Event()
        self._forbidden: dict[str, float] = {}  # namespace → end of the pause
        self._fault = ""

    def warn(self, about: Subject, reason: str, message: str, related: Subject | None = None) -> None:
        """Queues a warning. A repeated warning increases the count of its Event."""
        self._add(self._entry(about, reason, message, related))

    def inform(self, about: Subject, reason: str, message: str) -> None:
        """Queues an Event of type Normal."""
        self._add(self._entry(about, reason, message, type="Normal"))

    def warn_claim(self, claim: Subject, reason: str, message: str) -> None:
        """Queues a warning about a claim. The pods and pod groups for which the claim is reserved at that time get the same warning.

        Does nothing if the claim's name or namespace is unknown.
        """
        if claim.namespace and claim.name:
            self._add(self._entry(claim, reason, message, consumers=True))

    async def write(self, about: Subject, reason: str, message: str) -> bool:
        """Writes an Event now. Returns whether the server has it. False means a rate limit, a pause, or a failure, which is logged."""
        return await self._write(self._entry(about, reason, message))

    async def run(self) -> None:
        """Writes queued Events. Never returns; external failures do not end it."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            for key in [k for k, t in self._events.items() if now - t.seen > _FORGET_AFTER]:
                del self._events[key]
            for event in [t for t in self._events.values() if t.times > t.written and t.not_before <= now]:
                event.not_before = time.monotonic() + (_COUNT_INTERVAL if await self._write(event) else _RETRY)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()

    def _pause(self) -> float:
        now = time.monotonic()
        due = [t.not_before - now for t in self._events.values() if t.times > t.written]
        return max(0.05, min([_COUNT_INTERVAL, *due]))

    # --- queue ----------------------------------------------------------------------------------

    def _add(self, new_event: _RecordedEvent) -> None:
        if self._is_forbidden(new_event.about):
            return
        key = self._name(new_event)
        known = self._events.pop(key, None)
        if known is None:
            self._events[key] = new_event
        else:  # move to the end, so that the first Event is the one without repetition for the longest time
            self._events[key] = known
            known.times, known.last, known.seen = known.times + 1, new_event.last, new_event.seen
        while len(self._events) > _MAX_EVENTS:
            dropped = self._events.pop(next(iter(self._events)))
            if dropped.times > dropped.written:
                self._metrics.inc("events_total", result="dropped")
        self._wake.set()

    def _entry(
        self,
        about: Subject,
        reason: str,
        message: str,
        related: Subject | None = None,
        *,
        type: str = "Warning",
        consumers: bool = False,
    ) -> _RecordedEvent:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = clip(message, _MAX_MESSAGE)
        return _RecordedEvent(about, reason, text, related, type, consumers, now, now, time.monotonic())

    def _name(self, event: _RecordedEvent) -> str:
        content = "\0".join((self._component, *event.about, event.reason, event.message))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return f"{event.about.name[:_MAX_NAME].rstrip('-.')}.{digest}"

    # --- writing --------------------------------------------------------------------------------

    async def _write(self, event: _RecordedEvent) -> bool:
        times = event.times
        if self._is_forbidden(event.about):
            event.written = times  # drop it: the namespace refuses Events
            return False
        if not self._within_budget(event):
            return False
        try:
            consumers = await self._consumers(event.about) if event.consumers else []
            event.related = event.related or (consumers[0] if consumers else None)
            await self._send(event, times)
        except ApiError as e:
            self._failed(event, e)
            return False
        self._fault = ""
        event.written = times
        self._metrics.inc("events_total", result="written")
        for consumer in consumers:
            self._add(self._entry(consumer, event.reason, event.message, event.about))
        return True

    def _within_budget(self, event: _RecordedEvent) -> bool:
        """Whether the budgets allow one more write: a driver may report another text at each check of a device."""
        budget = self._budgets.pop(event.about, None) or _Budget(_BURST, _EACH)
        self._budgets[event.about] = budget
        while len(self._budgets) > _MAX_EVENTS:
            del self._budgets[next(iter(self._budgets))]
        if min(budget.refilled(), self._all.refilled()) < 1:
            return False
        budget.tokens, self._all.tokens = budget.tokens - 1, self._all.tokens - 1
        return True

    def _is_forbidden(self, about: Subject) -> bool:
        return time.monotonic() < self._forbidden.get(about.event_namespace, 0.0)

    def _failed(self, event: _RecordedEvent, e: ApiError) -> None:
        is_forbidden = isinstance(e, ForbiddenError)
        self._metrics.inc("events_total", result="forbidden" if is_forbidden else "failed")
        if is_forbidden:
            namespace = event.about.event_namespace
            self._forbidden.pop(namespace, None)
            self._forbidden[namespace] = time.monotonic() + _FORBIDDEN_PAUSE
            while len(self._forbidden) > _MAX_EVENTS:
                del self._forbidden[next(iter(self._forbidden))]
            self._events = {k: t for k, t in self._events.items() if t.about.event_namespace != namespace}
        if not e.unreachable and not isinstance(e, ConflictError):
            event.written = event.times  # a retry cannot succeed
        shown = event.about.event_namespace
        hint = f"; no Event is written to namespace {shown} for an hour (see docs/deploy.md)" if is_forbidden else ""
        if str(e) != self._fault:
            log.warning("cannot write an Event: %s%s", e, hint)
        self._fault = str(e)

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
