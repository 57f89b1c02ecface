"""Estimates the maximum cost of an expression from its tree alone; admission compares it with the limit.

It follows the cost estimate of cel-go's checker. Minimum and maximum are computed together, because rules depend on both. Sizes are
known for literals, for values made from literals, and for scalars. The maximum size is known for values within the device: 63
characters for the driver, 32 attributes or capacities, 64 bytes for a value. Unknown sizes are unbounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import costs
from .ast import CallExpr, Expr, Fold, Ident, ListExpr, Literal, MapExpr, Select
from .estimate_rules import estimate_call
from .macros import ACCU
from .ranges import NOTHING, ONE, UNBOUNDED, UNKNOWN, Range, fixed
from .types import is_object
from .values import Type

MAX_DRIVER, MAX_ENTRIES, MAX_NAME, MAX_DOMAIN, MAX_VALUE = 63, 32, 32, 63, 64
_SCALARS = {"int", "uint", "double", "bool", "google.protobuf.Duration", "google.protobuf.Timestamp"}


@dataclass(frozen=True)
class Entries:
    """The sizes of the keys (or indexes) of a list or map, and of its values."""

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


_DEVICE: dict[tuple[str, ...], int] = {("device",): UNBOUNDED, ("device", "driver"): MAX_DRIVER}


def _device_size(path: tuple[str, ...]) -> int | None:
    """Returns the maximum size of a value within the device; None if it is not known."""
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

    def estimate(self, node: Expr) -> Range:
        """Returns the minimum and maximum cost of evaluating the node, in CEL cost units."""
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
            case CallExpr():
                return self._call(node)
        return NOTHING

    # --- sizes ---

    def _local(self, name: str) -> _Local | None:
        stack = self._locals.get(name)
        return stack[-1] if stack else None

    def _path(self, node: Expr) -> tuple[str, ...]:
        if isinstance(node, Ident) and (local := self._local(node.name)):
            return local.path
        return self._paths.get(id(node), ())

    def size(self, node: Expr) -> Range | None:
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

    def _known(self, node: Expr) -> Range:
        return self.size(node) or UNKNOWN

    def entries(self, node: Expr) -> Entries | None:
        if found := self._entries.get(id(node)):
            return found
        local = self._local(node.name) if isinstance(node, Ident) else None
        return local.entries if local else None

    def element(self, node: Expr) -> Range:
        """Returns the size of an element of a list."""
        path = self._path(node)
        found = _device_size((*path, "@items")) if path and path[0] != ACCU else None
        return UNKNOWN if found is None else Range(0, found)

    def set_entries_of_operands(self, node: CallExpr) -> None:
        """Records that the elements of a call's result come from its last two arguments."""
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

    def _call(self, node: CallExpr) -> Range:
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

    def _copy(self, target: Expr, source: Expr) -> None:
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
