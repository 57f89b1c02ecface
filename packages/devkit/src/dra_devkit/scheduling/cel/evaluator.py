"""Compiles a checked tree to a plan, folds constants, and counts the cost of each step during evaluation.

Cost follows cel-go's observer. A call costs its rule's amount if all its arguments were evaluated, otherwise nothing. An attribute
costs one unit for its root and one for every qualifier. If a branch of a conditional is an attribute, the branch costs only its qualifiers.
Errors are values here, as in cel-go: && and || absorb them, and all other operations pass them on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import costs
from .ast import CallExpr, Expr, Fold, Ident, ListExpr, Literal, MapExpr, Select
from .attributes import Attribute, AttributeKey, Conditional, ConstantKey, Qualifier
from .calls import NO_OVERLOAD, Plan, Run, call_plan
from .frame import Frame, LazyValue
from .library import FUNCTIONS, regex
from .macros import ACCU
from .values import CelError, Optional, ProgramError, Type

_CONVERSIONS = {"int", "uint", "double", "bool", "string", "bytes", "duration", "timestamp", "dyn", "type"}
_MATCHED = {"matches", "find", "findAll"}
_NO_RANGE = "got a value that cannot be iterated, expected iterable type"


class Constant(Plan):
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__(lambda frame: value)
        self.value = value


class AttributePlan(Plan):
    """The plan of an attribute. More qualifiers can be added to the attribute."""

    __slots__ = ("attribute",)

    def __init__(self, attribute: Attribute, *, cost: int = 1) -> None:
        def run(frame: Frame) -> Any:
            value = attribute.resolve(frame)
            frame.spend(cost)
            return value

        super().__init__(run)
        self.attribute = attribute


def plan(node: Expr) -> Plan:
    """Returns the plan of a checked tree.

    Raises :class:`ProgramError` if the evaluation of a constant part of the tree always fails.
    """
    match node:
        case Literal(value=value):
            return Constant(value)
        case Ident():
            return _of_ident(node)
        case Select():
            return _of_select(node)
        case CallExpr():
            return _of_call(node)
        case ListExpr():
            return _of_list(node)
        case MapExpr():
            return _of_map(node)
        case Fold():
            return _of_fold(node)
    raise AssertionError(node)


# --- attributes -----------------------------------------------------------------------------------


def _of_ident(node: Ident) -> Plan:
    if node.type is not None and node.type.name == "type":
        named = node.type.params[0].name if node.type.params else ""
        if node.name != named:
            raise ProgramError(f"program instantiation failed: reference to undefined type: {node.name}")
        return Constant(Type(named))
    name = node.name
    return AttributePlan(Attribute(lambda frame: frame.variable(name)))


def _as_attribute(inner: Plan) -> AttributePlan:
    """Returns the plan itself if it is an attribute, otherwise an attribute relative to its value."""
    return inner if isinstance(inner, AttributePlan) else AttributePlan(Attribute(inner.run))


def _of_select(node: Select) -> Plan:
    if node.type_name:
        return Constant(Type(node.type_name))
    found = _as_attribute(plan(node.operand))
    found.attribute.add(ConstantKey(node.field, optional=node.optional, presence=node.test))
    # A presence test is charged for the qualifiers only.
    return AttributePlan(found.attribute, cost=0) if node.test else found


def _of_index(node: CallExpr) -> Plan:
    found, index = _as_attribute(plan(node.args[0])), plan(node.args[1])
    optional = node.function == "_[?_]"
    key: Qualifier
    if isinstance(index, Constant):
        key = ConstantKey(index.value, optional=optional)
    else:
        key = AttributeKey(_as_attribute(index).attribute, optional=optional)
    found.attribute.add(key)
    return found


def _of_conditional(node: CallExpr) -> Plan:
    test, yes, no = (plan(a) for a in node.args)
    return AttributePlan(Conditional(test.run, _as_attribute(yes).attribute, _as_attribute(no).attribute), cost=0)


# --- calls ----------------------------------------------------------------------------------------


def _of_call(node: CallExpr) -> Plan:
    match node.function:
        case "_[_]" | "_[?_]":
            return _of_index(node)
        case "_?_:_":
            return _of_conditional(node)
    args = [plan(o) for o in node.operands()]
    overload = node.overloads[0].id if len(node.overloads) == 1 else ""
    match node.function:
        case "_&&_" | "_||_":
            return _logical(args, stop=node.function == "_||_")
        case "or" | "orValue":
            return _alternative(args, unwrap=node.function == "orValue")
        case "@not_strictly_false":
            return call_plan(node, args, lambda a: a[0] is not False, overload, strict=False)
        case "@in" if overload == "@in(A, list(A))" and isinstance(args[1], Constant):
            if found := _membership(args[0], args[1].value):
                return found
        case name if name in _CONVERSIONS and len(args) == 1 and isinstance(args[0], Constant):
            return Constant(_folded(lambda: FUNCTIONS[name](args[0].value)))  # type: ignore[attr-defined]
    ordered = len(args) > 2 or _dispatched(node)
    if node.function in _MATCHED and isinstance(args[1], Constant) and isinstance(args[1].value, str):
        pattern = args[1].value
        _folded(lambda: regex(pattern))
        ordered = True
    if grow := _growing(node, args):
        return grow
    function = FUNCTIONS[node.function]
    return call_plan(node, args, lambda a: function(*a), overload, ordered=ordered)


def _dispatched(node: CallExpr) -> bool:
    """Returns whether the overload is chosen at run time by the values of all arguments.

    cel-go evaluates the arguments of such a call in order and stops at the first failure. An operator has one implementation for
    all its overloads, so it always evaluates both operands.
    """
    return len(node.overloads) > 1 and not node.function.startswith(("_", "@in"))


def _growing(node: CallExpr, args: list[Plan]) -> Plan | None:
    """Returns a step for a macro that appends to its own accumulator, which no other expression uses; None for other calls.

    The accumulator grows in place, so a loop of n steps does not copy n * n elements.
    """
    first = node.args[0] if node.target is None and node.args else None
    if not isinstance(first, Ident) or first.name != ACCU or node.function not in {"_+_", "cel.@mapInsert"}:
        return None
    function = FUNCTIONS[node.function]

    def grow(a: Sequence[Any]) -> Any:
        accumulator = a[0]
        if isinstance(accumulator, list) and isinstance(a[1], list):
            accumulator += a[1]
            return accumulator
        if isinstance(accumulator, dict) and len(a) == 3 and a[1] not in accumulator:
            accumulator[a[1]] = a[2]
            return accumulator
        return function(*a)

    return call_plan(node, args, grow, "", measured=False)


def _folded(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except (CelError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as e:
        raise ProgramError(f"program instantiation failed: {e}") from None


def _membership(element: Plan, values: list[Any]) -> Plan | None:
    """Returns a plan that tests membership in a constant list of scalars; None for other lists. Such a test costs nothing."""
    if not values:
        return Constant(False)
    if not all(isinstance(v, (str, int, float)) for v in values):
        return None
    known = {(_kind(v), v) for v in values}

    def run(frame: Frame) -> Any:
        value = element.run(frame)
        if isinstance(value, CelError):
            return value
        return isinstance(value, (str, int, float)) and (_kind(value), value) in known

    return Plan(run)


def _kind(value: Any) -> type:
    """Returns the kind of a constant, because True equals 1 in Python but not in CEL; 1 equals 1.0 in both."""
    return bool if isinstance(value, bool) else str if isinstance(value, str) else float


def _logical(terms: list[Plan], *, stop: bool) -> Plan:
    """``stop`` is the value that decides the result: True for ||, False for &&."""
    left, right = (t.run for t in terms)

    def run(frame: Frame) -> Any:
        first = left(frame)
        if first is stop:
            return stop
        second = right(frame)
        if second is stop:
            return stop
        for value in (first, second):
            if not isinstance(value, bool):
                return value if isinstance(value, CelError) else CelError(NO_OVERLOAD)
        return not stop

    return Plan(run)


def _alternative(args: list[Plan], *, unwrap: bool) -> Plan:
    """Returns the plan of ``or`` and ``orValue``. It evaluates the second argument only if the optional is empty."""

    def run(frame: Frame) -> Any:
        result = args[0].run(frame)
        if isinstance(result, Optional):
            if not result.present:
                return args[1].run(frame)
            return result.value if unwrap else result
        return result

    return Plan(run)


# --- literals and comprehensions ------------------------------------------------------------------


def _of_list(node: ListExpr) -> Plan:
    parts = [plan(e) for e in node.elements]
    if all(isinstance(p, Constant) for p in parts):
        return Constant([p.value for p in parts])  # type: ignore[attr-defined]
    optional = node.optional

    def evaluate(frame: Frame) -> Any:
        out = []
        for part, maybe in zip(parts, optional, strict=True):
            value = part.run(frame)
            if isinstance(value, CelError):
                return value
            if maybe:
                if not isinstance(value, Optional):
                    return CelError("cannot initialize optional list element from non-optional value")
                if not value.present:
                    continue
                value = value.value
            out.append(value)
        return out

    return _constructor(evaluate, costs.LIST_CREATE)


def _of_map(node: MapExpr) -> Plan:
    optional = node.optional
    parts = [plan(p) for entry in node.entries for p in entry]
    if all(isinstance(p, Constant) for p in parts):
        values = [p.value for p in parts]  # type: ignore[attr-defined]
        return Constant(_folded(lambda: dict(zip(values[::2], values[1::2], strict=True))))

    def evaluate(frame: Frame) -> Any:
        out: dict[Any, Any] = {}
        for i, maybe in enumerate(optional):
            key = parts[2 * i].run(frame)
            if isinstance(key, CelError):
                return key
            value = parts[2 * i + 1].run(frame)
            if isinstance(value, CelError):
                return value
            if not isinstance(key, (str, int, float)):
                return CelError(f"unsupported key type: {type(key).__name__}")
            if maybe:
                if not isinstance(value, Optional):
                    return CelError(f"cannot initialize optional entry '{key}' from non-optional value")
                if not value.present:
                    out.pop(key, None)
                    continue
                value = value.value
            out[key] = value
        return out

    return _constructor(evaluate, costs.MAP_CREATE)


def _constructor(evaluate: Run, cost: int) -> Plan:
    def run(frame: Frame) -> Any:
        result = evaluate(frame)
        frame.spend(cost)
        return result

    return Plan(run)


def _of_fold(node: Fold) -> Plan:
    over, init = plan(node.range), plan(node.init)
    condition, step, result = plan(node.condition), plan(node.step), plan(node.result)
    first, second, accu = node.var, node.var2, node.accu

    def start(frame: Frame) -> Any:
        value = init.run(frame)
        return value.copy() if accu == ACCU and isinstance(value, (list, dict)) else value

    def run(frame: Frame) -> Any:
        values = over.run(frame)
        if isinstance(values, CelError):
            return values
        if not isinstance(values, (list, dict)):
            return CelError(_NO_RANGE)
        outer = frame.variables
        # The initial value is evaluated when the accumulator is first read, so an unused binding costs nothing.
        inner = frame.variables = {**outer, accu: LazyValue(start, outer)}
        try:
            pairs = values.items() if isinstance(values, dict) else enumerate(values)
            for k, v in pairs:
                inner[first] = k if second or isinstance(values, dict) else v
                if second:
                    inner[second] = v
                if condition.run(frame) is False:
                    break
                inner[accu] = step.run(frame)
            # The result expression uses the accumulator and outer variables, not the loop's variables.
            frame.variables = {**outer, accu: inner[accu]}
            return result.run(frame)
        finally:
            frame.variables = outer

    return Plan(run)
