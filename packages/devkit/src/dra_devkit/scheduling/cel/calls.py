"""The plan of a function call: evaluates the arguments, accounts for cost and effort, and calls the function."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from . import costs, effort
from .ast import CallExpr
from .costs import InternalError
from .frame import EvaluationEnded, Frame
from .values import CelError

NO_OVERLOAD = "no such overload"
Run = Callable[[Frame], Any]


class Plan:
    """The compiled form of a node. ``run`` evaluates the node and accounts for its cost."""

    __slots__ = ("run",)

    def __init__(self, run: Run) -> None:
        self.run = run


def _attempt(function: Callable[[Sequence[Any]], Any], args: Sequence[Any]) -> Any:
    try:
        return function(args)
    except CelError as e:
        return e
    except (AttributeError, TypeError):
        return CelError(NO_OVERLOAD)
    except (ArithmeticError, LookupError, ValueError) as e:
        return CelError(str(e))  # for example, a time is out of range or a text is too long


def call_plan(
    node: CallExpr,
    args: list[Plan],
    function: Callable[[Sequence[Any]], Any],
    overload: str,
    *,
    strict: bool = True,
    ordered: bool = False,
    measured: bool = True,
) -> Plan:
    """Returns the plan of a function call.

    Args:
        strict: a failed argument makes the call fail; otherwise the function receives the error as argument.
        ordered: the first failed argument ends the call, and later arguments are not evaluated.
        measured: the effort of the call is computed if its cost does not cover it (see :mod:`.effort`).
    """
    rule = costs.rule_of(node.function, overload)
    timed = node.function in effort.TIMED
    charged_after = node.function in costs.CHARGED_AFTER_CALL
    effort_rule = effort.rule_of(node.function, overload) if measured else None
    runs = [a.run for a in args]

    def run(frame: Frame) -> Any:
        values: list[Any] = []
        failed: CelError | None = None
        for r in runs:
            value = r(frame)
            values.append(value)
            if strict and isinstance(value, CelError):
                failed = failed or value
                if ordered:
                    break
        complete = len(values) == len(runs)
        if complete and not charged_after:
            frame.spend(_cost(rule, values, None))
        if effort_rule and not failed:
            frame.add_effort(effort_rule(values))
        started = time.thread_time_ns() if timed else 0
        result = failed or _attempt(function, values)
        if timed:
            frame.add_effort(time.thread_time_ns() - started)
        if complete and charged_after:
            frame.spend(_cost(rule, values, result))
        return result

    if len(runs) == 2 and strict and not ordered and rule is costs.one_unit and not effort_rule:
        return Plan(_binary(runs[0], runs[1], function))
    return Plan(run)


def _cost(rule: costs.Rule, values: Sequence[Any], result: Any) -> int:
    try:
        return rule(values, result)
    except InternalError as e:
        raise EvaluationEnded(CelError(f"internal error: {e}")) from None


def _binary(left: Run, right: Run, function: Callable[[Sequence[Any]], Any]) -> Run:
    """Returns the fast path for the most frequent kind of call: two arguments, at a cost of one unit."""

    def run(frame: Frame) -> Any:
        a, b = left(frame), right(frame)
        frame.spend(1)
        if isinstance(a, CelError):
            return a
        return b if isinstance(b, CelError) else _attempt(function, (a, b))

    return run
