"""The most that an expression can cost, from its tree alone: what admission compares with the limit.

Follows cel-go's checker cost and the sizes that Kubernetes knows of a device: 63 characters for the driver, 32 attributes or
capacities, 64 bytes for a value. Sizes that nobody knows are unbounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import costs
from .ast import Call, Fold, Ident, ListExpr, Literal, MapExpr, Node, Select
from .values import Type

UNBOUNDED = 2**64 - 1
MAX_DRIVER, MAX_ENTRIES, MAX_NAME, MAX_VALUE, MAX_LIST = 63, 32, 32, 64, 48
_SCALARS = {
    "int", "uint", "double", "bool", "null_type", "google.protobuf.Duration", "google.protobuf.Timestamp",
    "kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR", "kubernetes.URL",
}  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """The most a node costs, and the most its value's size can be."""

    cost: int
    size: int = UNBOUNDED


def _cap(value: int) -> int:
    return min(value, UNBOUNDED)


def _scaled(size: int, factor: float) -> int:
    return _cap(math.ceil(float(size) * factor))


def _text(size: int) -> int:
    return _scaled(size, 0.1)


class Estimator:
    def __init__(self) -> None:
        self._variables: list[dict[str, int]] = [{}]

    def estimate(self, node: Node) -> Estimate:
        match node:
            case Literal(value=value):
                return Estimate(0, len(value) if isinstance(value, (str, bytes)) else 1)
            case Ident():
                return Estimate(1, self._variable(node))
            case Select():
                return self._select(node)
            case ListExpr():
                total = sum(self.estimate(e).cost for e in node.elements)
                return Estimate(_cap(total + costs.LIST_CREATE), len(node.elements))
            case MapExpr():
                total = sum(self.estimate(k).cost + self.estimate(v).cost for k, v in node.entries)
                return Estimate(_cap(total + costs.MAP_CREATE), len(node.entries))
            case Fold():
                return self._fold(node)
            case Call():
                return self._call(node)
        raise AssertionError(node)

    def _variable(self, node: Ident) -> int:
        for scope in reversed(self._variables):
            if node.name in scope:
                return scope[node.name]
        return _size_of_type(node.type)

    def _select(self, node: Select) -> Estimate:
        operand = self.estimate(node.operand)
        if node.test:
            return Estimate(operand.cost, 1)
        size = _size_of_type(node.type)
        if (
            node.operand.type is not None
            and node.operand.type.name == "kubernetes.DRADevice"
            and node.field == "driver"
        ):
            size = MAX_DRIVER
        return Estimate(_cap(operand.cost + 1), size)

    def _call(self, node: Call) -> Estimate:
        operands = ([node.target] if node.target is not None else []) + node.args
        parts = [self.estimate(o) for o in operands]
        total = _cap(sum(p.cost for p in parts))
        sizes = [p.size for p in parts]
        size = _size_of_type(node.type)
        match node.function:
            case "_&&_" | "_||_":
                return Estimate(total, 1)
            case "_?_:_":
                chosen = max(parts[1].cost, parts[2].cost)
                return Estimate(_cap(parts[0].cost + chosen), max(sizes[1:]))
            case "_[_]" | "_[?_]":
                return Estimate(_cap(total + 1), size)
        own, result = _function(node, sizes)
        return Estimate(_cap(total + own), size if result is None else result)

    def _fold(self, node: Fold) -> Estimate:
        over, init = self.estimate(node.range), self.estimate(node.init)
        self._variables.append({node.accu: init.size})
        names = {node.var: _element_size(node.range.type, first=True)}
        if node.var2:
            names[node.var2] = _element_size(node.range.type, first=False)
        self._variables.append(names)
        loop = self.estimate(node.condition).cost + self.estimate(node.step).cost
        self._variables.pop()
        result = self.estimate(node.result)
        self._variables.pop()
        total = over.cost + init.cost + result.cost + over.size * loop
        size = over.size if isinstance(node.init, (ListExpr, MapExpr)) else result.size
        return Estimate(_cap(total), size)


def _size_of_type(t: Type | None) -> int:
    if t is None:
        return UNBOUNDED
    if t.name in _SCALARS:
        return 1
    if t.name == "google.protobuf.Any":
        return MAX_VALUE
    if t.name == "map" and t.params and t.params[0].name == "string":
        return MAX_ENTRIES
    return UNBOUNDED


def _element_size(t: Type | None, *, first: bool) -> int:
    """The size of what a comprehension's variable stands for."""
    if t is not None and t.name == "map":
        return MAX_NAME if first else _size_of_type(t.params[1])
    if t is not None and t.name == "list":
        return _size_of_type(t.params[0])
    return MAX_VALUE


_SizeRule = Callable[[Sequence[int]], int]
_COSTS: dict[str, _SizeRule] = {
    "startsWith": lambda s: _text(s[1]),
    "endsWith": lambda s: _text(s[1]),
    "contains": lambda s: _cap(_text(s[0]) * _text(s[1])),
    "matches": lambda s: _cap(_text(_cap(s[0] + 1)) * _scaled(s[1], 0.25)),
    "find": lambda s: _cap(_text(_cap(s[0] + 1)) * _scaled(s[1], 0.25)),
    "findAll": lambda s: _cap(_text(_cap(s[0] + 1)) * _scaled(s[1], 0.25)),
    "lowerAscii": lambda s: _text(s[0]),
    "upperAscii": lambda s: _text(s[0]),
    "substring": lambda s: _text(s[0]),
    "trim": lambda s: _text(s[0]),
    "strings.quote": lambda s: _text(s[0]),
    "format": lambda s: _text(s[0]),
    "replace": lambda s: _scaled(s[0], 0.2),
    "split": lambda s: _scaled(s[0], 0.2),
    "join": lambda s: _text(UNBOUNDED),
    "url": lambda s: _text(s[0]),
    "quantity": lambda s: _text(s[0]),
    "isQuantity": lambda s: _text(s[0]),
    "semver": lambda s: _text(s[0]),
    "isSemver": lambda s: _text(s[0]),
    "ip": lambda s: _text(s[0]),
    "isIP": lambda s: _text(s[0]),
    "ip.isCanonical": lambda s: _text(s[0]),
    "cidr": lambda s: _text(s[0]),
    "isCIDR": lambda s: _text(s[0]),
    "containsIP": lambda s: 4 + _text(s[1]) if s[1] != 1 else 4,
    "containsCIDR": lambda s: 4 + _text(s[1]) if s[1] != 1 else 4,
    "@in": lambda s: s[1],
    "isSorted": lambda s: s[0],
    "sum": lambda s: s[0],
    "min": lambda s: s[0],
    "max": lambda s: s[0],
    "sort": lambda s: _cap(costs.LIST_CREATE + 2 * s[0] ** 2 + 1),
    "@sortByAssociatedKeys": lambda s: _cap(costs.LIST_CREATE + 2 * s[0] ** 2 + 1),
    "distinct": lambda s: _cap(costs.LIST_CREATE + 2 * s[0] ** 2 + 1),
    "sets.contains": lambda s: _cap(s[0] * s[1] + 1),
    "sets.intersects": lambda s: _cap(s[0] * s[1] + 1),
    "sets.equivalent": lambda s: _cap(2 * s[0] * s[1] + 1),
    "includes": lambda s: MAX_LIST,
}
_COMPARED = {"_==_", "_!=_", "_<_", "_>_", "_<=_", "_>=_"}
_RESULT_SIZES: dict[str, _SizeRule] = {
    "lowerAscii": lambda s: s[0],
    "upperAscii": lambda s: s[0],
    "substring": lambda s: s[0],
    "trim": lambda s: s[0],
    "replace": lambda s: UNBOUNDED,
    "split": lambda s: s[0],
    "findAll": lambda s: s[0],
    "find": lambda s: s[0],
    "charAt": lambda s: 1,
    "sort": lambda s: s[0],
    "reverse": lambda s: s[0],
    "distinct": lambda s: s[0],
}


def _function(node: Call, sizes: Sequence[int]) -> tuple[int, int | None]:
    """Own cost and, where it is known, the size of the result."""
    name = node.function
    operands = ([node.target] if node.target is not None else []) + node.args
    if name in _COMPARED:
        least = min(sizes)
        return max(_text(least), 1 if least else 0), 1
    if name == "_+_":
        both = _cap(sum(sizes))
        kinds = {o.type.name for o in operands if o.type is not None}
        return (_text(both) if kinds & {"string", "bytes"} else 1), both
    if name in {"indexOf", "lastIndexOf"}:
        of_list = operands[0].type is not None and operands[0].type.name == "list"
        return (sizes[0] if of_list else _text(sizes[0])), 1
    if name in {"string", "bytes"} and not isinstance(operands[0], Literal):
        kind = operands[0].type.name if operands[0].type is not None else ""
        convertible = kind in {"bytes", "string", "google.protobuf.Any", "dyn"}
        return (_text(sizes[0]) if convertible else 1), sizes[0] if convertible else None
    if name == "@in" and operands[1].type is not None and operands[1].type.name == "map":
        return 1, 1
    rule = _COSTS.get(name)
    result = _RESULT_SIZES.get(name)
    return (rule(sizes) if rule else 1), result(sizes) if result else None
