"""What a call costs, in CEL cost units: the run-time rules of cel-go and of Kubernetes' libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .values import size_of

LIST_CREATE, MAP_CREATE, STRUCT_CREATE = 10, 30, 40


def _text(size: float) -> int:
    return math.ceil(size * 0.1)


def _receiver(args: Sequence[Any]) -> int:
    return _text(size_of(args[0]))


def _smaller(args: Sequence[Any]) -> int:
    return _text(min(size_of(args[0]), size_of(args[1])))


def _search(args: Sequence[Any]) -> int:
    return _text(size_of(args[0])) * _text(size_of(args[1]))


def _pattern(args: Sequence[Any]) -> int:
    return _text(1 + size_of(args[0])) * math.ceil(size_of(args[1]) * 0.25)


def _elements(args: Sequence[Any]) -> int:
    return len(args[0]) if isinstance(args[0], list) else 1


def _addition(args: Sequence[Any]) -> int:
    if all(isinstance(a, (str, bytes)) for a in args):
        return _text(size_of(args[0]) + size_of(args[1]))
    return 1


def _sets(factor: int) -> Callable[[Sequence[Any]], int]:
    return lambda args: size_of(args[0]) * size_of(args[1]) * factor + 1


def _sorting(args: Sequence[Any]) -> int:
    return LIST_CREATE + 2 * size_of(args[0]) ** 2 + 1


def _membership(args: Sequence[Any]) -> int:
    return len(args[1]) if isinstance(args[1], list) else 1


def _contains_ip(args: Sequence[Any]) -> int:
    return 1 + (_text(len(args[1])) if isinstance(args[1], str) else 0)


class _Error:
    """Stands for an argument whose evaluation failed."""


ERROR = _Error()

_COSTS: dict[str, Callable[[Sequence[Any]], int]] = {
    "startsWith": _receiver,
    "endsWith": _receiver,
    "strings.quote": _receiver,
    "format": _receiver,
    "lowerAscii": _receiver,
    "upperAscii": _receiver,
    "substring": _receiver,
    "trim": _receiver,
    "url": _receiver,
    "quantity": _receiver,
    "isQuantity": _receiver,
    "semver": _receiver,
    "isSemver": _receiver,
    "ip": lambda a: _receiver(a) if isinstance(a[0], str) else 1,
    "isIP": _receiver,
    "ip.isCanonical": _receiver,
    "cidr": _receiver,
    "isCIDR": _receiver,
    "containsIP": _contains_ip,
    "containsCIDR": _contains_ip,
    "replace": lambda a: _text(2 * size_of(a[0])),
    "split": lambda a: _text(2 * size_of(a[0])),
    "contains": _search,
    "matches": _pattern,
    "find": _pattern,
    "findAll": _pattern,
    "_==_": _smaller,
    "_!=_": _smaller,
    "_<_": _smaller,
    "_>_": _smaller,
    "_<=_": _smaller,
    "_>=_": _smaller,
    "_+_": _addition,
    "@in": _membership,
    "isSorted": _elements,
    "sum": _elements,
    "min": _elements,
    "max": _elements,
    "indexOf": _elements,
    "lastIndexOf": _elements,
    "sort": _sorting,
    "@sortByAssociatedKeys": _sorting,
    "distinct": _sorting,
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
    "dyn": lambda _: 0,
}
_BY_RESULT: dict[str, Callable[[Any], int]] = {
    "join": lambda r: _text(2 * size_of(r)),
    "slice": lambda r: LIST_CREATE + size_of(r) + 1,
    "flatten": lambda r: LIST_CREATE + size_of(r) + 1,
    "reverse": lambda r: LIST_CREATE + size_of(r) + 1,
    "lists.range": lambda r: LIST_CREATE + size_of(r) + 1,
}


def call(function: str, args: Sequence[Any], result: Any) -> int:
    """The cost of one call with evaluated ``args``; :data:`ERROR` stands for failed ones."""
    if function in _BY_RESULT:
        return 1 if result is ERROR else _BY_RESULT[function](result)
    cost = _COSTS.get(function)
    return cost(args) if cost else 1
