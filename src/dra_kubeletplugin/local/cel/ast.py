"""The nodes of a parsed expression. ``pos`` is an offset into the source; ``type`` is filled in by the checker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, kw_only=True)
class Node:
    pos: int
    type: Any = None


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


@dataclass(eq=False)
class Call(Node):
    function: str
    target: Node | None
    args: list[Node]
    overloads: list[Any] = field(default_factory=list)


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
