"""Reads a whole list in pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ..errors import ApiError, describe
from ..resourceapi.encoded import from_json
from .client import KubeClient
from .errors import GoneError
from .resource import Resource

JSON = dict[str, Any]
T = TypeVar("T")
PAGE = 500  # objects, as in kubectl


async def read_all(
    client: KubeClient,
    resource: Resource,
    take: Callable[[msgspec.Raw], T],
    namespace: str = "",
    *,
    fields: str = "",
    limit: int = PAGE,
    progress: Callable[[int], None] = lambda count: None,
) -> list[T]:
    """Reads all objects and returns the result of ``take`` for each. If the list expires between two pages, starts again once.

    Args:
        progress: called after each page with the number of objects that have been read.

    Raises :class:`ApiError`, and exceptions of ``take``.
    """
    for attempt in range(2):
        out: list[T] = []
        cont = ""
        try:
            while True:
                page = await client.page(resource, namespace, fields=fields, limit=limit, cont=cont)
                out += [take(item) for item in page.items or ()]
                progress(len(out))
                cont = page.metadata.cont
                if not cont:
                    return out
        except GoneError:
            if attempt:
                raise
    raise AssertionError("a second attempt returns or raises")


def as_json(item: msgspec.Raw) -> JSON:
    """Decodes the whole object.

    Raises :class:`ApiError` if it is not a JSON object: :meth:`KubeClient.page` checks only the metadata of items.
    """
    try:
        decoded: JSON = from_json(item, dict[str, Any])
    except (ValueError, RecursionError) as e:
        raise ApiError(f"an object of the list cannot be read: {describe(e)}") from None
    return decoded
