"""Functions on lists, sets and optionals, from the libraries of cel-go and Kubernetes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .formatting import show
from .library_core import add
from .registry import FUNCTIONS, define, need
from .values import NONE, CelError, Optional, less, same, type_of


@define("isSorted")
def is_sorted(a: Any) -> bool:
    return all(not less(y, x) for x, y in zip(need(a, list), a[1:], strict=False))


@define("sum")
def total(a: Any) -> Any:
    values = need(a, list)
    if not values:
        return 0
    return functools.reduce(add, values)


def _extreme(name: str, better: Callable[[Any, Any], bool]) -> Callable[[Any], Any]:
    def pick(a: Any) -> Any:
        values = need(a, list)
        if not values:
            raise CelError(f"{name} called on empty list")
        return functools.reduce(lambda x, y: y if better(y, x) else x, values)

    return pick


FUNCTIONS["min"] = _extreme("min", less)
FUNCTIONS["max"] = _extreme("max", lambda y, x: less(x, y))


def _order(a: Any, b: Any) -> int:
    return -1 if less(a, b) else int(less(b, a))


@define("@sortByAssociatedKeys")
def sort_by(a: Any, keys: Any) -> list[Any]:
    if len({type_of(k) for k in need(keys, list)}) > 1:
        raise CelError("list elements must have the same type")
    if keys and isinstance(keys[0], (list, dict, Optional)):
        raise CelError("list elements must be comparable")

    def by_key(x: tuple[Any, Any], y: tuple[Any, Any]) -> int:
        return _order(x[1], y[1])

    pairs = sorted(zip(need(a, list), keys, strict=True), key=functools.cmp_to_key(by_key))
    return [value for value, _ in pairs]


FUNCTIONS["sort"] = lambda a: sort_by(a, a)


@define("slice")
def list_slice(a: Any, start: Any, end: Any) -> list[Any]:
    values = need(a, list)
    if start < 0 or end < 0:
        raise CelError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise CelError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(values):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return list(values[start:end])


@define("flatten")
def flatten(a: Any, depth: Any = 1) -> list[Any]:
    if depth < 0:
        raise CelError("level must be non-negative")
    out: list[Any] = []
    for x in need(a, list):
        if isinstance(x, list) and depth > 0:
            out += flatten(x, depth - 1)
        else:
            out.append(x)
    return out


@define("distinct")
def distinct(a: Any) -> list[Any]:
    out: list[Any] = []
    for x in need(a, list):
        if not any(same(x, y) for y in out):
            out.append(x)
    return out


FUNCTIONS["reverse"] = lambda a: list(reversed(need(a, list)))
FUNCTIONS["first"] = lambda a: Optional(True, a[0]) if need(a, list) else NONE
FUNCTIONS["last"] = lambda a: Optional(True, a[-1]) if need(a, list) else NONE
FUNCTIONS["lists.range"] = lambda n: list(range(need(n, int)))
FUNCTIONS["sets.contains"] = lambda a, b: all(any(same(y, x) for y in need(a, list)) for x in need(b, list))
FUNCTIONS["sets.intersects"] = lambda a, b: any(any(same(y, x) for y in need(a, list)) for x in need(b, list))
FUNCTIONS["sets.equivalent"] = lambda a, b: FUNCTIONS["sets.contains"](a, b) and FUNCTIONS["sets.contains"](b, a)
FUNCTIONS["optional.of"] = lambda a: Optional(True, a)
FUNCTIONS["optional.none"] = lambda: NONE
FUNCTIONS["optional.ofNonZeroValue"] = lambda a: (
    NONE if a is None or a in ("", 0, False, [], {}, b"") else Optional(True, a)
)
FUNCTIONS["hasValue"] = lambda a: need(a, Optional).present


@define("optional.unwrap", "unwrapOpt")
def unwrap(a: Any) -> list[Any]:
    return [x.value for x in need(a, list) if need(x, Optional).present]


@define("value")
def optional_value(a: Any) -> Any:
    if not need(a, Optional).present:
        raise CelError("optional.none() dereference")
    return a.value


@define("cel.@mapInsert")
def map_insert(a: Any, key: Any, *value: Any) -> dict[Any, Any]:
    added = {key: value[0]} if value else need(key, dict)
    for k in added:
        if k in a:
            raise CelError(f"insert failed: key {show(k)} already exists")
    return {**need(a, dict), **added}


@define("includes")
def includes(a: Any, b: Any) -> bool:
    """Returns whether a list attribute has the element ``b``, or a scalar attribute equals it (KEP-5491)."""
    return any(same(x, b) for x in a) if isinstance(a, list) else same(a, b)
