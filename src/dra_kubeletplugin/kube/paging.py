"""Reads a whole list in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from .client import KubeClient
from .decoding import Page
from .errors import GoneError
from .resource import Resource

T = TypeVar("T")
PAGE = 500  # objects, as in kubectl
_BATCH = 25  # objects that are handled at once; a server waits while the client does not read


async def read_all(
    client: KubeClient,
    resource: Resource,
    take: Callable[[msgspec.Raw], T],
    namespace: str = "",
    *,
    fields: str = "",
    limit: int = PAGE,
    fast: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> list[T]:
    """Reads all objects and returns the result of ``take`` for each. If the list expires between two pages, starts again once.

    Args:
        fast: the server prepares the next page while ``take`` handles the objects of a page, so two pages are in memory. ``take``
            must then check the metadata of the objects. Without ``fast``, the client checks it.
        progress: called after each page with the number of objects that have been read.

    Raises :class:`.ApiError`, and exceptions of ``take``.
    """

    def request(cont: str) -> asyncio.Task[Page]:
        page = client.page(resource, namespace, fields=fields, limit=limit, cont=cont, checked=not fast)
        return asyncio.create_task(page)

    for attempt in range(2):
        out: list[T] = []
        waiting = request("")
        try:
            while True:
                page = await waiting
                cont = page.metadata.cont
                if cont and fast:
                    waiting = request(cont)
                items = page.items or []
                for start in range(0, len(items), _BATCH):
                    await asyncio.sleep(0)  # the event loop sends the request, and receives the next page
                    out += map(take, items[start : start + _BATCH])
                progress(len(out))
                if not cont:
                    return out
                if not fast:
                    waiting = request(cont)
        except GoneError:
            if attempt:
                raise
        finally:
            waiting.cancel()
    raise AssertionError("a second attempt returns or raises")
