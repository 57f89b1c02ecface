"""Types of the results of ``dra conformance``. ``-o json|yaml`` and ``--json`` print their fields; docs/commands.md lists the types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .catalogue import Requirement
from .runner import OutcomeStatus
from .transcript import TranscriptEntry


@dataclass(frozen=True)
class DescribedCheck:
    """A check. ``consequence`` is the effect in a cluster if a driver fails it, ``attach`` whether it also runs with `--attach`."""

    id: str
    level: Requirement
    text: str
    steps: str
    consequence: str
    source: str
    attach: bool


@dataclass(frozen=True)
class Checks:
    """The result of `dra conformance list` and `dra conformance explain`."""

    checks: tuple[DescribedCheck, ...]


@dataclass(frozen=True)
class CheckReport:
    """The result of a check. ``expected``, ``got``, ``transcript`` and ``log`` are empty unless the check failed. ``figures`` are measured
    values. ``reason`` says why the check was skipped or does not apply, or why the profile expects a failure.
    """

    id: str
    level: Requirement
    status: OutcomeStatus
    seconds: float
    text: str
    consequence: str
    source: str
    reason: str
    figures: tuple[str, ...]
    expected: str
    got: str
    transcript: tuple[TranscriptEntry, ...]
    log: str


@dataclass(frozen=True)
class ConformanceReport:
    """The result of `dra conformance run`. ``fault`` is the reason why the run ended early; empty after a complete run."""

    driver: str
    seconds: float
    fault: str
    counts: Mapping[str, int]
    checks: tuple[CheckReport, ...]
