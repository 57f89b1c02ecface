"""Each folder of examples contains a manifest with a description and a test, and the list contains the description."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_tools import from_files

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(p for p in EXAMPLES.iterdir() if p.is_dir() and p.name[:2].isdigit())


def test_the_examples_are_numbered_from_1_to_16_without_gaps() -> None:
    assert [int(p.name[:2]) for p in FOLDERS] == list(range(1, 17))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_an_example_has_a_test_and_a_description_that_the_list_repeats(folder: Path) -> None:
    lines = (folder / "manifest.yaml").read_text().splitlines()
    head = [line.removeprefix("# ") for line in lines[: next(i for i, x in enumerate(lines) if not x.startswith("#"))]]
    description = head[: next((i for i, line in enumerate(head) if line.startswith("The driver needs")), len(head))]
    assert " ".join(description).endswith(".")
    assert (
        f"| [{folder.name}]({folder.name}/manifest.yaml) | {' '.join(description)} |"
        in (EXAMPLES / "README.md").read_text()
    )
    assert [p.name for p in folder.glob("*.py")] == [f"test_{folder.name[3:].replace('-', '_')}.py"]


def test_all_examples_can_be_applied_to_one_cluster() -> None:
    names = [
        (doc["kind"], doc["metadata"].get("namespace"), doc["metadata"]["name"])
        for folder in FOLDERS
        for doc in from_files([folder / "manifest.yaml"])
    ]
    assert len(names) == len(set(names))
