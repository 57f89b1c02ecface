"""The results of a driver's own checks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import DriverError, clip, shown

MAX_CHECKS = 50
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


@dataclass(frozen=True)
class Check:
    """The result of one check that :meth:`Driver.checks` made.

    Args:
        name: what was checked, such as ``driver-root``: at most 40 lower case letters, digits and '-'. Do not change it between calls or
            releases.
        problem: what is wrong; empty if nothing is. Use a stable text, without times.
        todo: what an operator can do about it.
        blocking: whether the plugin is not ready while the problem exists. An update of the DaemonSet then stops at this node.

    Raises:
        DriverError: ``name`` is invalid, or ``problem`` or ``todo`` is not text.
    """

    name: str
    problem: str = ""
    todo: str = ""
    blocking: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise DriverError(
                f"Check {shown(self.name)}: the name must have at most 40 lower case letters, digits and '-'"
            )
        if not isinstance(self.problem, str) or not isinstance(self.todo, str):
            raise DriverError(f"Check {shown(self.name)}: problem and todo must be text")
        object.__setattr__(self, "problem", clip(self.problem))
        object.__setattr__(self, "todo", clip(self.todo))

    @property
    def sentence(self) -> str:
        """The problem with the remedy, for one line of a report."""
        return f"check {self.name}: {self.problem}" + (f": {self.todo}" if self.todo else "")


def parse_checks(result: object) -> tuple[Check, ...]:
    """Validates a result of :meth:`Driver.checks`. Raises :class:`DriverError`."""
    if not isinstance(result, (list, tuple)):
        raise DriverError(f"checks() returned {shown(result)}: it must return a list of Check")
    found = tuple(result)
    if wrong := [check for check in found if not isinstance(check, Check)]:
        raise DriverError(f"checks() returned {shown(wrong[0])}: it must return a list of Check")
    names = [check.name for check in found]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise DriverError(f"checks() returned the check {twice} twice")
    if len(found) > MAX_CHECKS:
        raise DriverError(f"checks() returned {len(found)} checks: a driver may have at most {MAX_CHECKS}")
    return found
