"""Finds fields in objects by path, such as ``spec.devices[].attributes.*.ints``: ``[]`` is each item, ``*`` is each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def value_at(obj: Any, *path: str) -> Any:
    """Returns the value at a path of names; None if there is no such field."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj


def fields_at(obj: Any, path: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yields each existing field at a path: its parent, its name, and its path for messages."""
    return _below(obj, path.split("."), "")


def _below(obj: Any, steps: Sequence[str], where: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    step, rest = steps[0], steps[1:]
    name, listed = step.removesuffix("[]"), step.endswith("[]")
    if not isinstance(obj, dict):
        return
    for key in list(obj) if name == "*" else [name] if name in obj else []:
        at = f"{where}.{key}" if where else key
        if not rest:
            yield obj, key, at
        elif not listed:
            yield from _below(obj[key], rest, at)
        elif isinstance(obj[key], list):
            for i, item in enumerate(obj[key]):
                yield from _below(item, rest, f"{at}[{i}]")
