"""Watches: initial objects, changes, bookmarks, and an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from . import strategy
from .kinds import table
from .requests import RequestInfo, status_response
from .status_errors import StatusError
from .storage import ExpiredError, Match, Storage, StorageChange, Watch

JSON = dict[str, Any]
BOOKMARK_EVERY = 30.0  # seconds


@dataclass(frozen=True)
class WatchOptions:
    """What a client asks of a watch.

    Attributes:
        since: the version after which it begins.
        initial: objects that exist come first.
        ends_initial: a bookmark tells when all of them have come.
        include: for a table, how much of each object; None for whole objects.
        seconds: until it ends.
        only: a field's path and the value without which nothing matches.
    """

    since: int
    initial: bool
    ends_initial: bool
    bookmarks: bool
    include: str | None
    seconds: float
    only: tuple[tuple[str, ...], str] | None = None


async def events(storage: Storage, target: RequestInfo, matches: Match, wish: WatchOptions) -> AsyncIterator[bytes]:
    """The lines of a watch."""
    form = (target.kind.key, target.version, wish.include)

    def shown(obj: JSON) -> JSON:
        if wish.include is None:
            return strategy.outgoing(target.kind, target.version, obj)
        version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        return table(target.kind, [obj], version, include=wish.include)

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

    since = storage.version if wish.initial else wish.since
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wish.seconds
    with contextlib.ExitStack() as stack:
        try:
            watch = stack.enter_context(storage.watch(target.kind.storage, since, matches, wish.only))
        except ExpiredError:
            gone = status_response(StatusError(410, "Expired", f"too old resource version: {since}")).body
            yield b'{"type":"ERROR","object":' + gone + b"}\n"
            return
        if wish.initial:
            for obj in storage.list(target.kind.storage, target.namespace):  # changes meanwhile wait in the watch
                if matches(obj):
                    yield msgspec.json.encode({"type": "ADDED", "object": shown(obj)}) + b"\n"
            if wish.ends_initial:
                yield bookmark(watch, end=True)
        while (left := deadline - loop.time()) > 0:
            timer = loop.call_later(min(left, BOOKMARK_EVERY), watch.wake)
            stack.callback(timer.cancel)
            while timer.when() > loop.time():
                if lines := b"".join([line(change) for change in await watch.next()]):
                    yield lines
                elif watch.ended:
                    return
            if wish.bookmarks:
                yield bookmark(watch)
