"""Lists and watches the objects of one resource, and recovers from every failure of server and connection.

After a 410 it lists again. After other errors it retries with increasing pauses. When a connection ends, it watches from the last
resource version. It discovers the version of resource.k8s.io again after a failure and after an abnormal end of a watch, so that it
follows an upgraded server at once.
Source: the API concepts page of Kubernetes, "Efficient detection of changes".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from ..base.backoff import Backoff
from ..base.threads import in_own_thread
from ..errors import ApiError, clip, printable
from ..resourceapi.encoded import from_json
from .client import LARGE, KubeClient
from .decoding import Bare, Metadata, converting_errors
from .errors import api_error
from .paging import PAGE, objects, pages
from .resource import Resource

log = logging.getLogger(__name__)
WATCH_SECONDS = (
    290  # the server ends a watch after this time, which must be less than the five minutes of common proxies
)
# A watch is started again after this number of seconds without a line. The server sends a bookmark about every minute, and the first one
# of an idle watch after up to 120 s (measured with 1.36.2), so an idle watch continues. If the server sends no bookmarks, this costs one
# request every 180 s. TCP keepalive notices a vanished peer after 30 s; this limit is for a peer that is connected but forwards no data.
IDLE_TIMEOUT = 180.0
_MAX_PAUSE = 30.0
_SPREAD = 1.0  # the maximum random pause in seconds before a reconnect, when a server ends many watches at once
_RELIST = 3  # number of consecutive failures of any kind after which objects are listed again
_SHORT = 5.0  # a watch that lasts fewer seconds counts as a failure


@dataclass(frozen=True)
class Event:
    """``ADDED``, ``MODIFIED`` or ``DELETED`` with an object, or ``SYNCED`` without an object after a list.

    ``encoded`` is the whole object as JSON. It keeps the whole response in memory: copy its bytes to keep them longer. A deletion that the
    reflector finds by listing has only the UID.
    """

    type: str
    uid: str = ""
    name: str = ""
    encoded: msgspec.Raw = field(default_factory=msgspec.Raw, repr=False)


class Reflector:
    """Follows the objects that match the field selectors. It keeps their UIDs and resource versions only.

    ``last_message`` is the time (``time.monotonic()``) of the server's last message; 0 if there was
    none. ``error`` is the last error; None while the watch works. ``fault_of_list`` is whether the list failed, and not only the watch.
    ``idle_timeout`` is the seconds without a line after which a watch is started again.

    Args:
        resource: the plural of a resource of resource.k8s.io, in any version that the server has; or a Resource in one version.
        page: objects in one response to a list. A response is decoded at once, so use a small number if users can create large objects.
        cut: called when a watch is open again after an abnormal end, because the server may have been replaced or upgraded.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource | str,
        namespace: str = "",
        fields: str = "",
        *,
        page: int = PAGE,
        cut: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.plural = resource if isinstance(resource, str) else resource.plural
        self.namespace = namespace
        self.fields = fields
        self.idle_timeout = IDLE_TIMEOUT
        self.last_message = 0.0
        self.error: ApiError | None = None
        self.fault_of_list = False
        self._limit = page
        self._cut = cut
        self._discovered = isinstance(resource, str)
        self._resource = None if isinstance(resource, str) else resource
        self._known: dict[str, str] = {}  # UID → resource version
        self._seconds = WATCH_SECONDS  # timeout that was requested for the watch
        self._position = ""  # the resource version from which to watch; empty to list first

    @property
    def fault(self) -> str:
        """The text of the last error; empty while the watch works."""
        return str(self.error or "")

    @property
    def resource(self) -> Resource | None:
        """The resource in the version that is watched; None until the server's version is known."""
        return self._resource

    async def events(self) -> AsyncIterator[Event]:
        """Yields events and never ends. Logs errors and retries. Changes that a list shows come before its ``SYNCED`` event."""
        backoff, broken = Backoff(0.1, _MAX_PAUSE, jitter=0.5), False
        while True:
            started = math.inf
            try:
                resource = await self._find(again=broken or backoff.failures > 0)
                if not self._position:
                    async with contextlib.aclosing(self._list(resource)) as found:
                        async for event in found:
                            yield event
                    yield Event("SYNCED")
                started = time.monotonic()
                async with self._opened(resource) as lines:
                    if broken:
                        self._cut()
                    broken = True
                    async for line in lines:
                        self._alive()
                        changed = await self._take(line)
                        backoff.reset()
                        if changed:
                            yield changed
                lasted = time.monotonic() - started
                backoff.failures = 0 if lasted >= _SHORT else backoff.failures + 1
                broken = lasted < self._seconds - 1
            except ApiError as e:
                failures = backoff.failures = backoff.failures + 1
                # A new object, because the frames of the traceback keep the objects of a list that failed.
                self.error, self.fault_of_list = api_error(str(e), e.status, e.details), started == math.inf
                level = logging.WARNING if failures in {1, 5} or failures % 20 == 0 else logging.DEBUG
                log.log(level, "cannot watch %s: %s (failure %d)", self.plural, e, failures)
                if not e.unreachable or failures % _RELIST == 0:
                    # Causes are, for example, a 410, and an event that cannot be decoded and would be sent again.
                    self._position = ""
            pause = backoff.delay()
            if _SHORT <= time.monotonic() - started < self._seconds - 1:
                # A server that stops ends the watches of all nodes at once. Random pauses spread the reconnects.
                pause += random.uniform(0, _SPREAD)
            if pause:
                await asyncio.sleep(pause)

    def _alive(self) -> None:
        self.last_message, self.error = time.monotonic(), None

    async def _find(self, *, again: bool) -> Resource:
        """Returns the resource in the server's current version. If that cannot be discovered, the previous version is kept.

        Args:
            again: whether the server may have been replaced since the version was discovered. If the same server only stops serving
                the version, it responds with an error, and the version is then discovered again.
        """
        before = self._resource
        if before is not None and not self._discovered:
            return before
        try:
            if before is not None and again:
                await self.client.refresh_version()
            found = await self.client.dra(self.plural)
        except ApiError as e:
            if before is None or not e.unreachable:
                raise
            return before
        if found != before:
            self._resource, self._position = found, ""
        return found

    def _opened(self, resource: Resource) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]:
        # Random durations, so that the watches of nodes that started together do not all end together.
        self._seconds = int(WATCH_SECONDS * random.uniform(0.7, 1.0))
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._position,
            "timeoutSeconds": str(self._seconds),
            **({"fieldSelector": self.fields} if self.fields else {}),
        }
        return self.client.stream(resource.path(self.namespace), query, self.idle_timeout, self._alive)

    async def _list(self, resource: Resource) -> AsyncGenerator[Event]:
        """Yields the changes of each page."""
        listed: set[str] = set()
        listing = pages(self.client, resource, self.namespace, fields=self.fields, limit=self._limit)
        async with contextlib.aclosing(listing) as found:
            async for page in found:
                async for item in objects(page):
                    meta = from_json(item, Bare).metadata
                    before = self._known.get(meta.uid)
                    self._known[meta.uid] = meta.resource_version
                    listed.add(meta.uid)
                    if meta.resource_version != before:
                        yield Event("ADDED" if before is None else "MODIFIED", meta.uid, meta.name, item)
        for uid in self._known.keys() - listed:
            del self._known[uid]
            yield Event("DELETED", uid)
        self._position = page.metadata.resource_version
        self._alive()

    async def _take(self, line: bytes) -> Event | None:
        """Handles one line of a watch. Returns the event if an object changed. A long line is decoded in a thread.

        Raises :class:`ApiError`.
        """
        what = f"watch {self.plural}"
        with converting_errors(what, self.client.transport.server, lambda: ""):
            found, meta = _decode(line) if len(line) <= LARGE else await in_own_thread(_decode, line)
            if meta is None:
                status = from_json(found.object)
                message = clip(printable(status.get("message")), 300)
                raise api_error(f"{what}: {message}", int(status.get("code") or 500), status)
            if found.type == "BOOKMARK":
                self._position = meta.resource_version
                return None
            if found.type not in {"ADDED", "MODIFIED", "DELETED"}:
                raise ValueError(f"an event of type {clip(printable(found.type), 100)!r}")
            if not (meta.name and meta.uid):
                raise ValueError("an object has no name or no UID")
        self._position = meta.resource_version
        if found.type == "DELETED":
            self._known.pop(meta.uid, None)
        else:
            self._known[meta.uid] = meta.resource_version
        return Event(found.type, meta.uid, meta.name, found.object)


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


def _decode(line: bytes) -> tuple[_Line, Metadata | None]:
    """Returns an event, and its object's metadata; None for an error, whose object is a Status."""
    found: _Line = from_json(line, _Line)
    return found, None if found.type == "ERROR" else from_json(found.object, Bare).metadata
