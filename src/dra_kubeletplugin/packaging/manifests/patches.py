"""What makes one manifest of another: a strategic merge patch."""

from __future__ import annotations

from typing import Any

from .source import JSON, SourceError


def patch(before: JSON, after: JSON, where: str = "") -> JSON:
    """Keys that differ; items of lists are told by their name. Raises :class:`SourceError` where no name tells them."""
    out: JSON = {}
    for key in sorted({*before, *after}):
        path = f"{where}.{key}"
        if key not in after:
            out[key] = None
        elif key not in before:
            out[key] = after[key]
        elif before[key] != after[key]:
            out[key] = _value(before[key], after[key], path)
    return out


def _value(before: Any, after: Any, path: str) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        return patch(before, after, path)
    if isinstance(before, list) and isinstance(after, list):
        return _items(before, after, path)
    return after


def _items(before: list[Any], after: list[Any], path: str) -> list[JSON]:
    try:
        old, new = ({item["name"]: item for item in items} for items in (before, after))
    except (KeyError, TypeError):
        raise SourceError(f"{path}: a feature changes a list whose items have no names, which no patch can") from None
    out = [{"name": name, "$patch": "delete"} for name in old if name not in new]
    for name, item in new.items():
        if name not in old:
            out.append(item)
        elif item != old[name]:
            out.append({"name": name, **patch(old[name], item, f"{path}[{name}]")})
    return out
