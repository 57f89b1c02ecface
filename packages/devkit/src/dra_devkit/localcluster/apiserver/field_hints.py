"""Finds unknown fields and values of a wrong type in an object, and adds hints for the author of the manifest.

A real API server reports only the first wrong type, with Go's type names: see ``schemas.decoding``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import printable

from ...schemas import decoding
from ...schemas.shapes import Form, ListShape, MapShape, Shape, Struct

Enclosing = Sequence[tuple[str, Struct]]  # the path and type of each object that encloses a field, the outermost first
_WANTED = {
    Form.STRING: "text",
    Form.INT32: "a whole number",
    Form.INT64: "a whole number",
    Form.NUMBER: "a number",
    Form.BOOL: "true or false",
    Form.BYTES: "text in base64",
    Form.TIME: "a time",
    Form.MICRO_TIME: "a time",
    Form.QUANTITY: "a quantity",
    Form.INT_OR_STRING: "a number or text",
}
_TYPO = 0.75  # the similarity of a name of four letters with one wrong letter
_INTEGERS = {Form.INT32, Form.INT64, Form.INT_OR_STRING}


def unknown(value: Any, shape: Shape, path: str = "", enclosing: Enclosing = ()) -> Iterator[tuple[str, str]]:
    """Yields path and message for each unknown field."""
    if isinstance(shape, Struct) and isinstance(value, Mapping):
        around = (*enclosing, (path, shape))
        for key, inner in value.items():
            where = f"{path}.{key}" if path else str(key)
            if (known := shape.fields.get(key)) is not None:
                yield from unknown(inner, known.shape, where, around)
            else:
                yield where, f"unknown field{_field_hint(str(key), inner, around)}"
    elif isinstance(shape, ListShape) and isinstance(value, list):
        for i, item in enumerate(value):
            yield from unknown(item, shape.item.shape, f"{path}[{i}]", enclosing)
    elif isinstance(shape, MapShape) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from unknown(item, shape.value.shape, f"{path}.{key}", enclosing)


def _field_hint(key: str, value: Any, around: Enclosing) -> str:
    """Returns a hint for an unknown field: a similar name, or else an inner or enclosing object that has this field."""
    shape = around[-1][1]
    if hint := did_you_mean(key, shape.fields, _TYPO):
        return hint
    for name, field in shape.fields.items():
        inner = field.shape.item.shape if isinstance(field.shape, ListShape) else field.shape
        if name not in {"metadata", "status"} and _has(inner, key, value):
            return f": it belongs in {name!r}"
    for path, outer in reversed(around[:-1]):
        if _has(outer, key, value):
            return (
                f": it belongs in {path!r}, an outer object: check the indentation"
                if path
                else ": it belongs at the top level of the object"
            )
    return did_you_mean(key, shape.fields) or f": the known fields are {', '.join(sorted(shape.fields))}"


def _has(shape: Shape, key: str, value: Any) -> bool:
    """Returns whether an object has such a field, with a type that fits the value."""
    field = shape.fields.get(key) if isinstance(shape, Struct) else None
    return field is not None and not list(mistyped(value, field.shape))


def mistyped(value: Any, shape: Shape, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields path and message for each value of a wrong type. Null fits every type."""
    if value is None:
        return
    if isinstance(shape, Form):
        if why := _type_fault(value, shape):
            yield path, why
    elif isinstance(shape, ListShape):
        if isinstance(value, list):
            for i, item in enumerate(value):
                yield from mistyped(item, shape.item.shape, f"{path}[{i}]")
        else:
            hint = ": begin each item with '- '" if isinstance(value, Mapping) else ""
            yield path, f"{_shown(value)} in place of a list{hint}"
    elif not isinstance(value, Mapping):
        yield path, f"{_shown(value)} in place of an object"
    elif isinstance(shape, MapShape):
        for key, item in value.items():
            yield from mistyped(item, shape.value.shape, f"{path}.{key}")
    else:
        for key, item in value.items():
            if (field := shape.fields.get(key)) is not None:
                yield from mistyped(item, field.shape, f"{path}.{key}" if path else str(key))


def _type_fault(value: Any, form: Form) -> str:
    """Returns the reason why a value does not fit a type; empty if it fits."""
    if decoding.fits(value, form):
        return ""
    if isinstance(value, int) and not isinstance(value, bool) and form in _INTEGERS:
        return f"{value} is out of the range of the field"
    if form is Form.QUANTITY and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return f"{printable(value)!r} is not a quantity such as 2, 500m or 80Gi"
    if form in {Form.TIME, Form.MICRO_TIME} and isinstance(value, str):
        return f"{printable(value)!r} is not a time such as 2026-01-31T12:00:00Z"
    if form is Form.BYTES and isinstance(value, str):
        return "the text is not base64"
    return f"{_shown(value)} in place of {_WANTED[form]}{_value_hint(value, form)}"


def _value_hint(value: Any, form: Form) -> str:
    if form is Form.STRING and isinstance(value, (bool, int, float)):
        return ": write it in quotes"
    if form in {Form.INT32, Form.INT64} and isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return ": write it without quotes"
    if form is Form.BOOL and isinstance(value, str) and value.lower() in {"true", "false"}:
        return ": write it without quotes"
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return f"the text {printable(value)[:60]!r}" if isinstance(value, str) else printable(value)
