"""One object laid over another, what has to be laid over one to make another of it, and which of them a value comes from.

Source: RFC 7386, JSON Merge Patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...base.text import join_names

JSON = Mapping[str, Any]
_MOST = 6  # fields that are named


class Layer(NamedTuple):
    """Where parameters stand, and the fields that they give."""

    where: str
    fields: JSON


def merge(below: JSON, above: JSON) -> dict[str, Any]:
    """A copy of ``below`` with the fields of ``above``; null removes a field. Objects are copied, lists are shared."""
    out: dict[str, Any] = {}
    _copy(out, below)
    lay_over(out, above)
    return out


def _copy(into: dict[str, Any], given: JSON) -> None:
    for key, value in given.items():
        if isinstance(value, Mapping):
            into[key] = {}
            _copy(into[key], value)
        else:
            into[key] = value


def lay_over(below: dict[str, Any], above: JSON) -> None:
    """As :func:`merge`, into ``below`` itself: the cost is that of ``above``, however much is below."""
    for key, value in above.items():
        if value is None:
            below.pop(key, None)
        elif isinstance(value, Mapping):
            under = below.get(key)
            if not isinstance(under, dict):
                under = below[key] = {}
            lay_over(under, value)
        else:
            below[key] = value


def difference(before: JSON, after: JSON, kept: JSON) -> dict[str, Any]:
    """What, laid over ``before``, makes ``after`` of it; and fields that are the same, where ``kept`` has them too."""
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
    """`` (a from X, b from Y)``: which layer gives the value at a place, or its fields; of a field that is missing, that none does."""
    if missing:
        return f" (given by none of {', '.join(layer.where for layer in layers)})"
    given: dict[str, list[str]] = {}
    seen: set[str] = set()
    for layer in reversed(layers):
        value, whole = _given_at(layer.fields, at)
        if whole and not isinstance(value, Mapping):
            given.setdefault(layer.where, [])
            break
        names = [name for name in value if name not in seen] if whole else []
        seen.update(names)
        if names:
            given[layer.where] = names
    if not given:
        return ""
    if len(given) == 1 and at:
        return f" (from {next(iter(given))})"
    told = (f"{join_names(names, _MOST)} from {where}" for where, names in reversed(given.items()) if names)
    return f" ({'; '.join(told)})"


def _given_at(fields: Any, at: Sequence[str | int]) -> tuple[Any, bool]:
    """What a layer has at a place, and whether it has anything there; below what is no object, it has all."""
    for step in at:
        if isinstance(fields, Mapping):
            if step not in fields:
                return None, False
            fields = fields[step]
        else:
            return fields, True
    return fields, fields is not None
