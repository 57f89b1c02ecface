"""The paths that the Makefile and pyproject.toml name exist, so no entry remains after a file is moved or deleted."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from tests.release.installation import clean_environment
from tests.tools.tree import PACKAGES, ROOT, Package

RUFF = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]


def commands(*words: str) -> str:
    """Returns the commands that `make` would run."""
    argv = ["make", "--no-print-directory", "--dry-run", *words]
    return subprocess.run(
        argv, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_each_test_of_the_plugin_exists() -> None:
    files = re.findall(r"\S+\.py", commands("plugin", "RELEASE=1.34"))
    assert len(files) > 15
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
@pytest.mark.parametrize("target", ["test", "test-rest", "test-all"])
def test_make_test_selects_the_tests_of_one_package(target: str, package: Package) -> None:
    tests = str(package.tests.relative_to(ROOT))
    assert commands(target, f"PACKAGE={package.name}").split()[-1] == tests
    assert commands(target).split()[-1] != tests


def test_each_exception_for_ruff_applies_to_a_file() -> None:
    patterns = [*RUFF["lint"]["per-file-ignores"], *RUFF["extend-exclude"]]
    assert [p for p in patterns if not next(ROOT.glob(p), None)] == []


@pytest.mark.parametrize("key", ["pytest.ini_options.pythonpath", "pytest.ini_options.testpaths", "mypy.files"])
def test_each_folder_of_the_settings_exists(key: str) -> None:
    value = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    for part in key.split("."):
        value = value[part]
    assert [p for p in value if p != "." and not next(ROOT.glob(p), None)] == []
