"""The catalogue of checks, and the decorators that add a function to it. The id of a check never changes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .harness import Harness

TIME_LIMIT = 180.0
"""Seconds of a check: enough for four calls, because a kubelet waits up to 45 s for each."""
CheckFunction = Callable[["Harness"], Awaitable[None]]


class Requirement(StrEnum):
    """The importance of a check."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"

    @property
    def meaning(self) -> str:
        """The meaning of a failure."""
        return {
            Requirement.MUST: "the kubelet fails, or resources leak",
            Requirement.SHOULD: "operators suffer",
            Requirement.MAY: "a feature that the driver announces or offers",
        }[self]


@dataclass(frozen=True)
class ConformanceCheck:
    """One check.

    Args:
        text: the behavior that the check requires.
        consequence: the effect in a cluster if the driver fails the check.
        source: the document that contains the requirement.
        steps: the steps of the check, from the docstring of its function.
        limit: time limit of the check in seconds. Starts of the driver do not count; the profile limits them.
        attach: whether the check also runs on a driver on a real node, because it only reads.
    """

    id: str
    level: Requirement
    text: str
    consequence: str
    source: str
    steps: str
    limit: float = TIME_LIMIT
    attach: bool = False

    @property
    def group(self) -> str:
        return self.id.partition("-")[0]


GROUPS = {
    "REG": "Registration",
    "PRE": "Prepare",
    "UNP": "Unprepare",
    "CDI": "CDI specs",
    "SLC": "ResourceSlices",
    "RST": "Restart, crash and reboot",
    "UPG": "Rolling updates",
    "HLT": "Device health",
    "CFG": "Opaque parameters",
    "MET": "Metadata files",
    "SKW": "Version skew",
    "SEC": "Security",
    "PRF": "Performance",
}
CATALOGUE: dict[str, ConformanceCheck] = {}
"""All checks by id, in the order of execution. An import of :mod:`.checks` fills the catalogue."""
FUNCTIONS: dict[str, CheckFunction] = {}
"""The functions of the checks, by id."""


class CheckFailed(Exception):
    """The driver does not fulfill a requirement.

    Args:
        expected: the required behavior, as a phrase.
        got: the observed behavior.
    """

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"expected {expected}; got {got}")
        self.expected = expected
        self.got = got


class CheckSkipped(Exception):
    """The check did not run. The text is the reason."""


class CheckNotApplicable(CheckSkipped):
    """The driver lacks the optional feature of the check, so no option or profile can make the check run."""


class DevicesMissing(CheckSkipped):
    """The check needs published devices, and the driver has published none."""


def _check(
    level: Requirement,
    id: str,
    text: str,
    *,
    consequence: str,
    source: str,
    limit: float = TIME_LIMIT,
    attach: bool = False,
) -> Callable[[CheckFunction], CheckFunction]:
    """Adds the decorated function to the catalogue. The arguments are the fields of :class:`ConformanceCheck`."""

    def add(function: CheckFunction) -> CheckFunction:
        if id in CATALOGUE:
            raise ValueError(f"the id {id} is used twice")
        steps = inspect.getdoc(function) or ""
        CATALOGUE[id] = ConformanceCheck(id, level, text, consequence, source, steps, limit, attach)
        FUNCTIONS[id] = function
        return function

    return add


must = partial(_check, Requirement.MUST)
should = partial(_check, Requirement.SHOULD)
may = partial(_check, Requirement.MAY)


def expect(condition: object, expected: str, got: object) -> None:
    """Raises :class:`CheckFailed` if the condition is false."""
    if not condition:
        raise CheckFailed(expected, str(got))
