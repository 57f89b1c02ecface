"""Merges JSON objects, computes the difference of two objects, and finds the layer that a value comes from.

Source: RFC 7386, JSON Merge Patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...base.json_types import ReadOnlyJSON
from ...base.text import join_names

_MAX_NAMES = 6  # fields that a message names


class Layer(NamedTuple):
    """The fields of one entry; ``where`` is its place, for messages."""

    where: str
    fields: ReadOnlyJSON


def merge(below: ReadOnlyJSON, above: ReadOnlyJSON) -> dict[str, Any]:
    """Returns a copy of ``below`` with the fields of ``above``; null removes a field. Objects are copied, lists are shared."""
    out: dict[str, Any] = {}
    _copy(out, below)
    merge_into(out, above)
    return out


def _copy(into: dict[str, Any], given: ReadOnlyJSON) -> None:
    for key, value in given.items():
        if isinstance(value, Mapping):
            into[key] = {}
            _copy(into[key], value)
        else:
            into[key] = value


def merge_into(below: dict[str, Any], above: ReadOnlyJSON) -> None:
    """Merges ``above`` into ``below`` in place. The cost depends on the size of ``above`` only."""
    for key, value in above.items():
        if value is None:
            below.pop(key, None)
        elif isinstance(value, Mapping):
            nested = below.get(key)
            if not isinstance(nested, dict):
                nested = below[key] = {}
            merge_into(nested, value)
        else:
            below[key] = value


def difference(before: ReadOnlyJSON, after: ReadOnlyJSON, kept: ReadOnlyJSON) -> dict[str, Any]:
    """Returns the patch that turns ``before`` into ``after``. The patch also contains each unchanged field that is in ``kept``."""
    out: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old, keep = before.get(key), kept.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if within := difference(old, value, keep if isinstance(keep, Mapping) else {}):
                out[key] = within
        elif key not in before or old != value or key in kept:
            out[key] = value
    return out


def provenance(layers: Sequence[Layer], at: Sequence[str | int], missing: str) -> str:
    """Returns which layers contain the value, or its fields, at a place: `` (a from X; b from Y)``.

    If ``missing`` names a field, the text says that no layer contains it.
    """
    if missing:
        return f" (not set by any of {', '.join(layer.where for layer in layers)})"
    given: dict[str, list[str]] = {}
    seen: set[str] = set()
    for layer in reversed(layers):
        value, has_value = _value_at(layer.fields, at)
        if has_value and not isinstance(value, Mapping):
            given.setdefault(layer.where, [])
            break
        names = [name for name in value if name not in seen] if has_value else []
        seen.update(names)
        if names:
            given[layer.where] = names
    if not given:
        return ""
    if len(given) == 1 and at:
        return f" (from {next(iter(given))})"
    parts = (f"{join_names(names, _MAX_NAMES)} from {where}" for where, names in reversed(given.items()) if names)
    return f" ({'; '.join(parts)})"


def _value_at(fields: Any, at: Sequence[str | int]) -> tuple[Any, bool]:
    """Returns the value of a layer at a place, and whether the layer has one.

    If the path continues below a value that is not an object, such as a list, returns that value.
    """
    for step in at:
        if isinstance(fields, Mapping):
            if step not in fields:
                return None, False
            fields = fields[step]
        else:
            return fields, True
    return fields, fields is not None
