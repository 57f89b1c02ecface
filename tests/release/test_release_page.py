"""The targets and tests that docs/release.md names exist, and the release workflow has minimal permissions."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.release.installation import ROOT

PAGE = (ROOT / "docs/release.md").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())


def test_each_target_and_test_that_the_page_names_exists() -> None:
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", PAGE, re.DOTALL))
    named = set(re.findall(r"\bmake ([a-z]+)", code))
    assert {"dist", "lock", "image", "sbom", "deploy"} <= named <= TARGETS
    tests = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert {t for t in tests if not (ROOT / "tests/release" / t).is_file()} == set()


@pytest.mark.parametrize("job", WORKFLOW["jobs"])
def test_a_job_of_the_workflow_has_only_its_declared_permissions(job: str) -> None:
    assert WORKFLOW["permissions"] == {}
    definition = WORKFLOW["jobs"][job]
    assert set(definition) <= {"needs", "runs-on", "environment", "permissions", "env", "steps"}
    assert definition.get("needs", "dist") in WORKFLOW["jobs"]
    assert definition["permissions"].get("contents") != "write"
    assert all(
        set(step) <= {"uses", "with", "run"} and len({"uses", "run"} & set(step)) == 1 for step in definition["steps"]
    )
    assert ("id-token" in definition["permissions"]) == (job in {"index", "image"}), (
        "only jobs that publish have an identity token"
    )
