"""List and watch: a copy of some objects that follows the server through everything that can go wrong.

Lists again after 410, and after errors with growing pauses; resumes from the last bookmark when a connection ends.
Source: the API concepts page of Kubernetes, "Efficient detection of changes".
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec

from ..errors import ApiError
from .client import KubeClient, Resource, error_of

log = logging.getLogger(__name__)
JSON = dict[str, Any]
WATCH_SECONDS = 290  # the server ends a watch after this; it must stay below any proxy's five minutes
_MAX_PAUSE = 30.0
_SHORT = 5.0  # a watch that ends sooner than this is not healthy


@dataclass(frozen=True)
class Event:
    """``SYNCED`` after a list, with no object; ``ADDED``, ``MODIFIED`` or ``DELETED`` with one."""

    type: str
    object: JSON


class _Expired(Exception):
    """Our resource version is too old (410)."""


class Reflector:
    """Follows the objects of ``resource`` that fit the selectors; ``items`` is the copy, by UID."""

    def __init__(
        self, client: KubeClient, resource: Resource, namespace: str = "", fields: str = "", labels: str = ""
    ) -> None:
        self.client = client
        self.resource = resource
        self.namespace = namespace
        self.selectors = {k: v for k, v in (("fieldSelector", fields), ("labelSelector", labels)) if v}
        self.items: dict[str, JSON] = {}
        self._version = ""

    async def events(self) -> AsyncIterator[Event]:
        """Never ends. Errors are logged and retried; changes that a list finds come as events before its ``SYNCED``."""
        failures = 0
        while True:
            try:
                if not self._version:
                    for event in await self._list():
                        yield event
                    yield Event("SYNCED", {})
                started = time.monotonic()
                async for event in self._watch():
                    failures = 0
                    yield event
                if time.monotonic() - started >= _SHORT:
                    failures = 0
                    continue
                failures += 1
            except _Expired:
                self._version = ""
                failures += 1
            except ApiError as e:
                failures += 1
                level = logging.WARNING if failures in {1, 5} or failures % 20 == 0 else logging.DEBUG
                log.log(level, "watching %s: %s (try %d)", self.resource.plural, e, failures)
                if e.status and not e.unreachable:
                    self._version = ""
            await asyncio.sleep(self._pause(failures))

    @staticmethod
    def _pause(failures: int) -> float:
        return float(min(_MAX_PAUSE, 0.05 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))

    async def _list(self) -> list[Event]:
        found: dict[str, JSON] = {}
        cont = ""
        while True:
            page = await self.client.list(
                self.resource,
                self.namespace,
                fields=self.selectors.get("fieldSelector", ""),
                labels=self.selectors.get("labelSelector", ""),
                limit=500,
                cont=cont,
            )
            for item in page.get("items") or []:
                found[item["metadata"]["uid"]] = item
            cont = page["metadata"].get("continue", "")
            if not cont:
                break
        out = []
        for uid, item in found.items():
            before = self.items.get(uid)
            if before is None:
                out.append(Event("ADDED", item))
            elif before["metadata"].get("resourceVersion") != item["metadata"].get("resourceVersion"):
                out.append(Event("MODIFIED", item))
        out += [Event("DELETED", item) for uid, item in self.items.items() if uid not in found]
        self.items = found
        self._version = page["metadata"]["resourceVersion"]
        return out

    async def _watch(self) -> AsyncIterator[Event]:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_SECONDS),
            **self.selectors,
        }
        target = f"{self.resource.path(self.namespace)}?{urlencode(query)}"
        headers = await self.client.headers()
        async with self.client.transport.stream(target, headers, self.client.timeout, WATCH_SECONDS + 30) as (
            head,
            lines,
        ):
            if head.status != 200:
                body = b"".join([line async for line in lines])
                if head.status == 401:
                    self.client.config.credentials.rejected()
                if head.status == 410:
                    raise _Expired
                raise error_of(type(head)(head.status, head.headers, body), f"watch {self.resource.plural}")
            async for line in lines:
                event = self._take(line)
                if event:
                    yield event

    def _take(self, line: bytes) -> Event | None:
        try:
            raw = msgspec.json.decode(line)
            kind, obj = raw["type"], raw["object"]
        except (msgspec.DecodeError, KeyError, TypeError):
            raise ApiError(f"watch {self.resource.plural}: a line is no event: {line[:80]!r}") from None
        if kind == "ERROR":
            if obj.get("code") == 410:
                raise _Expired
            raise ApiError(f"watch {self.resource.plural}: {obj.get('message')}", status=int(obj.get("code") or 500))
        self._version = obj["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return None
        uid = obj["metadata"]["uid"]
        if kind == "DELETED":
            self.items.pop(uid, None)
        else:
            self.items[uid] = obj
        return Event(kind, obj)
