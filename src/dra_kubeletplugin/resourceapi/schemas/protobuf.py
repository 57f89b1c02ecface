"""Decodes bodies in ``application/vnd.kubernetes.protobuf``, as kubectl sends them, into the JSON form of the same
object.

A kind's shape (:mod:`.shapes`) defines its messages and the wire number of each field. kubectl also sends zero values of
fields that are not pointers; :mod:`.decoding` removes them. A body consists of four magic bytes and a runtime.Unknown
message. Source: "Alternate representations of resources" in Kubernetes' API concepts.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from . import shapes
from .shapes import Form, ListShape, MapShape, Shape, Struct

JSON = dict[str, Any]
MAGIC = b"k8s\x00"
MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAX_DEPTH = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WireError(ValueError):
    """The bytes are not a valid message."""


class UnknownKindError(WireError):
    """The fields of the message's kind are not known."""


def decode(body: bytes) -> JSON:
    """Returns the object with ``apiVersion`` and ``kind``. Raises :class:`WireError`."""
    if not body.startswith(MAGIC):
        raise WireError("the body does not begin with the prefix of Kubernetes' protobuf messages")
    api_version = kind = ""
    raw = b""
    for number, value in _fields(body[len(MAGIC) :]):
        if number == 1:
            meta = {n: _text(v) for n, v in _fields(_bytes(value))}
            api_version, kind = meta.get(1, ""), meta.get(2, "")
        elif number == 2:
            raw = _bytes(value)
    group, _, version = api_version.rpartition("/")
    shape = shapes.kind_shape(group, version, kind)
    if shape is None or not shape.by_number:
        raise UnknownKindError(f"{api_version} {kind} cannot be read from protobuf: send it as JSON")
    return {"apiVersion": api_version, "kind": kind, **_message(raw, shape, 0)}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and the value of each field. A value is an integer, or bytes."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire in {1, 5}:
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise WireError(f"wire type {wire} of field {number} is not known")
        if at > end or not number:
            raise WireError("the message is cut off")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise WireError("the message is cut off")
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value & (2**64 - 1), at
    raise WireError("a number is too long")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise WireError("a number is where a message should be")
    return value


def _text(value: int | bytes) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise WireError("a string is not UTF-8") from None


def _signed(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise WireError("a message is where a number should be")
    return value - 2**64 if value >= 2**63 else value


def _message(data: bytes, shape: Struct, depth: int, numbers: Mapping[int, str] | None = None) -> JSON:
    if depth > _MAX_DEPTH:
        raise WireError("the message is nested too deeply")
    out: JSON = {}
    known = shape.by_number if numbers is None else numbers
    for number, value in _fields(data):
        if numbers is None and number in shape.nested:
            out |= _message(_bytes(value), shape, depth + 1, shape.nested[number])
            continue
        name = known.get(number)
        if name is not None:
            _add(out, name, value, shape.fields[name].shape, depth)
    return out


def _add(out: JSON, name: str, value: int | bytes, shape: Shape, depth: int) -> None:
    if isinstance(shape, MapShape):
        key: str = ""
        found: Any = None
        inner = shape.value.shape
        for number, part in _fields(_bytes(value)):
            if number == 1:
                key = _text(part)
            elif number == 2:
                found = _wrapped(part, inner, depth) if isinstance(inner, ListShape) else _value(part, inner, depth)
        out.setdefault(name, {})[key] = found
    elif isinstance(shape, ListShape):
        item = shape.item.shape
        items = out.setdefault(name, [])
        if item in (Form.INT32, Form.INT64, Form.BOOL) and isinstance(value, bytes):
            items += _packed(value, item)
        else:
            items.append(_value(value, item, depth))
    else:
        out[name] = _value(value, shape, depth)


def _wrapped(value: int | bytes, shape: ListShape, depth: int) -> list[Any]:
    """Decodes a list that is the value of a map. Protobuf wraps such a list in a message."""
    return [_value(v, shape.item.shape, depth) for n, v in _fields(_bytes(value)) if n == 1]


def _packed(value: bytes, form: Shape) -> list[Any]:
    out: list[Any] = []
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        out.append(bool(number) if form is Form.BOOL else _signed(number))
    return out


def _value(value: int | bytes, shape: Shape, depth: int) -> Any:
    match shape:
        case Form.STRING:
            return _text(value)
        case Form.BYTES:
            return base64.b64encode(_bytes(value)).decode()
        case Form.BOOL:
            return bool(_signed(value))
        case Form.INT32 | Form.INT64:
            return _signed(value)
        case Form.NUMBER:
            return _double(value)
        case Form.TIME | Form.MICRO_TIME:
            return _time(_bytes(value), micro=shape is Form.MICRO_TIME)
        case Form.QUANTITY:
            return next((_text(v) for n, v in _fields(_bytes(value)) if n == 1), "0")
        case Form.INT_OR_STRING:
            parts = dict(_fields(_bytes(value)))
            return _text(parts.get(3, b"")) if parts.get(1) else _signed(parts.get(2, 0))
        case Form.RAW | Form.FIELDS:
            return _json(_bytes(value))
        case Struct():
            return _message(_bytes(value), shape, depth + 1)
    raise WireError("a protobuf message cannot contain a list of lists")


def _double(value: int | bytes) -> float:
    if len(_bytes(value)) != 8:
        raise WireError("a number does not have eight bytes")
    return float(struct.unpack("<d", _bytes(value))[0])


def _time(data: bytes, *, micro: bool) -> str | None:
    parts = dict(_fields(data))
    if not parts:
        return None
    try:
        moment = _EPOCH + timedelta(seconds=_signed(parts.get(1, 0)), microseconds=_signed(parts.get(2, 0)) // 1000)
    except OverflowError:
        raise WireError("a time is out of range") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def _json(data: bytes) -> Any:
    raw = next((_bytes(v) for n, v in _fields(data) if n == 1), b"")
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        raise WireError("an embedded object is not JSON") from None
