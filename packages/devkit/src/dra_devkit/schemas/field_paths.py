"""Sets of field paths, as in managed fields.

A path is a tuple of elements: ``f:name`` for a field, ``k:{...}`` for a list item with keys, ``v:...`` for a member
of a set. Source: FieldsV1 of meta/v1, and structured-merge-diff's fieldpath package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from dra_kubeletplugin.base.json_types import JSON

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
    """Encodes paths as ``fieldsV1``."""
    out: JSON = {}
    members: set[Path] = set(paths)
    for path in sorted(members):
        at = out
        for element in path:
            at = at.setdefault(element, {})
    for path in members:  # a path that is also the prefix of other paths
        at = out
        for element in path:
            at = at[element]
        if at:
            at["."] = {}
    return _ordered(out)


def _ordered(node: JSON) -> JSON:
    return {k: _ordered(node[k]) for k in sorted(node)}


def decode(fields: Mapping[str, Any], prefix: Path = ()) -> set[Path]:
    """Decodes the paths of ``fieldsV1``."""
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
    """Returns the paths that are neither in ``roots`` nor below one of them."""
    cut = frozenset(roots)
    lengths = {len(r) for r in cut}
    return {p for p in paths if cut.isdisjoint([p[:n] for n in lengths])}


def below(paths: Iterable[Path], element: str) -> set[Path]:
    """Returns the rest of the paths that begin with ``element``."""
    return {p[1:] for p in paths if len(p) > 1 and p[0] == element}


def in_order(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields sorted paths: at each level first the members, then the deeper paths."""
    found = set(paths)
    yield from sorted(p for p in found if len(p) == 1)
    for element in sorted({p[0] for p in found if len(p) > 1}):
        yield from ((element, *p) for p in in_order(below(found, element)))


def shown(path: Path) -> str:
    """Formats a path as in messages, e.g. ``.status.devices[device="d0",driver="a.example.com",pool="p"].data``."""
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
