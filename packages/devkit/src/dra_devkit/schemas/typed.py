"""Operations on objects by their merge types: list the paths, compare, merge, remove paths.

The rules are the rules of sigs.k8s.io/structured-merge-diff (package typed), which API servers use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .field_paths import Path, below, field_element, key_element, shown, value_element
from .merging import ListOf, MapOf, Scalar, Type, Untyped


class SchemaError(Exception):
    """An object does not fit its type."""


class _Absent:
    """Marks a missing value, which differs from null."""


_ABSENT: Final = _Absent()
_PYTHON = {Scalar.STRING: (str,), Scalar.NUMERIC: (int, float), Scalar.BOOLEAN: (bool,)}
_DEDUCED_MAP = MapOf({}, None, False)
_ATOMIC_MAP = MapOf({}, None, True)


@dataclass
class Comparison:
    """The differences between two objects, as paths."""

    added: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)


def check(value: Any, type_: Type, path: Path = ()) -> None:
    """Raises :class:`SchemaError` for unknown fields, for values of a wrong type, and for duplicate list items."""
    if value is None:
        return
    if isinstance(type_, Scalar):
        wanted = _PYTHON.get(type_)
        wrong = isinstance(value, (dict, list)) or (wanted and not isinstance(value, wanted))
        if wrong or (type_ is Scalar.NUMERIC and isinstance(value, bool)):
            raise SchemaError(
                f"{shown(path)}: expected {type_.value}, got &value.valueUnstructured{{Value:{_go(value)}}}"
            )
    elif isinstance(type_, ListOf):
        if not isinstance(value, list):
            raise SchemaError(f"{shown(path)}: expected list, got &{{{_go(value)}}}")
        seen = set()
        for item in value:
            if type_.atomic:
                check(item, type_.item.type, path)
                continue
            element = _element(type_, item, path)
            if element in seen:
                raise SchemaError(f"{shown(path)}: duplicate entries for key {shown((element,))}")
            seen.add(element)
            check(item, type_.item.type, (*path, element))
    elif isinstance(type_, MapOf):
        if not isinstance(value, dict):
            raise SchemaError(f"{shown(path)}: expected map, got &{{{_go(value)}}}")
        for key, item in value.items():
            where = (*path, field_element(key))
            if key not in type_.fields and type_.values is None:
                raise SchemaError(f"{shown(where)}: field not declared in schema")
            check(item, _value_type(type_, key), where)


def _go(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def paths_of(value: Any, type_: Type) -> set[Path]:
    """Returns the paths that an applied object owns."""
    out: set[Path] = set()
    _collect(value, type_, (), out)
    return out


def _collect(value: Any, type_: Type, path: Path, out: set[Path]) -> None:
    seen = _divisible(_form(type_, value))
    if seen is None:
        out.add(path)
        return
    for element, item in _parts(seen, value, path):
        where = (*path, element)
        _collect(item, _part_type(seen, element), where, out)
        if isinstance(seen, ListOf) or item is None or item == {} or element[2:] not in seen.fields:
            out.add(where)


def compare(old: Any, new: Any, type_: Type) -> Comparison:
    """Returns the changes that turn ``old`` into ``new``."""
    out = Comparison()
    _compare(old, new, type_, (), out)
    return out


def _compare(old: Any, new: Any, type_: Type, path: Path, out: Comparison) -> None:
    if old == new:
        return  # the fast path: most parts of an object are equal
    a = _form(type_, old) if old is not _ABSENT else None
    b = _form(type_, new) if new is not _ABSENT else None
    leaf = False
    for seen in {id(s): s for s in (a, b) if s is not None}.values():
        leaf = _compare_as(seen, old, new, path, out) or leaf
    if not leaf:
        if old is _ABSENT:
            out.added.add(path)
        elif new is _ABSENT:
            out.removed.add(path)


def _compare_as(seen: Type, old: Any, new: Any, path: Path, out: Comparison) -> bool:
    """Compares two values of the type ``seen``. Returns whether they were compared as a whole and not part by part."""
    if (divided := _divisible(seen)) is not None:
        before, after = dict(_parts(divided, old, path)), dict(_parts(divided, new, path))
        for element in {**before, **after}:
            inner = _part_type(divided, element)
            _compare(before.get(element, _ABSENT), after.get(element, _ABSENT), inner, (*path, element), out)
        if before or after:
            return False
    if old is _ABSENT:
        out.added.add(path)
    elif new is _ABSENT:
        out.removed.add(path)
    elif old != new:
        out.modified.add(path)
    return True


def merge(live: Any, applied: Any, type_: Type) -> Any:
    """Returns ``live`` with all values of ``applied`` merged into it."""
    return _merge(live, applied, type_, ())


def _merge(live: Any, applied: Any, type_: Type, path: Path) -> Any:
    seen = _divisible(_form(type_, live if applied is _ABSENT or applied is None else applied))
    left, right = (dict(_parts(seen, value, path)) if seen is not None else {} for value in (live, applied))
    if seen is None or not (left or right):
        return live if applied is _ABSENT else applied

    def merged(element: str) -> Any:
        inner = _part_type(seen, element)
        return _merge(left.get(element, _ABSENT), right.get(element, _ABSENT), inner, (*path, element))

    if isinstance(seen, MapOf):
        return {element[2:]: merged(element) for element in {**left, **right}}
    return [merged(element) for element in _merged_order(list(left), list(right))]


def _merged_order(lefts: list[str], rights: list[str]) -> list[str]:
    """Returns the order of the merged items: the order of ``rights`` for items of both lists; others stay by their neighbors."""
    left, right = set(lefts), set(rights)
    shared = [e for e in rights if e in left]
    out, merged = [], set()
    i = j = 0
    while i < len(lefts) or j < len(rights):
        if i < len(lefts) and j < len(rights):
            if lefts[i] == rights[j]:
                merged.add(lefts[i])
                out.append(lefts[i])
                i, j, shared = i + 1, j + 1, shared[1:]
                continue
            if lefts[i] in right and shared and shared[0] != lefts[i]:
                i += 1
                continue
        if i < len(lefts):
            if lefts[i] not in right:
                out.append(lefts[i])
                i += 1
                continue
            if lefts[i] in merged:
                i += 1
        if j < len(rights):
            merged.add(rights[j])
            out.append(rights[j])
            if shared and shared[0] == rights[j]:
                shared = shared[1:]
            j += 1
    return out


def remove(value: Any, paths: Iterable[Path], type_: Type) -> Any:
    """Returns ``value`` without ``paths``. A map without remaining entries becomes null; a list becomes an empty list."""
    gone = set(paths)
    seen = _divisible(_form(type_, value))
    if not gone or value is None or seen is None:
        return value
    kept = [
        (element, remove(item, below(gone, element), _part_type(seen, element)))
        for element, item in _parts(seen, value)
        if (element,) not in gone
    ]
    return [item for _, item in kept] if isinstance(seen, ListOf) else {e[2:]: item for e, item in kept} or None


def with_parent_fields(paths: Iterable[Path], type_: Type) -> set[Path]:
    """Returns ``paths`` and every struct field above them: the owner of a part of a struct also owns the struct's field."""
    out = set(paths)
    for path in list(out):
        at: Type | None = type_
        for depth, element in enumerate(path[:-1], 1):
            name = element[2:]
            if isinstance(at, MapOf) and element.startswith("f:"):
                if name in at.fields:
                    out.add(path[:depth])
                at = _value_type(at, name)
            elif isinstance(at, ListOf):
                at = at.item.type
            else:
                at = Untyped.DEDUCED
    return out


def cleaned(value: Any, type_: Type) -> Any:
    """Returns ``value`` as a server written in Go stores it: nulls are removed; in maps of strings they become ""."""
    seen = _form(type_, value)
    if isinstance(seen, MapOf) and isinstance(value, Mapping):
        zeroed = not seen.fields and seen.values is not None and seen.values.type is Scalar.STRING
        pairs = ((k, "" if v is None and zeroed else v) for k, v in value.items())
        return {k: cleaned(v, _value_type(seen, k)) for k, v in pairs if v is not None}
    if isinstance(seen, ListOf) and isinstance(value, list):
        return [cleaned(v, seen.item.type) for v in value]
    return value


# --- parts --------------------------------------------------------------------------------------


def _form(type_: Type, value: Any) -> Type:
    """Returns the type of a value; an untyped value gets the type of its content."""
    if not isinstance(type_, Untyped):
        return type_
    if isinstance(value, dict):
        return _DEDUCED_MAP if type_ is Untyped.DEDUCED else _ATOMIC_MAP
    return Scalar.UNTYPED  # a scalar, or a list, which is atomic


def _value_type(type_: MapOf, key: str) -> Type:
    found = type_.fields.get(key) or type_.values
    return found.type if found else Untyped.DEDUCED


def _divisible(type_: Type) -> ListOf | MapOf | None:
    """Returns the type of a list or map that is compared and merged part by part; None for any other type."""
    return type_ if isinstance(type_, ListOf | MapOf) and not type_.atomic else None


def _parts(type_: ListOf | MapOf, value: Any, path: Path = ()) -> list[tuple[str, Any]]:
    """Returns the parts of a list or map, each with its path element."""
    if isinstance(type_, ListOf):
        return [(_element(type_, item, path), item) for item in value] if isinstance(value, list) else []
    return [(field_element(key), item) for key, item in value.items()] if isinstance(value, Mapping) else []


def _part_type(type_: ListOf | MapOf, element: str) -> Type:
    return type_.item.type if isinstance(type_, ListOf) else _value_type(type_, element[2:])


def _element(type_: ListOf, item: Any, path: Path) -> str:
    """Returns the path element of a list's item. Raises :class:`SchemaError` for an item without any of the keys."""
    if type_.is_set:
        return value_element(item)
    if not isinstance(item, Mapping):
        raise SchemaError(f"{shown(path)}: associative list with keys has an element that is not a map")
    keys = {**type_.defaults, **{k: item[k] for k in type_.keys if item.get(k) is not None}}
    if not keys:
        names = ", ".join(type_.keys)
        raise SchemaError(f"{shown(path)}: associative list with keys has an element that omits all key fields {names}")
    return key_element(keys)
