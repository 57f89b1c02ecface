"""Decodes objects by the shape of their kind, as a server written in Go reads, stores and writes them.

Unknown fields are reported and dropped. A value of a wrong type is an error. Quantities and times get their stored
form. Empty optional fields are dropped, and empty required fields are present. Lists and maps whose field is a pointer
keep the form in which they were sent until :func:`without_empty` drops them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi import quantity

from .shapes import SCHEMA, Field, Form, ListShape, MapShape, Shape, Struct, go_name, named

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_ZERO = {
    Form.STRING: "",
    Form.INT32: 0,
    Form.INT64: 0,
    Form.NUMBER: 0,
    Form.BOOL: False,
    Form.QUANTITY: "0",
    Form.INT_OR_STRING: 0,
}
# Go's "omitempty" has no effect on fields of these forms.
_STRUCTS_IN_GO = (Form.QUANTITY, Form.INT_OR_STRING, Form.TIME, Form.MICRO_TIME)
_BITS = {Form.INT32: 31, Form.INT64: 63}

_NO_STRUCT = Struct("")


class DecodeError(ValueError):
    """A value does not have its field's type."""


def decode(obj: Mapping[str, Any], shape: Struct, unknown: list[str]) -> JSON:
    """Returns ``obj`` in its stored form, and appends the paths of unknown fields to ``unknown``.

    Raises :class:`DecodeError`.
    """
    return _struct(obj, shape, "", "", shape, unknown)


def decode_strictly(obj: Mapping[str, Any], shape: Struct) -> JSON:
    """Returns ``obj`` in its stored form. Raises :class:`DecodeError` for wrong types and unknown fields."""
    unknown: list[str] = []
    out = decode(obj, shape, unknown)
    if unknown:
        raise DecodeError("strict decoding error: " + ", ".join(f'unknown field "{u}"' for u in unknown))
    return out


def _struct(value: Any, shape: Struct, path: str, where: str, owner: Struct, unknown: list[str]) -> JSON:
    """Decodes a struct.

    Args:
        path: the path with list indices, for unknown fields.
        where: the path without list indices, for errors about types, as in Go.
        owner: the struct with the field that contains this one, for the same errors.
    """
    if not isinstance(value, Mapping):
        raise _mistyped(value, where, shape, owner)
    out: JSON = {}
    fields = shape.fields
    names: Iterable[str] = fields
    if not value.keys() <= fields.keys():
        unknown += [f"{path}.{key}" if path else str(key) for key in value if key not in fields]
    elif len(value) == 1 and shape.is_sparse:  # most attributes of devices
        names = value
    for name in names:
        field, raw = fields[name], value.get(name)
        if raw is None:
            if field.always or not field.pointer:
                _absent(out, name, field)
        elif type(raw) is field.plain:  # the most frequent case
            out[name] = raw
        else:
            inner = f"{path}.{name}" if path else name
            found = _value(raw, field.shape, inner, f"{where}.{name}" if where else name, shape, unknown)
            if field.pointer or found or isinstance(field.shape, Struct) or field.shape in _STRUCTS_IN_GO:
                out[name] = found
            elif field.always:
                out[name] = None if isinstance(field.shape, (ListShape, MapShape)) else found
    return out


def _absent(out: JSON, name: str, field: Field) -> None:
    """Adds the value that Go writes for a field that is not set, if the field is always written or not a pointer."""
    shape = field.shape
    if field.pointer:
        out[name] = None
    elif isinstance(shape, Struct):
        out[name] = empty(shape)
    elif shape in (Form.TIME, Form.MICRO_TIME):
        if name != "creationTimestamp":
            out[name] = None
    elif isinstance(shape, Form):
        if field.always or shape in _STRUCTS_IN_GO:
            out[name] = _ZERO.get(shape)
    elif field.always:
        out[name] = None


def empty(shape: Struct) -> JSON:
    """Returns a struct without any field set."""
    return _struct({}, shape, "", "", shape, [])


def without_empty(obj: Mapping[str, Any], shape: Struct, *, stored: bool) -> JSON:
    """Returns a decoded object without empty optional lists and maps.

    Args:
        stored: whether the result is the object that the server stores, in which an empty required list or map is null. Otherwise it is
            the object in the response to the sender.
    """
    out: JSON = {}
    for name, value in obj.items():
        field = shape.fields[name]
        if value or not isinstance(field.shape, (ListShape, MapShape)):
            out[name] = _without_empty(value, field.shape, stored=stored)
        elif field.always:
            out[name] = None if stored else value
    return out


def _without_empty(value: Any, shape: Shape, *, stored: bool) -> Any:
    if isinstance(shape, Struct) and isinstance(value, Mapping):
        return without_empty(value, shape, stored=stored)
    if isinstance(shape, ListShape) and _may_have_empty(value):
        return [_without_empty(v, shape.item.shape, stored=stored) for v in value]
    if isinstance(shape, MapShape):
        return {k: _without_empty(v, shape.value.shape, stored=stored) for k, v in value.items()}
    return value


def _may_have_empty(value: Any) -> bool:
    """Returns whether a value may contain an empty list or map. Searching its text is ten times faster than visiting its parts."""
    text = msgspec.json.encode(value)
    return b"{}" in text or b"[]" in text


def _value(value: Any, shape: Shape, path: str, where: str, owner: Struct, unknown: list[str]) -> Any:
    if isinstance(shape, Form):
        return _scalar(value, shape, where, owner)
    if isinstance(shape, Struct):
        return _struct(value, shape, path, where, owner, unknown)
    if isinstance(shape, ListShape):
        if not isinstance(value, list):
            raise _mistyped(value, where, shape, owner)
        item = shape.item.shape
        return [_element(v, item, f"{path}[{i}]", where, owner, unknown) for i, v in enumerate(value)]
    if not isinstance(value, Mapping):
        raise _mistyped(value, where, shape, owner)
    inner = shape.value.shape
    return {k: _element(v, inner, f"{path}.{k}", where, owner, unknown) for k, v in value.items()}


def _schema(value: Any, form: Form) -> Any:
    """Decodes a schema, or what a CustomResourceDefinition can have in its place. Unknown fields are dropped silently, as in Go."""
    schema = named(SCHEMA)
    if isinstance(value, Mapping):
        return _value(value, schema, "", "", _NO_STRUCT, [])
    if form is Form.SCHEMA_OR_BOOL:
        if not isinstance(value, bool):
            raise DecodeError("boolean or JSON schema expected")
        return value
    if not isinstance(value, list):
        return None
    item = schema if form is Form.SCHEMA_OR_LIST else Form.STRING
    return [_element(v, item, "", "", _NO_STRUCT, []) for v in value]


def _element(value: Any, shape: Shape, path: str, where: str, owner: Struct, unknown: list[str]) -> Any:
    if isinstance(shape, Struct):
        return _struct({} if value is None else value, shape, path, where, owner, unknown)
    if value is None:
        return _ZERO.get(shape) if isinstance(shape, Form) else None
    return _value(value, shape, path, where, owner, unknown)


def _scalar(value: Any, form: Form, where: str, owner: Struct) -> Any:
    match form:
        case Form.STRING:
            good = isinstance(value, str)
        case Form.BOOL:
            good = isinstance(value, bool)
        case Form.INT32 | Form.INT64:
            good = _is_int(value, _BITS[form])
        case Form.NUMBER:
            good = isinstance(value, (int, float)) and not isinstance(value, bool)
        case Form.INT_OR_STRING:
            good = isinstance(value, str) or _is_int(value, 31)
        case Form.QUANTITY:
            return _quantity(value)
        case Form.TIME | Form.MICRO_TIME:
            return _time(value, form)
        case Form.BYTES:
            return _bytes(value, where, form, owner)
        case Form.SCHEMA_OR_LIST | Form.SCHEMA_OR_BOOL | Form.SCHEMA_OR_STRINGS:
            return _schema(value, form)
        case _:
            return value
    if not good:
        raise _mistyped(value, where, form, owner)
    return value


def fits(value: Any, form: Form) -> bool:
    """Returns whether a value has the type of a field."""
    try:
        _scalar(value, form, "", _NO_STRUCT)
    except DecodeError:
        return False
    return True


def _is_int(value: Any, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits


def _quantity(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise DecodeError("unable to parse quantity's suffix")
    try:
        return quantity.stored(str(value).strip(quantity.SPACES))
    except quantity.QuantityError as e:
        raise DecodeError(e.reason) from None


def _time(value: Any, form: Form) -> str:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        layout = "2006-01-02T15:04:05Z07:00" if form is Form.TIME else "2006-01-02T15:04:05.000000Z07:00"
        shown = value if isinstance(value, str) else "a value that is not a string"
        raise DecodeError(f'parsing time "{shown}" as "{layout}": cannot parse "{shown}" as "2006"')
    try:
        utc = datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        raise DecodeError(f'parsing time "{value}": out of range') from None
    return utc.strftime("%Y-%m-%dT%H:%M:%SZ" if form is Form.TIME else "%Y-%m-%dT%H:%M:%S.%fZ")


def _bytes(value: Any, where: str, form: Form, owner: Struct) -> str:
    if not isinstance(value, str):
        raise _mistyped(value, where, form, owner)
    text = value.replace("\n", "").replace("\r", "")
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError(f"illegal base64 data at input byte {_first_invalid(text)}") from None
    return text


def _first_invalid(text: str) -> int:
    found = re.search(r"[^A-Za-z0-9+/]", text)
    return found.start() if found else len(text) // 4 * 4


def _mistyped(value: Any, where: str, shape: Shape, owner: Struct) -> DecodeError:
    kinds = {bool: "bool", str: "string", list: "array", dict: "object"}
    kind = kinds.get(type(value))
    if kind is None:
        kind = f"number {value}" if shape in _BITS else "number"
    if not where:
        return DecodeError(f"json: cannot unmarshal {kind} into Go value of type {go_name(shape)}")
    struct = owner.name.rpartition(".")[2]
    return DecodeError(f"json: cannot unmarshal {kind} into Go struct field {struct}.{where} of type {go_name(shape)}")
