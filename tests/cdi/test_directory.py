"""The folder of CDI files: names, modes, atomic writes, the driver's own files, and temporary files of interrupted writes."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.errors import InvalidSpecError
from tests.helpers.limits import largest_file

pytestmark = pytest.mark.usefixtures("no_leak")
DRIVER = "d.example.com"
ENV = {"env": ["A=1"]}


@pytest.fixture
def specs(tmp_path: Path) -> ClaimSpecs:
    return ClaimSpecs(tmp_path / "cdi", DRIVER, "1-self")


def names(specs: ClaimSpecs) -> list[str]:
    return sorted(p.name for p in specs.root.iterdir())


def test_names_of_files_and_devices_are_the_same_as_for_go_drivers(specs: ClaimSpecs) -> None:
    assert specs.kind == "k8s.d.example.com/claim"
    assert (specs.device_name("u", "d"), specs.device_name("u", "d", ""), specs.device_name("u", "d", "s")) == (
        "u-d", "u-d", "u-d-s"
    )  # fmt: skip
    assert specs.device_id("u-d") == "k8s.d.example.com/claim=u-d"
    assert specs.path("u") == specs.root / "k8s.d.example.com-claim_u.json"
    assert specs.note_path("u") == specs.root / ".k8s.d.example.com-claim_u.record"
    assert ClaimSpecs(specs.root, DRIVER).token == str(os.getpid())
    with pytest.raises(InvalidSpecError, match="invalid character"):
        ClaimSpecs(specs.root, "a/b!c")
    assert ClaimSpecs(specs.root, "").driver == ""


def test_a_spec_requires_valid_and_unique_device_names(specs: ClaimSpecs) -> None:
    assert specs.build([("u-a", ENV), ("u-b", {"additionalGids": [1]})]) == {
        "cdiVersion": "0.7.0",
        "kind": specs.kind,
        "devices": [{"name": "u-a", "containerEdits": ENV}, {"name": "u-b", "containerEdits": {"additionalGids": [1]}}],
    }
    with pytest.raises(InvalidSpecError, match='multiple device "a"'):
        specs.build([("a", ENV), ("b", ENV), ("a", ENV)])
    with pytest.raises(InvalidSpecError, match="should start with"):
        specs.build([("-a", ENV)])


def test_a_spec_is_readable_for_all_users_and_a_note_only_for_the_owner(specs: ClaimSpecs) -> None:
    before = os.umask(0o077)
    try:
        specs.write("u", {"kind": "k"})
        specs.write_note("u", b"note")
    finally:
        os.umask(before)
    assert names(specs) == [".k8s.d.example.com-claim_u.record", "k8s.d.example.com-claim_u.json"]
    assert [p.stat().st_mode & 0o777 for p in (specs.path("u"), specs.note_path("u"))] == [0o644, 0o600]
    assert (specs.path("u").read_bytes(), specs.note("u")) == (b'{"kind":"k"}', b"note")
    assert specs.has_content("u", {"kind": "k"}, b"note")
    assert specs.has_content("u", None, b"note")
    assert not specs.has_content("u", {"kind": "other"}, b"note")
    assert not specs.has_content("u", {"kind": "k"}, b"other")
    assert specs.has_content("v", None, b"note") is False
    specs.remove_note("u")
    assert not specs.has_content("u", {"kind": "k"}, b"note")
    for _ in range(2):
        specs.remove("u")
        specs.remove_note("u")
    assert names(specs) == []


def test_a_missing_folder_is_created_but_not_its_parents(tmp_path: Path, specs: ClaimSpecs) -> None:
    specs.write("u", {})
    with pytest.raises(FileNotFoundError):
        ClaimSpecs(tmp_path / "no" / "cdi", DRIVER).write("u", {})


def test_a_folder_that_another_thread_creates_at_the_same_time_is_no_error(specs: ClaimSpecs) -> None:
    barrier = threading.Barrier(8)

    def write(uid: str) -> None:
        barrier.wait()
        specs.write(uid, {})

    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            shutil.rmtree(specs.root, ignore_errors=True)
            list(threads.map(write, "abcdefgh"))
            assert specs.uids() == [*"abcdefgh"]


def test_a_failed_write_keeps_the_existing_file(specs: ClaimSpecs) -> None:
    specs.write("u", {"kind": "before"})
    with largest_file(5), pytest.raises(OSError, match=r"File too large.*claim_u\.json"):
        specs.write("u", {"kind": "after"})
    assert specs.path("u").read_bytes() == b'{"kind":"before"}'
    assert names(specs) == ["k8s.d.example.com-claim_u.json"]


def test_a_write_that_writes_only_a_part_is_an_error_and_leaves_no_file(specs: ClaimSpecs) -> None:
    specs.write("v", {})
    with largest_file(5), pytest.raises(OSError, match="File too large"):
        specs.write_note("u", b"0123456789")
    assert specs.uids() == ["v"]


def test_a_failed_rename_leaves_no_temporary_file(specs: ClaimSpecs) -> None:
    specs.path("u").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        specs.write("u", {})
    assert names(specs) == ["k8s.d.example.com-claim_u.json"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_of_16_mib_is_accepted_and_a_larger_one_is_rejected(more: int, specs: ClaimSpecs) -> None:
    specs.write_note("u", b"")
    with specs.note_path("u").open("r+b") as file:
        file.truncate((16 << 20) + more)
    if more:
        with pytest.raises(ValueError, match="regular file"):
            specs.note("u")
        assert not specs.has_content("u", None, b"")
    else:
        assert len(specs.note("u")) == 16 << 20


def test_a_pipe_at_the_path_of_a_note_is_an_error(specs: ClaimSpecs) -> None:
    specs.root.mkdir()
    os.mkfifo(specs.note_path("u"))
    with pytest.raises(ValueError, match="regular file"):
        specs.note("u")


def test_uids_returns_only_the_claims_of_the_driver(specs: ClaimSpecs) -> None:
    assert specs.uids() == []
    specs.write("both", {})
    specs.write_note("both", b"")
    specs.write("spec", {})
    specs.write_note("note", b"")
    prefix = "k8s.d.example.com-claim_"
    for other in (f"{prefix}.json", f".{prefix}.record", f"{prefix}a.yaml", f".{prefix}b.json", f"{prefix}c.record", f"{prefix}d\n.json", "x.json", "k8s.other-claim_e.json"):  # fmt: skip
        (specs.root / other).touch()
    assert specs.uids() == ["both", "note", "spec"]


def test_clean_deletes_only_temporary_files_of_dead_processes(specs: ClaimSpecs) -> None:
    specs.clean(lambda token: False)
    specs.write("u", {})
    specs.write_note("u", b"")
    prefix = ".k8s.d.example.com-claim_"
    for token in ("1-self", "2-alive", "3-dead"):
        (specs.root / f"{prefix}u.json.tmp-{token}").touch()
    (specs.root / f"{prefix}v.json.tmp-4-dead").mkdir()
    (specs.root / ".k8s.other-claim_u.json.tmp-3-dead").touch()
    before = names(specs)
    checked_tokens: list[str] = []

    def alive(token: str) -> bool:
        checked_tokens.append(token)
        return token in {"2-alive"}

    specs.clean(alive)
    assert sorted(checked_tokens) == ["2-alive", "3-dead", "4-dead"]
    assert sorted(set(before) - set(names(specs))) == [f"{prefix}u.json.tmp-3-dead"]

    def delete_during_the_check(token: str) -> bool:
        (specs.root / f"{prefix}w.json.tmp-5").unlink(missing_ok=True)
        return token not in {"5"}

    (specs.root / f"{prefix}w.json.tmp-5").touch()
    specs.clean(delete_during_the_check)
