"""Watches: initial objects, changes, bookmarks, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from ...observe.http import Request
from . import strategy
from .kinds import table
from .requests import Refusal, Target, status_response, wants_table
from .storage import ExpiredError, Storage

JSON = dict[str, Any]
BOOKMARK_EVERY = 30.0  # seconds


async def events(
    storage: Storage,
    request: Request,
    target: Target,
    matches: Callable[[Mapping[str, Any]], bool],
    since: int,
    *,
    initial: bool,
) -> AsyncIterator[bytes]:
    """The lines of a watch from version ``since`` on; ``initial`` objects come first where they are wanted."""
    as_table = wants_table(request)
    bookmarks = request.query.get("allowWatchBookmarks") in {"true", "1"}
    seconds = float(request.query.get("timeoutSeconds") or 1800)

    def line(type: str, obj: JSON) -> bytes:
        shown = (
            table(target.kind, [obj], {"resourceVersion": obj["metadata"]["resourceVersion"]})
            if as_table
            else (strategy.outgoing(target.kind, target.version, obj))
        )
        return msgspec.json.encode({"type": type, "object": shown}) + b"\n"

    def bookmark(*, end: bool = False) -> bytes:
        meta: JSON = {"resourceVersion": str(storage.version)}
        if end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": target.kind.kind, "apiVersion": target.kind.api_version(target.version), "metadata": meta}
        return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"

    if initial:
        for obj in storage.list(target.qualified, target.namespace):
            if matches(obj):
                yield line("ADDED", obj)
        if request.query.get("sendInitialEvents") == "true" and bookmarks:
            yield bookmark(end=True)
    changes = storage.watch(target.qualified, since, matches)
    step: asyncio.Future[Any] | None = None
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    try:
        while (left := deadline - loop.time()) > 0:
            step = step or asyncio.ensure_future(anext(changes))
            done, _ = await asyncio.wait({step}, timeout=min(left, BOOKMARK_EVERY))
            if not done:
                if bookmarks and not as_table:
                    yield bookmark()
                continue
            try:
                change = step.result()
            except StopAsyncIteration:
                return
            except ExpiredError:
                gone = status_response(Refusal(410, "Expired", f"too old resource version: {since}")).body
                yield b'{"type":"ERROR","object":' + gone + b"}\n"
                return
            step = None
            yield line(change.type, change.object)
        if bookmarks and not as_table:
            yield bookmark()
    finally:
        if step is not None and not step.done():
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        await changes.aclose()  # type: ignore[attr-defined]
