"""The conformance suite as pytest tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.conformance.runs import PLAIN, ROOT


def test_each_check_is_a_test(tmp_path: Path) -> None:
    (tmp_path / "conformance.toml").write_text("[xfail]\n'UNP-001' = 'issue 7'\n")
    (tmp_path / "test_driver.py").write_text(
        "from dra_conformance.testing import conformance_checks\n"
        f"test_conformance = conformance_checks({PLAIN!r}, profile='conformance.toml',"
        " checks=['REG-003', 'PRE-011', 'CFG-001', 'UNP'])\n"
    )
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "-rA"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "BUG": "unprepare of an unknown claim", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 skipped" in out.stdout, out.stdout + out.stderr
    assert "1 xfailed" in out.stdout
    assert "4 passed" in out.stdout
    assert "PASSED test_driver.py::test_conformance[REG-003]" in out.stdout
