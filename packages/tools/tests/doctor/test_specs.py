"""`dra doctor` judges a CDI folder as the Go library reads it: links, FIFOs, names and fields."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from dra_tools.doctor import Finding, Level, specs


def spec(name: str = "d", version: str = "0.6.0", edits: Any = None) -> str:
    device = {"name": name, "containerEdits": edits or {"env": ["A=1"]}}
    return json.dumps({"cdiVersion": version, "kind": "v.example.com/gpu", "devices": [device]})


def levels(folder: Path) -> dict[Level, list[Finding]]:
    """Returns the findings. A check that waits for a FIFO fails the test."""
    found: list[Finding] = []
    thread = threading.Thread(target=lambda: found.extend(specs.look([folder])), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "the check hangs"
    return {level: [f for f in found if f.level is level] for level in Level}


@pytest.fixture
def cdi(tmp_path: Path) -> Path:
    folder = tmp_path / "cdi"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["a.json", "a.yaml", ".hidden.json"])
def test_a_link_to_a_spec_is_a_spec(cdi: Path, name: str) -> None:
    (cdi.parent / "elsewhere").write_text(spec())
    (cdi / name).symlink_to("../elsewhere")
    found = levels(cdi)
    assert (found[Level.FAILURE], found[Level.WARNING]) == ([], [])
    assert "1 of v.example.com/gpu" in found[Level.OK][0].text


def test_a_link_to_no_file_is_ignored_by_runtimes(cdi: Path) -> None:
    (cdi / "a.json").symlink_to("nothing")
    (failure,) = levels(cdi)[Level.FAILURE]
    assert "a.json" in failure.text and "the runtime ignores this file" in failure.todo


@pytest.mark.parametrize("link", [False, True])
def test_a_fifo_stops_the_runtime(cdi: Path, link: bool) -> None:
    fifo = cdi.parent / "fifo" if link else cdi / "x.json"
    os.mkfifo(fifo)
    if link:
        (cdi / "x.json").symlink_to(fifo)
    (cdi / "ok.json").write_text(spec())
    (failure,) = levels(cdi)[Level.FAILURE]
    assert f"{cdi / 'x.json'} is a FIFO" in failure.text and "no container with a CDI device starts" in failure.text
    assert failure.todo.startswith(f"rm {cdi / 'x.json'}")


@pytest.mark.parametrize("name", ["a.yml", "a.JSON", "a.json.bak", "README", "sub/"])
def test_each_file_that_runtimes_ignore_is_named(cdi: Path, name: str) -> None:
    (cdi / "ok.json").write_text(spec())
    if name.endswith("/"):
        (cdi / name).mkdir()
        (cdi / name / "b.json").write_text(spec("other"))
    else:
        (cdi / name).write_text(spec("other"))
    (cdi / ".k8s.toy-claim_u.record").write_text("{}")
    (warning,) = levels(cdi)[Level.WARNING]
    assert f"runtimes ignore {name} in {cdi}" in warning.text
    assert ".record" not in warning.text


def test_a_field_that_cdi_dropped_is_named(cdi: Path) -> None:
    rdt = {"intelRdt": {"closID": "gold", "enableCMT": True}}
    (cdi / "old.json").write_text(spec(version="1.0.0", edits=rdt))
    (cdi / "new.json").write_text(spec("e", version="1.1.0", edits=rdt))
    found = levels(cdi)
    assert 'unknown field "enableCMT"' in found[Level.FAILURE][0].text
    assert f"{cdi / 'old.json'} has enableCMT, which CDI 1.1.0 dropped" in found[Level.WARNING][0].text


def test_a_large_spec_is_not_called_ignored(cdi: Path) -> None:
    with (cdi / "large.json").open("wb") as file:
        file.truncate(64 << 20)
    found = levels(cdi)
    assert found[Level.FAILURE] == []
    assert "too large and was not read here" in found[Level.UNKNOWN][0].text
