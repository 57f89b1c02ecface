"""Events: what an operator must know of a claim or the node, and nobody else tells. Behind everything else, and never needed.

The same fault of the same object is one Event, whose count grows: its name is made of what it says, so that neither another try nor
another process makes a second one. What is written is limited as client-go limits its own writers, for each object and in all. A
server that forbids Events of a namespace is left alone with them for an hour: permissions, a quota, or a namespace that is being
deleted, and so one namespace never silences another.
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

from ..base.telemetry.metrics import Metrics
from ..errors import ApiError, clip, describe
from . import KubeClient
from .resource import EVENTS

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_MAX_MESSAGE = 1024  # bytes; a server takes no more in an Event of the newer kind, which ours may become
_MAX_NAME = 200
_MOST = 1_000  # Events that wait, and objects that are remembered; above, the oldest goes
_CONSUMERS = 8  # of a claim that are told
_BURST, _EACH = 25.0, 300.0  # Events of one object at once, and then one in so many seconds: as client-go has it
_BURST_OF_ALL, _EACH_OF_ALL = 100.0, 1.0
_AGAIN = 60.0  # seconds until the count of an Event is written again
_KEPT = 3000.0  # seconds for which one is counted on; the server forgets it after an hour
_FORBIDDEN = 3600.0  # seconds for which a server that forbids Events is left alone
_RETRY = 10.0
_KINDS = {
    ("", "pods"): ("v1", "Pod"),
    ("scheduling.k8s.io", "podgroups"): ("", "PodGroup"),
}  # its version is not stable yet


class Subject(NamedTuple):
    """What an Event is about."""

    kind: str
    name: str
    uid: str
    namespace: str = ""
    api_version: str = "v1"

    @property
    def written_to(self) -> str:
        """The namespace of its Events."""
        return self.namespace or "default"

    def json(self) -> JSON:
        found = {"apiVersion": self.api_version, "kind": self.kind, "namespace": self.namespace}
        return {k: v for k, v in (found | {"name": self.name, "uid": self.uid}).items() if v}


def claim_subject(namespace: str, name: str, uid: str) -> Subject:
    """A ResourceClaim; of no certain version of its group, of which the server has several."""
    return Subject("ResourceClaim", name, uid, namespace, "resource.k8s.io/v1")


def node_subject(name: str) -> Subject:
    """A Node, by its name as the kubelet does it: so `kubectl describe node` finds the Event."""
    return Subject("Node", name, name)


@dataclass
class _Budget:
    """How much may be written now: ``burst`` at once, and then one in ``each`` seconds."""

    burst: float
    each: float
    left: float = field(init=False)
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.burst

    def refilled(self) -> float:
        """What is left now."""
        now = time.monotonic()
        self.left, self.at = min(self.burst, self.left + (now - self.at) / self.each), now
        return self.left


@dataclass
class _Recorded:
    """One Event: what it says, how often that was so, and how much of it the server knows."""

    about: Subject
    reason: str
    message: str
    related: Subject | None
    consumers: bool  # who uses the claim is told too
    first: str
    last: str
    seen: float
    times: int = 1
    written: int = 0
    ours: bool = False  # this process made it, and so knows its count
    not_before: float = 0.0


class EventRecorder:
    """Events of one driver on one node. ``component`` is the driver's name, ``instance`` the node's.

    Everything is called on the event loop; :meth:`tell` and :meth:`tell_claim` return at once.
    """

    def __init__(self, client: KubeClient, component: str, instance: str, metrics: Metrics) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._metrics = metrics
        self._told: dict[str, _Recorded] = {}
        self._budgets: dict[Subject, _Budget] = {}
        self._all = _Budget(_BURST_OF_ALL, _EACH_OF_ALL)
        self._wake = asyncio.Event()
        self._forbidden: dict[str, float] = {}  # until when, by namespace
        self._fault = ""

    def tell(self, about: Subject, reason: str, message: str, related: Subject | None = None) -> None:
        """A warning, written soon; one that was told before is counted."""
        self._take(about, reason, message, related, consumers=False)

    def tell_claim(self, claim: Subject, reason: str, message: str) -> None:
        """A warning about a claim, and about the pods and groups of pods that it is reserved for then.

        Nothing where nobody knows what the claim is called.
        """
        if claim.namespace and claim.name:
            self._take(claim, reason, message, None, consumers=True)

    async def write(self, about: Subject, reason: str, message: str) -> bool:
        """Writes now; True where the server has it. False where it may not be, or failed, which is logged once."""
        return await self._write(self._entry(about, reason, message, None, consumers=False))

    async def run(self) -> None:
        """Never returns; no fault from outside ends it."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            for key in [k for k, t in self._told.items() if now - t.seen > _KEPT]:
                del self._told[key]
            for told in [t for t in self._told.values() if t.times > t.written and t.not_before <= now]:
                told.not_before = time.monotonic() + (_AGAIN if await self._write(told) else _RETRY)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()

    def _pause(self) -> float:
        now = time.monotonic()
        due = [t.not_before - now for t in self._told.values() if t.times > t.written]
        return max(0.05, min([_AGAIN, *due]))

    # --- what is to be told ---------------------------------------------------------------------

    def _take(self, about: Subject, reason: str, message: str, related: Subject | None, *, consumers: bool) -> None:
        if self._is_forbidden(about):
            return
        fresh = self._entry(about, reason, message, related, consumers=consumers)
        key = self._name(fresh)
        known = self._told.pop(key, None)
        if known is None:
            self._told[key] = fresh
        else:  # to the end of the row: the oldest is what has not been told for longest
            self._told[key] = known
            known.times, known.last, known.seen = known.times + 1, fresh.last, fresh.seen
        while len(self._told) > _MOST:
            dropped = self._told.pop(next(iter(self._told)))
            if dropped.times > dropped.written:
                self._metrics.inc("events_total", result="dropped")
        self._wake.set()

    def _entry(
        self, about: Subject, reason: str, message: str, related: Subject | None, *, consumers: bool
    ) -> _Recorded:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = clip(message, _MAX_MESSAGE)
        return _Recorded(about, reason, text, related, consumers, now, now, time.monotonic())

    def _name(self, told: _Recorded) -> str:
        said = "\0".join((self._component, *told.about, told.reason, told.message))
        digest = hashlib.sha256(said.encode()).hexdigest()[:16]
        return f"{told.about.name[:_MAX_NAME].rstrip('-.')}.{digest}"

    # --- writing --------------------------------------------------------------------------------

    async def _write(self, told: _Recorded) -> bool:
        times = told.times
        if self._is_forbidden(told.about):
            told.written = times  # nobody wants to know
            return False
        if not self._may(told):
            return False
        try:
            consumers = await self._consumers(told.about) if told.consumers else []
            told.related = told.related or (consumers[0] if consumers else None)
            await self._send(told, times)
        except ApiError as e:
            self._failed(told, e)
            return False
        self._fault = ""
        told.written = times
        self._metrics.inc("events_total", result="written")
        for consumer in consumers:
            self._take(consumer, told.reason, told.message, told.about, consumers=False)
        return True

    def _may(self, told: _Recorded) -> bool:
        """Whether one more is written now: a driver may say something else of a device at each look."""
        budget = self._budgets.pop(told.about, None) or _Budget(_BURST, _EACH)
        self._budgets[told.about] = budget
        while len(self._budgets) > _MOST:
            del self._budgets[next(iter(self._budgets))]
        if min(budget.refilled(), self._all.refilled()) < 1:
            return False
        budget.left, self._all.left = budget.left - 1, self._all.left - 1
        return True

    def _is_forbidden(self, about: Subject) -> bool:
        return time.monotonic() < self._forbidden.get(about.written_to, 0.0)

    def _failed(self, told: _Recorded, e: ApiError) -> None:
        self._metrics.inc("events_total", result="forbidden" if e.status == 403 else "failed")
        if e.status == 403:
            namespace = told.about.written_to
            self._forbidden.pop(namespace, None)
            self._forbidden[namespace] = time.monotonic() + _FORBIDDEN
            while len(self._forbidden) > _MOST:
                del self._forbidden[next(iter(self._forbidden))]
            self._told = {k: t for k, t in self._told.items() if t.about.written_to != namespace}
        if e.status in {403, 404} or (400 <= e.status < 500 and e.status not in {409, 429}):
            told.written = told.times  # no further try makes it better
        shown = told.about.written_to
        hint = f"; none is tried in namespace {shown} for an hour (see docs/deploy.md)" if e.status == 403 else ""
        if str(e) != self._fault:
            log.warning("an Event cannot be written%s: %s", hint, e)
        self._fault = str(e)

    async def _send(self, told: _Recorded, times: int) -> None:
        name, namespace = self._name(told), told.about.written_to
        news: JSON = {"lastTimestamp": told.last}
        if told.ours:
            news["count"] = times
        if told.written:
            try:
                await self._client.patch(EVENTS, name, news, namespace)
            except ApiError as e:
                if e.status != 404:
                    raise
            else:
                return
        try:
            await self._client.create(EVENTS, self._event(told, name, namespace, times), namespace)
            told.ours = True
        except ApiError as e:
            if e.status != 409:
                raise
            await self._client.patch(EVENTS, name, {"lastTimestamp": told.last}, namespace)

    def _event(self, told: _Recorded, name: str, namespace: str, times: int) -> JSON:
        out = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": told.about.json(),
            "type": "Warning",
            "reason": told.reason,
            "message": told.message,
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,  # reportingController in events.k8s.io
            "reportingInstance": self._instance,
            "firstTimestamp": told.first,
            "lastTimestamp": told.last,
            "count": times,
        }
        return out | ({"related": told.related.json()} if told.related else {})

    async def _consumers(self, claim: Subject) -> list[Subject]:
        """Whom the claim is reserved for; nobody where it is gone, or another by now. What cannot be read costs their Events alone."""
        try:
            resource = await self._client.dra("resourceclaims")
            found = await self._client.get(resource, claim.name, claim.namespace)
            if found["metadata"]["uid"] != claim.uid:
                return []
            reserved = (found.get("status") or {}).get("reservedFor") or []
            return [s for r in reserved[:_CONSUMERS] if (s := _consumer(r, claim.namespace))]
        except (ApiError, KeyError, TypeError, AttributeError) as e:
            log.debug("who uses claim %s/%s is not known: %s", claim.namespace, claim.name, describe(e))
            return []


def _consumer(reference: Mapping[str, Any], namespace: str) -> Subject | None:
    """A pod or a group of pods; None for what we do not know: no rule says which kind a resource's objects have."""
    version, kind = _KINDS.get((str(reference.get("apiGroup") or ""), str(reference.get("resource"))), ("", ""))
    name, uid = reference.get("name"), reference.get("uid")
    if not kind or not isinstance(name, str) or not isinstance(uid, str):
        return None
    return Subject(kind, name, uid, namespace, version)
