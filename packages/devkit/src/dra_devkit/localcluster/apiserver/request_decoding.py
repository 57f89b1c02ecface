"""Decodes request bodies in JSON, YAML or protobuf into plain values. `strategy.py` checks the fields afterwards."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_kubeletplugin.base.http_server.server import Request
from dra_kubeletplugin.base.json_types import JSON

from ...schemas import decoding, protobuf, shapes
from .status_errors import StatusError, bad_request

LIMIT = 3 * 1024 * 1024  # maximum bytes of a body, as in a real API server
_JSON = {"", "application/json", "application/json-patch+json", "application/merge-patch+json"}
_JSON |= {"application/strategic-merge-patch+json", "application/x-www-form-urlencoded", "*/*"}
_YAML = {"application/yaml", "application/apply-patch+yaml", "text/yaml", "application/x-yaml"}
_MAX_DEPTH = 200  # levels of lists and objects, as in files; deeper ones would reach Python's limit of recursion
_MAX_CHECKED = 256 * 1024  # bytes; larger bodies are not searched for duplicate fields


@dataclass(frozen=True)
class Body:
    """A decoded body. ``duplicates`` contains the paths of fields that occur more than once."""

    value: Any
    duplicates: tuple[str, ...] = ()


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def read(request: Request) -> Body:
    """Decodes a request's body by its media type. Raises :class:`StatusError`."""
    if len(request.body) > LIMIT:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LIMIT}")
    kind = media_type(request)
    value = _decode(kind, request.body)
    check_depth(value)
    return Body(value, _duplicates(request.body, value) if kind in _JSON else ())


def _decode(kind: str, data: bytes) -> Any:
    if kind == protobuf.MEDIA_TYPE:
        return _protobuf(data)
    if kind in _JSON:
        return _json(data)
    if kind in _YAML:
        return _yaml(data)
    accepted = ", ".join(("application/json", "application/yaml", protobuf.MEDIA_TYPE))
    raise StatusError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format ({kind}) - accepted media types include: {accepted}",
    )


def read_object(request: Request) -> Body:
    """Decodes a request's body like :func:`read`. In addition, raises :class:`StatusError` if the body is not an object."""
    body = read(request)
    if not isinstance(body.value, dict):
        raise bad_request("the body is not an object with a kind and its fields")
    return body


def decoded(body: Any, group: str, version: str, kind: str) -> JSON:
    """Decodes a body by the type of a kind that is not stored. Raises :class:`StatusError`."""
    shape = shapes.kind_shape(group, version, kind)
    assert shape is not None, kind
    try:
        return decoding.decode(body, shape, [])
    except decoding.DecodeError as e:
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {e}') from None


def _protobuf(data: bytes) -> JSON:
    try:
        return protobuf.decode(data)
    except protobuf.UnknownKindError as e:
        raise StatusError(415, "UnsupportedMediaType", str(e)) from None
    except protobuf.WireError as e:
        raise bad_request(f"the protobuf body cannot be read: {e}") from None


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as e:
        raise bad_request(f"the body is not JSON: {e}") from None


def _yaml(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)  # most clients send JSON with the YAML media type
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    import yaml

    from dra_devkit.yaml import loader

    try:
        found = [part.value for part in loader.parts(data.decode("utf-8-sig"))]
        if len(found) > 1:
            raise bad_request("error converting YAML to JSON: several documents instead of one")
        return json.loads(json.dumps(found[0] if found else None))  # copies the values of YAML aliases
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        problem = str(getattr(e, "problem", None) or e)
        raise bad_request(f"error converting YAML to JSON: {problem}") from None


def check_depth(value: Any) -> None:
    """Raises :class:`StatusError` if a decoded body, or the object that a patch results in, is nested too deeply."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        holders = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list))
        level = [item for values in holders for item in values]
    if any(isinstance(v, dict | list) for v in level):
        raise bad_request(f"the object is nested too deeply: exceeded max depth {_MAX_DEPTH}")


class _Object(dict[str, Any]):
    duplicates: tuple[str, ...] = ()


def _pairs(pairs: list[tuple[str, Any]]) -> _Object:
    out = _Object(pairs)
    out.duplicates = tuple(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)
    return out


def _duplicates(data: bytes, value: Any) -> tuple[str, ...]:
    """Returns the paths of duplicate fields in a body.

    A body that is equal to its decoded and encoded value has none. Most bodies are, so the slow search is rare.
    """
    if len(data) > _MAX_CHECKED or msgspec.json.encode(value) == data:
        return ()
    try:
        return tuple(_paths(json.loads(data, object_pairs_hook=_pairs), ""))
    except (ValueError, RecursionError):
        return ()


def _paths(value: Any, path: str) -> list[str]:
    out: list[str] = []
    if isinstance(value, _Object):
        out += [f"{path}.{k}" if path else k for k in value.duplicates]
        for key, item in value.items():
            out += _paths(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            out += _paths(item, f"{path}[{i}]")
    return out
