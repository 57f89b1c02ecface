"""Chooses the form of a response by the Accept header of the request: JSON or YAML.

A Go client that prefers protobuf accepts JSON too, and reads the form that the response names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dra_kubeletplugin.base.http_server.server import Request, Response

from .status_errors import StatusError

JSON, YAML = "application/json", "application/yaml"
_ANY = ("application/*", "*/*")


def check(request: Request, *, watches: bool = False) -> None:
    """Raises :class:`StatusError` if the client accepts no form of the response. ``watches``: it is a stream of events."""
    forms = (JSON,) if watches else (JSON, YAML)
    if _chosen(request, forms) is None:
        text = f"only the following media types are accepted: {', '.join(forms)}"
        raise StatusError(406, "NotAcceptable", text)


def in_accepted_form(request: Request, response: Response) -> Response:
    """Returns the response in the form that the client accepts; unchanged if there is no such form."""
    if response.content_type == JSON and response.stream is None and _chosen(request, (JSON, YAML)) == YAML:
        return replace(response, content_type=YAML)  # each JSON document is also a YAML document
    return response


def _chosen(request: Request, forms: Sequence[str]) -> str | None:
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
        if values.get("as", "Table") != "Table":
            continue  # another view of the object, which the server does not have
        try:
            quality = float(values.get("q", 1))
        except ValueError:
            quality = 1.0
        yield media_type.lower(), quality
