"""The nodes of a parsed expression. ``pos`` is an offset into the source; ``type`` is filled in by the checker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .values import Type

if TYPE_CHECKING:
    from .declarations import Overload


@dataclass(eq=False, kw_only=True)
class Node:
    pos: int
    type: Type | None = None


@dataclass(eq=False)
class Literal(Node):
    value: Any


@dataclass(eq=False)
class Ident(Node):
    name: str


@dataclass(eq=False)
class Select(Node):
    operand: Node
    field: str
    test: bool = False  # has(operand.field)
    optional: bool = False  # operand.?field
    type_name: str | None = None  # of a qualified type such as net.IP, once checked


@dataclass(eq=False)
class Call(Node):
    function: str
    target: Node | None
    args: list[Node]
    overloads: list[Overload] = field(default_factory=list)

    def operands(self) -> list[Node]:
        return [self.target, *self.args] if self.target is not None else self.args


@dataclass(eq=False)
class ListExpr(Node):
    elements: list[Node]
    optional: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class MapExpr(Node):
    entries: list[tuple[Node, Node]]
    optional: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class Fold(Node):
    """A comprehension: what the macros all, exists, map, filter and bind expand to."""

    range: Node
    var: str
    var2: str | None
    accu: str
    init: Node
    condition: Node
    step: Node
    result: Node


def children(node: Node) -> Iterator[Node]:
    """The nodes right below, in the order in which they are written."""
    match node:
        case Select(operand=operand):
            yield operand
        case Call():
            yield from node.operands()
        case ListExpr(elements=elements):
            yield from elements
        case MapExpr(entries=entries):
            for key, value in entries:
                yield key
                yield value
        case Fold():
            yield from (node.range, node.init, node.condition, node.step, node.result)
