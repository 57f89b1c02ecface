"""Runs checks one after the other. Each check has a time limit and an outcome, and the suite cleans up after each check."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import SettingsError

from . import checks  # noqa: F401 it fills the catalogue
from .catalogue import (
    CATALOGUE,
    FUNCTIONS,
    CheckFailed,
    CheckNotApplicable,
    CheckSkipped,
    ConformanceCheck,
    DevicesMissing,
    Requirement,
)
from .driver_command import DriverCommand, DriverNotReady
from .harness import Harness
from .profile import ConformanceProfile
from .surroundings import RunAborted
from .transcript import TranscriptEntry


class OutcomeStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "not applicable"  # the driver lacks the optional feature
    XFAILED = "xfailed"  # failed as the profile expects


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one check.

    Args:
        seconds: the duration.
        expected, got: the required and the observed behavior, if the check failed.
        reason: the reason why the check was skipped or does not apply, or why the profile expects a failure.
        figures: values that the check measured.
        transcript, log: the calls during a failed check, and the last output of the driver.
    """

    check: ConformanceCheck
    status: OutcomeStatus
    seconds: float
    expected: str = ""
    got: str = ""
    reason: str = ""
    figures: Sequence[str] = ()
    transcript: Sequence[TranscriptEntry] = ()
    log: str = ""


@dataclass
class ConformanceRun:
    """The outcomes of all checks. ``fault`` is the reason why the run ended early; empty after a complete run."""

    driver: str = ""
    outcomes: list[CheckOutcome] = field(default_factory=list)
    fault: str = ""
    seconds: float = 0.0

    def count(self, status: OutcomeStatus, level: Requirement | None = None) -> int:
        return sum(o.status is status and level in {None, o.check.level} for o in self.outcomes)

    def failed(self, level: Requirement) -> list[str]:
        """Returns the ids of failed checks of a level."""
        return [o.check.id for o in self.outcomes if o.status is OutcomeStatus.FAILED and o.check.level is level]

    @property
    def failed_ids(self) -> list[str]:
        return [o.check.id for o in self.outcomes if o.status is OutcomeStatus.FAILED]

    def exit_code(self, *, strict: bool = False, fail_on_skip: bool = False) -> int:
        """Returns the exit code of the command.

        0: passed. 1: a MUST failed, or with ``fail_on_skip`` a check was skipped. 3: the driver was not ready, or no check was run. 4: a
        SHOULD failed, with ``strict``.
        """
        if self.failed(Requirement.MUST):
            return 1
        if self.fault:
            return 3
        if strict and self.failed(Requirement.SHOULD):
            return 4
        return int(fail_on_skip and bool(self.count(OutcomeStatus.SKIPPED)))


log = logging.getLogger(__name__)
_HANGING = 3  # the run ends after this number of consecutive checks in which the driver hung
_LONG = 40.0  # seconds; the driver hung if a failed check took at least this time
Report = Callable[[CheckOutcome], None]


def select_checks(patterns: Sequence[str] = ()) -> list[ConformanceCheck]:
    """Returns the checks whose id or group is in ``patterns``; all checks for no patterns.

    Raises :class:`SettingsError` for a pattern without a check.
    """
    known = {*CATALOGUE, *(c.group for c in CATALOGUE.values())}
    wanted = {p.upper() for p in patterns}
    if unknown := sorted(wanted - known):
        raise SettingsError(*(f"there is no check {name}{did_you_mean(name, sorted(known), 0.7)}" for name in unknown))
    return [c for c in CATALOGUE.values() if not wanted or {c.id, c.group} & wanted]


async def run_checks(
    command: DriverCommand,
    profile: ConformanceProfile,
    selected: Sequence[ConformanceCheck],
    report: Report = lambda outcome: None,
    rules: Sequence[Mapping[str, Any]] | None = None,
) -> ConformanceRun:
    """Starts the driver and runs the checks.

    Args:
        report: called with each outcome.
        rules: the rules of the driver's Roles, for SEC-001.

    Raises :class:`SettingsError` if the command cannot be expanded.
    """
    began = time.monotonic()
    out = ConformanceRun()
    async with Harness(command, profile) as harness:
        harness.facts["rbac"] = rules
        try:
            await harness.start()
            out.driver = harness.name
            harness.check_refusals()
            for check in selected:
                outcome = await run_check(harness, check)
                out.outcomes.append(outcome)
                report(outcome)
                check_hanging(out.outcomes)
            out.fault = _not_ready(harness, out)
        except (DriverNotReady, RunAborted) as e:
            out.fault = str(e)
    out.seconds = round(time.monotonic() - began, 1)
    return out


def _not_ready(harness: Harness, run: ConformanceRun) -> str:
    """Returns why the run counts as failed although no MUST check failed; else empty.

    The reason is that checks were skipped, because the driver published too few devices.
    """
    if run.failed(Requirement.MUST) or not harness.profile.minimum:
        return ""
    reason: str = harness.facts.get("devices missing", "")
    return reason and f"{reason}; the last output of the driver:\n{harness.log}"


def check_hanging(outcomes: Sequence[CheckOutcome]) -> None:
    """Raises :class:`RunAborted` if the last checks failed because the driver does not respond."""
    last = outcomes[-_HANGING:]
    if len(last) == _HANGING and all(o.expected and o.seconds >= _LONG for o in last):
        ids = ", ".join(o.check.id for o in last)
        raise RunAborted(f"the driver hangs: {ids} failed one after the other, each after at least {_LONG:g} s")


async def run_check(harness: Harness, check: ConformanceCheck) -> CheckOutcome:
    """Runs one check and cleans up after it. Raises :class:`DriverNotReady` if the driver cannot be started afterwards."""
    if reason := harness.profile.skip.get(check.id):
        return CheckOutcome(check, OutcomeStatus.SKIPPED, 0.0, reason=f"profile: {reason}")
    began, at = time.monotonic(), harness.transcript.now
    harness.facts["figures"] = []
    difference: CheckFailed | None = None
    try:
        async with harness.limited(check.limit):
            await FUNCTIONS[check.id](harness)
    except CheckSkipped as e:
        if isinstance(e, DevicesMissing):
            harness.facts["devices missing"] = str(e)
        await _clean_up(harness, failed=False)
        status = OutcomeStatus.NOT_APPLICABLE if isinstance(e, CheckNotApplicable) else OutcomeStatus.SKIPPED
        return CheckOutcome(check, status, round(time.monotonic() - began, 3), reason=str(e))
    except TimeoutError:
        difference = CheckFailed(f"the check ends within {check.limit:g} s", "no end: the driver hangs or is too slow")
    except DriverNotReady as e:
        difference = CheckFailed("the driver starts and registers", str(e))
    except CheckFailed as e:
        difference = e
    except (RunAborted, SettingsError):
        raise
    except Exception as e:  # for example, the driver returned a value that the check cannot read, or deleted a file
        log.debug("unexpected exception in check %s", check.id, exc_info=True)
        difference = CheckFailed("the check can be completed", f"{type(e).__name__}: {e}")
    took = round(time.monotonic() - began, 3)
    transcript = harness.transcript.since(at)
    output = harness.log
    await _clean_up(harness, failed=difference is not None)
    figures = tuple(harness.facts["figures"])
    if difference is None:
        if check.id in harness.profile.xfail:
            figures += ("profile: a failure is expected, but the check passed: delete it from [xfail]",)
        return CheckOutcome(check, OutcomeStatus.PASSED, took, figures=figures)
    reason = harness.profile.xfail.get(check.id, "")
    status = OutcomeStatus.XFAILED if reason else OutcomeStatus.FAILED
    return CheckOutcome(check, status, took, difference.expected, difference.got, reason, figures, transcript, output)


async def _clean_up(harness: Harness, *, failed: bool) -> None:
    """Restores the surroundings for the next check. After a failure, starts the driver without state."""
    if not failed:
        try:
            await harness.clean_up()
            return
        except (CheckFailed, DriverNotReady):
            pass
    harness.check_flood()
    await harness.reset()
