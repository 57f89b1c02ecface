"""``make check`` finds the tests of what changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.tools import changed


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package of two modules and one test file for each."""
    files = {
        "src/pkg/__init__.py": "",
        "src/pkg/a.py": "",
        "src/pkg/b.py": "",
        "src/other.py": "",
        "tests/helper.py": "",
        "tests/unit/test_a.py": "from pkg import a\n",
        "tests/unit/test_b.py": "from pkg.b import x\n",
        "tests/local/test_package.py": "import pkg\n",
        "tests/local/test_helped.py": "from ..helper import x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    return tmp_path


def found(*names: str) -> list[str]:
    return [p.name for p in changed.tests_of([Path(n) for n in names])]


def test_changed_and_new_python_files_are_found_and_deleted_ones_are_not(tree: Path) -> None:
    assert changed.changed() == []
    (tree / "src/pkg/a.py").write_text("x = 1\n")
    (tree / "src/pkg/b.py").unlink()
    (tree / "tests/unit/test_new.py").touch()
    (tree / "notes.md").touch()
    assert changed.changed() == [Path("src/pkg/a.py"), Path("tests/unit/test_new.py")]


@pytest.mark.usefixtures("tree")
def test_tests_that_import_a_changed_module_come_before_those_of_its_package() -> None:
    assert found("src/pkg/b.py") == ["test_b.py", "test_a.py", "test_package.py"]
    assert found("src/pkg/__init__.py")[-1] == "test_package.py"
    assert found("tests/helper.py") == ["test_helped.py"]
    assert found("src/other.py") == []


@pytest.mark.usefixtures("tree")
def test_a_changed_test_file_comes_first() -> None:
    assert found("src/pkg/b.py", "tests/local/test_helped.py") == [
        "test_helped.py", "test_b.py", "test_a.py", "test_package.py",
    ]  # fmt: skip


def test_a_test_that_would_start_after_the_minute_is_skipped(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed.pytest_collection_finish(request.session)
    changed.pytest_runtest_setup(request.node)
    monkeypatch.setattr(changed, "_SECONDS", -1.0)
    changed.pytest_collection_finish(request.session)
    with pytest.raises(pytest.skip.Exception, match="the minute of `make check` has passed"):
        changed.pytest_runtest_setup(request.node)
