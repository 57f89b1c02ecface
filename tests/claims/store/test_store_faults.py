"""Errors of the disk and of the lock, once and permanently: the results of callers, the reported fault, and the retries."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.claims import Record, RecordStore
from dra_kubeletplugin.claims.store.files import read_rows
from dra_kubeletplugin.claims.store.records import HeldByError, Records
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.errors import RecordsBusyError, RecordsError
from tests.helpers.crash.record_stores import insert, instance, make_record, open_store, records_locked

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    opened_store = open_store(tmp_path, wait=0.01)
    work(opened_store, Records.read_all)
    yield opened_store
    close(opened_store)


def close(store: RecordStore) -> None:
    store.folder.close()
    store.folder.process.release()


def work(store: RecordStore, operation: Any, mode: Mode = Mode.WRITE) -> Any:
    (result,) = store._work([(operation, mode)])
    return result


def put(uid: str) -> Callable[[Records], None]:
    return lambda records: records.insert(make_record(uid, f"d-{uid}"))


def touch(uid: str) -> Callable[[Records], None]:
    def update(records: Records) -> None:
        row = records.read(uid)
        assert isinstance(row, Record)
        records.update(row, row.fence)

    return update


def uids(store: RecordStore) -> list[str]:
    return sorted(row.uid for row in work(store, Records.read_all, Mode.READ))


class Disk:
    """Makes calls of ``os`` fail with an error number for the first ``times`` calls, and counts the calls."""

    def __init__(self, patch: pytest.MonkeyPatch, call: str, error: int = 0, times: int = 0) -> None:
        self.calls = 0
        real = getattr(os, call)

        def failing(*args: Any) -> Any:
            self.calls += 1
            if self.calls <= times:
                raise OSError(error, os.strerror(error), "a file")
            return real(*args)

        patch.setattr(os, call, failing)


@pytest.mark.parametrize(
    ("error", "times", "attempts", "error_text"),
    [
        (errno.EIO, 1, 2, ""),
        (errno.EIO, 2, 2, "Input/output error"),
        (errno.ENOSPC, 1, 1, "the disk is full"),
        (errno.EDQUOT, 1, 1, "the disk is full"),
        (errno.EROFS, 1, 1, "is read-only"),
        (errno.EACCES, 1, 1, "may not be read or written"),
    ],
)
def test_a_write_is_repeated_once_after_an_error_that_may_be_temporary(
    store: RecordStore, error: int, times: int, attempts: int, error_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        disk = Disk(patch, "fdatasync", error, times)
        result = work(store, put("a"))
    assert disk.calls == attempts
    if error_text:
        assert isinstance(result, RecordsError)
        assert error_text in str(result)
        assert error_text in store.fault
    else:
        assert (result, store.fault) == (None, "")
    assert uids(store) == [row.uid for row in read_rows(store.path)] == ([] if error_text else ["a"])
    assert work(store, put("b")) is None
    assert store.fault == ""


def test_a_fault_is_logged_once_for_each_text_and_its_end_once(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for error in (errno.ENOSPC, errno.ENOSPC, errno.EROFS):
        with monkeypatch.context() as patch:
            Disk(patch, "rename", error, 1)
            work(store, put("a"))
    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]
    work(store, Records.read_all, Mode.READ)
    work(store, lambda records: None)
    assert "is read-only" in store.fault, "neither a read nor an empty write shows that the disk works"
    for uid in "ab":
        work(store, put(uid))
    assert store.fault == ""
    assert [r.getMessage() for r in caplog.records[2:]] == ["claim records can be written again"]


def test_only_new_claims_and_jobs_that_request_it_are_synced(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, folder = Disk(monkeypatch, "fdatasync"), Disk(monkeypatch, "fsync")
    for operation, mode, syncs in (
        (put("a"), Mode.WRITE, 1),
        (touch("a"), Mode.WRITE, 0),
        (lambda records: None, Mode.SYNC, 0),
        (touch("a"), Mode.SYNC, 1),
        (lambda records: records.forget("a"), Mode.WRITE, 0),
    ):
        files.calls = folder.calls = 0
        assert work(store, operation, mode) is None
        assert (files.calls, folder.calls) == (syncs, syncs)
    store._work([(put(uid), Mode.SYNC) for uid in "bcde"])
    assert (files.calls, folder.calls) == (4, 1), "one sync of the folder for all claims of a batch"


def test_reads_use_the_records_in_memory_while_another_instance_has_the_lock(tmp_path: Path) -> None:
    reader, other = open_store(tmp_path, wait=100), open_store(tmp_path, wait=1)
    work(reader, put("a"))
    work(other, put("b"))
    with records_locked(reader.path):
        start = time.monotonic()
        assert uids(reader) == ["a"]
        assert time.monotonic() - start < 50, "a read waits less long than a write"
        reader.folder.wait = 0.01
        assert isinstance(work(reader, put("c")), RecordsBusyError)
        assert reader.fault == "", "a lock is no fault of the disk"
    assert uids(reader) == ["a", "b"]
    for opened_store in (reader, other):
        close(opened_store)


def test_a_read_without_records_in_memory_waits_and_then_fails(tmp_path: Path) -> None:
    store = open_store(tmp_path, wait=0.01)
    store.path.mkdir()
    with records_locked(store.path):
        result = work(store, Records.read_all, Mode.READ)
        assert isinstance(result, RecordsBusyError)
        assert "is locked by another instance of the plugin for too long: delete its pod" in str(result)
    assert uids(store) == []
    close(store)


async def test_each_repair_that_may_need_a_recovery_is_announced_once(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        await asyncio.sleep(0)
        assert store.repaired.is_set()
        for find in (lambda: insert(store, make_record("b", "d-1")), store.check_files, store.all):
            store.repaired.clear()
            await store.all()
            await asyncio.sleep(0)
            assert not store.repaired.is_set()
            for file in store.path.iterdir():
                file.unlink()
            await find()
            await asyncio.sleep(0)
            assert store.repaired.is_set()
            assert "a" in {r.uid for r in await store.all()}


async def test_a_check_of_the_files_reports_its_error_as_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        with monkeypatch.context() as patch:
            Disk(patch, "scandir", errno.EROFS, 1)
            await store.check_files()
        assert "is read-only" in store.fault
        await store.probe()
        assert store.fault == ""


async def test_a_probe_shows_whether_the_disk_can_be_written_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        files = sorted(store.path.iterdir())
        store.fault = "of before"
        await store.probe()
        assert store.fault == ""
        Disk(monkeypatch, "write", errno.ENOSPC, 1)
        with pytest.raises(RecordsError, match="the disk is full"):
            await store.probe()
        assert "the disk is full" in store.fault
        assert sorted(store.path.iterdir()) == files


def test_a_claim_s_error_keeps_no_frames_and_any_other_error_keeps_them(store: RecordStore) -> None:
    work(store, put("a"))
    held_error = work(store, lambda records: records.insert(make_record("b", "d-a")))
    assert isinstance(held_error, HeldByError)
    assert held_error.__traceback__ is None
    other_error = work(store, put("a"))
    assert isinstance(other_error, ValueError)
    assert other_error.__traceback__ is not None
