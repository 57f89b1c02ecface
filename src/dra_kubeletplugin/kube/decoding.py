"""The one place where whatever a server, a proxy, a network or a file does becomes an ApiError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..errors import ApiError, clip, describe, printable
from ..resourceapi.encoded import from_json
from .http1 import HttpResponse, MalformedResponseError

JSON = dict[str, Any]
_SHOWN = 300  # bytes of an odd answer that are worth showing


@contextlib.contextmanager
def translated(what: str, server: str, late: Callable[[], str]) -> Iterator[None]:
    """Raises :class:`ApiError` for every ``Exception`` inside; ``late`` says what was waited for in vain."""
    try:
        yield
    except ApiError:
        raise
    except TimeoutError as e:
        # One that has a number is the operating system's, about the connection.
        reason = late() if e.errno is None else f"{server} cannot be reached: {describe(e)}"
        raise ApiError(f"{what}: {reason}") from None
    except OSError as e:
        raise ApiError(f"{what}: {server} cannot be reached: {describe(e)}") from None
    except MalformedResponseError as e:
        raise ApiError(f"{what}: what {server} answers is no HTTP of an API server: {describe(e)}") from None
    except Exception as e:
        raise ApiError(f"{what}: the answer of {server} cannot be used: {describe(e)}") from e


def decode_object(answer: HttpResponse, what: str, decode: Callable[[bytes], Any] = from_json) -> JSON:
    """The JSON object of a good answer, {} for none.

    Raises :class:`ApiError` for all else, with status 0 where somebody else than the API server answered: a proxy's page or
    redirect must not be taken for its word.
    """
    if answer.status >= 400:
        raise refusal(answer, what)
    if answer.status >= 300:
        place = clip(printable(answer.header(b"location")), _SHOWN)
        raise ApiError(
            f"{what}: {answer.status}, a redirect to {place!r}, which no API server sends: is a proxy between?"
        )
    if not answer.body:
        return {}
    try:
        out = decode(answer.body)
    except (ValueError, RecursionError) as e:
        raise ApiError(f"{what}: the answer is no JSON ({printable(e)}): {_excerpt(answer)}") from None
    if not isinstance(out, dict):
        raise ApiError(f"{what}: the answer is no JSON object: {_excerpt(answer)}")
    return out


def check_response(answer: HttpResponse, what: str) -> HttpResponse:
    """A good answer as it came. Raises :class:`ApiError` as :func:`decode_object` does."""
    if answer.status >= 300:
        decode_object(answer, what)  # which raises
    return answer


class Metadata(msgspec.Struct, rename="camel"):
    """What of an object's or a list's metadata is read where nothing else is. A list has no name and no UID."""

    resource_version: str
    name: str = ""
    uid: str = ""
    cont: str = msgspec.field(default="", name="continue")


class Bare(msgspec.Struct):
    """An object of which the metadata is read: the rest is passed over, and takes neither time nor memory."""

    metadata: Metadata


class Page(msgspec.Struct):
    """A list, or a part of one, whose items are as they came: decoded one at a time, it is never in memory whole."""

    metadata: Metadata
    items: list[msgspec.Raw] | None = None


def decode_page(answer: HttpResponse, what: str) -> Page:
    """Raises :class:`ApiError` as :func:`decode_object` does, and where an item is no object of an API server."""
    if answer.status >= 300:
        decode_object(answer, what)  # which raises
    try:
        page: Page = from_json(answer.body, Page)
        for item in page.items or []:
            meta = from_json(item, Bare).metadata
            if not (meta.name and meta.uid):
                raise ValueError("an item has no name or no UID")
    except (ValueError, RecursionError) as e:
        raise ApiError(f"{what}: the answer is no list of objects ({printable(e)}): {_excerpt(answer)}") from None
    return page


def identity(obj: Any) -> tuple[str, str]:
    """UID and resource version.

    Raises ``ValueError`` for what is no object of an API server.
    """
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    if isinstance(meta, dict):
        name, uid, version = meta.get("name"), meta.get("uid"), meta.get("resourceVersion")
        if isinstance(name, str) and isinstance(uid, str) and isinstance(version, str) and name and uid:
            return uid, version
    raise ValueError(f"no object with name, UID and resourceVersion: {clip(printable(obj), _SHOWN)}")


def identified(obj: JSON, what: str) -> JSON:
    """``obj``. Raises :class:`ApiError` where it is no object of an API server."""
    try:
        identity(obj)
    except ValueError as e:
        raise ApiError(f"{what}: the answer is {e}") from None
    return obj


def decode_list(page: JSON, what: str) -> JSON:
    """``page`` with its items, which may have been null. Raises :class:`ApiError` where it is no list of objects."""
    items, meta = page.get("items") or [], page.get("metadata")
    if not isinstance(items, list) or not isinstance(meta, dict):
        raise ApiError(f"{what}: the answer is no list: {clip(printable(page), _SHOWN)}")
    if not isinstance(meta.get("resourceVersion"), str) or not isinstance(meta.get("continue", ""), str):
        raise ApiError(f"{what}: the answer is no list that can be followed: {clip(printable(meta), _SHOWN)}")
    for item in items:
        identified(item, what)
    return {**page, "items": items}


def refusal(answer: HttpResponse, what: str) -> ApiError:
    """The error of a refusal, with the Status object where there is one."""
    try:
        found = from_json(answer.body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        message = clip(printable(found.get("message") or found.get("reason") or ""), _SHOWN * 3)
        return ApiError(f"{what}: {answer.status} {message}", status=answer.status, details=found)
    status = answer.status
    if status < 500 and "html" in answer.header(b"content-type"):
        status = 0  # a page is a proxy's; the API server may think otherwise
    return ApiError(f"{what}: {answer.status} {_excerpt(answer)}", status=status)


def _excerpt(answer: HttpResponse) -> str:
    return clip(printable(answer.body[: 2 * _SHOWN].decode(errors="replace")), _SHOWN)
