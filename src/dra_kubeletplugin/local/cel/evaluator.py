"""Turns a checked tree into closures, folding constants, and counts cost as it evaluates.

Cost and laziness follow cel-go: ``&&`` and ``||`` absorb errors, attributes cost one unit for the variable and one for
every qualifier, list and map literals cost their creation unless they are constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import costs
from .ast import Call, Fold, Ident, ListExpr, Literal, MapExpr, Node, Select
from .library import FUNCTIONS, need
from .values import (
    NONE,
    AttributeList,
    CelError,
    DefaultMap,
    Optional,
    ProgramError,
    Type,
    UInt,
    equal,
    is_number,
)

_FOLDED = {"int", "uint", "double", "bool", "string", "bytes", "duration", "timestamp", "dyn"}


class Frame:
    """State of one evaluation: variables, cost so far, and the budget."""

    __slots__ = ("budget", "cost", "variables")

    def __init__(self, variables: dict[str, Any], budget: int) -> None:
        self.variables = variables
        self.cost = 0
        self.budget = budget

    def spend(self, units: int) -> None:
        self.cost += units
        if self.cost > self.budget:
            raise BudgetExceeded("operation cancelled: actual cost limit exceeded")


class BudgetExceeded(Exception):
    """Never absorbed by && and ||."""


Run = Callable[[Frame], Any]


def compile_node(node: Node) -> Run:
    match node:
        case Literal(value=value):
            return lambda frame: value
        case Ident() | Select():
            return _attribute(node)
        case Call(function="_[_]" | "_[?_]"):
            return _attribute(node)
        case Call():
            return _call(node)
        case ListExpr():
            return _list(node)
        case MapExpr():
            return _map(node)
        case Fold():
            return _fold(node)
    raise AssertionError(node)


def is_constant(node: Node) -> bool:
    if isinstance(node, ListExpr):
        return not any(node.optional) and all(is_constant(e) for e in node.elements)
    if isinstance(node, MapExpr):
        return not any(node.optional) and all(is_constant(k) and is_constant(v) for k, v in node.entries)
    if isinstance(node, Call) and node.function in _FOLDED:
        return all(is_constant(a) for a in node.args)
    return isinstance(node, Literal)


def fold_constant(node: Node) -> Any:
    """The value of a constant node; conversions that fail are faults of the program."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, ListExpr):
        return [fold_constant(e) for e in node.elements]
    if isinstance(node, MapExpr):
        return {fold_constant(k): fold_constant(v) for k, v in node.entries}
    assert isinstance(node, Call)
    try:
        return FUNCTIONS[node.function](*(fold_constant(a) for a in node.args))
    except CelError as e:
        raise ProgramError(f"program instantiation failed: {e}") from None


def _is_attribute(node: Node) -> bool:
    return isinstance(node, (Ident, Select)) or (isinstance(node, Call) and node.function in {"_[_]", "_[?_]"})


# --- attributes: a variable or any value, then fields and indexes -------------------------------


def _attribute(node: Node) -> Run:
    """Walks down to the root; the attribute as a whole costs one unit, each qualifier another."""
    if isinstance(node, Ident):
        name = node.name
        if node.type is not None and node.type.name == "type":
            found = node.type.params[0]
            constant = Type({"list": "list", "map": "map"}.get(found.name, found.name))
            return lambda frame: frame.variables.get(name, constant)

        def read(frame: Frame) -> Any:
            frame.spend(1)
            value = frame.variables[name]
            if isinstance(value, _Failed):
                raise value.error
            return value

        return read
    steps: list[Callable[[Frame, Any], Any]] = []
    root = node
    while _is_attribute(root) and not isinstance(root, Ident):
        steps.append(_qualifier(root))
        root = root.operand if isinstance(root, Select) else root.args[0]  # type: ignore[attr-defined]
    steps.reverse()
    base = compile_node(root)
    relative = not isinstance(root, Ident)

    def resolve(frame: Frame) -> Any:
        try:
            value = base(frame)
        except CelError:
            frame.spend(1 + len(steps) if relative else len(steps))
            raise
        if relative:
            frame.spend(1)
        for step in steps:
            value = step(frame, value)
        return value

    return resolve


def _qualifier(node: Node) -> Callable[[Frame, Any], Any]:
    if isinstance(node, Select):
        field = node.field
        if node.test:
            return lambda frame, value: _has(value, field)
        key: Run = lambda frame: field  # noqa: E731
        optional = node.optional
    else:
        assert isinstance(node, Call)
        key = compile_node(node.args[1])
        optional = node.function == "_[?_]"

    def step(frame: Frame, value: Any) -> Any:
        wrapped = isinstance(value, Optional)
        if wrapped and not value.present:
            return NONE
        inner = value.value if wrapped else value
        k = key(frame)
        if optional or wrapped:
            found = _lookup_optional(inner, k)
            if found.present:
                frame.spend(1)
            return found
        frame.spend(1)
        return _lookup(inner, k)

    return step


def _has(value: Any, field: str) -> Any:
    if isinstance(value, Optional):
        return value.present and _has(value.value, field)
    if isinstance(value, dict):
        return field in value
    if hasattr(value, "cel_fields"):
        return field in value.cel_fields
    raise CelError("no such overload")


def _lookup_optional(value: Any, key: Any) -> Optional:
    try:
        return Optional(True, _lookup(value, key))
    except CelError as e:
        if str(e).startswith(("no such key", "index out of bounds")):
            return NONE
        raise


def _lookup(value: Any, key: Any) -> Any:
    if isinstance(value, DefaultMap):
        return value.get(need(key, str), {})
    if isinstance(value, dict):
        if isinstance(key, (list, dict)) or (isinstance(key, float) and key != int(key)):
            raise CelError(f"no such key: {key}")
        for candidate in value:
            if equal(candidate, key):
                found = value[candidate]
                return found.values if isinstance(found, AttributeList) else found
        raise CelError(f"no such key: {_shown(key)}")
    if isinstance(value, list):
        if not is_number(key) or key != int(key):
            raise CelError(f"unsupported index type '{type(key).__name__}' in list")
        if not 0 <= key < len(value):
            raise CelError(f"index out of bounds: {int(key)}")
        return value[int(key)]
    if hasattr(value, "cel_fields"):
        if key in value.cel_fields:
            return value.cel_fields[key]
        raise CelError(f"no such key: {key}")
    raise CelError("no such overload")


def _shown(key: Any) -> str:
    return {True: "true", False: "false"}.get(key, str(key)) if isinstance(key, bool) else str(key)


# --- calls --------------------------------------------------------------------------------------


def _call(node: Call) -> Run:
    name = node.function
    if name in _FOLDED and is_constant(node):
        value = fold_constant(node)
        return lambda frame: value
    operands = ([node.target] if node.target is not None else []) + node.args
    runs = [compile_node(o) for o in operands]
    match name:
        case "_&&_" | "_||_":
            return _logical(runs[0], runs[1], stop=name == "_||_")
        case "_?_:_":
            return _ternary(node, runs)
        case "@not_strictly_false":
            return _not_strictly_false(runs[0])
        case "or" | "orValue":
            return _optional_or(name, runs)
        case "@in" if isinstance(node.args[1], ListExpr) and is_constant(node.args[1]):
            return _in_constants(runs[0], fold_constant(node.args[1]))
    function = FUNCTIONS[name]
    charge = costs.call
    # Functions of many arguments stop at the first failed one, and are then not charged.
    variadic = len(runs) > 2 or name == "findAll"

    def run(frame: Frame) -> Any:
        args: list[Any] = []
        failed: CelError | None = None
        for r in runs:
            try:
                args.append(r(frame))
            except CelError as e:
                if variadic and r is not runs[-1]:
                    raise
                failed = failed or e
                args.append(costs.ERROR)
        if failed:
            frame.spend(charge(name, args, costs.ERROR))
            raise failed
        try:
            result = function(*args)
        except CelError:
            frame.spend(charge(name, args, costs.ERROR))
            raise
        except (AttributeError, TypeError):
            raise CelError("no such overload") from None
        except (ArithmeticError, LookupError, ValueError) as e:
            raise CelError(f"{name}: {e}") from None  # a time out of range, a text that is too long
        frame.spend(charge(name, args, result))
        return result

    return run


def _in_constants(element: Run, values: list[Any]) -> Run:
    if not values:
        return lambda frame: False
    return lambda frame: FUNCTIONS["@in"](element(frame), values)


def _logical(left: Run, right: Run, *, stop: bool) -> Run:
    """``stop`` is the value that decides: True for ||, False for &&."""

    def run(frame: Frame) -> bool:
        failed: CelError | None = None
        for side in (left, right):
            try:
                value = side(frame)
            except CelError as e:
                failed = failed or e
                continue
            if not isinstance(value, bool):
                failed = failed or CelError("no such overload")
            elif value is stop:
                return stop
        if failed:
            raise failed
        return not stop

    return run


def _ternary(node: Call, runs: list[Run]) -> Run:
    test, yes, no = runs
    # A branch that is an attribute is resolved as part of the conditional's own.
    rebates = [int(_is_attribute(a)) for a in node.args[1:]]

    def run(frame: Frame) -> Any:
        chosen = need(test(frame), bool)
        frame.cost -= rebates[0 if chosen else 1]
        return yes(frame) if chosen else no(frame)

    return run


def _not_strictly_false(inner: Run) -> Run:
    def run(frame: Frame) -> bool:
        try:
            value = inner(frame)
        except CelError:
            value = True
        frame.spend(1)
        return value is not False

    return run


def _optional_or(name: str, runs: list[Run]) -> Run:
    def run(frame: Frame) -> Any:
        value = need(runs[0](frame), Optional)
        if value.present:
            return value.value if name == "orValue" else value
        return runs[1](frame)

    return run


# --- literals and comprehensions ----------------------------------------------------------------


def _list(node: ListExpr) -> Run:
    if is_constant(node):
        constant = fold_constant(node)
        return lambda frame: constant
    runs = [compile_node(e) for e in node.elements]
    optional = node.optional

    def run(frame: Frame) -> list[Any]:
        out = []
        for r, maybe in zip(runs, optional, strict=True):
            value = r(frame)
            if not maybe:
                out.append(value)
            elif value.present:
                out.append(value.value)
        frame.spend(costs.LIST_CREATE)
        return out

    return run


def _map(node: MapExpr) -> Run:
    if is_constant(node):
        constant = fold_constant(node)
        return lambda frame: constant
    runs = [(compile_node(k), compile_node(v)) for k, v in node.entries]
    optional = node.optional

    def run(frame: Frame) -> dict[Any, Any]:
        out = {}
        for (k, v), maybe in zip(runs, optional, strict=True):
            key, value = k(frame), v(frame)
            if not isinstance(key, (str, int, UInt, bool)):
                raise CelError(f"unsupported key type: {type(key).__name__}")
            if not maybe:
                out[key] = value
            elif value.present:
                out[key] = value.value
        frame.spend(costs.MAP_CREATE)
        return out

    return run


def _fold(node: Fold) -> Run:
    over, init = compile_node(node.range), compile_node(node.init)
    condition, step, result = compile_node(node.condition), compile_node(node.step), compile_node(node.result)
    first, second, accu = node.var, node.var2, node.accu

    def run(frame: Frame) -> Any:
        values = over(frame)
        if isinstance(values, AttributeList):
            values = values.values
        if not isinstance(values, (list, dict)):
            raise CelError("no such overload")
        saved = dict(frame.variables)
        try:
            frame.variables[accu] = init(frame)
            pairs = values.items() if isinstance(values, dict) else enumerate(values)
            for k, v in pairs:
                frame.variables[first] = k if second or isinstance(values, dict) else v
                if second:
                    frame.variables[second] = v
                if not condition(frame):
                    break
                try:
                    frame.variables[accu] = step(frame)
                except CelError as e:
                    frame.variables[accu] = _Failed(e)
            return result(frame)
        finally:
            frame.variables = saved

    return run


class _Failed:
    """An accumulator whose last step failed; reading it raises, unless && or || absorb that."""

    def __init__(self, error: CelError) -> None:
        self.error = error
