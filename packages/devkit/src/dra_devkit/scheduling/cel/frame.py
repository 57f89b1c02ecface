"""State of one evaluation: variables, cost so far, and the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .effort import EFFORT_LIMIT
from .values import CelError

_EXCEEDED = "operation cancelled: actual cost limit exceeded"


class EvaluationEnded(Exception):
    """The evaluation has ended; neither && nor || absorbs this error."""

    def __init__(self, reason: CelError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass
class LazyValue:
    """A variable whose value is computed when it is first read."""

    run: Callable[[Frame], Any]
    scope: dict[str, Any]


class Frame:
    __slots__ = ("budget", "cost", "effort", "variables")

    def __init__(self, variables: dict[str, Any], budget: int) -> None:
        self.variables = variables
        self.cost = 0
        self.budget = budget
        self.effort = 0

    def variable(self, name: str) -> Any:
        found = self.variables[name]
        if isinstance(found, LazyValue):
            scope, self.variables = self.variables, found.scope
            value = found.run(self)
            self.variables = scope
            scope[name] = value
            return value
        return found

    def spend(self, units: int) -> None:
        """Accounts for a step.

        Raises :class:`EvaluationEnded` when the budget is exceeded.
        """
        self.cost += units
        if self.cost > self.budget:
            raise EvaluationEnded(CelError(_EXCEEDED))

    def add_effort(self, effort: int) -> None:
        """Adds ``effort``, an upper bound of a call's CPU time in nanoseconds: Kubernetes' cost does not count all of it.

        Raises :class:`EvaluationEnded` when the effort exceeds the limit of an evaluation.
        """
        self.effort += effort
        if self.effort > EFFORT_LIMIT:
            raise EvaluationEnded(CelError(_EXCEEDED))


def run_to_end(run: Callable[[Frame], Any], frame: Frame) -> Any:
    """Returns the value of an expression, or the error that ended its evaluation."""
    try:
        return run(frame)
    except EvaluationEnded as e:
        return e.reason
    except RecursionError:  # lists nested deeper than Python's recursion limit
        return CelError(_EXCEEDED)
