"""Reads a list in pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import msgspec

from .client import KubeClient
from .decoding import Page
from .errors import GoneError
from .resource import Resource

T = TypeVar("T")
PAGE = 500  # objects, as in kubectl
_BATCH = 25  # objects that are handled at once; a server waits while the client does not read


async def pages(
    client: KubeClient,
    resource: Resource,
    namespace: str = "",
    *,
    fields: str = "",
    limit: int = PAGE,
    checked: bool = True,
) -> AsyncGenerator[Page, None]:
    """Yields the pages of a list. The server prepares the next page meanwhile, so two pages are in memory.

    Args:
        checked: whether the client checks the metadata of the objects; False if the caller checks it.

    Raises :class:`.ApiError`.
    """

    def request(cont: str) -> asyncio.Task[Page]:
        page = client.page(resource, namespace, fields=fields, limit=limit, cont=cont, checked=checked)
        return asyncio.create_task(page)

    following = request("")
    try:
        while True:
            page = await following
            if cont := page.metadata.cont:
                following = request(cont)
            yield page
            if not cont:
                return
    finally:
        following.cancel()


async def objects(page: Page) -> AsyncGenerator[msgspec.Raw, None]:
    """Yields the objects of a page. Lets other tasks run meanwhile: one of them sends the request for the next page."""
    for number, item in enumerate(page.items or ()):
        if number % _BATCH == 0:
            await asyncio.sleep(0)
        yield item


async def read_all(
    client: KubeClient,
    resource: Resource,
    take: Callable[[msgspec.Raw], T],
    namespace: str = "",
    *,
    fields: str = "",
    limit: int = PAGE,
    checked: bool = True,
    progress: Callable[[int], None] = lambda count: None,
) -> list[T]:
    """Reads all objects and returns the result of ``take`` for each. If the list expires between two pages, starts again once.

    Args:
        checked: as for :func:`pages`.
        progress: called after each page with the number of objects that have been read.

    Raises :class:`.ApiError`, and exceptions of ``take``.
    """
    for attempt in range(2):
        out: list[T] = []
        listed = pages(client, resource, namespace, fields=fields, limit=limit, checked=checked)
        async with contextlib.aclosing(listed) as found:
            try:
                async for page in found:
                    out += [take(item) async for item in objects(page)]
                    progress(len(out))
            except GoneError:
                if attempt:
                    raise
            else:
                break
    return out
