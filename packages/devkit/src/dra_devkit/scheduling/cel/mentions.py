"""Finds the attributes and capacities that a selector names, such as ``device.attributes["domain"].name``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .ast import CallExpr, Expr, Ident, Literal, Select, children
from .lexer import Source
from .parser import Parser
from .values import CompileError

Path = tuple[str, ...]  # the keys from ``device`` to the value that is read
_KINDS = ("attributes", "capacity")
_MAPS = 2  # a path of at most this length leads to a map: ``device.attributes``, or its map for one domain


class Mention(NamedTuple):
    """``kind`` is ``attributes`` or ``capacity``; ``name`` is empty if the selector names only the domain."""

    kind: str
    domain: str
    name: str


class FieldOfValue(NamedTuple):
    """A field that a selector reads from the value of an attribute or capacity, such as ``.bool``; values have no fields."""

    value: Mention
    field: str


def mentions(expression: str) -> list[Mention]:
    """Returns the mentions in text order, each once; empty for text that cannot be parsed."""
    paths = [p for _, p in _paths(expression) if p and p[0] in _KINDS]
    named = {p[:2] for p in paths if len(p) == 3}
    found = (Mention(*p, *[""] * (3 - len(p))) for p in paths if len(p) == 3 or (len(p) == 2 and p not in named))
    return list(dict.fromkeys(found))


def fields_of_values(expression: str) -> list[FieldOfValue]:
    """Returns the fields in text order; empty for text that cannot be parsed."""
    paths = (p for node, p in _paths(expression) if p and isinstance(node, Select) and len(p) == 4 and p[0] in _KINDS)
    return list(dict.fromkeys(FieldOfValue(Mention(*p[:3]), p[3]) for p in paths))


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
    match path_of(node):
        case None:
            for child in children(node):
                yield from _read(child)
        case ("attributes", domain, name, *_):
            yield from (name, f"{domain}/{name}")
        case () | ("attributes", *_):
            raise _AnyAttribute


def _paths(expression: str) -> list[tuple[Expr, Path | None]]:
    """Returns each node with its path, children first; empty for text that cannot be parsed."""

    def walk(node: Expr) -> Iterator[tuple[Expr, Path | None]]:
        for child in children(node):
            yield from walk(child)
        yield node, path_of(node)

    try:
        return list(walk(Parser(Source(expression)).parse()))
    except (CompileError, RecursionError):
        return []


def path_of(node: Expr) -> Path | None:
    """Returns the path of a chain of fields and constant keys; None if it does not begin at the device."""
    match node:
        case Ident(name="device"):
            return ()
        case Select(operand=inner, field=key):
            before = path_of(inner)
        case CallExpr(function="_[_]" | "_[?_]", args=[inner, Literal(value=str() as key)]):
            before = path_of(inner)
        case CallExpr(function="@in", args=[Literal(value=str() as key), inner]):
            before = path_of(inner)
            if before is None or len(before) > _MAPS:  # a list, which has no keys
                return None
        case _:
            return None
    return None if before is None else (*before, key)
