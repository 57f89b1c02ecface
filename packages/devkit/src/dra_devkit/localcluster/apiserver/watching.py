"""Streams watch events: initial objects, changes, bookmarks, and the end after a timeout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from dra_kubeletplugin.base.json_types import JSON

from . import strategy
from .columns import table
from .requests import RequestInfo, status_response
from .status_errors import StatusError
from .storage import ExpiredError, Match, Storage, StorageChange, Watch

BOOKMARK_EVERY = 30.0  # seconds


@dataclass(frozen=True)
class WatchOptions:
    """The options of a watch request.

    Attributes:
        since: the version after which the watch begins.
        initial: whether the existing objects are sent first.
        ends_initial: whether a bookmark is sent after the existing objects.
        include: the part of each object in a row of a Table (`None`, `Metadata` or `Object`); None if the request is not for a Table.
        seconds: duration of the watch.
        only: path and value of a field that every matching object has; None if there is no such field.
    """

    since: int
    initial: bool
    ends_initial: bool
    bookmarks: bool
    include: str | None
    seconds: float
    only: tuple[tuple[str, ...], str] | None = None


async def events(storage: Storage, target: RequestInfo, matches: Match, options: WatchOptions) -> AsyncIterator[bytes]:
    """Yields the watch events, one JSON line each."""
    form = (target.kind.key, target.version, options.include)

    def shown(obj: JSON) -> JSON:
        if options.include is None:
            return strategy.outgoing(target.kind, target.version, obj)
        version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        return table(target.kind.columns, [obj], version, include=options.include)

    def line(change: StorageChange) -> bytes:
        found = change.lines.get(form)
        if found is None:
            found = msgspec.json.encode({"type": change.type, "object": shown(change.object)}) + b"\n"
            change.lines[form] = found
        return found

    def bookmark(watch: Watch, *, end: bool = False) -> bytes:
        meta: JSON = {"resourceVersion": str(watch.version(storage.version))}
        if end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": target.kind.kind, "apiVersion": target.kind.api_version(target.version), "metadata": meta}
        return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"

    since = storage.version if options.initial else options.since
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.seconds
    with contextlib.ExitStack() as stack:
        try:
            watch = stack.enter_context(storage.watch(target.kind.storage, since, matches, options.only))
        except ExpiredError:
            error = status_response(StatusError(410, "Expired", f"too old resource version: {since}")).body
            yield b'{"type":"ERROR","object":' + error + b"}\n"
            return
        if options.initial:
            # The watch has begun, so that it queues the changes that happen during the list.
            for obj in storage.list(target.kind.storage, target.namespace):
                if matches(obj):
                    yield msgspec.json.encode({"type": "ADDED", "object": shown(obj)}) + b"\n"
            if options.ends_initial:
                yield bookmark(watch, end=True)
        while (remaining := deadline - loop.time()) > 0:
            timer = loop.call_later(min(remaining, BOOKMARK_EVERY), watch.wake)
            stack.callback(timer.cancel)
            while timer.when() > loop.time():
                if lines := b"".join([line(change) for change in await watch.next()]):
                    yield lines
                elif watch.ended:
                    return
            if options.bookmarks:
                yield bookmark(watch)
