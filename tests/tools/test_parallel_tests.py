"""Parallel test runs need printable reports, an environment without the machine's settings, short paths and shared folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.shared_folders import shared_folder

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Returns a function that runs pytest with one worker on one test file, with a copy of this tree's conftest.py."""

    def run(source: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
        (tmp_path / "test_it.py").write_text(source)
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "1",
            "-p",
            "no:cacheprovider",
            "-p",
            "xdist",
            "-c",
            os.devnull,
            *args,
            "test_it.py",
        ]
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)} | environment
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)

    return run


def test_a_worker_survives_lone_surrogates(run: Run) -> None:
    done = run("""
def test_it(tmp_path):
    print("\\udcff", tmp_path)
    assert "\\udcff" == 1, "\\ud800 in the message"
""")
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    folder = re.search(r"/\w+/t-\w+", done.stdout)
    assert folder, "the folder of a failed run is kept"
    shutil.rmtree(folder[0])
    assert "in the message" in done.stdout
    assert "crashed" not in done.stdout


def test_a_run_has_neither_settings_of_the_machine_nor_a_long_temporary_folder(run: Run, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    source = """
import os, tempfile
def test_it(tmp_path):
    assert not {"KUBECONFIG", "NODE_NAME", "LANG"} & set(os.environ)
    assert os.environ["LC_ALL"] == "C.UTF-8"
    assert "/x" not in os.environ["HOME"] + os.environ["KUBELET_ROOT"] + tempfile.gettempdir() + str(tmp_path)
    assert len(str(tmp_path)) < 60
"""
    settings = {
        "KUBECONFIG": "/k",
        "NODE_NAME": "n",
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "de_DE.UTF-8",
        "KUBELET_ROOT": "/x",
    }
    done = run(source, **settings, HOME=str(long), TMPDIR=str(long))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(long.iterdir()) == []


@pytest.mark.full
def test_the_summary_counts_the_tests_that_markers_exclude(run: Run) -> None:
    source = """
import pytest
@pytest.mark.full
@pytest.mark.parametrize("i", range(3))
def test_long(i): pass
@pytest.mark.runc
def test_container(): pass
def test_short(): pass
"""
    done = run(source, "-m", "not (full or runc)", "-W", "ignore::pytest.PytestUnknownMarkWarning")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "left out 4 tests, which `make test-rest` runs: 1 need runc (runc), 3 take long or are further cases (full)\n"
        in done.stdout
    )


def test_a_shared_folder_is_created_once_and_again_after_a_failure(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    name = f"once-{os.getpid()}"  # a name that no other worker uses
    calls: list[Path] = []

    def fails(folder: Path) -> None:
        (folder / "partial").touch()
        raise OSError("no space")

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "complete").touch()

    with pytest.raises(OSError, match="no space"):
        shared_folder(tmp_path_factory, name, fails)
    folders = {shared_folder(tmp_path_factory, name, make) for _ in range(2)}
    assert len(calls) == len(folders) == 1
    assert [p.name for p in folders.pop().iterdir()] == ["complete"]
