"""Each error of the disk or the lock, once and permanently: the results of callers, the reported fault, and the
retries.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.claims import RecordStore
from dra_kubeletplugin.claims.holders import HeldByError
from dra_kubeletplugin.claims.store import journal_file
from dra_kubeletplugin.claims.store.offline import forget, read_rows
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.store.store import Mode, RecordJob
from dra_kubeletplugin.errors import RecordsBusyError, RecordsError
from tests.helpers.crash.record_stores import (
    DRIVER,
    JOURNAL,
    insert,
    instance,
    make_record,
    open_store,
    records_locked,
)
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    opened_store = open_store(tmp_path, wait=0.01)
    work(opened_store, Records.read_all)
    yield opened_store
    opened_store.journal.close()
    opened_store.journal.process.release()


def work(store: RecordStore, operation: Any, mode: Mode = Mode.WRITE) -> Any:
    (result,) = store._work([RecordJob(operation, mode)])
    return result


def put(uid: str) -> Callable[[Records], None]:
    return lambda records: records.insert(make_record(uid, f"d-{uid}"))


def uids(store: RecordStore) -> list[str]:
    return sorted(row.uid for row in work(store, Records.read_all, Mode.READ))


class Disk:
    """Makes calls of ``os`` fail with an error number for the first ``times`` calls, and counts the calls."""

    def __init__(self, patch: pytest.MonkeyPatch, call: str, error: int, times: int) -> None:
        self.calls = 0
        real = getattr(os, call)

        def failing(*args: Any) -> Any:
            self.calls += 1
            if self.calls <= times:
                raise OSError(error, os.strerror(error), JOURNAL)
            return real(*args)

        patch.setattr(journal_file.os, call, failing)


@pytest.mark.parametrize(
    ("error", "times", "attempts", "error_text"),
    [
        (errno.EIO, 1, 2, ""),
        (errno.EIO, 2, 2, "Input/output error"),
        (errno.ENOSPC, 1, 1, "the disk is full"),
        (errno.EROFS, 1, 1, "is read-only"),
        (errno.EACCES, 1, 1, "may not be read or written"),
    ],
)
def test_a_write_is_repeated_once_after_an_error_that_may_be_temporary(
    store: RecordStore, error: int, times: int, attempts: int, error_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        disk = Disk(patch, "pwrite", error, times)
        result = work(store, put("a"))
    assert disk.calls == attempts
    if error_text:
        assert isinstance(result, RecordsError)
        assert error_text in str(result)
        assert error_text in store.fault
    else:
        assert (result, store.fault) == (None, "")
    assert uids(store) == ([] if error_text else ["a"])
    assert work(store, put("b")) is None
    assert store.fault == ""


def test_a_fault_is_logged_once_for_each_text_and_its_end_once(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for error in (errno.ENOSPC, errno.ENOSPC, errno.EROFS):
        with monkeypatch.context() as patch:
            Disk(patch, "pwrite", error, 1)
            work(store, put("a"))
    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]
    work(store, Records.read_all, Mode.READ)
    work(store, lambda records: None)
    assert "is read-only" in store.fault, "neither a read nor an empty write shows that the disk works"
    for uid in "ab":
        work(store, put(uid))
    assert store.fault == ""
    assert [r.getMessage() for r in caplog.records[2:]] == ["claim records can be written again"]


def test_only_a_job_that_requests_it_syncs_its_batch(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, "fdatasync", 0, 0)
    work(store, put("a"))
    assert disk.calls == 0
    work(store, lambda records: None, Mode.SYNC)
    assert disk.calls == 0
    work(store, put("b"), Mode.SYNC)
    assert disk.calls == 1
    store._work([RecordJob(put("c")), RecordJob(put("d"), Mode.SYNC)])
    assert disk.calls == 2


def test_an_error_of_the_sync_removes_the_lines(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        Disk(patch, "fdatasync", errno.ENOSPC, 1)
        assert isinstance(work(store, put("a"), Mode.SYNC), RecordsError)
    assert uids(store) == []
    assert [r.uid for r in read_rows(store.path)] == []


def test_reads_use_the_records_in_memory_while_another_instance_has_the_lock(
    store: RecordStore, tmp_path: Path
) -> None:
    work(store, put("a"))
    other = open_store(tmp_path, wait=1)
    work(other, put("b"))
    with records_locked(store.path):
        assert uids(store) == ["a"]
        assert isinstance(work(store, put("c")), RecordsBusyError)
        assert store.fault == "", "a lock is no fault of the disk"
    assert uids(store) == ["a", "b"]
    other.journal.close()
    other.journal.process.release()


def test_a_read_has_a_shorter_time_limit_than_a_write(tmp_path: Path) -> None:
    reader, lock_owner = open_store(tmp_path, wait=100), open_store(tmp_path, wait=1)
    work(reader, put("a"))
    work(lock_owner, put("b"))
    with records_locked(reader.path):
        start = time.monotonic()
        assert uids(reader) == ["a"]
        assert time.monotonic() - start < 50
    for opened_store in (reader, lock_owner):
        opened_store.journal.close()
        opened_store.journal.process.release()


def test_a_read_does_not_wait_for_an_instance_that_has_not_read_a_repair(tmp_path: Path) -> None:
    store, other = open_store(tmp_path, wait=0.01), open_store(tmp_path, wait=0.01)
    work(store, put("a"))
    work(other, put("b"))
    store.path.write_bytes(b"garbage")
    store.journal.check()
    store.journal.drop()
    assert isinstance(work(store, put("c")), RecordsBusyError)
    store.journal.drop()
    assert "a" in uids(store)
    for opened_store in (store, other):
        opened_store.journal.close()
        opened_store.journal.process.release()


def test_a_read_without_records_in_memory_waits_and_then_fails(tmp_path: Path) -> None:
    store = open_store(tmp_path, wait=0.01)
    with records_locked(store.path):
        assert isinstance(work(store, Records.read_all, Mode.READ), RecordsBusyError)
    assert uids(store) == []
    store.journal.close()
    store.journal.process.release()


async def test_each_opening_of_the_file_is_announced_once(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        for change in (lambda: None, store.path.unlink):
            assert not store.opened.is_set()
            change()
            await store.do(lambda records: None)
            await asyncio.sleep(0)
            assert store.opened.is_set()
            store.opened.clear()
            await store.all()
            await asyncio.sleep(0)
        store.path.unlink()
        await store.check_file()
        await asyncio.sleep(0)
        assert store.opened.is_set()
        store.opened.clear()
        store.path.unlink()
        await store.all()
        await asyncio.sleep(0)
        assert store.opened.is_set()


async def test_a_check_of_the_file_reports_its_error_as_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        with monkeypatch.context() as patch:
            patch.setattr(store.journal, "check", lambda: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")))
            await store.check_file()
        assert "is read-only" in store.fault
        await store.probe()
        assert store.fault == ""


async def test_a_probe_writes_and_syncs_as_much_as_a_large_record_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        content, written = store.path.read_bytes(), []
        real = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: written.append(len(data)) or real(fd, data, at))
        disk = Disk(monkeypatch, "fdatasync", 0, 0)
        store.fault = "of before"
        await store.probe()
        assert (store.fault, disk.calls, written) == ("", 1, [32 * 1024])
        assert store.path.read_bytes() == content
        monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space")))
        with pytest.raises(RecordsError, match="the disk is full"):
            await store.probe()
        assert "the disk is full" in store.fault


async def test_a_removed_folder_is_created_again_with_all_records(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / DRIVER
    folder.mkdir(parents=True)
    async with instance(folder) as store:
        await insert(store, make_record("a", "d-0"))
        shutil.rmtree(folder.parent)
        await insert(store, make_record("b", "d-1"))
        assert sorted(r.uid for r in read_rows(store.path)) == ["a", "b"]


async def test_a_removed_file_is_written_again_before_the_store_closes(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        store.path.unlink()
    assert [r.uid for r in read_rows(store.path)] == ["a"]


async def test_a_store_without_use_closes_without_a_file(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        pass
    assert not store.path.exists()


async def test_the_result_of_an_operation_of_a_closed_loop_is_dropped(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.all()
        loop = asyncio.new_event_loop()
        loop.close()
        store._loop = loop
        store.path.unlink()
        store.journal.check()
        store._note_loads()


def test_forget_syncs_the_file_and_leaves_no_open_descriptor(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(store, put("a"))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    disk = Disk(monkeypatch, "fdatasync", 0, 0)
    forget(store.path, 1, "a")
    assert disk.calls == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert uids(store) == []
    with records_locked(store.path), pytest.raises(RecordsBusyError):
        forget(store.path, 0.0, "a")
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


async def test_a_failed_compaction_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.store.batch._QUIET", 0.0)
    async with instance(tmp_path) as store:
        ran: list[int] = []

        def fails() -> None:
            ran.append(1)
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(store.journal, "compact", fails)
        await insert(store, make_record("a", "d-0"))
        await wait_until(lambda: ran)
        await insert(store, make_record("b", "d-1"))
        assert store.fault == ""


def test_a_claim_s_error_keeps_no_frames_and_any_other_error_keeps_them(store: RecordStore) -> None:
    work(store, put("a"))
    held_error = work(store, lambda records: records.insert(make_record("b", "d-a")))
    assert isinstance(held_error, HeldByError)
    assert held_error.__traceback__ is None
    other_error = work(store, put("a"))
    assert isinstance(other_error, ValueError)
    assert other_error.__traceback__ is not None


def test_follow_ups_of_one_batch_are_one_transaction_and_return_their_own_results(store: RecordStore) -> None:
    def follow_up(_: object) -> RecordJob:
        return RecordJob(put("c"), then=lambda _: "c")

    jobs = [
        RecordJob(put("a"), then=lambda _: RecordJob(put("b"), then=lambda _: "b")),
        RecordJob(Records.count_prepared, Mode.READ, then=lambda n: n + 10),
        RecordJob(first=lambda: "file"),
        RecordJob(lambda records: None, then=follow_up),
        RecordJob(put("a")),
        RecordJob(lambda records: None, then=lambda _: 1 // 0),
    ]
    results = store._work(jobs)
    assert results[:4] == ["b", 10, "file", "c"]
    assert [type(f) for f in results[4:]] == [ValueError, ZeroDivisionError]
    assert uids(store) == ["a", "b", "c"]
