"""docs/release.md: what it tells to call is there, and its workflow is in good form."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.release.installation import ROOT

PAGE = (ROOT / "docs/release.md").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())


def test_each_target_and_test_that_it_names_exists() -> None:
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", PAGE, re.DOTALL))
    named = set(re.findall(r"\bmake ([a-z]+)", code))
    assert {"dist", "lock", "image", "sbom", "deploy"} <= named <= TARGETS
    tests = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert {t for t in tests if not (ROOT / "tests/release" / t).is_file()} == set()


@pytest.mark.parametrize("job", WORKFLOW["jobs"])
def test_a_job_of_the_workflow_has_only_the_rights_that_it_states(job: str) -> None:
    assert WORKFLOW["permissions"] == {}
    said = WORKFLOW["jobs"][job]
    assert set(said) <= {"needs", "runs-on", "environment", "permissions", "env", "steps"}
    assert said.get("needs", "dist") in WORKFLOW["jobs"]
    assert said["permissions"].get("contents") != "write"
    assert all(set(step) <= {"uses", "with", "run"} and len({"uses", "run"} & set(step)) == 1 for step in said["steps"])
    assert ("id-token" in said["permissions"]) == (job in {"index", "image"}), "only what publishes proves who it is"
