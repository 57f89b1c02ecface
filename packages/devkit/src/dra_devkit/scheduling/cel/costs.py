"""Calculates the cost of a call in CEL cost units, with the run-time rules of cel-go and of Kubernetes' libraries.

A rule is found by the function's name, or by the overload's signature where cel-go's rules depend on the overload. A call whose
overload is known only at run time uses the rule of the name, or costs one unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .declarations import ORDERED
from .values import CelError, Format, Optional, size_of, type_of

LIST_CREATE, MAP_CREATE = 10, 30
Rule = Callable[[Sequence[Any], Any], int]


class InternalError(Exception):
    """The cost of a call cannot be calculated. This error ends the evaluation; neither && nor || absorbs it."""


def _text(size: float) -> int:
    return math.ceil(size * 0.1)


def _actual(v: Any) -> int:
    """Returns the size of a value; an optional has the size of its value."""
    while isinstance(v, Optional) and v.present:
        v = v.value
    return size_of(v)


def _traversal(v: Any) -> int:
    """Returns the cost of walking a value as a tree. A list or map that occurs several times is counted each time, but walked once."""
    return _traversed(v, {})


def _traversed(v: Any, known: dict[int, int]) -> int:
    if isinstance(v, str):
        return int(len(v.encode()) * 0.1)
    if isinstance(v, bytes):
        return int(len(v) * 0.1)
    if not isinstance(v, (list, dict)):
        return 1
    found = known.get(id(v))
    if found is None:
        parts = [*v.keys(), *v.values()] if isinstance(v, dict) else v
        found = known[id(v)] = sum(_traversed(x, known) for x in parts)
    return found


def one_unit(args: Sequence[Any], _: Any) -> int:
    return 1


def _first(args: Sequence[Any], _: Any) -> int:
    return _text(size_of(args[0]))


def _first_twice(args: Sequence[Any], _: Any) -> int:
    return math.ceil(size_of(args[0]) * 2 * 0.1)


def _pattern(args: Sequence[Any], _: Any) -> int:
    return _text(1 + size_of(args[0])) * math.ceil(size_of(args[1]) * 0.25)


def _search(args: Sequence[Any], _: Any) -> int:
    return _text(size_of(args[0])) * _text(size_of(args[1]))


def _smaller(args: Sequence[Any], _: Any) -> int:
    return _text(min(_actual(args[0]), _actual(args[1])))


def _joined(args: Sequence[Any], _: Any) -> int:
    return _text(size_of(args[0]) + size_of(args[1]))


def _equal(args: Sequence[Any], result: Any) -> int:
    return 1 if type_of(args[0]).name.startswith(("kubernetes.", "net.")) else _smaller(args, result)


def _validated(args: Sequence[Any], _: Any) -> int:
    checked, text = args
    return _text(1 + size_of(text)) * math.ceil(checked.pattern_length * 0.25) if isinstance(checked, Format) else 1


def _contains_ip(args: Sequence[Any], _: Any) -> int:
    return math.ceil(2 * size_of(args[0]) * 0.1)


def _contains_cidr(args: Sequence[Any], result: Any) -> int:
    return _contains_ip(args, result) + _text(size_of(args[0])) + 1


def _parsing(rule: Rule) -> Rule:
    """Returns the rule of an overload that begins by parsing its second argument, a text."""
    return lambda args, result: rule(args, result) + _text(size_of(args[1]))


def _allocating(size: int, factor: float = 1) -> int:
    return int(size * factor) + 1 + LIST_CREATE


def _output(args: Sequence[Any], result: Any) -> int:
    return _allocating(size_of(result))


def _ranged(args: Sequence[Any], _: Any) -> int:
    return _allocating(max(0, args[0]) if isinstance(args[0], int) else 1)


def _flattened(args: Sequence[Any], _: Any) -> int:
    depth = args[1] if len(args) == 2 else 1
    if isinstance(depth, CelError):
        raise InternalError("interface conversion: ref.Val is *types.Err, not types.Int")
    return _allocating(size_of(args[0]), depth)


def _self_compared(index: int) -> Rule:
    def rule(args: Sequence[Any], _: Any) -> int:
        values = args[index]
        if not isinstance(values, list):
            raise InternalError("interface conversion: *types.Err is not traits.Lister")
        factor = 2.1 if values and isinstance(values[0], (str, bytes)) else 2
        return _allocating(len(values) ** 2, factor)

    return rule


def _sets(factor: int) -> Rule:
    return lambda args, _: size_of(args[0]) * size_of(args[1]) * factor + 1


_BY_NAME: dict[str, Rule] = {
    "isSorted": lambda a, _: _traversal(a[0]),
    "sum": lambda a, _: _traversal(a[0]),
    "max": lambda a, _: _traversal(a[0]),
    "min": lambda a, _: _traversal(a[0]),
    "indexOf": lambda a, _: _traversal(a[0]),
    "lastIndexOf": lambda a, _: _traversal(a[0]),
    "url": _first,
    "lowerAscii": _first,
    "upperAscii": _first,
    "substring": _first,
    "trim": _first,
    "replace": _first_twice,
    "split": _first_twice,
    "join": lambda _, r: math.ceil(size_of(r) * 2 * 0.1),
    "find": _pattern,
    "findAll": _pattern,
    "cidr": _first,
    "isIP": _first,
    "isCIDR": _first,
    "ip": lambda a, r: _first(a, r) if isinstance(a[0], (str, CelError)) else 1,
    "ip.isCanonical": _first_twice,
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "quantity": _first,
    "isQuantity": _first,
    "semver": _first,
    "isSemver": _first,
    "validate": _validated,
    "_==_": _equal,
    "_!=_": _smaller,
    "check": lambda *_: 350_000,  # an authorizer may be a remote service
    # cel-go's functions on lists and sets. Each has one overload, or the same rule for all its overloads.
    "slice": _output,
    "flatten": _flattened,
    "lists.range": _ranged,
    "reverse": _output,
    "distinct": _self_compared(0),
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
}
# The cost of these functions depends on the result, so it is charged after the call. Other calls are charged first, so a call that
# exceeds the cost limit never runs.
CHARGED_AFTER_CALL = {"join", "slice", "reverse"}
_BY_OVERLOAD: dict[str, Rule] = {
    "string.startsWith(string)": _first,
    "string.endsWith(string)": _first,
    "bytes(string)": _first,
    "string(bytes)": _first,
    "strings.quote(string)": _first,
    "string.format(list(dyn))": _first,
    "@in(A, list(A))": lambda a, _: size_of(a[1]),
    "_+_(string, string)": _joined,
    "_+_(bytes, bytes)": _joined,
    "string.matches(string)": _pattern,
    "net.CIDR.containsIP(string)": _parsing(_contains_ip),
    "net.CIDR.containsCIDR(string)": _parsing(_contains_cidr),
    "string.contains(string)": _search,
    **{f"_{op}_({t}, {t})": _smaller for op in ("<", "<=", ">", ">=") for t in ("string", "bytes")},
    **{
        rule: _self_compared(i)
        for t in ORDERED
        for i, rule in enumerate((f"list({t}).sort()", f"list(A).@sortByAssociatedKeys(list({t}))"))
    },
}


def rule_of(function: str, overload: str) -> Rule:
    """Returns the rule for a call; ``overload`` is empty if it is known only at run time.

    A rule gets the values of the arguments and the result. A :class:`CelError` stands for an argument that failed.
    """
    return _BY_OVERLOAD.get(overload) or _BY_NAME.get(function) or one_unit
