"""Finds the attributes and capacities that a selector names, such as ``device.attributes["domain"].name``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .ast import CallExpr, Expr, Ident, Literal, Select, children
from .lexer import Source
from .parser import Parser
from .values import CompileError

_INDEXES = {"_[_]", "_[?_]"}
_DEVICE = "device"


class Mention(NamedTuple):
    """``kind`` is ``attributes`` or ``capacity``; ``name`` is empty if the selector names only the domain."""

    kind: str
    domain: str
    name: str


def mentions(expression: str) -> list[Mention]:
    """Returns the mentions in text order, each once; empty for text that cannot be parsed."""
    try:
        found = list(_within(Parser(Source(expression)).parse()))
    except (CompileError, RecursionError):
        return []
    named = {(m.kind, m.domain) for m in found if m.name}
    return list(dict.fromkeys(m for m in found if m.name or (m.kind, m.domain) not in named))


class FieldOfValue(NamedTuple):
    """A field that a selector reads from the value of an attribute or capacity, such as ``.bool``; values have no fields."""

    value: Mention
    field: str


def fields_of_values(expression: str) -> list[FieldOfValue]:
    """Returns the fields in text order; empty for text that cannot be parsed."""
    try:
        return list(dict.fromkeys(_fields_within(Parser(Source(expression)).parse())))
    except (CompileError, RecursionError):
        return []


def _fields_within(node: Expr) -> Iterator[FieldOfValue]:
    for child in children(node):
        yield from _fields_within(child)
    if (
        isinstance(node, Select)
        and (step := _step(node.operand)) is not None
        and (domain := _domain(step[0])) is not None
    ):
        yield FieldOfValue(Mention(*domain, step[1]), node.field)


def named_attributes(expression: str) -> frozenset[str] | None:
    """Returns all names of attributes in slices that a selector can read; None if it may read any attribute.

    An attribute has two names: with its domain, and without the domain if that is the driver's. A selector that iterates over
    attributes may read any attribute.
    """
    try:
        return frozenset(_read(Parser(Source(expression)).parse()))
    except (CompileError, RecursionError, _AnyAttribute):
        return None


class _AnyAttribute(Exception):
    """The selector uses a device as a whole, or all attributes of a domain."""


def _read(node: Expr) -> Iterator[str]:
    """Yields the names of attributes. Raises :class:`_AnyAttribute`."""
    step = _step(node)
    if step is not None and (domain := _domain(step[0])) is not None:
        if domain[0] == "attributes":
            yield from (step[1], f"{domain[1]}/{step[1]}")
        return
    if isinstance(node, Select) and isinstance(node.operand, Ident) and node.operand.name == _DEVICE:
        if node.field == "attributes":
            raise _AnyAttribute
        return
    if isinstance(node, Ident) and node.name == _DEVICE:
        raise _AnyAttribute
    for child in children(node):
        yield from _read(child)


def _within(node: Expr) -> Iterator[Mention]:
    for child in children(node):
        yield from _within(child)
    if (domain := _domain(node)) is not None:
        yield Mention(*domain, "")
        return
    step = _step(node)
    if step is not None and (domain := _domain(step[0])) is not None:
        yield Mention(*domain, step[1])


def _domain(node: Expr) -> tuple[str, str] | None:
    """Returns kind and domain for a node such as ``device.attributes["domain"]``; None for other nodes."""
    step = _step(node)
    if step is None or not isinstance(step[0], Select):
        return None
    kind = step[0]
    of_device = isinstance(kind.operand, Ident) and kind.operand.name == _DEVICE
    return (kind.field, step[1]) if of_device and kind.field in {"attributes", "capacity"} else None


def _step(node: Expr) -> tuple[Expr, str] | None:
    """Splits a field selection, an index with a constant key, or an ``in`` test into its operand and its key."""
    if isinstance(node, Select):
        return node.operand, node.field
    if isinstance(node, CallExpr) and node.function in _INDEXES:
        of, index = node.operands()
        if isinstance(index, Literal) and isinstance(index.value, str):
            return of, index.value
    if isinstance(node, CallExpr) and node.function in {"@in", "_in_"}:
        name, of = node.operands()
        if isinstance(name, Literal) and isinstance(name.value, str):
            return of, name.value
    return None
