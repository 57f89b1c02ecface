"""A whole list, read in pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ..errors import ApiError, describe
from ..resourceapi.encoded import from_json
from .client import KubeClient
from .resource import Resource

JSON = dict[str, Any]
T = TypeVar("T")
PAGE = 500  # objects, as kubectl has it
_EXPIRED = 410


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
    """What ``take`` makes of each object; from the start once more where the list grew too old between two pages.

    Args:
        progress: hears after each page how many objects were read.

    Raises :class:`ApiError`, and what ``take`` raises.
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
        except ApiError as e:
            if e.status != _EXPIRED or attempt:
                raise
    raise AssertionError("a second attempt returns or raises")


def as_json(item: msgspec.Raw) -> JSON:
    """The object itself.

    Raises :class:`ApiError` for what is no JSON object: a page's items are checked as far as their metadata alone.
    """
    try:
        decoded: JSON = from_json(item, dict[str, Any])
    except (ValueError, RecursionError) as e:
        raise ApiError(f"an object of the list cannot be read: {describe(e)}") from None
    return decoded
