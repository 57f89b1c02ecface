"""The most that an expression can cost, from its tree alone: what admission compares with the limit.

Follows cel-go's checker cost: least and most of sizes and costs are tracked together, as rules depend on both. Sizes are known of
literals, of what is made of them, of scalars by their type, and of what can be reached from the device: 63 characters for the
driver, 32 attributes or capacities, 64 bytes for a value. Sizes that nobody knows are unbounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from . import costs
from .ast import Call, Fold, Ident, ListExpr, Literal, MapExpr, Node, Select
from .parser import ACCU
from .types import is_object
from .values import Type

UNBOUNDED = 2**64 - 1
MAX_DRIVER, MAX_ENTRIES, MAX_NAME, MAX_DOMAIN, MAX_VALUE, MAX_LIST = 63, 32, 32, 63, 64, 48
_WRAP = 2**64
_SCALARS = {"int", "uint", "double", "bool", "google.protobuf.Duration", "google.protobuf.Timestamp"}


@dataclass(frozen=True)
class Range:
    """Least and most of a size or a cost, up to what 64 bits hold."""

    least: int
    most: int

    def __add__(self, other: Range) -> Range:
        return Range(_cap(self.least + other.least), _cap(self.most + other.most))

    def __mul__(self, other: Range) -> Range:
        return Range(_cap(self.least * other.least), _cap(self.most * other.most))

    def __or__(self, other: Range) -> Range:
        return Range(min(self.least, other.least), max(self.most, other.most))

    def times(self, factor: float) -> Range:
        return Range(_scaled(self.least, factor), _scaled(self.most, factor))


def _cap(value: int) -> int:
    return min(value, UNBOUNDED)


def _scaled(size: int, factor: float) -> int:
    product = float(size) * factor
    return UNBOUNDED if product >= float(_WRAP) else _cap(math.ceil(product))


def fixed(value: int) -> Range:
    return Range(value, value)


UNKNOWN = Range(0, UNBOUNDED)
ONE, NOTHING = fixed(1), fixed(0)


@dataclass(frozen=True)
class Entries:
    """Sizes of the keys, or indexes, and values of a list or map."""

    of_list: bool
    key: Range
    value: Range

    def __or__(self, other: Entries) -> Entries:
        return Entries(self.of_list, self.key | other.key, self.value | other.value)


@dataclass(frozen=True)
class _Local:
    path: tuple[str, ...]
    size: Range | None
    entries: Entries | None


def _merged(values: Iterable[Range]) -> Range:
    out: Range | None = None
    for v in values:
        out = v if out is None else out | v
    return out or NOTHING


_DEVICE: dict[tuple[str, ...], int] = {
    ("device",): UNBOUNDED,
    ("device", "driver"): MAX_DRIVER,
    ("device", "attributes"): MAX_ENTRIES,
    ("device", "capacity"): MAX_ENTRIES,
}


def _device_size(path: tuple[str, ...]) -> int | None:
    """The most that something within the device holds; None where nothing is known."""
    if path[:2] in {("device", "attributes"), ("device", "capacity")}:
        inner = path[2:]
        of_attributes = path[1] == "attributes"
        if not inner:
            return MAX_ENTRIES
        if inner[0] == "@keys":
            return MAX_DOMAIN if len(inner) == 1 else None
        if inner[0] != "@values":
            return None
        if len(inner) == 1:
            return MAX_ENTRIES
        if inner[1] == "@keys":
            return MAX_NAME if len(inner) == 2 else None
        if len(inner) == 2 and (of_attributes or inner[1] == "@values"):
            return MAX_VALUE if of_attributes else 0
        return None
    return _DEVICE.get(path)


class Estimator:
    def __init__(self) -> None:
        self._locals: dict[str, list[_Local]] = {}
        self._paths: dict[int, tuple[str, ...]] = {}
        self._sizes: dict[int, Range] = {}
        self._entries: dict[int, Entries] = {}

    def estimate(self, node: Node) -> Range:
        """The least and the most that evaluating the node costs, in CEL cost units."""
        match node:
            case Ident(name=name):
                local = self._local(name)
                self._paths[id(node)] = local.path if local else (name,)
                return ONE
            case Select():
                return self._select(node)
            case ListExpr():
                total = fixed(costs.LIST_CREATE)
                for e in node.elements:
                    total += self.estimate(e)
                self._entries[id(node)] = Entries(True, ONE, _merged(map(self._known, node.elements)))
                return total
            case MapExpr():
                total = fixed(costs.MAP_CREATE)
                for k, v in node.entries:
                    total += self.estimate(k) + self.estimate(v)
                keys = _merged(self._known(k) for k, _ in node.entries)
                self._entries[id(node)] = Entries(False, keys, _merged(self._known(v) for _, v in node.entries))
                return total
            case Fold():
                return self._bind(node) if _is_bind(node) else self._fold(node)
            case Call():
                return self._call(node)
        return NOTHING

    # --- sizes ---

    def _local(self, name: str) -> _Local | None:
        stack = self._locals.get(name)
        return stack[-1] if stack else None

    def _path(self, node: Node) -> tuple[str, ...]:
        if isinstance(node, Ident) and (local := self._local(node.name)):
            return local.path
        return self._paths.get(id(node), ())

    def size(self, node: Node) -> Range | None:
        if found := self._sizes.get(id(node)):
            return found
        match node:
            case Literal(value=value):
                return fixed(len(value) if isinstance(value, (str, bytes)) else 1)
            case ListExpr():
                return fixed(len(node.elements))
            case MapExpr():
                return fixed(len(node.entries))
        path = self._path(node)
        if path and (most := _device_size(path)) is not None:
            self._sizes[id(node)] = Range(0, most)
            return Range(0, most)
        if node.type is not None and _is_scalar(node.type):
            return ONE
        local = self._local(node.name) if isinstance(node, Ident) else None
        return local.size if local else None

    def _known(self, node: Node) -> Range:
        return self.size(node) or UNKNOWN

    def entries(self, node: Node) -> Entries | None:
        if found := self._entries.get(id(node)):
            return found
        local = self._local(node.name) if isinstance(node, Ident) else None
        return local.entries if local else None

    def element(self, node: Node) -> Range:
        """The size of an element of a list."""
        path = self._path(node)
        found = _device_size((*path, "@items")) if path and path[0] != ACCU else None
        return UNKNOWN if found is None else Range(0, found)

    def unites(self, node: Call) -> None:
        """The result's elements are those of two operands."""
        first, second = (self.entries(a) for a in node.args[-2:])
        if first and second:
            self._entries[id(node)] = first | second

    # --- costs ---

    def _select(self, node: Select) -> Range:
        if node.type_name:
            return ONE
        total = self.estimate(node.operand)
        if node.test:
            return total
        if node.optional:
            return total + ONE
        kind = node.operand.type
        if kind is not None and (kind.name == "map" or is_object(kind)):
            total += ONE
        self._paths[id(node)] = (*self._path(node.operand), node.field)
        return total

    def _call(self, node: Call) -> Range:
        if node.function == "dyn":
            total = ONE + self.estimate(node.args[0])
            self._copy(node, node.args[0])
            return total
        parts = [self.estimate(o) for o in node.args]
        total = self.estimate(node.target) if node.target is not None else NOTHING
        own: Range | None = None
        size: Range | None = None
        for overload in node.overloads:
            cost, result = estimate_call(self, node, overload.id, parts)
            own = cost if own is None else own | cost
            if result is not None:
                size = result if size is None else size | result
            if overload.id in {"_[_](list(A), int)", "_[_](map(A, B), A)"}:
                entries = self.entries(node.args[0])
                size = entries.value if entries else None
                step = "@items" if "list" in overload.id else "@values"
                self._paths[id(node)] = (*self._path(node.args[0]), step)
            if size is None:
                size = self.size(node)
        if size is not None:
            self._sizes[id(node)] = size
        return total + (own or NOTHING)

    def _copy(self, target: Node, source: Node) -> None:
        if (size := self.size(source)) is not None:
            self._sizes[id(target)] = size
        if (entries := self.entries(source)) is not None:
            self._entries[id(target)] = entries

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _bind(self, node: Fold) -> Range:
        total = self.estimate(node.range) + self.estimate(node.init)
        self._push(node.accu, _Local(self._path(node.init), self.size(node.init), self.entries(node.init)))
        total += self.estimate(node.result)
        self._locals[node.accu].pop()
        self._copy(node, node.result)
        return total

    def _fold(self, node: Fold) -> Range:
        total = self.estimate(node.range) + self.estimate(node.init)
        self._push(node.accu, _Local(self._path(node.init), self.size(node.init), self.entries(node.init)))
        over, path = self.entries(node.range), self._path(node.range)
        of_list = over.of_list if over else node.range.type is not None and node.range.type.name == "list"
        keys = _Local((*path, "@indices" if of_list else "@keys"), over.key if over else None, None)
        values = _Local((*path, "@items" if of_list else "@values"), over.value if over else None, None)
        self._push(node.var, values if of_list and not node.var2 else keys)
        if node.var2:
            self._push(node.var2, values)
        loop = self.estimate(node.condition) + self.estimate(node.step)
        self._locals[node.var].pop()
        if node.var2:
            self._locals[node.var2].pop()
        total += self.estimate(node.result)
        self._locals[node.accu].pop()
        count = self._known(node.range)
        if isinstance(node.init, Literal):
            self._sizes[id(node)] = self._known(node.init)
        elif isinstance(node.init, (ListExpr, MapExpr)):
            self._sizes[id(node)] = count
            if found := self.entries(node.step):
                self._entries[id(node)] = found
        return total + count * loop


def _is_bind(node: Fold) -> bool:
    return (
        isinstance(node.range, ListExpr)
        and not node.range.elements
        and isinstance(node.condition, Literal)
        and node.condition.value is False
        and node.accu != ACCU
    )


def _is_scalar(t: Type) -> bool:
    return _is_scalar(t.params[0]) if t.name == "optional_type" and t.params else t.name in _SCALARS


# --- calls: own cost without the target's, and the size of the result -----------------------------

Result = tuple[Range, Range | None]


def _text(size: Range) -> Range:
    return size.times(0.1)


def estimate_call(e: Estimator, node: Call, overload: str, parts: Sequence[Range]) -> Result:
    """What one overload of a call costs with its arguments, and the size of its result where that is known."""
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
            e.unites(node)
            return parts[0] + (parts[1] | parts[2]), _size(e, node.args[1]) | _size(e, node.args[2])
    return ONE + arguments, None


def _size(e: Estimator, node: Node) -> Range:
    return e.size(node) or UNKNOWN


def _target(e: Estimator, node: Call) -> Range:
    return _size(e, node.target) if node.target is not None else UNKNOWN


def _walk(e: Estimator, node: Call) -> Result | None:
    """One unit for each element, more where comparing elements takes time; a text is walked."""
    if node.target is None:
        return None
    size, kind = _target(e, node), node.target.type
    if kind is None or not kind.params:
        return _text(size), None
    each = ONE
    if kind.params[0].name in {"string", "bytes"}:
        each += _text(e.element(node.target))
    return size * each, None


def _same_size(e: Estimator, node: Call) -> Result:
    size = _target(e, node)
    return _text(size), size


def _parsed(e: Estimator, node: Call) -> Result:
    return _text(_size(e, node.args[0])), None


def _replaced(e: Estimator, node: Call) -> Result:
    size, old, new = _target(e, node), _size(e, node.args[0]), _size(e, node.args[1])
    if old.least == 0:
        most = (_cap(size.most + 1), size.most)
    elif new.most <= old.least:
        most = (0, size.most)
    else:
        most = (math.ceil(size.most / old.least), 0)
    if old.most == 0:
        least = (_cap(size.least + 1), size.least)
    elif old.most <= new.least:
        least = (0, size.least)
    else:
        least = (math.ceil(size.least / old.most), 0)
    return size.times(0.2), Range(least[0], most[0]) * new + Range(least[1], most[1])


def _split(e: Estimator, node: Call) -> Result:
    size, most = _target(e, node), _target(e, node).most
    limit = node.args[1] if len(node.args) > 1 else None
    if isinstance(limit, Literal) and isinstance(limit.value, int):
        most = limit.value % _WRAP
    return size.times(0.2), Range(0, most)


def _joined(e: Estimator, node: Call) -> Result:
    listed = _target(e, node)
    assert node.target is not None
    size = listed * e.element(node.target)
    if node.args:
        between = Range(max(listed.least - 1, 0), max(listed.most - 1, 0))
        size += _size(e, node.args[0]) * between
    return _text(size), size


def _pattern(e: Estimator, node: Call) -> Range | None:
    if node.target is None or not node.args:
        return None
    return _text(_target(e, node) + ONE) * _size(e, node.args[0]).times(0.25)


def _found(e: Estimator, node: Call) -> Result | None:
    cost = _pattern(e, node)
    return (cost, Range(0, _target(e, node).most)) if cost else None


def _matched(e: Estimator, node: Call) -> Result | None:
    cost = _pattern(e, node)
    return (cost, None) if cost else None


_ADDRESSES = Range(4, 16)
_COMPARED = (_ADDRESSES + _ADDRESSES).times(0.1)
_MASKED = _COMPARED + _text(_ADDRESSES) + ONE


def _contained(cost: Range, *, parsed: bool) -> _Rule:
    return lambda e, node: (cost + (_text(_size(e, node.args[0])) if parsed else NOTHING), None)


def _equal(e: Estimator, node: Call) -> Result:
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


def _smaller(e: Estimator, node: Call) -> Result:
    most = min(_size(e, node.args[0]).most, _size(e, node.args[1]).most)
    return Range(1 if most else 0, most).times(0.1), None


def _added(e: Estimator, node: Call) -> Result:
    e.unites(node)
    size = _size(e, node.args[0]) + _size(e, node.args[1])
    return _text(size), size


def _concatenated(e: Estimator, node: Call) -> Result:
    return ONE, _added(e, node)[1]


def _listed(size: Range, factor: float = 1) -> Result:
    """A call that makes a list."""
    return size.times(factor) + ONE + fixed(costs.LIST_CREATE), size


def _literal(node: Node, otherwise: int) -> int:
    if isinstance(node, Literal) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return max(node.value, 0)
    return otherwise


def _sliced(e: Estimator, node: Call) -> Result:
    start, end = _literal(node.args[0], 0), _literal(node.args[1], _target(e, node).most)
    return _listed(fixed((end - start) % _WRAP))


def _sorted(factor: float, *, by: bool) -> _Rule:
    def rule(e: Estimator, node: Call) -> Result:
        size = _size(e, node.args[0]) if by else _target(e, node)
        return _listed(size * size, factor)

    return rule


def _sets(factor: int) -> _Rule:
    return lambda e, node: ((_size(e, node.args[0]) * _size(e, node.args[1])).times(factor) + ONE, None)


def _quoted(e: Estimator, node: Call) -> Result:
    size = _size(e, node.args[0])
    return _text(size), Range((size.least + 2) % _WRAP, (size.most * 2 + 2) % _WRAP)


def _to_bytes(e: Estimator, node: Call) -> Result:
    size = _size(e, node.args[0])
    return _text(size), Range(size.least, size.most * 4 % _WRAP)


def _to_string(e: Estimator, node: Call) -> Result:
    size = _size(e, node.args[0])
    return _text(size), Range(size.least // 4, size.most)


_Rule = Callable[[Estimator, Call], Result | None]
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
        for t in ("int", "uint", "double", "bool", "google.protobuf.Duration", "google.protobuf.Timestamp", "string", "bytes")
        for by, rule in ((False, f"list({t}).sort()"), (True, f"list(A).@sortByAssociatedKeys(list({t}))"))
    },
}  # fmt: skip
