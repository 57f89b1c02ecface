"""Reports: each form has every check, and the details of failures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from dra_conformance import CATALOGUE, CheckOutcome, ConformanceRun, conformance_report
from dra_conformance.reports import badge, failure_lines, summary_line
from dra_conformance.runner import OutcomeStatus
from dra_conformance.transcript import TranscriptEntry

CALL = TranscriptEntry(1.5, "gRPC", "NodePrepareResources (claim-1) -> INTERNAL", "uid: 1", "<broken & | \x00>")


def made() -> ConformanceRun:
    outcomes = [
        CheckOutcome(CATALOGUE["REG-001"], OutcomeStatus.PASSED, 0.1),
        CheckOutcome(
            CATALOGUE["PRE-001"],
            OutcomeStatus.FAILED,
            0.2,
            "success",
            "<an error> | \x01",
            transcript=[CALL],
            log="boom",
        ),
        CheckOutcome(CATALOGUE["SLC-009"], OutcomeStatus.FAILED, 0.1, "an owner", "none"),
        CheckOutcome(CATALOGUE["CDI-007"], OutcomeStatus.SKIPPED, 0.0, reason="no nodes"),
        CheckOutcome(CATALOGUE["UPG-002"], OutcomeStatus.XFAILED, 0.3, "a", "b", reason="issue 7"),
    ]
    return ConformanceRun("gpu.example.com", outcomes, seconds=12.0)


def test_junit_contains_each_check_with_its_details() -> None:
    suite = ET.fromstring(conformance_report(made(), "junit"))  # noqa: S314 our own document
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "2")
    failed = next(c for c in suite if "PRE-001" in str(c.get("name")))
    assert "<an error>" in str(failed.find("failure").get("message"))  # type: ignore[union-attr]
    assert "NodePrepareResources" in str(failed.findtext("system-out"))
    assert failed.findtext("system-err") == "boom"


def test_json_contains_transcripts_of_failed_checks() -> None:
    found = json.loads(conformance_report(made(), "json"))
    assert [o["status"] for o in found["outcomes"]] == ["passed", "failed", "failed", "skipped", "xfailed"]
    assert found["outcomes"][1]["transcript"][0]["request"] == "uid: 1"
    assert found["outcomes"][3]["reason"] == "no nodes"


def test_markdown_has_a_row_for_each_check() -> None:
    text = conformance_report(made(), "markdown")
    failures, _, table = text.partition("| id |")
    rows = [line for line in table.splitlines() if line.startswith("| ") and "-00" in line]
    assert len(rows) == 5
    assert all(row.count(" | ") == 3 for row in rows), "text of a driver must not end a cell"
    assert badge(made()) in text
    assert "| PRE-001 | success | &lt;an error> \\|" in failures, "failures come first"


def test_a_failure_shows_expected_got_consequence_and_source() -> None:
    text = "\n".join(failure_lines(made().outcomes[1]))
    for word in ("expected:", "got:", "consequence:", "source:", "NodePrepareResources"):
        assert word in text


def test_a_run_without_a_check_does_not_claim_that_checks_passed() -> None:
    assert summary_line(ConformanceRun("", fault="the driver ended")) == "the driver: no check ran, in 0 s"


def test_the_summary_names_failed_checks() -> None:
    line = summary_line(made())
    assert "1 passed (1 MUST), 1 MUST failed (PRE-001), 1 SHOULD failed (SLC-009), 1 skipped, 1 xfailed" in line


@pytest.mark.parametrize(
    ("failed", "fault", "options", "code"),
    [
        ([], "", {}, 0),
        (["PRE-001"], "", {}, 1),
        (["SLC-009"], "", {}, 0),
        (["SLC-009"], "", {"strict": True}, 4),
        (["HLT-001"], "", {"strict": True}, 0),
        ([], "the driver ended", {}, 3),
        (["PRE-001"], "the driver ended", {}, 1),
    ],
)
def test_the_exit_code_depends_on_levels(failed: list[str], fault: str, options: dict[str, bool], code: int) -> None:
    outcomes = [CheckOutcome(CATALOGUE[id], OutcomeStatus.FAILED, 0.0, "a", "b") for id in failed]
    assert ConformanceRun("a", outcomes, fault).exit_code(**options) == code


def test_skips_can_fail_a_certification() -> None:
    outcomes = [CheckOutcome(CATALOGUE["CDI-007"], OutcomeStatus.SKIPPED, 0.0, reason="no nodes")]
    assert ConformanceRun("a", outcomes).exit_code(fail_on_skip=True) == 1
    outcomes = [CheckOutcome(CATALOGUE["HLT-001"], OutcomeStatus.NOT_APPLICABLE, 0.0, reason="no health service")]
    assert ConformanceRun("a", outcomes).exit_code(fail_on_skip=True) == 0, "no option makes the check run"
    assert ConformanceRun("a", outcomes).exit_code() == 0
