"""Decodes responses of the API server. Converts every failure of a server, proxy, network or file into an ApiError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..base.json_types import JSON
from ..errors import ApiError, clip, describe, printable
from ..resourceapi.encoded import from_json
from .errors import api_error
from .http1 import HttpResponse, MalformedResponseError

_SHOWN = 300  # bytes of an unexpected response that are shown in an error


@contextlib.contextmanager
def converting_errors(what: str, server: str, late: Callable[[], str]) -> Iterator[None]:
    """Converts every ``Exception`` in the block into :class:`ApiError`; ``late`` returns the text for a timeout."""
    try:
        yield
    except ApiError:
        raise
    except TimeoutError as e:
        # A TimeoutError with an errno comes from the operating system and is about the connection.
        reason = late() if e.errno is None else f"{server} cannot be reached: {describe(e)}"
        raise ApiError(f"{what}: {reason}") from None
    except OSError as e:
        raise ApiError(f"{what}: {server} cannot be reached: {describe(e)}") from None
    except MalformedResponseError as e:
        raise ApiError(f"{what}: the response of {server} is not HTTP of an API server: {describe(e)}") from None
    except Exception as e:
        raise ApiError(f"{what}: the response of {server} cannot be used: {describe(e)}") from e


def check_response(response: HttpResponse, what: str) -> HttpResponse:
    """Returns a successful response unchanged.

    Raises :class:`ApiError` for any other response. The error's status is 0 for a redirect, and for a web page with a status below
    500: a proxy sent these responses, not the API server.
    """
    if response.status >= 400:
        raise refusal(response, what)
    if response.status >= 300:
        place = clip(printable(response.header(b"location")), _SHOWN)
        raise ApiError(
            f"{what}: {response.status}, a redirect to {place!r}, which no API server sends: is there a proxy in between?"
        )
    return response


def decode_object(response: HttpResponse, what: str) -> JSON:
    """Returns the JSON object of a successful response, {} for an empty body. Raises :class:`ApiError` if it has another body."""
    if not response.body:
        return {}
    try:
        out = from_json(response.body)
    except (ValueError, RecursionError) as e:
        raise ApiError(f"{what}: the response is not JSON ({printable(e)}): {_excerpt(response)}") from None
    if not isinstance(out, dict):
        raise ApiError(f"{what}: the response is not a JSON object: {_excerpt(response)}")
    return out


class Metadata(msgspec.Struct, rename="camel"):
    """Fields of an object's or a list's metadata. A list has no name and no UID."""

    resource_version: str
    name: str = ""
    uid: str = ""
    cont: str = msgspec.field(default="", name="continue")


class Bare(msgspec.Struct):
    """An object with only its metadata decoded; the rest is skipped to save time and memory."""

    metadata: Metadata


class Page(msgspec.Struct):
    """A list, or one page of a list. The items stay encoded and are decoded one at a time, so that memory use stays small."""

    metadata: Metadata
    items: list[msgspec.Raw] | None = None


def decode_page(response: HttpResponse, what: str, *, checked: bool = True) -> Page:
    """Decodes the list of a successful response. Raises :class:`ApiError` if it is not a list, or if an item has no valid metadata.

    Args:
        checked: whether the items are checked.
    """
    try:
        page: Page = from_json(response.body, Page)
        for item in page.items or [] if checked else ():
            meta = from_json(item, Bare).metadata
            if not (meta.name and meta.uid):
                raise ValueError("an item has no name or no UID")
    except (ValueError, RecursionError) as e:
        raise ApiError(
            f"{what}: the response is not a list of objects ({printable(e)}): {_excerpt(response)}"
        ) from None
    return page


def as_json(item: msgspec.Raw) -> JSON:
    """Decodes the whole object.

    Raises :class:`ApiError` if it is not a JSON object: :meth:`.KubeClient.page` checks only the metadata of items.
    """
    try:
        decoded: JSON = from_json(item, dict[str, Any])
    except (ValueError, RecursionError) as e:
        raise ApiError(f"an object of the list cannot be read: {describe(e)}") from None
    return decoded


def require_identity(obj: JSON, what: str) -> JSON:
    """Returns ``obj`` unchanged. Raises :class:`ApiError` if it lacks its name, UID or resource version."""
    try:
        meta = msgspec.convert(obj, Bare).metadata
        if meta.name and meta.uid:
            return obj
    except msgspec.ValidationError:
        pass
    shown = clip(printable(obj), _SHOWN)
    raise ApiError(f"{what}: the response is not an object with name, UID and resourceVersion: {shown}")


def refusal(response: HttpResponse, what: str) -> ApiError:
    """Returns the error for a refused request, with the Status object if the response contains one."""
    try:
        found = from_json(response.body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        message = clip(printable(found.get("message") or found.get("reason") or ""), _SHOWN * 3)
        return api_error(f"{what}: {response.status} {message}", response.status, found)
    status = response.status
    if status < 500 and "html" in response.header(b"content-type"):
        status = 0  # HTML comes from a proxy; the API server may decide differently
    return api_error(f"{what}: {response.status} {_excerpt(response)}", status)


def _excerpt(response: HttpResponse) -> str:
    return clip(printable(response.body[: 2 * _SHOWN].decode(errors="replace")), _SHOWN)
