"""Checks the fields of ``Device(extra=...)``: JSON that the framework sends unchanged.

The API server decodes a slice before it validates it. So a value of a wrong type would make it reject the whole slice, without the name
of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ..errors import describe, kind_of
from .field_conversion import MAPPINGS
from .fields import rows
from .quantity import QuantityError, parse

_SCALARS: Mapping[str, tuple[type, ...]] = {"bool": (bool,), "string": (str,), "int32": (int,), "int64": (int,)}


def extra_faults(extra: Any, own: frozenset[str]) -> list[str]:
    """Returns why the API server could not decode these fields.

    Args:
        own: the fields in JSON that a device writes itself.
    """
    if not isinstance(extra, Mapping):
        return [f"extra is {kind_of(extra)}: use a mapping of {MAPPINGS['extra']}"]
    try:
        fields = dict(extra)
        if known := sorted(own.intersection(fields)):
            return [f"extra: {known[0]} is a field of Device: set it there"]
        if not _has_names(fields):
            return ["extra: the name of a field is not text"]
        msgspec.json.encode(fields)
        return [f"extra: {fault}" for fault in _wrong_types(fields, "Device", "")]
    except Exception as e:  # a driver's mapping may read hardware
        return [f"extra: {describe(e)}"]


def _has_names(value: object) -> bool:
    """Returns whether all keys of mappings are text, as JSON requires."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_names(inner) for key, inner in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_names, value))


def _wrong_types(value: Any, type_name: str, path: str) -> Iterator[str]:
    """Yields a sentence for each value that has another type than in the table of fields. Fields that it does not have are accepted."""
    if type_name.startswith("[]"):
        if not isinstance(value, list | tuple):
            yield f"{path} is {kind_of(value)}: use a list"
            return
        for i, item in enumerate(value):
            yield from _wrong_types(item, type_name.removeprefix("[]"), f"{path}[{i}]")
    elif type_name.startswith("map["):
        if not isinstance(value, Mapping):
            yield f"{path} is {kind_of(value)}: use a mapping"
            return
        for name, item in value.items():
            yield from _wrong_types(item, type_name.removeprefix("map[string]"), f"{path}[{name!r}]")
    elif known := rows(type_name):
        if not isinstance(value, Mapping):
            yield f"{path} is {kind_of(value)}: use a mapping with {', '.join(known)}"
            return
        for name, row in known.items():
            if value.get(name) is not None:
                yield from _wrong_types(value[name], row.type, f"{path}.{name}".removeprefix("."))
    elif type_name == "Quantity":
        yield from _wrong_quantity(value, path)
    elif (types := _SCALARS.get(type_name)) and (
        not isinstance(value, types) or (types != (bool,) and isinstance(value, bool))
    ):
        yield f"{path} is {kind_of(value)}: use {types[0].__name__}"


def _wrong_quantity(value: object, path: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{path} is {kind_of(value)}: use a quantity as text, such as '500m'"
        return
    try:
        parse(value)
    except QuantityError as e:
        yield f"{path}: {e}"
