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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from ..base.backoff import Backoff
from ..base.json_types import JSON
from ..base.threads import in_own_thread
from ..errors import ApiError, clip, printable
from ..resourceapi.encoded import from_json
from .client import LARGE, KubeClient
from .decoding import Bare, as_json, converting_errors, identity
from .errors import api_error
from .resource import Resource

log = logging.getLogger(__name__)
PAGE = 500  # objects, as kubectl requests
_BATCH = 25  # objects of a list that are yielded at once
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

    Without ``copies``, ``object`` has only name, UID and resource version, and ``encoded`` is the whole object as JSON. ``encoded`` keeps
    the whole response in memory: copy its bytes to keep them longer. Without ``copies``, a deletion that the reflector finds by listing
    has only the UID.
    """

    type: str
    object: JSON
    encoded: msgspec.Raw = field(default_factory=msgspec.Raw, repr=False)


class Reflector:
    """Follows the objects that match the field selectors.

    ``items`` is the local copy, by UID. ``last_message`` is the time (``time.monotonic()``) of the server's last message; 0 if there was
    none. ``error`` is the last error; None while the watch works. ``fault_of_list`` is whether the list failed, and not only the watch.
    ``idle_timeout`` is the seconds without a line after which a watch is started again.

    Args:
        resource: the plural of a resource of resource.k8s.io, in any version that the server has; or a Resource in one version.
        copies: whether whole objects are decoded and ``items`` is kept.
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
        copies: bool = True,
        page: int = PAGE,
        cut: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.plural = resource if isinstance(resource, str) else resource.plural
        self.namespace = namespace
        self.fields = fields
        self.idle_timeout = IDLE_TIMEOUT
        self.items: dict[str, JSON] = {}
        self.last_message = 0.0
        self.error: ApiError | None = None
        self.fault_of_list = False
        self._copies = copies
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
                    yield Event("SYNCED", {})
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
        """Yields the changes of each page. With copies, only one page is in memory; else the server prepares the next page meanwhile."""
        found: dict[str, JSON] = {}
        listed: set[str] = set()
        cont, following = "", None
        try:
            while True:
                items, position, cont = await (following or self._page(resource, cont))
                following = asyncio.create_task(self._page(resource, cont)) if cont and not self._copies else None
                for number, (item, encoded) in enumerate(items):
                    if number % _BATCH == 0:
                        await asyncio.sleep(0)  # the event loop sends the request, and receives the next page
                    uid, version = identity(item)
                    before = self._known.get(uid)
                    self._known[uid] = version
                    listed.add(uid)
                    if self._copies:
                        found[uid] = item
                    if version != before:
                        yield Event("ADDED" if before is None else "MODIFIED", item, encoded)
                if not cont:
                    break
        finally:
            if following is not None:
                following.cancel()
        for uid in self._known.keys() - listed:
            del self._known[uid]
            yield Event("DELETED", self.items.get(uid) or {"metadata": {"uid": uid}})
        self.items, self._position = found, position
        self._alive()

    async def _page(self, resource: Resource, cont: str) -> tuple[Iterable[tuple[JSON, msgspec.Raw]], str, str]:
        """Returns the items, the list's resource version, and the continue token."""
        found = await self.client.page(resource, self.namespace, fields=self.fields, limit=self._limit, cont=cont)
        decode = as_json if self._copies else _bare
        return ((decode(i), i) for i in found.items or ()), found.metadata.resource_version, found.metadata.cont

    def _decode(self, line: bytes) -> tuple[str, JSON, msgspec.Raw]:
        """Returns the type of an event, its object, and the encoded object."""
        found = from_json(line, _Line)
        is_whole = self._copies or found.type == "ERROR"
        return found.type, from_json(found.object) if is_whole else _bare(found.object), found.object

    async def _take(self, line: bytes) -> Event | None:
        """Handles one line of a watch. Returns the event if an object changed. A long line is decoded in a thread.

        Raises :class:`ApiError`.
        """
        what = f"watch {self.plural}"
        with converting_errors(what, self.client.transport.server, lambda: ""):
            kind, obj, encoded = self._decode(line) if len(line) <= LARGE else await in_own_thread(self._decode, line)
            if kind == "ERROR":
                message = clip(printable(obj.get("message")), 300)
                raise api_error(f"{what}: {message}", int(obj.get("code") or 500), obj)
            if kind == "BOOKMARK":
                self._position = str(obj["metadata"]["resourceVersion"])
                return None
            if kind not in {"ADDED", "MODIFIED", "DELETED"}:
                raise ValueError(f"an event of type {clip(printable(kind), 100)!r}")
            uid, version = identity(obj)
            self._position = version
        if kind == "DELETED":
            self.items.pop(uid, None)
            self._known.pop(uid, None)
        else:
            self._known[uid] = version
            if self._copies:
                self.items[uid] = obj
        return Event(kind, obj, encoded)


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


def _bare(encoded: msgspec.Raw) -> JSON:
    meta = from_json(encoded, Bare).metadata
    return {"metadata": {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version}}
