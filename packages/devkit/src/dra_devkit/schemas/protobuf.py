"""Reads and writes ``application/vnd.kubernetes.protobuf``: four magic bytes and a runtime.Unknown message that contains the object.

A kind's shape (:mod:`.shapes`) defines its messages and the numbers of their fields, so all kinds share one decoder and one encoder.
Fields without a number are not written. The decoder drops zero values of fields that are not pointers, because Go clients send them
for fields that are not set. Source: "Alternate representations of resources" in Kubernetes' API concepts.
"""

from __future__ import annotations

import base64
import functools
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from dra_kubeletplugin.base.json_types import JSON

from ..schemas import shapes
from ..schemas.shapes import Field, Form, ListShape, MapShape, Shape, Struct

MAGIC = b"k8s\x00"
MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAX_DEPTH = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _DOUBLE, _BYTES = 0, 1, 2
_NUMBERS = (Form.INT32, Form.INT64, Form.BOOL)
# Forms that are a schema or another value: the number of the schema, and the number and the shape of the other value.
_UNIONS: Mapping[Form, tuple[int, int, Shape]] = {
    Form.SCHEMA_OR_LIST: (1, 2, ListShape(shapes.LazyShape({"$ref": shapes.SCHEMA}))),
    Form.SCHEMA_OR_BOOL: (2, 1, Form.BOOL),
    Form.SCHEMA_OR_STRINGS: (1, 2, ListShape(shapes.LazyShape({"type": "string"}))),
}
# A value on the wire: a number, a number of eight bytes, or the bytes of a text or message.
Wire: TypeAlias = int | float | memoryview
# The fields of a message by number: the name of a field, or the message that contains fields of the same JSON object.
Layout: TypeAlias = "dict[int, str | Layout]"


class WireError(ValueError):
    """The bytes are not a valid message."""


class UnknownKindError(WireError):
    """The kind has no protobuf message."""


def decode(body: bytes) -> JSON:
    """Returns the object with ``apiVersion`` and ``kind``. Raises :class:`WireError`."""
    if not body.startswith(MAGIC):
        raise WireError("the body does not begin with the prefix of Kubernetes' protobuf messages")
    api_version = kind = ""
    raw = memoryview(b"")
    for number, value in _fields(memoryview(body)[len(MAGIC) :]):
        if number == 1:
            meta = {n: v for n, v in _fields(_bytes(value)) if n in {1, 2}}
            api_version, kind = _text(meta.get(1, raw)), _text(meta.get(2, raw))
        elif number == 2:
            raw = _bytes(value)
    shape = _shape_of(api_version, kind)
    return {"apiVersion": api_version, "kind": kind, **_message(raw, shape, _layout(shape), 0)}


def encode(obj: Mapping[str, Any]) -> bytes:
    """Encodes an object or a list of objects. Raises :class:`UnknownKindError`."""
    api_version, kind = obj.get("apiVersion", ""), obj["kind"]
    shape = _shape_of(api_version, kind)
    meta = text_field(1, api_version) + text_field(2, kind)
    return MAGIC + message_field(1, meta) + message_field(2, _encoded(obj, shape, _layout(shape)))


def encode_event(type_: str, obj: Mapping[str, Any]) -> bytes:
    """Encodes an event of a watch, with its length in front. Raises :class:`UnknownKindError`."""
    event = text_field(1, type_) + message_field(2, message_field(1, encode(obj)))
    return struct.pack(">I", len(event)) + event


def knows(api_version: str, kind: str) -> bool:
    """Returns whether objects of a kind can be encoded."""
    try:
        _shape_of(api_version, kind)
    except UnknownKindError:
        return False
    return True


@functools.lru_cache
def _shape_of(api_version: str, kind: str) -> Struct:
    group, _, version = api_version.rpartition("/")
    found = shapes.kind_shape(group, version, kind) or shapes.list_shape(group, version, kind)
    if (
        found is None and kind in shapes.GENERAL_KINDS
    ):  # Go clients send DeleteOptions in the group and version of the object
        found = shapes.kind_shape("", "v1", kind)
    if found is None:
        raise UnknownKindError(f"{api_version} {kind} has no protobuf message: use JSON")
    return found


@functools.cache
def _layout(shape: Struct) -> Layout:
    out: Layout = {}
    for name, field in shape.fields.items():
        if field.wire:
            *above, last = field.wire
            message = out
            for number in above:
                inner = message.setdefault(number, {})
                assert isinstance(inner, dict)
                message = inner
            message[last] = name
    return out


# --- decoding -----------------------------------------------------------------------------------------


def _fields(data: memoryview) -> Iterator[tuple[int, Wire]]:
    """Yields the number and the value of each field."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: Wire
        if wire == _VARINT:
            value, at = _varint(data, at)
        elif wire == _BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire == _DOUBLE and at + 8 <= end:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        else:
            raise WireError(f"wire type {wire} of field {number} is not known, or its value is cut off")
        if at > end or not number:
            raise WireError("the message is cut off")
        yield number, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
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


def _bytes(value: Wire) -> memoryview:
    if not isinstance(value, memoryview):
        raise WireError("a number is where a text or a message should be")
    return value


def _text(value: Wire) -> str:
    try:
        return str(_bytes(value), "utf-8")
    except UnicodeDecodeError:
        raise WireError("a string is not UTF-8") from None


def _signed(value: Wire) -> int:
    if not isinstance(value, int):
        raise WireError("a value is where an integer should be")
    return value - 2**64 if value >= 2**63 else value


def _message(data: memoryview, shape: Struct, layout: Layout, depth: int) -> JSON:
    if depth > _MAX_DEPTH:
        raise WireError("the message is nested too deeply")
    out: JSON = {}
    for number, value in _fields(data):
        found = layout.get(number)
        if isinstance(found, dict):
            out |= _message(_bytes(value), shape, found, depth + 1)
        elif found is not None:
            _add(out, found, value, shape.fields[found], depth)
    return out


def _add(out: JSON, name: str, value: Wire, field: Field, depth: int) -> None:
    shape = field.shape
    if isinstance(shape, MapShape):
        key, found = _entry(_bytes(value), shape.value.shape, depth)
        out.setdefault(name, {})[key] = found
    elif isinstance(shape, ListShape):
        out.setdefault(name, []).extend(_items(value, shape.item.shape, depth))
    else:
        found = _value(value, shape, depth)
        if found is None or (not found and not field.pointer and not field.always and shape in _OMITTED_IF_ZERO):
            out.pop(name, None)
        else:
            out[name] = found


_OMITTED_IF_ZERO = frozenset({*_NUMBERS, Form.STRING, Form.NUMBER, Form.BYTES})


def _entry(data: memoryview, shape: Shape, depth: int) -> tuple[str, Any]:
    """Decodes an entry of a map. Its parts are absent if they are empty."""
    parts = dict(_fields(data))
    key = _text(parts[1]) if 1 in parts else ""
    if 2 in parts:
        value = parts[2]
    else:
        value = 0 if shape in _NUMBERS else memoryview(b"")
    if isinstance(shape, ListShape):
        items = [item for n, v in _fields(_bytes(value)) if n == 1 for item in _items(v, shape.item.shape, depth)]
        return key, items or None
    return key, _value(value, shape, depth)


def _items(value: Wire, shape: Shape, depth: int) -> list[Any]:
    """Returns the item of a list, or all items if the numbers of a list are packed."""
    if shape not in _NUMBERS or not isinstance(value, memoryview):
        return [_value(value, shape, depth)]
    out: list[Any] = []
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        out.append(_value(number, shape, depth))
    return out


def _value(value: Wire, shape: Shape, depth: int) -> Any:
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
            return next((_text(v) for n, v in _fields(_bytes(value)) if n == 1), "") or "0"
        case Form.INT_OR_STRING:
            parts = dict(_fields(_bytes(value)))
            return _text(parts.get(3, memoryview(b""))) if parts.get(1) else _signed(parts.get(2, 0))
        case Form.RAW | Form.FIELDS:
            return _json(_bytes(value))
        case Form.SCHEMA_OR_LIST | Form.SCHEMA_OR_BOOL | Form.SCHEMA_OR_STRINGS:
            return _union(_bytes(value), shape, depth)
        case Struct():
            return _message(_bytes(value), shape, _layout(shape), depth + 1)
    raise WireError("a protobuf message cannot contain a list of lists")


def _double(value: Wire) -> float:
    if not isinstance(value, float) or value - value != 0:  # NaN and infinity have no form in JSON
        raise WireError("a value is where a finite number of eight bytes should be")
    return value


def _time(data: memoryview, *, micro: bool) -> str | None:
    parts = dict(_fields(data))
    if not parts:
        return None
    try:
        moment = _EPOCH + timedelta(seconds=_signed(parts.get(1, 0)))
        moment += timedelta(microseconds=_signed(parts.get(2, 0)) // 1000)
    except OverflowError:
        raise WireError("a time is out of range") from None
    text = moment.isoformat(timespec="microseconds" if micro else "seconds")
    return text.replace("+00:00", "Z")


def _json(data: memoryview) -> Any:
    raw = next((_bytes(v) for n, v in _fields(data) if n == 1), None)
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise WireError("an embedded object is not JSON") from None


def _union(data: memoryview, form: Form, depth: int) -> Any:
    at, other_at, other = _UNIONS[form]
    schema: Any = None
    out: Any = False if other is Form.BOOL else []
    for number, value in _fields(data):
        if number == at:
            schema = _value(value, shapes.named(shapes.SCHEMA), depth)
        elif number == other_at and isinstance(other, ListShape):
            out += _items(value, other.item.shape, depth)
        elif number == other_at:
            out = _value(value, other, depth)
    if other is Form.BOOL or not out:
        return out if schema is None else schema
    return out


# --- encoding -----------------------------------------------------------------------------------------


def _number(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def message_field(number: int, body: bytes) -> bytes:
    return _number(number << 3 | _BYTES) + _number(len(body)) + body


def text_field(number: int, text: str) -> bytes:
    return message_field(number, text.encode())


def integer_field(number: int, value: int) -> bytes:
    return _number(number << 3 | _VARINT) + _number(int(value))


def double_field(number: int, value: float) -> bytes:
    return _number(number << 3 | _DOUBLE) + struct.pack("<d", float(value))


def _encoded(obj: Mapping[str, Any], shape: Struct, layout: Layout) -> bytes:
    out = []
    for number, found in sorted(layout.items()):
        if isinstance(found, dict):
            if inner := _encoded(obj, shape, found):
                out.append(message_field(number, inner))
        elif (value := obj.get(found)) is not None:
            out.append(_encoded_field(number, value, shape.fields[found].shape))
    return b"".join(out)


def _encoded_field(number: int, value: Any, shape: Shape) -> bytes:
    match shape:
        case MapShape():
            item = shape.value.shape
            return b"".join(
                message_field(number, text_field(1, k) + _map_value(v, item)) for k, v in sorted(value.items())
            )
        case ListShape():
            return b"".join(_encoded_field(number, v, shape.item.shape) for v in value)
        case Form.BOOL | Form.INT32 | Form.INT64:
            return integer_field(number, value)
        case Form.NUMBER:
            return double_field(number, value)
    return message_field(number, _encoded_value(value, shape))


def _map_value(value: Any, shape: Shape) -> bytes:
    if isinstance(shape, ListShape):
        return message_field(2, _encoded_field(1, value or (), shape))
    if value is None:
        return b""  # as Go does; decoders read the zero value
    return _encoded_field(2, value, shape)


def _encoded_value(value: Any, shape: Shape) -> bytes:
    match shape:
        case Form.STRING:
            return str(value).encode()
        case Form.BYTES:
            return base64.b64decode(value)
        case Form.TIME | Form.MICRO_TIME:
            since = datetime.fromisoformat(value) - _EPOCH
            seconds = since.days * 86400 + since.seconds
            return integer_field(1, seconds) + integer_field(2, since.microseconds * 1000)
        case Form.QUANTITY:
            return text_field(1, str(value))
        case Form.INT_OR_STRING:
            if isinstance(value, str):
                return integer_field(1, 1) + text_field(3, value)
            return integer_field(2, value)
        case Form.RAW | Form.FIELDS:
            return message_field(1, msgspec.json.encode(value))
        case Form.SCHEMA_OR_LIST | Form.SCHEMA_OR_BOOL | Form.SCHEMA_OR_STRINGS:
            at, other_at, other = _UNIONS[shape]
            if isinstance(value, Mapping):
                return _encoded_field(at, value, shapes.named(shapes.SCHEMA))
            return _encoded_field(other_at, value, other)
        case Struct():
            return _encoded(value, shape, _layout(shape))
    raise TypeError(f"a protobuf message cannot contain {shape}")
