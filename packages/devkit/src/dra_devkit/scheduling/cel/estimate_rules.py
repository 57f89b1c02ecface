"""Estimates the maximum cost of each function and the size of its result, with the rules of cel-go's checker and of Kubernetes.

A rule is found by the overload's signature, or by the function's name if all overloads share the rule. Without a rule, a call costs
one unit and the size of its result is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from . import costs
from .ast import CallExpr, Expr, Literal
from .declarations import ORDERED
from .ranges import NOTHING, ONE, UNBOUNDED, UNKNOWN, WRAP, Range, capped, fixed

if TYPE_CHECKING:
    from .estimates import Estimator

MAX_LIST = 48  # the maximum number of values of a list attribute of a device
Result = tuple[Range, Range | None]


def _text(size: Range) -> Range:
    return size.times(0.1)


def estimate_call(e: Estimator, node: CallExpr, overload: str, parts: Sequence[Range]) -> Result:
    """Returns the estimated cost of one overload of a call, including its arguments, and the size of its result if known."""
    arguments = NOTHING
    for p in parts:
        arguments += p
    rule = _RULES.get(overload) or _RULES.get(node.function)
    if rule is not None and (found := rule(e, node)) is not None:
        cost, size = found
        return cost + arguments, size
    match node.function:
        case "_&&_" | "_||_":
            return Range(parts[0].least, (parts[0] + parts[1]).most), None
        case "_?_:_":
            e.set_entries_of_operands(node)
            return parts[0] + (parts[1] | parts[2]), _size(e, node.args[1]) | _size(e, node.args[2])
    return ONE + arguments, None


def _size(e: Estimator, node: Expr) -> Range:
    return e.size(node) or UNKNOWN


def _target(e: Estimator, node: CallExpr) -> Range:
    return _size(e, node.target) if node.target is not None else UNKNOWN


def _walk(e: Estimator, node: CallExpr) -> Result | None:
    """Returns one unit per element, and more if the elements are texts. For a text, the cost depends on its length."""
    if node.target is None:
        return None
    size, kind = _target(e, node), node.target.type
    if kind is None or not kind.params:
        return _text(size), None
    each = ONE
    if kind.params[0].name in {"string", "bytes"}:
        each += _text(e.element(node.target))
    return size * each, None


def _same_size(e: Estimator, node: CallExpr) -> Result:
    size = _target(e, node)
    return _text(size), size


def _parsed(e: Estimator, node: CallExpr) -> Result:
    return _text(_size(e, node.args[0])), None


def _replaced(e: Estimator, node: CallExpr) -> Result:
    size, old, new = _target(e, node), _size(e, node.args[0]), _size(e, node.args[1])
    if old.least == 0:
        most = (capped(size.most + 1), size.most)
    elif new.most <= old.least:
        most = (0, size.most)
    else:
        most = (math.ceil(size.most / old.least), 0)
    if old.most == 0:
        least = (capped(size.least + 1), size.least)
    elif old.most <= new.least:
        least = (0, size.least)
    else:
        least = (math.ceil(size.least / old.most), 0)
    return size.times(0.2), Range(least[0], most[0]) * new + Range(least[1], most[1])


def _split(e: Estimator, node: CallExpr) -> Result:
    size, most = _target(e, node), _target(e, node).most
    limit = node.args[1] if len(node.args) > 1 else None
    if isinstance(limit, Literal) and isinstance(limit.value, int):
        most = limit.value % WRAP
    return size.times(0.2), Range(0, most)


def _joined(e: Estimator, node: CallExpr) -> Result:
    listed = _target(e, node)
    assert node.target is not None
    size = listed * e.element(node.target)
    if node.args:
        between = Range(max(listed.least - 1, 0), max(listed.most - 1, 0))
        size += _size(e, node.args[0]) * between
    return _text(size), size


def _pattern(e: Estimator, node: CallExpr) -> Range | None:
    if node.target is None or not node.args:
        return None
    return _text(_target(e, node) + ONE) * _size(e, node.args[0]).times(0.25)


def _found(e: Estimator, node: CallExpr) -> Result | None:
    cost = _pattern(e, node)
    return (cost, Range(0, _target(e, node).most)) if cost else None


def _matched(e: Estimator, node: CallExpr) -> Result | None:
    cost = _pattern(e, node)
    return (cost, None) if cost else None


_ADDRESSES = Range(4, 16)
_COMPARED = (_ADDRESSES + _ADDRESSES).times(0.1)
_MASKED = _COMPARED + _text(_ADDRESSES) + ONE


def _contained(cost: Range, *, parsed: bool) -> _Rule:
    return lambda e, node: (cost + (_text(_size(e, node.args[0])) if parsed else NOTHING), None)


def _equal(e: Estimator, node: CallExpr) -> Result:
    first, second = node.args
    if first.type == second.type and first.type is not None:
        match first.type.name:
            case "net.IP" | "net.CIDR" | "kubernetes.Quantity" | "kubernetes.Semver":
                return ONE, None
            case "kubernetes.NamedFormat":
                return Range(1, 64).times(0.1), None
            case "kubernetes.URL":
                size = e.size(second)
                return Range(1, size.most if size else 1).times(0.1), None
    return _smaller(e, node)


def _smaller(e: Estimator, node: CallExpr) -> Result:
    most = min(_size(e, node.args[0]).most, _size(e, node.args[1]).most)
    return Range(1 if most else 0, most).times(0.1), None


def _added(e: Estimator, node: CallExpr) -> Result:
    e.set_entries_of_operands(node)
    size = _size(e, node.args[0]) + _size(e, node.args[1])
    return _text(size), size


def _concatenated(e: Estimator, node: CallExpr) -> Result:
    return ONE, _added(e, node)[1]


def _listed(size: Range, factor: float = 1) -> Result:
    """Returns cost and result size of a call that creates a list of ``size`` elements, at ``factor`` units per element."""
    return size.times(factor) + ONE + fixed(costs.LIST_CREATE), size


def _literal(node: Expr, otherwise: int) -> int:
    if isinstance(node, Literal) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return max(node.value, 0)
    return otherwise


def _sliced(e: Estimator, node: CallExpr) -> Result:
    start, end = _literal(node.args[0], 0), _literal(node.args[1], _target(e, node).most)
    return _listed(fixed((end - start) % WRAP))


def _sorted(factor: float, *, by: bool) -> _Rule:
    def rule(e: Estimator, node: CallExpr) -> Result:
        size = _size(e, node.args[0]) if by else _target(e, node)
        return _listed(size * size, factor)

    return rule


def _sets(factor: int) -> _Rule:
    return lambda e, node: ((_size(e, node.args[0]) * _size(e, node.args[1])).times(factor) + ONE, None)


def _quoted(e: Estimator, node: CallExpr) -> Result:
    size = _size(e, node.args[0])
    return _text(size), Range((size.least + 2) % WRAP, (size.most * 2 + 2) % WRAP)


def _to_bytes(e: Estimator, node: CallExpr) -> Result:
    size = _size(e, node.args[0])
    return _text(size), Range(size.least, size.most * 4 % WRAP)


def _to_string(e: Estimator, node: CallExpr) -> Result:
    size = _size(e, node.args[0])
    return _text(size), Range(size.least // 4, size.most)


_Rule: TypeAlias = "Callable[[Estimator, CallExpr], Result | None]"
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _walk),
    "url": lambda e, n: (_text(_size(e, n.args[0])), _size(e, n.args[0])),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver", "cidr", "isIP", "isCIDR", "ip(string)"), _parsed),
    "ip.isCanonical": lambda e, n: (_size(e, n.args[0]).times(0.2), None),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _same_size),
    "replace": _replaced,
    "split": _split,
    "join": _joined,
    "find": _found,
    "findAll": _found,
    "string.matches(string)": _matched,
    "net.CIDR.containsIP(net.IP)": _contained(_COMPARED, parsed=False),
    "net.CIDR.containsIP(string)": _contained(_COMPARED, parsed=True),
    "net.CIDR.containsCIDR(net.CIDR)": _contained(_MASKED, parsed=False),
    "net.CIDR.containsCIDR(string)": _contained(_MASKED, parsed=True),
    "validate": lambda e, n: (_text(_size(e, n.args[0])).times(128 * 0.25), None),
    "_==_": _equal,
    "_!=_": _smaller,
    **{f"_{op}_({t}, {t})": _smaller for op in ("<", "<=", ">", ">=") for t in ("string", "bytes")},
    "_+_(string, string)": _added,
    "_+_(bytes, bytes)": _added,
    "_+_(list(A), list(A))": _concatenated,
    "string.startsWith(string)": lambda e, n: (_text(_size(e, n.args[0])), None),
    "string.endsWith(string)": lambda e, n: (_text(_size(e, n.args[0])), None),
    "string.contains(string)": lambda e, n: (_text(_target(e, n)) * _text(_size(e, n.args[0])), None),
    "string.format(list(dyn))": lambda e, n: (_text(_target(e, n)), None),
    "strings.quote(string)": _quoted,
    "bytes(string)": _to_bytes,
    "string(bytes)": _to_string,
    "@in(A, list(A))": lambda e, n: (_size(e, n.args[1]).times(1), None),
    "slice": _sliced,
    "flatten": lambda e, n: _listed(_target(e, n), _literal(n.args[0], UNBOUNDED) if n.args else 1),
    "lists.range": lambda e, n: _listed(fixed(_literal(n.args[0], UNBOUNDED))),
    "reverse": lambda e, n: _listed(_target(e, n)),
    "distinct": lambda e, n: _listed(_target(e, n) * _target(e, n), 2),
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
    "includes": lambda e, n: (fixed(MAX_LIST), None),
    **{
        rule: _sorted(2.1 if t in {"string", "bytes"} else 2, by=by)
        for t in ORDERED
        for by, rule in ((False, f"list({t}).sort()"), (True, f"list(A).@sortByAssociatedKeys(list({t}))"))
    },
}
