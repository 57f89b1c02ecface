"""Errors of the disk and of the lock, once and permanently: the results of callers, the reported fault, and the retries."""

from __future__ import annotations

import asyncio
import errno
import time
import traceback
from pathlib import Path

import pytest

from dra_kubeletplugin.claims.store.files import read_rows
from dra_kubeletplugin.errors import DeviceHeldError, RecordsBusyError, RecordsError
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import insert, instance, make_record, records_locked

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errno.EIO, "Input/output error"),
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EROFS, "is read-only"),
        (errno.EACCES, "may not be read or written"),
    ],
)
async def test_only_an_error_of_the_disk_that_may_be_temporary_is_repeated_and_each_other_is_the_fault_until_a_write(
    tmp_path: Path, error: int, times: int, text: str
) -> None:
    async with instance(tmp_path) as store:
        await store.all()
        with failing_calls(error, "fdatasync", when=lambda number: number <= times):
            (result,) = await asyncio.gather(insert(store, make_record("a", "d-0")), return_exceptions=True)
        is_written = error == errno.EIO and times == 1
        assert isinstance(result, RecordsError) is not is_written
        assert (text in store.fault and text in str(result)) is not is_written
        await store.do(lambda records: None)
        assert bool(store.fault) is not is_written, "neither a read nor an empty write shows that the disk works"
        rows = [row.uid for row in await store.all()]
        assert rows == [row.uid for row in read_rows(store.path)] == ["a"] * is_written
        await insert(store, make_record("b", "d-1"))
        assert store.fault == ""


async def test_a_fault_is_logged_once_for_each_text_and_its_end_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with instance(tmp_path) as store:
        await store.all()
        caplog.set_level("INFO")
        for error in (errno.ENOSPC, errno.ENOSPC, errno.EROFS):
            with failing_calls(error, "rename"), pytest.raises(RecordsError):
                await insert(store, make_record("a", "d-0"))
        for uid in "ab":
            await insert(store, make_record(uid, f"d-{uid}"))
        assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR", "INFO"]
        assert caplog.records[2].getMessage() == "claim records can be written again"


async def test_reads_use_the_records_in_memory_while_another_instance_has_the_lock(tmp_path: Path) -> None:
    async with instance(tmp_path, wait=0.01) as new, instance(tmp_path, wait=60) as reader:
        reader.path.mkdir()
        with records_locked(reader.path), pytest.raises(RecordsBusyError, match="for too long: delete its pod"):
            await new.all()  # it has no records in memory
        await insert(reader, make_record("a", "d-0"))
        await insert(new, make_record("b", "d-1"))
        with records_locked(reader.path):
            start = time.monotonic()
            assert [r.uid for r in await reader.all()] == ["a"]
            assert time.monotonic() - start < 30, "a read waits less long than a write"
            with pytest.raises(RecordsBusyError):
                await insert(new, make_record("c", "d-2"))
            assert new.fault == "", "a lock is no fault of the disk"
        assert [r.uid for r in await reader.all()] == ["a", "b"]


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


async def test_a_check_or_a_probe_reports_its_error_as_the_fault_and_leaves_nothing(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        files = sorted(store.path.iterdir())
        with failing_calls(errno.EROFS, "scandir"):
            await store.check_files()
        assert "is read-only" in store.fault
        with failing_calls(errno.ENOSPC, "write"), pytest.raises(RecordsError, match="the disk is full"):
            await store.probe()
        assert "the disk is full" in store.fault
        await store.probe()
        assert store.fault == ""
        assert sorted(store.path.iterdir()) == files


async def test_a_claim_s_error_keeps_no_frames_of_the_record_thread_and_any_other_error_keeps_them(
    tmp_path: Path,
) -> None:
    """Frames would keep the claim in memory."""
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        for uid, device, has_frames in (("b", "d-0", False), ("a", "d-1", True)):
            (error,) = await asyncio.gather(insert(store, make_record(uid, device)), return_exceptions=True)
            assert isinstance(error, DeviceHeldError | ValueError)
            assert any("in _run_operation" in line for line in traceback.format_tb(error.__traceback__)) is has_frames
