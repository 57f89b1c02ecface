"""The suite is tested: a correct driver passes every check, and each bug fails exactly the checks that are for it.

A bug runs with its own checks and with all checks that need no restart of the driver. With CONFORMANCE=whole in the environment it
runs with the whole catalogue, which takes a minute for each bug: use it after a change of the suite.
"""

from __future__ import annotations

import os

import pytest

from dra_conformance import CATALOGUE, select_checks
from dra_conformance.checks.prepare import faults_of
from dra_conformance.kubelet_client import ClaimResponse, DeviceResponse
from packages.conformance.tests.checks import bugs
from tests.helpers.conformance import runs, variants
from tests.helpers.conformance.runs import PLAIN, explained

pytestmark = pytest.mark.timeout(600)
WITHOUT_RESTART = {
    *(c.id for c in select_checks(["REG", "PRE", "UNP", "CDI", "HLT", "CFG", "MET", "SKW", "SEC"])),
    *("SLC-001", "SLC-002", "SLC-004", "SLC-009"),
} - {"REG-005", "CDI-003", "CDI-006", "HLT-002", "SKW-003"}
"""Checks that are quick, because the driver is not started again."""
RESULT = {"driver": "a", "pool": "node", "device": "gpu-0", "request": "gpu/large"}
CLAIM = {"status": {"allocation": {"devices": {"results": [RESULT]}}}}


@pytest.mark.full
async def test_a_correct_plain_driver_passes_every_check() -> None:
    found = await runs.run(PLAIN)
    assert found.fault == ""
    assert found.failed_ids == [], explained(found)


@pytest.mark.full
@pytest.mark.parametrize("bug", bugs.PLAIN)
async def test_a_bug_fails_exactly_its_checks(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUG", bug)
    is_whole = os.environ.get("CONFORMANCE") == "whole"
    checks = () if is_whole else sorted({*WITHOUT_RESTART, *bugs.PLAIN[bug]})
    found = await runs.run(PLAIN, checks, **bugs.PROFILES.get(bug, {}))
    assert found.fault == ""
    skipped = {o.check.id for o in found.outcomes if o.reason}
    failed = set(found.failed_ids) - bugs.BY_CHANCE.get(bug, set())
    assert failed == bugs.PLAIN[bug] - skipped, explained(found)


@pytest.mark.full
@pytest.mark.parametrize("behavior", bugs.ACCEPTED)
async def test_no_check_fails_a_behavior_that_a_kubelet_accepts(behavior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUG", behavior)
    found = await runs.run(PLAIN, pace=runs.PATIENT)
    assert found.fault == ""
    assert found.failed_ids == [], explained(found)


def test_the_bugs_cover_the_catalogue() -> None:
    assert {id for ids in (*bugs.PLAIN.values(), *variants.BROKEN.values()) for id in ids} == set(CATALOGUE)


@pytest.mark.parametrize(
    ("device", "faults"),
    [
        (DeviceResponse(("gpu",), "node", "gpu-0", ()), 0),
        (DeviceResponse((), "", "", ()), 0),
        (DeviceResponse(("gpu/large",), "node", "gpu-0", ()), 1),
        (DeviceResponse((), "node", "gpu-1", ()), 1),
        (DeviceResponse((), "other", "gpu-0", ()), 1),
    ],
)
def test_a_response_may_omit_names_as_the_kubelet_allows(device: DeviceResponse, faults: int) -> None:
    assert len(faults_of(CLAIM, ClaimResponse("", (device,)))) == faults
