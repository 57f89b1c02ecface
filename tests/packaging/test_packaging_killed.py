"""`dra new` and `dra deploy` that are killed lose nothing of anybody's, and the next run makes whole what they left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_kubeletplugin.cli import main

ROOT = Path(__file__).parents[2]
VALUES = "name: x\nnamespace: x\ndriverName: x.example.com\nimage: x:1\n"
CLASSES = """
deviceClasses:
  x:
    selectors:
    - cel: {expression: device.driver == "x.example.com"}
"""


def swept(folder: Path, *arguments: str) -> list[tuple[int, set[str]]]:
    """Of each step: how the run after the kill ended, and what is there then."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.packaging.killed_generation", str(folder), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split() for line in done.stdout.splitlines() if line == "end" or line.startswith("step ")]
    assert lines[-1] == ["end"], done.stdout[-2000:] + done.stderr[-2000:]
    assert len(lines) > 30
    return [(int(code), set(names)) for _, _, code, *names in lines[:-1]]


def tree(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("before", [False, True], ids=["for the first time", "again"])
def test_a_deploy_that_is_killed_anywhere_is_whole_after_the_next(tmp_path: Path, before: bool) -> None:
    folder = tmp_path / "deploy"
    folder.mkdir()
    values = folder / "values.yaml"
    (folder / "mine.txt").write_text("mine")
    values.write_text(VALUES + CLASSES)
    if before:
        assert main(["deploy", str(folder)]) == 0
        values.write_text(VALUES)
    found = swept(folder, "deploy", str(folder))
    assert {code for code, _ in found} == {0}
    for _, names in found:
        assert names == tree(folder)  # as after the run that was not killed
    assert {"mine.txt", "values.yaml", "kustomization.yaml"} <= tree(folder)
    assert ("deviceclass.yaml" in tree(folder)) is not before


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_package_whose_making_was_killed_anywhere_is_made_by_the_next_run_or_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    for code, names in swept(folder, "new", "toy", "--kind", "sdk", "--directory", str(folder)):
        whole = tree(folder)
        if code == 0:
            assert names == whole
        else:  # it was whole already, and what is left goes with the next that is made
            assert whole <= names
            assert {n.split("/")[0].rpartition("-")[0] for n in names - whole} == {".dra-unfinished"}


def test_a_folder_that_looks_left_over_and_is_somebody_s_stays(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    mine, linked, left, begun = (folder / f".dra-unfinished-{n}" for n in ("mine", "linked", "left", "begun"))
    for path in (mine / "files", left / "files/new", begun):
        path.mkdir(parents=True)
    (mine / "files/notes.txt").write_text("mine")
    (left / "made-by-dra").touch()
    (left / "files/new/x.yaml").touch()
    linked.symlink_to(mine)
    assert main(["new", "toy", "--kind", "sdk", "--directory", str(folder)]) == 0
    assert {p.name for p in folder.iterdir()} == {"toy", mine.name, linked.name}
    assert (mine / "files/notes.txt").read_text() == "mine"
