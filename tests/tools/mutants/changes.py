"""Finds the small changes that can be made to a source. A good test detects each of them.

These parts are never changed: annotations, decorators, arguments of a class, assertions, log calls and f-strings, which only people read, and numbers with a
fraction. Most of these numbers are seconds, and no test should depend on 40.0 instead of 41.0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NOT_CHANGED = {"annotation", "returns", "decorator_list"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Change:
    """One change of a source. ``line`` is the line that a detecting test must run; 0 outside functions, where no test runs a line.

    ``start`` and ``end`` are bytes in the source.
    """

    line: int
    before: str
    after: str
    start: int
    end: int

    def apply(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.after.encode() + data[self.end :]).decode()


def changes(source: str) -> list[Change]:
    """Returns all changes of a source. Each changed source compiles."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    out = []
    for line, first, last, after in _replacements(ast.parse(source), 0, in_function=False):
        start = starts[first.lineno - 1] + first.col_offset
        end = starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0)
        before = " ".join(source.encode()[start:end].decode().split())
        out.append(Change(line, before, after, start, end))
    return out


Replacement = tuple[int, ast.stmt | ast.expr, ast.stmt | ast.expr, str]


def _replacements(node: ast.AST, line: int, *, in_function: bool) -> Iterator[Replacement]:
    """Yields the line, the first and the last node that are replaced, and the new text."""
    if isinstance(node, ast.Assert | ast.JoinedStr) or _is_log_call(node):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith(("TYPE_CHECKING", "'__main__'")):
        return
    if in_function and isinstance(node, ast.stmt):
        line = node.lineno
    if isinstance(node, ast.ExceptHandler):
        if ast.unparse(node.body[0]) != "pass" and not _is_log_call(getattr(node.body[0], "value", None)):
            yield node.body[0].lineno, node.body[0], node.body[-1], "pass"
    else:
        yield from ((line, changed, changed, text) for changed, text in _of_node(node))
    for field, value in ast.iter_fields(node):
        if field not in _NOT_CHANGED and not (isinstance(node, ast.ClassDef) and field == "keywords"):
            inside = in_function or (isinstance(node, Function) and field == "body")
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, ast.AST):
                    yield from _replacements(inner, line, in_function=inside)


def _of_node(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    match node:
        case ast.Expr(value=ast.Call() as call) | ast.Expr(value=ast.Await(value=ast.Call() as call)):
            if not _is_log_call(call):
                yield node, "pass"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            # Another change negates a comparison and removes `not`; `while True` has no other form that ends.
            if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
                yield test, f"(not ({ast.unparse(test)}))"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.Compare(left=left, ops=[op], comparators=right):
            yield node, f"({ast.unparse(ast.Compare(left, [_COMPARISONS[type(op)]()], right))})"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value)):
            yield node, str(value + 1)
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"


def _is_log_call(node: object) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("log.", "self.log.", "self._log."))
