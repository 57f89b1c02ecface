"""The nodes of a parsed expression. ``pos`` is an offset into the source; ``type`` is filled in by the checker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .values import Type

if TYPE_CHECKING:
    from .declarations import Overload


@dataclass(eq=False, kw_only=True)
class Expr:
    pos: int
    type: Type | None = None


@dataclass(eq=False)
class Literal(Expr):
    value: Any


@dataclass(eq=False)
class Ident(Expr):
    name: str


@dataclass(eq=False)
class Select(Expr):
    operand: Expr
    field: str
    test: bool = False  # has(operand.field)
    optional: bool = False  # operand.?field
    type_name: str | None = None  # set by the checker if the node is the qualified name of a type, such as net.IP


@dataclass(eq=False)
class CallExpr(Expr):
    function: str
    target: Expr | None
    args: list[Expr]
    overloads: list[Overload] = field(default_factory=list)

    def operands(self) -> list[Expr]:
        return [self.target, *self.args] if self.target is not None else self.args


@dataclass(eq=False)
class ListExpr(Expr):
    elements: list[Expr]
    optional: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class MapExpr(Expr):
    entries: list[tuple[Expr, Expr]]
    optional: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class Fold(Expr):
    """A comprehension. Macros such as all, exists, map, filter and bind are expanded to it."""

    range: Expr
    var: str
    var2: str | None
    accu: str
    init: Expr
    condition: Expr
    step: Expr
    result: Expr


def children(node: Expr) -> Iterator[Expr]:
    """Yields the direct child nodes, in source order."""
    match node:
        case Select(operand=operand):
            yield operand
        case CallExpr():
            yield from node.operands()
        case ListExpr(elements=elements):
            yield from elements
        case MapExpr(entries=entries):
            for key, value in entries:
                yield key
                yield value
        case Fold():
            yield from (node.range, node.init, node.condition, node.step, node.result)
