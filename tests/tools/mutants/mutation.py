"""Finds the small changes that can be made to a source. A good test detects each of them.

These parts are never changed: docstrings, annotations, decorators, assertions, ``if TYPE_CHECKING``, log calls and the text of
f-strings, which only people read, and numbers with a fraction. Most of these numbers are seconds, and no test should depend on
40.0 instead of 41.0.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable, Sequence

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
_ORDERING = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_TYPES = {"Literal", "Annotated"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Operator(enum.Enum):
    """The kinds of changes."""

    CONDITION = "negated condition"
    NOT = "removed not"
    JUNCTION = "and for or"
    COMPARISON = "another comparison"
    CALL = "dropped call"
    CONSTANT = "swapped constant"
    NUMBER = "off by one"
    EXCEPT = "emptied except"
    DEFAULT = "changed default"
    LOOP = "break for continue"


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One change of one file.

    A test can detect the change only if it runs at least one of ``lines``. If ``lines`` is empty, any test of the subpackage may detect
    it. ``start`` and ``end`` are bytes in the source. ``number`` distinguishes equal changes in one function.
    """

    path: str
    function: str
    line: int
    lines: tuple[int, ...]
    operator: Operator
    before: str
    after: str
    number: int
    start: int
    end: int
    text: str

    @property
    def subpackage(self) -> str:
        """Returns the subpackage or the top-level module of the file."""
        return self.path.partition("/")[0]

    @property
    def key(self) -> str:
        """Returns a name that does not change if lines move or if other lines of the function change."""
        suffix = f" (number {self.number})" if self.number > 1 else ""
        return f"{self.path} {self.function}: {self.before} -> {self.after}{suffix}"

    def apply(self, source: str) -> str:
        """Returns the source with the change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


def mutations(source: str, path: str = "") -> list[Mutation]:
    """Returns all changes of a source in the order of the text. Each changed source compiles."""
    finder = _Finder(source, path)
    finder.visit(ast.parse(source))
    seen: Counter[str] = Counter()
    out = []
    for m in sorted(finder.found, key=lambda m: (m.start, m.end, m.operator.value)):
        seen[m.key] += 1
        out.append(dataclasses.replace(m, number=seen[m.key]))
    return out


def is_log_call(node: ast.AST) -> bool:
    """Returns whether a node is a log call such as ``log.warning(...)`` or ``self.log.info(...)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = node.func.value
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return name.strip("_").lower() in {"log", "logger", "logging"}


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str, path: str) -> None:
        self.path = path
        self.found: list[Mutation] = []
        self._starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []  # of the enclosing classes and functions
        self._functions = 0  # the number of functions among them
        self._lines: tuple[int, ...] = ()
        self._users: list[tuple[set[str], range]] = []  # per function: the names in it and its lines
        self._returns_none: set[ast.ExceptHandler] = set()

    # --- context --------------------------------------------------------------------------------

    def visit_Module(self, node: ast.Module) -> None:
        self._users = [(_names_in(f), _body(f)) for f in ast.walk(node) if isinstance(f, Function)]
        self.generic_visit(node)

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        before = self._lines
        self._lines = _header(node) if self._functions else self._users_of(node)
        super().visit(node)
        self._lines = before

    def _users_of(self, node: ast.stmt) -> tuple[int, ...]:
        """Returns the lines that depend on a statement at import: functions that use its name, or else all functions of the module."""
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = {t.id for t in targets if isinstance(t, ast.Name)}
        users = [lines for used, lines in self._users if names & used] or [lines for _, lines in self._users]
        return tuple(sorted({n for lines in users for n in lines}))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self._each(node.body)
        self._names.pop()

    def visit_FunctionDef(self, node: Function) -> None:
        self._names.append(node.name)
        self._functions += 1
        outer, self._lines = self._lines, tuple(_body(node))
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if isinstance(default, ast.Constant) and isinstance(default.value, str):
                self._replace(Operator.DEFAULT, default, ast.Constant(default.value + "-other"))
            elif default is not None:
                self.visit(default)
        self._lines = outer
        self._returns_none |= _returns_none_at_end(node)
        self._each(node.body)
        self._functions -= 1
        self._names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    # --- unchanged nodes ------------------------------------------------------------------------

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """An argument contains only an annotation."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Assertions in the package are mostly for the type checker."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Only people read the text."""

    def visit_Call(self, node: ast.Call) -> None:
        if not is_log_call(node):
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id in _TYPES):
            self.generic_visit(node)

    # --- changed nodes --------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call) and not is_log_call(value):
            self._replace(Operator.CALL, node, ast.Pass())
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in _names_in(node.test) or "__name__" in _names_in(node.test):
            self._each(node.orelse)
        else:
            self._negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._negate(node.guard)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(Operator.NOT, node, node.operand)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace(Operator.JUNCTION, node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            ops = [*node.ops[:i], _COMPARISONS[type(op)](), *node.ops[i + 1 :]]
            self._replace(Operator.COMPARISON, node, ast.Compare(node.left, ops, node.comparators))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(Operator.CONSTANT, node, ast.Constant(not node.value))
        elif isinstance(node.value, int):
            self._replace(Operator.NUMBER, node, ast.Constant(node.value + 1))

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node not in self._returns_none and not all(
            isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and is_log_call(s.value)) for s in node.body
        ):
            outer, self._lines = self._lines, tuple(range(node.body[0].lineno, _end(node) + 1))
            self._replace(Operator.EXCEPT, node.body[0], ast.Pass(), until=node.body[-1], before=node.body)
            self._lines = outer
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(Operator.LOOP, node, ast.Continue())

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(Operator.LOOP, node, ast.Break())

    # --- helpers --------------------------------------------------------------------------------

    def _each(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _negate(self, test: ast.expr) -> None:
        """Negates a condition, except ``while True`` and conditions that another operator negates."""
        if isinstance(test, ast.Compare) and not (len(test.ops) == 1 and isinstance(test.ops[0], _ORDERING)):
            return
        if isinstance(test, ast.Constant) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            return
        self._replace(Operator.CONDITION, test, ast.UnaryOp(ast.Not(), test))

    def _replace(
        self,
        operator: Operator,
        node: ast.stmt | ast.expr,
        by: ast.stmt | ast.expr,
        *,
        until: ast.stmt | ast.expr | None = None,
        before: Sequence[ast.stmt] = (),
    ) -> None:
        after = ast.unparse(by)
        start = self._starts[node.lineno - 1] + node.col_offset
        last = until or node
        end = self._starts[_end(last) - 1] + (last.end_col_offset or 0)
        text = after if isinstance(by, ast.stmt | ast.Constant) else f"({after})"
        shown = "; ".join(ast.unparse(s) for s in before) if before else ast.unparse(node)
        where = ".".join(self._names) or "module"
        self.found.append(
            Mutation(self.path, where, node.lineno, self._lines, operator, _one_line(shown), after, 1, start, end, text)
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _end(node: ast.stmt | ast.expr | ast.ExceptHandler) -> int:
    return node.end_lineno or node.lineno


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def _body(node: Function) -> range:
    return range(node.body[0].lineno, _end(node) + 1)


def _returns_none_at_end(node: Function) -> set[ast.ExceptHandler]:
    """Returns the handlers that only return None at the end of the function. Without them, the function also returns None."""
    last = node.body[-1]
    return {
        handler
        for handler in (last.handlers if isinstance(last, ast.Try) and not last.finalbody else ())
        if isinstance(only := handler.body[0], ast.Return)
        and (only.value is None or (isinstance(only.value, ast.Constant) and only.value.value is None))
    }


def _header(node: ast.stmt) -> tuple[int, ...]:
    """Returns the lines of a statement without the lines of its inner statements."""
    inner = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler):
            inner.append(child.lineno)
        elif isinstance(child, ast.match_case):
            inner.append(child.pattern.lineno)
    last = min(inner) - 1 if inner else _end(node)
    return tuple(range(node.lineno, max(last, node.lineno) + 1))
