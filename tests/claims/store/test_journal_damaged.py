"""The journal is damaged, cut, half repaired or next to malformed files: readable records are kept, and no wait is
unbounded.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.claims.store import journal
from dra_kubeletplugin.claims.store.lines import Change, encode, parse
from dra_kubeletplugin.claims.store.offline import forget
from dra_kubeletplugin.errors import DeviceHeldError, RecordsBusyError, RecordsError
from tests.helpers.crash.record_stores import insert, instance, lose_bodies, make_record, make_record_with_file

WITH_FILES = [f"d-{i}" for i in range(4)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four claims with CDI files, two without."""
    folder = tmp_path_factory.mktemp("original")

    async def create() -> None:
        async with instance(folder) as store:
            await store.all()
            for i, device in enumerate(WITH_FILES):
                await insert(store, make_record_with_file(folder, f"u-{i}", device))
            for i in (8, 9):
                await insert(store, make_record(f"u-{i}", f"d-{i}", complete=True))

    asyncio.run(create())
    return folder


def copy(original: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    return folder / "records.journal"


async def check_next_starts(folder: Path) -> None:
    """Opens the journal twice: claims with files hold their devices, and new claims can be added and removed."""
    for new in ("new", "newer"):
        async with instance(folder, wait=0.5) as store:
            assert set(WITH_FILES) <= {d for _, d in await store.held()}
            for device in WITH_FILES:
                with pytest.raises(DeviceHeldError):
                    await insert(store, make_record("thief", device))
            await insert(store, make_record(new, f"d-{new}"))
            await store.probe()
            assert store.fault == ""
    assert not [p.name for p in folder.iterdir() if ".new" in p.name]


@pytest.mark.full
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_bytes_of_the_file_may_be_wrong(original: Path, tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    path = copy(original, tmp_path / "copy")
    data = bytearray(path.read_bytes())
    for offset, value in flips:
        data[offset % len(data)] = value
    path.write_bytes(data)
    asyncio.run(check_next_starts(path.parent))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(part=st.floats(0, 1))
def test_the_file_may_be_cut_anywhere(original: Path, tmp_path: Path, part: float) -> None:
    path = copy(original, tmp_path / "copy")
    os.truncate(path, int(part * path.stat().st_size))
    asyncio.run(check_next_starts(path.parent))


def other_driver(first: Change) -> Change:
    return msgspec.structs.replace(first, driver="other.example.com")


def no_start(first: Change) -> Change:
    return Change("later", key="a change of an unknown kind")


@pytest.mark.parametrize("edit", [other_driver, no_start])
async def test_a_file_with_another_header_is_damaged_and_not_a_permanent_error(
    original: Path, tmp_path: Path, edit: Callable[[Change], Change]
) -> None:
    path = copy(original, tmp_path / "copy")
    first, _, remainder = path.read_bytes().partition(b"\n")
    header = parse(first + b"\n").lines[0].change
    assert header
    path.write_bytes(encode(edit(header)) + remainder)
    await check_next_starts(path.parent)
    assert [p for p in path.parent.iterdir() if ".damaged-" in p.name]


async def test_a_claim_with_only_a_readable_head_stays_held_until_it_is_forgotten(
    original: Path, tmp_path: Path
) -> None:
    path = copy(original, tmp_path / "copy")
    lose_bodies(path, "u-8")
    async with instance(path.parent) as store:
        assert {"d-8", "d-9"} <= {d for _, d in await store.held()}
        record = await store.get("u-8")
        assert isinstance(record, UnreadableRecord)
        assert record.shown == "ns/name-u-8 (UID u-8)"
        with pytest.raises(DeviceHeldError, match="whose record cannot be read"):
            await insert(store, make_record("thief", "d-8"))
        assert isinstance(await store.get("u-9"), Record)
        assert await store.recovering()
    await check_next_starts(path.parent)
    forget(path, 1, "u-8")
    async with instance(path.parent) as store:
        await insert(store, make_record("next", "d-8"))


async def test_a_claim_whose_body_is_lost_is_restored_from_its_note(original: Path, tmp_path: Path) -> None:
    path = copy(original, tmp_path / "copy")
    lose_bodies(path, "u-1")
    async with instance(path.parent) as store:
        record = await store.get("u-1")
        assert isinstance(record, Record)
        assert [d["device"] for d in record.devices] == ["d-1"]
    await check_next_starts(path.parent)


# --- faults in the repair itself --------------------------------------------------------------------


@pytest.mark.parametrize("function", ["record_of", "write_new", "sync_folder"])
async def test_an_exception_in_the_repair_leaves_no_lock_and_no_file_and_the_next_attempt_succeeds(
    original: Path, tmp_path: Path, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(original, tmp_path / "copy")
    path.write_bytes(b"garbage" * 2000)

    def fails(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    async with instance(path.parent) as store:
        monkeypatch.setattr(journal, function, fails)
        with pytest.raises(RecordsError, match="Input/output error"):
            await store.all()
        assert not list(path.parent.glob(".records.journal.new*"))
        monkeypatch.undo()
        assert {r.uid for r in await store.all()} == {f"u-{i}" for i in range(4)}
    await check_next_starts(path.parent)


@pytest.mark.parametrize("method", ["uids", "note"])
async def test_a_repair_without_free_file_descriptors_is_repeated_later_and_forgets_no_claim(
    original: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(original, tmp_path / "copy")
    path.write_bytes(b"garbage" * 2000)

    def fails(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async with instance(path.parent) as store:
        with monkeypatch.context() as patch:
            patch.setattr(ClaimSpecs, method, fails)
            with pytest.raises(RecordsError, match="Too many open files"):
                await store.all()
        assert {r.uid for r in await store.all()} == {f"u-{i}" for i in range(4)}
    await check_next_starts(path.parent)


async def test_a_temporary_disk_error_sets_no_file_aside(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(original, tmp_path / "copy")
    read, failures = os.pread, iter([3, 2, 1])

    def fail_twice(fd: int, size: int, offset: int) -> bytes:
        if next(failures, 0):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, size, offset)

    async with instance(path.parent) as store:
        monkeypatch.setattr(os, "pread", fail_twice)
        for _ in range(3):
            with pytest.raises(RecordsError, match="Input/output error"):
                await store.all()
        assert "Input/output error" in store.fault
        assert len(await store.all()) == 6
    assert not [p for p in path.parent.iterdir() if ".damaged-" in p.name]


# --- malformed files next to the journal ------------------------------------------------------------


def directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nonexistent")


def empty(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize("create_file", [directory, link_to_nothing, empty])
@pytest.mark.parametrize(
    "name",
    [
        "records.journal.damaged-x",
        ".records.journal.new",
        ".records.journal.other",
    ],
)
async def test_malformed_files_next_to_the_journal_do_not_block_the_records(
    original: Path, tmp_path: Path, name: str, create_file: Callable[[Path], None]
) -> None:
    path = copy(original, tmp_path / "copy")
    create_file(path.with_name(name))
    for _ in range(2):
        async with instance(path.parent) as store:
            assert len(await store.all()) == 6
            assert store.fault == ""


async def test_the_wait_for_the_lock_of_a_stopped_process_is_bounded_and_reported(
    original: Path, tmp_path: Path
) -> None:
    path = copy(original, tmp_path / "copy")
    path.write_bytes(b"")
    script = (
        f"import fcntl, os, time; fcntl.flock(os.open({str(path.parent)!r}, os.O_RDONLY), fcntl.LOCK_EX); "
        "print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:  # noqa: ASYNC220  (nothing waits for it)
        assert holder.stdout
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        async with instance(path.parent, wait=0.5) as store:
            with pytest.raises(RecordsBusyError, match="is locked by another instance of the plugin for too long"):
                await store.all()
            holder.kill()
            holder.wait()
            assert len(await store.all()) == 4
