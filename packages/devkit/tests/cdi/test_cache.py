"""The cache reads spec files as the Go library does. An invalid file does not affect other files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.cdi.cache import CdiCache, CdiInjectError
from dra_devkit.cdi.spec_validation import minimum_version
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cdi.spec import version_to_declare


def spec(kind: str = "v.com/c", edits: JSON | None = None, version: str = "0.6.0") -> JSON:
    devices = [{"name": "d", "containerEdits": edits or {"env": ["A=1"]}}]
    return {"cdiVersion": version, "kind": kind, "devices": devices}


def cache(folder: Path, *texts: str) -> CdiCache:
    for i, text in enumerate(texts):
        (folder / f"{i}.json").write_text(text)
    return CdiCache([folder])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "# only a comment",
            "null",
            "[]",
            "word",
            "{",
            "\t",
            "\0",
            "---\n...\n",
            "a: &x [*x]",
            '{"devices": [null]}',
        ),
        json.dumps(spec()).replace('"kind"', '"kind": "x", "kind"'),
        json.dumps({**spec(), "kinds": "x"}),
    ],
)
def test_an_invalid_file_is_reported_and_other_files_are_used(text: str, tmp_path: Path) -> None:
    found = cache(tmp_path, text, json.dumps(spec("w.com/c")))
    assert found.listed == ["w.com/c=d"]
    assert [Path(p).name for p in found.errors] == ["0.json"]


@pytest.mark.parametrize(
    "text",
    [
        "# vendor\n" + json.dumps(spec()),
        json.dumps(spec()) + "\n---\nanother: [",
        "CDIVersion: 0.6.0\nKIND: v.com/c\ndevices:\n- Name: d\n  containeredits: {env: [A=1]}\n",
    ],
    ids=["a comment", "more documents", "field names in other case"],
)
def test_a_file_named_json_is_read_as_yaml(text: str, tmp_path: Path) -> None:
    found = cache(tmp_path, text)
    assert found.listed == ["v.com/c=d"], found.errors


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_the_cache_reads_a_file_with_any_text(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        assert CdiCache([Path(folder)]).listed == []


def test_variables_of_the_container_are_kept_and_later_devices_replace_variables_of_earlier_devices(
    tmp_path: Path,
) -> None:
    devices = [{"name": n, "containerEdits": {"env": [f"A={n}"]}} for n in ("d0", "d1")]
    found = cache(tmp_path, json.dumps({**spec(), "devices": devices}))
    out = found.inject({"process": {"env": ["A=0", "B=0"]}}, ["v.com/c=d0", "v.com/c=d1"])
    assert out["process"]["env"] == ["A=0", "B=0", "A=d1"]


def test_a_complete_device_node_receives_the_mode_of_the_existing_file(tmp_path: Path) -> None:
    complete = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3}
    out = cache(tmp_path, json.dumps(spec(edits={"deviceNodes": [complete]}))).inject(None, ["v.com/c=d"])
    assert out["linux"]["devices"][0]["fileMode"] == os.lstat("/dev/null").st_mode & 0o7777
    missing = {**complete, "path": "/dev/missing"}
    out = cache(tmp_path, json.dumps(spec(edits={"deviceNodes": [missing]}))).inject(None, ["v.com/c=d"])
    assert "fileMode" not in out["linux"]["devices"][0]


def test_a_link_is_no_device_node(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    found = cache(tmp_path, json.dumps(spec(edits={"deviceNodes": [{"path": str(tmp_path / "link")}]})))
    with pytest.raises(CdiInjectError, match="not a device node"):
        found.inject(None, ["v.com/c=d"])


MOUNT = {"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([{"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": ""}]}], "0.3.0"),
        ([MOUNT], "0.4.0"),
        ([MOUNT, {"env": ["A=1"]}], "0.3.0"),
        ([{"env": ["A=1"]}, MOUNT], "0.4.0"),
        ([{"intelRdt": {"schemata": []}}], "1.1.0"),
        ([{"intelRdt": {"closID": "/"}}], "0.7.0"),
    ],
)
def test_the_minimum_version_is_the_same_as_in_the_go_library(edits: list[JSON], expected: str) -> None:
    devices = [{"name": f"d{i}", "containerEdits": e} for i, e in enumerate(edits)]
    assert minimum_version({"cdiVersion": "1.1.0", "kind": "v.com/c", "devices": devices}) == expected


def test_a_written_spec_declares_the_version_that_any_of_its_devices_needs() -> None:
    devices = [{"name": f"d{i}", "containerEdits": e} for i, e in enumerate([MOUNT, {"env": ["A=1"]}])]
    assert version_to_declare({"kind": "v.com/c", "devices": devices}) == "0.4.0"


def test_the_root_group_is_a_valid_clos_id(tmp_path: Path) -> None:
    found = cache(tmp_path, json.dumps(spec(edits={"intelRdt": {"closID": "/"}}, version="0.7.0")))
    assert found.listed == ["v.com/c=d"], found.errors


@pytest.mark.parametrize(("annotations", "valid"), [({"a b": "v"}, True), ({"k": 1}, True), ({"k": ["v"]}, False)])
def test_an_annotation_is_text_or_a_number(annotations: JSON, valid: bool, tmp_path: Path) -> None:
    found = cache(tmp_path, json.dumps({**spec(), "annotations": annotations}))
    assert bool(found.listed) is valid, found.errors


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize("stem", ["", ".", ".hidden", "a", "a.b", "a.json", "x" * 64])
def test_a_file_is_a_spec_if_its_name_ends_with_a_suffix_even_without_a_stem(
    tmp_path: Path, stem: str, suffix: str
) -> None:
    (tmp_path / f"{stem}{suffix}").write_text(json.dumps(spec()))
    assert CdiCache([tmp_path]).listed == ["v.com/c=d"]


@pytest.mark.parametrize("name", ["json", "yaml", "a", "a.", "a.JSON", "a.json.", "a.yml", ".hidden", "a.json~"])
def test_a_file_with_another_suffix_or_without_a_suffix_is_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{")
    found = CdiCache([tmp_path])
    assert (found.listed, found.errors) == ([], {})


@pytest.mark.parametrize("target", ["nowhere", "."])
def test_an_unreadable_link_is_an_error_of_its_file(tmp_path: Path, target: str) -> None:
    (tmp_path / "a.json").symlink_to(target)
    assert list(CdiCache([tmp_path]).errors) == [str(tmp_path / "a.json")]


@pytest.mark.parametrize("length", [63, 64, 65, 253, 1000])
def test_names_have_no_maximum_length(tmp_path: Path, length: int) -> None:
    long = "n" * length
    found = spec(f"{long}/{long}")
    found["devices"][0]["name"] = long
    assert cache(tmp_path, json.dumps(found)).listed == [f"{long}/{long}={long}"]
