"""Expands macros: a call of ``all``, ``map`` or ``cel.bind`` becomes the comprehension that cel-go generates."""

from __future__ import annotations

import copy

from .ast import CallExpr, Expr, Fold, Ident, ListExpr, Literal, MapExpr, Select
from .lexer import Source

ACCU = "@result"
_SORTED = "@__sortBy_input__"


def _name(source: Source, node: Expr) -> str:
    if not isinstance(node, Ident):
        raise source.error(node.pos, "argument must be a simple name")
    if node.name in {ACCU, "__result__"}:
        raise source.error(node.pos, f"iteration variable overwrites accumulator variable: {node.name}")
    return node.name


def expand(source: Source, name: str, target: Expr | None, args: list[Expr], pos: int) -> Expr | None:
    """Returns the comprehension for a macro call; None if the call is not a macro."""
    if target is None:
        if name == "has" and len(args) == 1:
            arg = args[0]
            if not isinstance(arg, Select) or arg.optional:
                raise source.error(pos, "invalid argument to has() macro")
            return Select(arg.operand, arg.field, test=True, pos=pos)
        return None
    if name == "bind" and isinstance(target, Ident) and target.name == "cel" and len(args) == 3:
        return _bind(_name(source, args[0]), args[1], args[2], pos)
    if name in {"optMap", "optFlatMap"} and len(args) == 2:
        variable = _name(source, args[0])
        value = CallExpr("value", copy.deepcopy(target), [], pos=pos)
        inner: Expr = _bind(variable, value, args[1], pos)
        if name == "optMap":
            inner = CallExpr("optional.of", None, [inner], pos=pos)
        empty = CallExpr("optional.none", None, [], pos=pos)
        return CallExpr("_?_:_", None, [CallExpr("hasValue", target, [], pos=pos), inner, empty], pos=pos)
    if name in {"all", "exists", "exists_one", "existsOne"} and len(args) in {2, 3}:
        return _quantifier(source, name, target, args, pos)
    if name in {"map", "filter"} and len(args) in {2, 3} and not (name == "filter" and len(args) == 3):
        return _collect(source, name, target, args, pos)
    if name in {"transformList", "transformMap", "transformMapEntry"} and len(args) in {3, 4}:
        return _transform(source, name, target, args, pos)
    if name == "sortBy" and len(args) == 2 and not isinstance(target, (Literal, MapExpr)):
        keys = _collect(source, "map", Ident(_SORTED, pos=pos), args, pos)
        ordered = CallExpr("@sortByAssociatedKeys", Ident(_SORTED, pos=pos), [keys], pos=pos)
        return _bind(_SORTED, target, ordered, pos)
    return None


def _bind(variable: str, value: Expr, result: Expr, pos: int) -> Expr:
    """Returns ``result`` with a variable: a comprehension over no elements, whose accumulator is the variable."""
    empty, never = ListExpr([], [], pos=pos), Literal(False, pos=pos)
    return Fold(empty, "#unused", None, variable, value, never, Ident(variable, pos=pos), result, pos=pos)


def _quantifier(source: Source, name: str, target: Expr, args: list[Expr], pos: int) -> Expr:
    variables = [_name(source, a) for a in args[:-1]]
    test = args[-1]

    def accu() -> Expr:
        return Ident(ACCU, pos=pos)

    init: Expr = Literal(name == "all", pos=pos)
    condition: Expr = Literal(True, pos=pos)
    result: Expr = accu()
    if name == "all":
        condition = CallExpr("@not_strictly_false", None, [accu()], pos=pos)
        step: Expr = CallExpr("_&&_", None, [accu(), test], pos=pos)
    elif name == "exists":
        condition = CallExpr("@not_strictly_false", None, [CallExpr("!_", None, [accu()], pos=pos)], pos=pos)
        step = CallExpr("_||_", None, [accu(), test], pos=pos)
    else:
        init = Literal(0, pos=pos)
        plus = CallExpr("_+_", None, [accu(), Literal(1, pos=pos)], pos=pos)
        step = CallExpr("_?_:_", None, [test, plus, accu()], pos=pos)
        result = CallExpr("_==_", None, [accu(), Literal(1, pos=pos)], pos=pos)
    second = variables[1] if len(variables) > 1 else None
    return Fold(target, variables[0], second, ACCU, init, condition, step, result, pos=pos)


def _collect(source: Source, name: str, target: Expr, args: list[Expr], pos: int) -> Expr:
    variable = _name(source, args[0])
    element = Ident(variable, pos=args[0].pos) if name == "filter" else args[-1]
    test = args[1] if name == "filter" or len(args) == 3 else None
    step: Expr = CallExpr("_+_", None, [Ident(ACCU, pos=pos), ListExpr([element], [False], pos=pos)], pos=pos)
    if test is not None:
        step = CallExpr("_?_:_", None, [test, step, Ident(ACCU, pos=pos)], pos=pos)
    empty = ListExpr([], [], pos=pos)
    return Fold(target, variable, None, ACCU, empty, Literal(True, pos=pos), step, Ident(ACCU, pos=pos), pos=pos)


def _transform(source: Source, name: str, target: Expr, args: list[Expr], pos: int) -> Expr:
    first, second = _name(source, args[0]), _name(source, args[1])
    test = args[2] if len(args) == 4 else None
    body = args[-1]
    init: Expr = ListExpr([], [], pos=pos)
    if name == "transformList":
        step: Expr = CallExpr("_+_", None, [Ident(ACCU, pos=pos), ListExpr([body], [False], pos=pos)], pos=pos)
    else:
        init = MapExpr([], [], pos=pos)
        args = [Ident(first, pos=pos), body] if name == "transformMap" else [body]
        step = CallExpr("cel.@mapInsert", None, [Ident(ACCU, pos=pos), *args], pos=pos)
    if test is not None:
        step = CallExpr("_?_:_", None, [test, step, Ident(ACCU, pos=pos)], pos=pos)
    result = Ident(ACCU, pos=pos)
    return Fold(target, first, second, ACCU, init, Literal(True, pos=pos), step, result, pos=pos)
