"""The conformance suite as pytest tests: one test for each check, in one run of the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from .catalogue import CATALOGUE
from .driver_command import DriverCommand
from .profile import ConformanceProfile, read_profile
from .reports import failure_lines
from .runner import ConformanceRun, OutcomeStatus, run_checks, select_checks


def conformance_checks(
    command: str, *, profile: Path | str | None = None, checks: Sequence[str] = ()
) -> Callable[..., None]:
    """Returns a test function that pytest runs once for each check.

    Assign the function to a name that begins with ``test``: ``test_conformance = conformance_checks("dra run fpga.py")``.
    The first test starts the driver and runs all selected checks; each test reports its own check.

    Args:
        command: the command that starts the driver, as for ``dra conformance run --driver-cmd``.
        profile: a profile in TOML.
        checks: ids or groups; all checks by default.

    Raises :class:`SettingsError` for an invalid command, profile or id.
    """
    chosen = read_profile(Path(profile), list(CATALOGUE)) if profile else ConformanceProfile()
    parsed = DriverCommand.parse(command)
    runs: list[ConformanceRun] = []

    @pytest.mark.parametrize("check_id", [c.id for c in select_checks(checks)])
    @pytest.mark.timeout(0)
    def test(check_id: str, request: Any) -> None:
        if not runs:
            ids = [i.callspec.params["check_id"] for i in request.session.items if i.function is request.function]
            runs.append(asyncio.run(run_checks(parsed, chosen, [CATALOGUE[id] for id in ids])))
        _report(runs[0], check_id)

    found: Callable[..., None] = test
    return found


def _report(run: ConformanceRun, check_id: str) -> None:
    """Passes, skips or fails the test of a check."""
    __tracebackhide__ = True
    outcome = next((o for o in run.outcomes if o.check.id == check_id), None)
    if outcome is None:
        pytest.fail(f"{check_id} did not run: {run.fault}", pytrace=False)
    if outcome.status in {OutcomeStatus.SKIPPED, OutcomeStatus.NOT_APPLICABLE}:
        pytest.skip(outcome.reason)
    if outcome.status is OutcomeStatus.XFAILED:
        pytest.xfail(outcome.reason)
    if outcome.status is OutcomeStatus.FAILED:
        lines = [f"{check_id} ({outcome.check.level}): the driver {outcome.check.text}", *failure_lines(outcome)]
        pytest.fail("\n".join([*lines, "  output of the driver:", outcome.log]), pytrace=False)
