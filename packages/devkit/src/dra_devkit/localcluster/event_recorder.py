"""Records events about objects like client-go: counts repeated events, combines similar events, and limits their rate.

Events are similar if they differ only in their message. From the tenth different message on, they are combined as
"(combined from similar events)". The count of messages restarts after ten minutes without a similar event. A component
may write 25 events at once about an object, and then one every five minutes. Source: client-go tools/record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import EVENTS
from dra_kubeletplugin.resourceapi.defaulting import now

log = logging.getLogger(__name__)
_SIMILAR = 10
_WINDOW = 600.0  # seconds
_BURST = 25.0
_REFILL = 1 / 300  # events per second
_AT_ONCE = 4  # objects whose events are written in parallel
_MAX_QUEUED = 1000  # further events are dropped, as in client-go
_MAX_KEYS = 4096  # maximum number of keys in each cache
_MAX_MESSAGE = 1024  # characters of a message


@dataclass
class _Similar:
    messages: set[str] = field(default_factory=set)
    last: float = 0.0


@dataclass
class _Bucket:
    tokens: float = _BURST
    at: float = 0.0

    def take(self, moment: float) -> bool:
        self.tokens = min(_BURST, self.tokens + (moment - self.at) * _REFILL)
        self.at = moment
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass
class _Seen:
    name: str
    first: str  # firstTimestamp
    count: int = 0


class EventRecorder:
    """Writes the events of one component in the background while :meth:`run` runs. The events of an object stay in order.

    Args:
        component: for example ``kubelet``.
        host: the node on which the component runs; empty if it runs on no node.
        combine: whether similar events are combined and their rate is limited. The recorder of events.k8s.io, which
            schedulers use, only counts repeated events.
    """

    def __init__(self, client: KubeClient, component: str, host: str = "", *, combine: bool = True) -> None:
        self.client = client
        self.component = component
        self.host = host
        self.combine = combine
        self._queue: asyncio.Queue[JSON] = asyncio.Queue(_MAX_QUEUED)
        self._lost = 0  # events dropped because the queue was full
        self._similar: dict[tuple[str, ...], _Similar] = {}
        self._buckets: dict[str, _Bucket] = {}
        self._seen: dict[tuple[str, ...], _Seen] = {}

    def event(self, obj: Mapping[str, Any], kind: str, type: str, reason: str, message: str, api: str = "v1") -> None:
        """Queues an event about an object of ``kind`` in version ``api``. Ignores an object without a name. Never raises."""
        meta = obj.get("metadata")
        if not isinstance(meta, Mapping) or not meta.get("name"):
            return
        about = {"apiVersion": api, "kind": kind, "name": str(meta["name"])}
        about |= {key: str(meta[key]) for key in ("namespace", "uid", "resourceVersion") if meta.get(key)}
        source = {"component": self.component} | ({"host": self.host} if self.host else {})
        event = {"involvedObject": about, "type": type, "reason": reason, "message": message[:_MAX_MESSAGE]}
        event |= {"source": source, "reportingComponent": self.component, "reportingInstance": self.host}
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            if not self._lost:
                log.warning("events of %s are dropped: more than %d events are queued", self.component, _MAX_QUEUED)
            self._lost += 1

    def warn(self, obj: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        self.event(obj, kind, "Warning", reason, message)

    async def run(self) -> None:
        """Writes queued events. Never returns."""
        while True:
            about: dict[tuple[str, ...], list[JSON]] = {}
            event = await self._queue.get()
            about[_identity(event)] = [event]
            while len(about) < _AT_ONCE and not self._queue.empty():
                event = self._queue.get_nowait()
                about.setdefault(_identity(event), []).append(event)
            await asyncio.gather(*(self._write(events) for events in about.values()))
            if self._lost and self._queue.empty():
                log.warning("dropped events of %s: %d", self.component, self._lost)
                self._lost = 0

    async def _write(self, events: list[JSON]) -> None:
        """Writes events about one object, in order."""
        for event in events:
            try:
                await self._send(event)
            except ApiError as e:
                # The object's namespace was deleted, or the API server does not respond
                log.debug("cannot write an event of %s: %s", self.component, e)
            except Exception:
                log.exception("unexpected exception while an event of %s is written", self.component)

    async def _send(self, event: JSON) -> None:
        moment = time.monotonic()
        about, identity = event["involvedObject"], _identity(event)
        similar_key = (*identity, event["type"], event["reason"])
        key = (*similar_key, event["message"])
        for known in (self._similar, self._buckets, self._seen):
            _shorten(known)
        if self.combine:
            if self._is_combined(similar_key, event["message"], moment):
                event = {**event, "message": f"(combined from similar events): {event['message']}"}
                key = similar_key
        # As in client-go, an event that the rate limit drops is counted too.
        seen = self._seen.setdefault(key, _Seen(f"{about['name']}.{time.time_ns():x}", now()))
        seen.count += 1
        if self.combine and not self._buckets.setdefault("/".join(identity), _Bucket(at=moment)).take(moment):
            return
        namespace = about.get("namespace") or "default"
        change = {"count": seen.count, "lastTimestamp": now(), "message": event["message"]}
        if seen.count > 1:
            try:
                await self.client.patch(EVENTS, seen.name, change, namespace)
            except NotFoundError:
                pass
            else:
                return
        meta = {"name": seen.name, "namespace": namespace}
        head = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "firstTimestamp": seen.first}
        await self.client.create(EVENTS, head | event | change, namespace)

    def _is_combined(self, key: tuple[str, ...], message: str, moment: float) -> bool:
        similar = self._similar.setdefault(key, _Similar())
        if moment - similar.last > _WINDOW:
            similar.messages.clear()
        similar.last = moment
        similar.messages.add(message)
        if len(similar.messages) < _SIMILAR:
            return False
        similar.messages.pop()
        return True


def _identity(event: JSON) -> tuple[str, ...]:
    """Returns the identity of the object that an event is about."""
    about = event["involvedObject"]
    return tuple(str(about.get(k, "")) for k in ("apiVersion", "kind", "namespace", "name", "uid"))


def _shorten(known: dict[Any, Any]) -> None:
    while len(known) > _MAX_KEYS:
        del known[next(iter(known))]
