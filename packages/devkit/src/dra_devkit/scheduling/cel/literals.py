"""Finds errors in literals that the type checker does not find.

These are lists and maps with elements of different types, and invalid patterns, times and format strings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .ast import CallExpr, Expr, ListExpr, Literal, MapExpr, children
from .declarations import ORDERED
from .formatting import SHOWN, Clause, FormatError, clauses
from .library import parse_duration, parse_timestamp, regex
from .values import Type

Fault = tuple[int, str]
_PARSERS: dict[str, Callable[[str], object]] = {
    "matches": regex,
    "duration": parse_duration,
    "timestamp": parse_timestamp,
}
_TEXTUAL = (*ORDERED, "list", "map", "type", "null_type")
_HEX = ("int", "uint", "string", "bytes")
_CLAUSES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "s": ("string", _TEXTUAL, SHOWN),
    "d": ("decimal", ("int", "uint"), "integers"),
    "f": ("fixed-point", ("double", "string"), "doubles"),
    "e": ("scientific", ("double", "string"), "doubles"),
    "b": ("binary", ("int", "uint", "bool"), "integers and bools"),
    "o": ("octal", ("int", "uint"), "integers"),
    "x": ("hex", _HEX, "integers, byte buffers, and strings"),
    "X": ("hex", _HEX, "integers, byte buffers, and strings"),
}


def literal_faults(tree: Expr) -> list[Fault]:
    """Returns the errors in all literals of a typed tree."""
    faults: list[Fault] = []
    _visit(tree, faults, mixed=False)
    return faults


def _visit(node: Expr, faults: list[Fault], *, mixed: bool) -> None:
    if not mixed and isinstance(node, ListExpr):
        _of_one_type(node.elements, node.optional, faults)
    elif not mixed and isinstance(node, MapExpr):
        _of_one_type([k for k, _ in node.entries], [False] * len(node.entries), faults)
        _of_one_type([v for _, v in node.entries], node.optional, faults)
    elif isinstance(node, CallExpr):
        # The arguments of a format may have any types.
        mixed = mixed or node.function == "format"
        _parsed(node, faults)
        _formatted(node, faults)
    for child in children(node):
        _visit(child, faults, mixed=mixed)


def _of_one_type(nodes: Iterable[Expr], optional: list[bool], faults: list[Fault]) -> None:
    known: Type | None = None
    for node, maybe in zip(nodes, optional, strict=True):
        assert node.type is not None
        found = node.type.params[0] if maybe and node.type.params else node.type
        if known is None:
            known = found
        elif not _equivalent(known, found):
            faults.append((node.pos, f"expected type '{known}' but found '{found}'"))
            return


def _equivalent(a: Type, b: Type) -> bool:
    if a.name != b.name or len(a.params) != len(b.params):
        return False
    return a.name == "type" or all(map(_equivalent, a.params, b.params))


def _parsed(node: CallExpr, faults: list[Fault]) -> None:
    """Adds an error if the function parses its first argument and this argument is an invalid literal."""
    parse = _PARSERS.get(node.function)
    first = node.args[0] if node.args else None
    if parse is None or not isinstance(first, Literal) or not isinstance(first.value, str):
        return
    try:
        parse(first.value)
    except Exception:
        faults.append((first.pos, f"invalid {node.function} argument"))


def _formatted(node: CallExpr, faults: list[Fault]) -> None:
    template, args = node.target, node.args[0] if node.args else None
    if node.function != "format" or not isinstance(template, Literal) or not isinstance(args, ListExpr):
        return
    wanted: list[Clause] = []
    try:
        for clause in clauses(template.value):
            if isinstance(clause, Clause):
                if len(wanted) >= len(args.elements):
                    raise FormatError(f"index {len(wanted)} out of range")
                wanted.append(clause)
    except FormatError as e:
        faults.append((node.pos, str(e)))
    for clause, element in zip(wanted, args.elements, strict=False):
        word, allowed, listed = _CLAUSES[clause.kind]
        assert element.type is not None
        if element.type.name not in {"dyn", *allowed}:
            message = f"error during formatting: {word} clause can only be used on {listed}, was given {element.type}"
            faults.append((element.pos, message))
            return
    if len(args.elements) > len(wanted):
        message = f"too many arguments supplied to string.format (expected {len(wanted)}, got {len(args.elements)})"
        faults.append((node.pos, message))
