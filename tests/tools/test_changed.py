"""``make check`` finds the tests of changed files."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools import changed


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Creates a repository with a package, a driver and tests."""
    files = {
        "docs/page.md": "",
        "drivers/x/src/x/driver.py": "",
        "drivers/x/tests/test_x.py": "import x\n",
        "src/pkg/__init__.py": "",
        "src/pkg/sub/__init__.py": "",
        "src/pkg/sub/a.py": "",
        "src/pkg/sub/b.py": "",
        "src/pkg/other.py": "",
        "tests/docs/test_pages.py": "",
        "tests/helpers/helper.py": "",
        "tests/far/test_b.py": "from pkg.sub.b import x\n",
        "tests/far/test_helper_user.py": "from ..helpers.helper import x\nPAGE = 'page.md'\n",
        "tests/far/test_package.py": "import pkg.sub\n",
        "tests/sub/conftest.py": "",
        "tests/sub/test_a.py": "from pkg.sub import a\n",
        "tests/sub/test_b.py": "",
        "tests/sub/test_b_is_killed.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    return tmp_path


def selected_tests(tree: Path, *names: str) -> list[str]:
    return [str(p).removeprefix("tests/") for p in changed.tests_of([Path(n) for n in names], tree)]


def test_changed_and_new_files_are_found_and_deleted_ones_are_not(tree: Path) -> None:
    assert changed.changed(tree) == []
    (tree / "src/pkg/sub/a.py").write_text("x = 1\n")
    (tree / "src/pkg/sub/b.py").unlink()
    (tree / "tests/sub/test_new.py").touch()
    (tree / "notes.md").touch()
    assert changed.changed(tree) == [Path("notes.md"), Path("src/pkg/sub/a.py"), Path("tests/sub/test_new.py")]


def test_tests_of_a_module_come_before_importers_and_other_tests_of_its_package(tree: Path) -> None:
    assert selected_tests(tree, "src/pkg/sub/b.py") == [
        "sub/test_b.py", "sub/test_b_is_killed.py", "far/test_b.py", "sub/test_a.py", "far/test_package.py",
    ]  # fmt: skip
    assert selected_tests(tree, "src/pkg/sub/__init__.py")[0] == "far/test_package.py"
    assert selected_tests(tree, "src/pkg/other.py") == []


def test_tests_are_found_for_helpers_conftest_files_drivers_and_pages(tree: Path) -> None:
    assert selected_tests(tree, "tests/helpers/helper.py") == ["far/test_helper_user.py"]
    assert selected_tests(tree, "tests/sub/conftest.py") == [
        "sub/test_a.py",
        "sub/test_b.py",
        "sub/test_b_is_killed.py",
    ]
    assert selected_tests(tree, "drivers/x/src/x/driver.py") == ["drivers/x/tests/test_x.py"]
    assert selected_tests(tree, "docs/page.md") == ["far/test_helper_user.py", "docs/test_pages.py"]


def test_a_changed_test_file_comes_first_and_selects_no_other_tests(tree: Path) -> None:
    assert selected_tests(tree, "tests/far/test_package.py") == ["far/test_package.py"]
    assert selected_tests(tree, "src/pkg/sub/b.py", "tests/far/test_package.py")[:2] == [
        "far/test_package.py",
        "sub/test_b.py",
    ]


def test_a_test_that_would_start_after_the_minute_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(
        config=SimpleNamespace(stash=pytest.Stash())
    )  # a stub, because the session of this test must continue
    changed.pytest_collection_finish(run)
    changed.pytest_runtest_setup(run)
    monkeypatch.setenv("MAKE_CHECK_BEGUN", "0")
    changed.pytest_collection_finish(run)
    changed.pytest_runtest_setup(run)  # Lint took the whole minute, but tests have a minimum of time.
    run.config.stash[changed.DEADLINE] = 0.0
    with pytest.raises(pytest.skip.Exception, match="the minute of `make check` has passed"):
        changed.pytest_runtest_setup(run)
