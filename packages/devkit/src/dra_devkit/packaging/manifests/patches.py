"""Computes the strategic merge patch between two manifests."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.base.json_types import JSON


def merge_patch(before: JSON, after: JSON, where: str = "") -> JSON:
    """Returns the keys whose values differ, with the values of ``after``. A key that only ``before`` has gets the value None.

    List items are matched by name. Raises ``ValueError`` if a list differs and its items have no names.
    """
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
        return merge_patch(before, after, path)
    if isinstance(before, list) and isinstance(after, list):
        return _items(before, after, path)
    return after


def _items(before: list[Any], after: list[Any], path: str) -> list[JSON]:
    try:
        old, new = ({item["name"]: item for item in items} for items in (before, after))
    except (KeyError, TypeError):
        raise ValueError(
            f"{path}: a feature changes a list whose items have no names, which a patch cannot express"
        ) from None
    out = [{"name": name, "$patch": "delete"} for name in old if name not in new]
    for name, item in new.items():
        if name not in old:
            out.append(item)
        elif item != old[name]:
            out.append({"name": name, **merge_patch(old[name], item, f"{path}[{name}]")})
    return out
