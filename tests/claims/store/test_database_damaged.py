"""The database's files are damaged, cut, half repaired or beside odd neighbours: what can be known is known, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.store import database, folder, rows
from dra_kubeletplugin.claims.store.schema import SCHEMA
from dra_kubeletplugin.errors import DeviceHeldError, RecordsBusyError, RecordsError, RecordsNewerError
from tests.helpers.crash.record_stores import a_record, add, instance, with_file, write_back

WITH_FILES = [f"d-{i}" for i in range(4)]
PAGE = 4096


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four claims with CDI files, two without; everything is in the file, nothing in its log."""
    folder = tmp_path_factory.mktemp("original")

    async def make() -> None:
        async with instance(folder) as store:
            await store.all()
            for i, device in enumerate(WITH_FILES):
                await add(store, with_file(folder, f"u-{i}", device))
            for i in (8, 9):
                await add(store, a_record(f"u-{i}", f"d-{i}", complete=True))

    asyncio.run(make())
    write_back(folder / "records.db")
    return folder


def copy(original: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    return folder / "records.db"


async def check_goes_on(folder: Path) -> None:
    """Twice opened: devices of claims with files are held by their claims, and new claims come and go."""
    for new in ("new", "newer"):
        async with instance(folder, wait=0.5) as store:
            assert set(WITH_FILES) <= {d for _, d in await store.held()}
            for device in WITH_FILES:
                with pytest.raises(DeviceHeldError):
                    await add(store, a_record("thief", device))
            await add(store, a_record(new, f"d-{new}"))
            await store.probe()
            assert store.fault == ""
    assert not [p.name for p in folder.iterdir() if ".new-" in p.name or ".unmerged-" in p.name]


flips = st.lists(
    st.tuples(st.one_of(st.integers(0, 99), st.integers(100, PAGE), st.integers(0, 5 * PAGE - 1)), st.integers(0, 255)),
    min_size=1,
    max_size=8,
)


@pytest.mark.full
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(flips=flips)
def test_any_bytes_of_the_file_may_be_wrong(original: Path, tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    path = copy(original, tmp_path / "copy")
    data = bytearray(path.read_bytes())
    for offset, value in flips:
        data[offset % len(data)] = value
    path.write_bytes(data)
    # A newer schema's number is taken for what it says: nothing is reset.
    with contextlib.suppress(RecordsNewerError):
        asyncio.run(check_goes_on(path.parent))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(size=st.integers(0, 5 * PAGE))
def test_the_file_may_be_cut_anywhere(original: Path, tmp_path: Path, size: int) -> None:
    path = copy(original, tmp_path / "copy")
    os.truncate(path, size)
    asyncio.run(check_goes_on(path.parent))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=st.integers(0, 2**32), cut=st.booleans())
def test_the_log_may_be_cut_or_wrong_anywhere_and_claims_with_files_are_known(
    original: Path, tmp_path: Path, seed: int, cut: bool
) -> None:
    """SQLite takes a log that is wrong for one that was never written, and says nothing."""
    folder = tmp_path / "copy"
    path = copy(original, folder)
    chance = random.Random(seed)

    async def write_and_die() -> bytes:
        async with instance(folder) as store:
            await store.all()
            await add(store, with_file(folder, "late", "d-late"))
            return path.with_name("records.db-wal").read_bytes(), path.read_bytes()  # type: ignore[return-value]

    log, data = asyncio.run(write_and_die())
    path.write_bytes(data)  # type: ignore[arg-type]
    wrong = bytearray(log)
    if cut:
        del wrong[chance.randrange(len(wrong)) :]
    else:
        wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
    path.with_name("records.db-wal").write_bytes(wrong)

    async def check() -> None:
        async with instance(folder) as store:
            assert "d-late" in {d for _, d in await store.held()}
            assert "late" in {r.uid for r in await store.all()}

    asyncio.run(check())
    asyncio.run(check_goes_on(folder))


def no_schema(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA user_version = -5")


def older_number(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA user_version = {SCHEMA - 1}")


def a_table_is_gone(db: sqlite3.Connection) -> None:
    db.execute("DROP TABLE meta")


def a_column_is_gone(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE claims RENAME COLUMN doc TO dox")


def a_hold_without_claim(db: sqlite3.Connection) -> None:
    db.execute(
        "INSERT INTO holds (driver, pool, device, share_id, uid) VALUES ('d.example.com', 'node', 'd-x', '', 'nobody')"
    )


def definition_is_no_text(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_master SET sql = CAST(x'435245415445ff' AS TEXT) WHERE name = 'meta'")


DAMAGES = [no_schema, older_number, a_table_is_gone, a_column_is_gone, a_hold_without_claim, definition_is_no_text]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_tables_that_are_not_those_of_the_schema_are_damage_and_not_an_error_for_ever(
    original: Path, tmp_path: Path, damage: Callable[[sqlite3.Connection], None]
) -> None:
    path = copy(original, tmp_path / "copy")
    db = sqlite3.connect(path, isolation_level=None)
    damage(db)
    db.close()
    await check_goes_on(path.parent)


@pytest.mark.parametrize(("offset", "value"), [(18, 255), (19, 9), (47, 77)])
async def test_a_header_that_makes_the_file_read_only_or_unsupported_is_damage(
    original: Path, tmp_path: Path, offset: int, value: int
) -> None:
    path = copy(original, tmp_path / "copy")
    data = bytearray(path.read_bytes())
    data[offset] = value
    path.write_bytes(data)
    await check_goes_on(path.parent)
    assert [p for p in path.parent.iterdir() if ".damaged-" in p.name]


async def test_what_only_a_hold_tells_stays_held_until_it_is_unprepared(original: Path, tmp_path: Path) -> None:
    """The page of claims is gone, that of holds is not."""
    path = copy(original, tmp_path / "copy")
    db = sqlite3.connect(path)
    root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'claims'").fetchone()[0]
    db.close()
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = random.Random(1).randbytes(PAGE)
    path.write_bytes(data)
    async with instance(path.parent) as store:
        assert {"d-8", "d-9"} <= {d for _, d in await store.held()}
        record = await store.get("u-8")
        assert isinstance(record, Record)
        assert record.partial
        assert not record.prepared_claim("boot").complete
        assert [d["device"] for d in record.devices] == ["d-8"]
        with pytest.raises(DeviceHeldError):
            await add(store, a_record("thief", "d-8"))
    await check_goes_on(path.parent)


# --- faults in the repair itself --------------------------------------------------------------------


@pytest.mark.parametrize("where", ["fill", "from_database", "from_files", "sync_file"])
async def test_an_exception_in_the_repair_leaks_no_transaction_and_no_file_and_the_next_try_repairs(
    original: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(original, tmp_path / "copy")
    path.write_bytes(b"garbage" * 2000)

    def fails(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    async with instance(path.parent) as store:
        monkeypatch.setattr(folder if where == "sync_file" else database, where, fails)
        with pytest.raises(RecordsError, match="Input/output error"):
            await store.all()
        assert not list(path.parent.glob(".records.db.new-*"))
        with pytest.raises(RecordsError):
            await store.all()
        monkeypatch.undo()
        assert {r.uid for r in await store.all()} == {f"u-{i}" for i in range(4)}
    await check_goes_on(path.parent)


@pytest.mark.parametrize("read", ["uids", "note"])
async def test_a_repair_that_has_no_file_left_to_open_is_done_later_and_forgets_no_claim(
    original: Path, tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(original, tmp_path / "copy")
    path.write_bytes(b"garbage" * 2000)

    def fails(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async with instance(path.parent) as store:
        with monkeypatch.context() as patch:
            patch.setattr(ClaimSpecs, read, fails)
            with pytest.raises(RecordsError, match="Too many open files"):
                await store.all()
        assert {r.uid for r in await store.all()} == {f"u-{i}" for i in range(4)}
    await check_goes_on(path.parent)


async def test_an_exception_in_the_merge_leaks_no_transaction(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(original, tmp_path / "copy")
    shutil.copy(path, path.with_name("records.db.unmerged-20260101T000000.000000Z"))

    def fails(*_: Any) -> Any:
        raise MemoryError("no memory")

    async with instance(path.parent, wait=0.5) as store, instance(path.parent, wait=0.5) as other:
        monkeypatch.setattr(database, "fill", fails)
        with pytest.raises(RecordsError, match="no memory"):
            await store.all()
        monkeypatch.undo()
        await add(other, a_record("other", "d-other"))  # no lock is left behind
        assert "other" in {r.uid for r in await store.all()}
    await check_goes_on(path.parent)


async def test_a_passing_disk_error_sets_nothing_aside(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(original, tmp_path / "copy")
    read, failures = rows.read_all, iter([3, 2, 1])

    def sometimes(db: sqlite3.Connection) -> list[rows.Row]:
        if next(failures, 0):
            raise sqlite3.OperationalError("disk I/O error")
        return read(db)

    async with instance(path.parent) as store:
        monkeypatch.setattr(rows, "read_all", sometimes)
        with pytest.raises(RecordsError, match="disk I/O error"):
            await store.all()  # twice, and then it is told
        assert "disk I/O error" in store.fault
        assert len(await store.all()) == 6
    assert not [p for p in path.parent.iterdir() if ".damaged-" in p.name or ".unmerged-" in p.name]


# --- odd neighbours ---------------------------------------------------------------------------------


def directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nonexistent")


def empty(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize("kind", [directory, link_to_nothing, empty])
@pytest.mark.parametrize(
    "name",
    [
        "records.db.unmerged-x",
        "records.db.damaged-x",
        ".records.db.new-1",
        ".records.db.new-9-deadbeef",
        ".records.db.again-1",
    ],
)
async def test_odd_neighbours_do_not_keep_the_records_from_being_used(
    original: Path, tmp_path: Path, name: str, kind: Callable[[Path], None]
) -> None:
    path = copy(original, tmp_path / "copy")
    kind(path.with_name(name))
    for _ in range(2):
        async with instance(path.parent) as store:
            assert len(await store.all()) == 6
            assert store.fault == ""
    assert not [p for p in path.parent.glob(".records.db.*") if not p.is_dir()]


async def test_a_repair_lock_that_is_a_directory_is_told_with_its_path(original: Path, tmp_path: Path) -> None:
    path = copy(original, tmp_path / "copy")
    path.write_bytes(b"")
    shutil.rmtree(path.with_name(".repair-lock"), ignore_errors=True)
    path.with_name(".repair-lock").unlink(missing_ok=True)
    path.with_name(".repair-lock").mkdir()
    async with instance(path.parent) as store:
        with pytest.raises(RecordsError, match=r"\.repair-lock"):
            await store.all()
        path.with_name(".repair-lock").rmdir()
        assert len(await store.all()) == 4


async def test_a_repair_lock_of_a_stopped_process_is_waited_for_a_bounded_time_and_told(
    original: Path, tmp_path: Path
) -> None:
    path = copy(original, tmp_path / "copy")
    path.write_bytes(b"")
    script = (
        f"import fcntl, time; f = open({str(path.with_name('.repair-lock'))!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:  # noqa: ASYNC220  (nothing waits for it)
        assert holder.stdout
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        async with instance(path.parent, wait=0.5) as store:
            with pytest.raises(RecordsBusyError, match=r"is being repaired by another instance.*for more than 0\.5s"):
                await store.all()
            holder.kill()
            holder.wait()
            assert len(await store.all()) == 4
