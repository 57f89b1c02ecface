"""Chooses the form of a response by the Accept header of the request: JSON, protobuf or YAML.

The server writes JSON if the client accepts it: a Go client that prefers protobuf reads the form that the response names. All handlers
return JSON. For a client that accepts only protobuf, :func:`in_accepted_form` converts the response. Tables exist in JSON only, and
kinds without a schema, such as custom resources, have no protobuf messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import msgspec

from dra_kubeletplugin.base.http_server.server import Request, Response

from ...schemas import protobuf
from .status_errors import StatusError

JSON, YAML = "application/json", "application/yaml"
_ANY = ("application/*", "*/*")


def check(request: Request, api_version: str, kind: str, *, watches: bool = False) -> None:
    """Raises :class:`StatusError` if the client accepts no form of the response.

    Args:
        api_version, kind: those of the objects in the response.
        watches: whether the response is a stream of events.
    """
    has_protobuf = protobuf.knows(api_version, kind)
    forms = [JSON, *(() if watches else (YAML,)), *((protobuf.MEDIA_TYPE,) if has_protobuf else ())]
    if _chosen(request, forms) is None:
        accepted = ", ".join(forms)
        raise StatusError(406, "NotAcceptable", f"only the following media types are accepted: {accepted}")


def in_accepted_form(request: Request, response: Response) -> Response:
    """Returns the response in the form that the client accepts; unchanged if there is no such form."""
    if response.content_type != JSON:
        return response
    form = _chosen(request, (JSON, protobuf.MEDIA_TYPE, YAML))
    if form == YAML and response.stream is None:
        return replace(response, content_type=YAML)  # each JSON document is also a YAML document
    if form != protobuf.MEDIA_TYPE:
        return response
    if response.stream is not None:
        return replace(response, content_type=f"{form};stream=watch", stream=_events(response.stream))
    obj = msgspec.json.decode(response.body)
    if not protobuf.knows(obj.get("apiVersion", ""), obj.get("kind", "")):
        return response
    return replace(response, content_type=form, body=protobuf.encode(obj))


async def _events(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for chunk in lines:
            events = map(msgspec.json.decode, chunk.splitlines())
            yield b"".join(protobuf.encode_event(e["type"], e["object"]) for e in events)
    finally:
        await lines.aclose()  # type: ignore[attr-defined]


def _chosen(request: Request, forms: list[str] | tuple[str, ...]) -> str | None:
    """Returns the first form that the client accepts."""
    accept = request.headers.get("accept", "")
    if not accept.strip():
        return forms[0]
    qualities: dict[str, float] = {}
    for media_type, quality in _clauses(accept):
        qualities[media_type] = max(quality, qualities.get(media_type, 0.0))
    for form in forms:
        found = next((qualities[t] for t in (form, *_ANY) if t in qualities), 0.0)
        if found > 0:
            return form
    return None


def _clauses(accept: str) -> Iterator[tuple[str, float]]:
    """Yields each media type of an Accept header that the server can write, with its quality."""
    for clause in accept.split(","):
        media_type, *parameters = (part.strip() for part in clause.split(";"))
        values = dict(p.partition("=")[::2] for p in parameters)
        if (view := values.get("as")) and (view != "Table" or media_type == protobuf.MEDIA_TYPE):
            continue  # another view of the object, which the server does not have
        try:
            quality = float(values.get("q", 1))
        except ValueError:
            quality = 1.0
        yield media_type.lower(), quality
