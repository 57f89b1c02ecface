"""Sets of field paths, as managed fields have them: ``f:name`` for a field, ``k:{...}`` for an item with keys, ``v:...`` for a
member of a set.

A path is a tuple of such elements. Source: FieldsV1 of meta/v1, and structured-merge-diff's fieldpath package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

JSON = dict[str, Any]
Path: TypeAlias = tuple[str, ...]


def field_element(name: str) -> str:
    return f"f:{name}"


def key_element(keys: Mapping[str, Any]) -> str:
    return f"k:{_compact(dict(sorted(keys.items())))}"


def value_element(value: Any) -> str:
    return f"v:{_compact(value)}"


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def encode(paths: Iterable[Path]) -> JSON:
    """As ``fieldsV1``."""
    out: JSON = {}
    members: set[Path] = set(paths)
    for path in sorted(members):
        at = out
        for element in path:
            at = at.setdefault(element, {})
    for path in members:  # a member that has others below it
        at = out
        for element in path:
            at = at[element]
        if at:
            at["."] = {}
    return _ordered(out)


def _ordered(node: JSON) -> JSON:
    return {k: _ordered(node[k]) for k in sorted(node)}


def decode(fields: Mapping[str, Any], prefix: Path = ()) -> set[Path]:
    """The paths of ``fieldsV1``."""
    out: set[Path] = set()
    for element, below in fields.items():
        if element == ".":
            out.add(prefix)
            continue
        path = (*prefix, element)
        below = below if isinstance(below, Mapping) else {}
        out |= decode(below, path) if below else {path}
    return out


def without(paths: Iterable[Path], roots: Iterable[Path]) -> set[Path]:
    """The paths that are neither one of ``roots`` nor below one."""
    cut = frozenset(roots)
    lengths = {len(r) for r in cut}
    return {p for p in paths if cut.isdisjoint([p[:n] for n in lengths])}


def below(paths: Iterable[Path], element: str) -> set[Path]:
    """What follows ``element`` in the paths that begin with it."""
    return {p[1:] for p in paths if len(p) > 1 and p[0] == element}


def in_order(paths: Iterable[Path]) -> Iterator[Path]:
    """Members of each level first, then what is below, each in order."""
    found = set(paths)
    yield from sorted(p for p in found if len(p) == 1)
    for element in sorted({p[0] for p in found if len(p) > 1}):
        yield from ((element, *p) for p in in_order(below(found, element)))


def shown(path: Path) -> str:
    """A path as messages have it, e.g. ``.status.devices[device="d0",driver="a.example.com",pool="p"].data``."""
    out = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            out += f".{rest}"
        elif kind == "k":
            out += "[" + ",".join(f"{k}={_compact(v)}" for k, v in json.loads(rest).items()) + "]"
        else:
            out += f"[={rest}]"
    return out
