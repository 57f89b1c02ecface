"""A journal that is compacted, repaired or opened again: its header, its remains on disk and its claims."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, RecordStore, State
from dra_kubeletplugin.claims.capacity import Hold
from dra_kubeletplugin.claims.claim_files import note_of
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.claims.record import SUPERSEDED, Fence, InFlightRecords, UnreadableRecord
from dra_kubeletplugin.claims.store import journal, journal_file
from dra_kubeletplugin.claims.store.journal_file import JournalFile, new_header, write_new
from dra_kubeletplugin.claims.store.lines import DELETE, FORMAT, META, MOVED, OPEN, PUT, Change, Line, encode, parse
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.errors import RecordsBusyError, RecordsError, RecordsNewerError
from tests.claims.store.test_journal_broken import check_held, do, fails, insert, overwrite
from tests.helpers.crash.record_stores import (
    BOOT,
    DRIVER,
    JOURNAL,
    append_body,
    make_record,
    make_record_with_file,
    open_store,
    set_format,
)

pytestmark = pytest.mark.usefixtures("no_leak")


@contextlib.contextmanager
def opened_stores(
    folder: Path, count: int = 1, in_flight: InFlightRecords | None = None
) -> Iterator[list[RecordStore]]:
    """Stores that are closed at the end, so that a file that stays open is detected as a leak."""
    stores = [open_store(folder, wait=0.01, in_flight=in_flight if i == 0 else None) for i in range(count)]
    try:
        for store in stores:
            do(store, Records.read_all)
        yield stores
    finally:
        for store in stores:
            store.journal.close()
            store.journal.process.release()


def compact(store: RecordStore) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_SMALL", -1)
        patch.setattr(journal, "_MAX_GROWTH", 0)
        store.journal.compact()


def header(folder: Path) -> Change:
    first = (folder / JOURNAL).read_bytes().partition(b"\n")[0]
    return msgspec.json.decode(first.partition(b"\t")[0][9:], type=Change)


def uids(store: RecordStore) -> list[str]:
    return sorted(do(store, Records.uids))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file())


# --- compaction --------------------------------------------------------------------------------------------


def test_a_compacted_journal_is_the_next_generation_and_blocks_no_instance(tmp_path: Path) -> None:
    with opened_stores(tmp_path, 2) as (first, second):
        insert(first, "u", "d-0")
        do(first, lambda records: records.clear_meta(RECOVER))
        old_header = header(tmp_path)
        assert (old_header.op, old_header.format, old_header.driver, old_header.generation, old_header.repaired) == (
            OPEN,
            FORMAT,
            DRIVER,
            1,
            1,
        )
        assert (tmp_path / JOURNAL).stat().st_mode & 0o777 == 0o600
        compact(first)
        assert header(tmp_path) == msgspec.structs.replace(old_header, generation=2)
        insert(first, "v", "d-1")  # although the second instance has not read the new file
        assert uids(second) == ["u", "v"]
        assert not do(second, lambda records: records.has_meta(RECOVER))
        assert second.journal.report == []
    assert names(tmp_path) == [JOURNAL]


@pytest.mark.parametrize(
    ("min_size", "min_outdated", "is_compacted"), [(0, 0, True), (1 << 20, 0, False), (0, 100, False)]
)
def test_only_a_long_journal_with_mostly_outdated_lines_is_compacted(
    tmp_path: Path, min_size: int, min_outdated: int, is_compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SMALL", min_size)
    monkeypatch.setattr(journal, "_MAX_GROWTH", min_outdated)
    with opened_stores(tmp_path) as (store,):
        insert(store, "u", "d-0")
        store.journal.compact()
    assert header(tmp_path).generation == 1 + is_compacted


def test_a_compaction_of_a_journal_that_is_short_again_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SMALL", 3_000)
    monkeypatch.setattr(journal, "_MAX_GROWTH", 1)
    with opened_stores(tmp_path, 2) as (first, second):
        for i in range(10):
            insert(first, "u", f"d-{i}")
            do(first, lambda records: records.forget("u"))
        do(second, Records.read_all)
        second.journal.compact()
        first.journal.compact()
        assert header(tmp_path).generation == 2


def test_a_compaction_waits_for_no_lock(tmp_path: Path) -> None:
    with opened_stores(tmp_path, 2) as (first, second), second.journal.locked(1), pytest.raises(RecordsBusyError):
        compact(first)


@pytest.mark.parametrize("call", ["JournalFile", "rename", "sync_folder", "fsync"])
def test_a_new_file_that_cannot_be_completed_leaves_no_open_descriptor_and_no_file(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_stores(tmp_path, 2) as (store, other):
        insert(store, "u", "d-0")
        with monkeypatch.context() as patch:
            match call:
                case "rename":
                    patch.setattr(Path, "rename", fails)
                case "fsync":
                    patch.setattr(journal_file.os, "fsync", fails)
                case _:
                    patch.setattr(journal, call, fails)
            with pytest.raises(OSError, match="No space left"):
                compact(store)
        assert (store.journal.file is None) is (call == "sync_folder"), "the next use syncs the folder first"
        (other_instance,) = other.journal.process.others()
        assert other_instance.generation == (2 if call == "sync_folder" else 1)
        assert names(tmp_path) == [JOURNAL]
        check_held(store, "d-0")
        insert(store, "v", "d-1")
    assert names(tmp_path) == [JOURNAL]


def test_a_new_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    with opened_stores(tmp_path) as (store,):
        insert(store, "u", "d-0")
        (tmp_path / f".{JOURNAL}.new").write_bytes(b"half")
        compact(store)
        assert uids(store) == ["u"]
    assert names(tmp_path) == [JOURNAL]


def test_each_new_journal_has_its_own_id_and_its_successors_keep_the_id() -> None:
    header_1, header_2 = new_header("d", 1, 1), new_header("d", 1, 1)
    assert header_1.id != header_2.id
    assert header_1.format == 1, "a new format needs a note for operators"
    assert new_header("d", 2, 1, header_1).id == header_1.id
    assert new_header("d", 2, 1, Change(OPEN)).id
    assert new_header("d", 2, 1, msgspec.structs.replace(header_1, format=FORMAT + 1)).format == FORMAT + 1
    assert new_header("d", 2, 1, msgspec.structs.replace(header_1, format=0)).format == FORMAT


# --- opening -----------------------------------------------------------------------------------------------


def test_a_claim_that_another_instance_unprepared_is_not_restored_from_the_work_in_flight(tmp_path: Path) -> None:
    in_flight = InFlightRecords()
    with opened_stores(tmp_path, 2, in_flight) as (first, second):
        insert(first, "u", "d-0")
        in_flight.put(make_record("u", "d-0", State.PREPARING))
        do(second, lambda records: records.forget("u"))
        compact(second)
        assert uids(first) == []
        insert(first, "v", "d-0")


def test_work_in_flight_is_added_to_a_journal_that_lacks_it_and_changes_no_existing_record(tmp_path: Path) -> None:
    in_flight = InFlightRecords()
    with opened_stores(tmp_path, 1, in_flight) as (store,):
        insert(store, "u", "d-0")
        insert(store, "w", "d-1")
        in_flight.put(make_record("u", "d-0", State.PREPARING))
        in_flight.put(make_record("v", "d-2", State.PREPARING))
        overwrite(tmp_path / JOURNAL, b'"w"')
        store.journal.check()
        assert {r.uid: r.state for r in do(store, Records.read_all)}["u"] is State.PREPARED
        check_held(store, "d-0", "d-1", "d-2")
        assert do(store, lambda records: records.has_meta(RECOVER))


def test_a_new_instance_adds_its_work_in_flight_once(tmp_path: Path) -> None:
    with opened_stores(tmp_path) as (store,):
        insert(store, "u", "d-0")
    in_flight = InFlightRecords()
    in_flight.put(make_record("u", "d-0", State.PREPARING))
    in_flight.put(make_record("v", "d-1", State.PREPARING))
    with opened_stores(tmp_path, 1, in_flight) as (store,):
        assert {r.uid: r.state for r in do(store, Records.read_all)} == {
            "u": State.PREPARED,
            "v": State.PREPARING,
        }
        assert store.journal.report == ["1 record lost and rebuilt: v"]
        assert do(store, lambda records: records.has_meta(RECOVER))


def test_an_opened_journal_is_synced_with_its_name_and_with_the_records_that_it_lacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_stores(tmp_path) as (store,):
        insert(store, "u", "d-0")
    make_record_with_file(tmp_path, "n", "d-1")
    synced: list[Any] = []
    real, folder = os.fdatasync, journal_file.sync_folder
    monkeypatch.setattr(journal_file.os, "fdatasync", lambda fd: synced.append("file") or real(fd))
    monkeypatch.setattr(journal, "sync_folder", lambda path: synced.append(path) or folder(path))
    with opened_stores(tmp_path) as (store,):
        assert uids(store) == ["n", "u"]
        assert synced == ["file", tmp_path]


def test_a_failed_write_after_the_opening_keeps_the_rebuilt_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_stores(tmp_path) as (store,):
        insert(store, "u", "d-0")
    make_record_with_file(tmp_path, "n", "d-1")
    with opened_stores(tmp_path) as (store,):
        with monkeypatch.context() as patch:
            patch.setattr(JournalFile, "append", fails)
            with pytest.raises(RecordsError, match="disk is full"):
                insert(store, "v", "d-2")
        assert uids(store) == ["n", "u"]
        check_held(store, "d-0", "d-1")


def test_a_folder_is_synced_by_its_own_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(journal_file.os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink()))
    journal_file.sync_folder(tmp_path)
    assert synced == [tmp_path.resolve()]


def test_a_new_instance_does_not_use_an_older_file_than_a_running_instance(tmp_path: Path) -> None:
    with opened_stores(tmp_path) as (first,):
        compact(first)
        insert(first, "u", "d-0")
        backup = (tmp_path / JOURNAL).read_bytes()
        compact(first)
        insert(first, "v", "d-1")
        (tmp_path / JOURNAL).unlink()
        (tmp_path / JOURNAL).write_bytes(backup)
        second = open_store(tmp_path, wait=0.01)
        with pytest.raises(RecordsBusyError, match="has not repaired or reopened it yet"):
            do(second, Records.read_all)
        first.journal.check()
        check_held(second, "d-0", "d-1")
        second.journal.close()
        second.journal.process.release()


def test_a_new_instance_waits_for_the_instance_that_has_the_removed_first_journal_open(tmp_path: Path) -> None:
    with opened_stores(tmp_path) as (first,):
        insert(first, "u", "d-0")
        (tmp_path / JOURNAL).unlink()
        second = open_store(tmp_path, wait=0.01)
        with pytest.raises(RecordsBusyError, match="has not repaired or reopened it yet"):
            do(second, Records.read_all)
        first.journal.check()
        check_held(second, "d-0")
        second.journal.close()
        second.journal.process.release()


def test_a_wait_for_the_removed_journal_names_the_instance_with_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        InstanceLock, "pid", staticmethod(lambda id: id)
    )  # all instances of this test run in one process
    with opened_stores(tmp_path, 2) as stores:
        for newest in stores:
            compact(newest)
            (tmp_path / JOURNAL).unlink()
            last = open_store(tmp_path, wait=0.01)
            with pytest.raises(RecordsBusyError, match=f"process {newest.journal.process.id} of the plugin"):
                do(last, Records.read_all)
            last.journal.close()
            last.journal.process.release()
            newest.journal.check()


def test_a_note_of_an_earlier_boot_is_no_lost_record(tmp_path: Path) -> None:
    with opened_stores(tmp_path) as (store,):
        insert(store, "u", "d-0")
    make_record_with_file(tmp_path, "n", "d-1")
    store = open_store(tmp_path, wait=0.01, boot="later")
    assert uids(store) == ["u"]
    store.journal.close()
    store.journal.process.release()


def test_an_older_copy_of_the_journal_does_not_replace_it(tmp_path: Path) -> None:
    with opened_stores(tmp_path) as (store,):
        insert(store, "u", "d-0")
        backup = (tmp_path / JOURNAL).read_bytes()
        insert(store, "v", "d-1")
        (tmp_path / JOURNAL).unlink()
        (tmp_path / JOURNAL).write_bytes(backup)
        check_held(store, "d-0", "d-1")
        assert "an older file is in its place" in store.journal.report[0]
        assert b"dra_records_damaged_total 1.0" in store.journal.metrics.text()
    assert sum(".damaged-" in name for name in names(tmp_path)) == 1


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the file is empty"),
        (b"garbage\n", "1 of its lines cannot be read"),
        (encode(Change(PUT, "u")), "it does not begin as a journal"),
    ],
)
def test_a_file_that_is_no_journal_is_set_aside_with_the_reason(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / JOURNAL).write_bytes(content)
    with opened_stores(tmp_path) as (store,):
        assert any(fault in sentence for sentence in store.journal.report), store.journal.report
    (damaged_file,) = tmp_path.glob("*.damaged-*")
    assert damaged_file.read_bytes() == content + encode(Change(MOVED))


def test_a_journal_of_the_next_format_is_read_and_keeps_its_format_and_lines(tmp_path: Path) -> None:
    with opened_stores(tmp_path) as (store,):
        insert(store, "u", "d-0")
    set_format(tmp_path / JOURNAL, FORMAT + 1)
    foreign = encode(Change("later", "x"))
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(foreign)
    with opened_stores(tmp_path) as (store,):
        assert uids(store) == ["u"]
        compact(store)
    assert header(tmp_path).format == FORMAT + 1
    assert foreign in (tmp_path / JOURNAL).read_bytes()
    set_format(tmp_path / JOURNAL, FORMAT + 2)
    with pytest.raises(RecordsNewerError):
        JournalFile(tmp_path / JOURNAL)


# --- two claims with one device ----------------------------------------------------------------------------


@pytest.mark.parametrize(("ages", "superseded"), [((1.0, 2.0), ["a"]), ((2.0, 1.0), ["b"]), ((1.0, 1.0), [])])
def test_of_two_rebuilt_claims_with_one_device_only_the_strictly_older_is_superseded(
    tmp_path: Path, ages: tuple[float, float], superseded: list[str]
) -> None:
    for uid, created in zip("ab", ages, strict=True):
        record = make_record_with_file(tmp_path, uid, "d-0")
        record.created = created
        ClaimSpecs(tmp_path / "cdi", DRIVER).write_note(uid, note_of(record))
    with opened_stores(tmp_path) as (store,):
        rows = do(store, Records.read_all)
        assert [r.uid for r in rows if r.doc.get(SUPERSEDED)] == superseded
        assert sum("two claims have one device" in line for line in store.journal.report) == 1
        assert any(line.startswith("2 records rebuilt from CDI files: ") for line in store.journal.report)


def test_a_known_claim_without_a_note_is_not_proven_and_other_claims_are_unchanged(tmp_path: Path) -> None:
    with opened_stores(tmp_path, 2) as (first, second):
        record_with_note = make_record_with_file(tmp_path, "noted", "d-0")
        do(first, lambda records: records.insert(record_with_note))
        insert(first, "ended", "d-1")
        do(first, lambda records: records.insert(make_record("begun", "d-2", State.PREPARING)))
        do(second, Records.read_all)
        for uid in ("noted", "ended", "begun"):
            overwrite(tmp_path / JOURNAL, f'"{uid}"'.encode())
        with contextlib.suppress(RecordsError):
            first.journal.check()
        second.journal.check()
        rows = {r.uid: r for r in do(second, Records.read_all)}
        assert sorted(rows) == ["begun", "ended", "noted"]
        assert all(isinstance(r, Record) for r in rows.values())
        assert [rows[u].partial for u in ("begun", "noted")] == [False, False]


def test_the_damaged_file_of_a_dead_instance_keeps_its_claims_except_the_ended_ones(
    tmp_path: Path,
) -> None:
    with opened_stores(tmp_path, 2) as (first, second):
        for i, uid in enumerate(("lost", "ended", "kept")):
            insert(first, uid, f"d-{i}")
        do(first, lambda records: records.clear_meta(RECOVER))
        do(second, Records.read_all)
        compact(second)
        do(second, lambda records: records.forget("ended"))
        insert(second, "late", "d-3")
        second.journal.drop()
        second.journal.process.release()
        overwrite(tmp_path / JOURNAL, b'"lost"')
        first.journal.check()
        assert uids(first) == ["kept", "late", "lost"]
        check_held(first, "d-0", "d-2", "d-3")
        assert do(first, lambda records: records.has_meta(RECOVER))


def test_a_known_claim_whose_device_belongs_to_a_newer_claim_is_superseded(tmp_path: Path) -> None:
    with opened_stores(tmp_path, 2) as (first, second):
        insert(first, "ended", "d-1")
        do(second, lambda records: records.forget("ended"))
        insert(second, "new", "d-1")
        overwrite(tmp_path / JOURNAL, b'"delete"')
        second.journal.check()
        first.journal.check()
        rows = {r.uid: r for r in do(first, Records.read_all)}
        assert [bool(rows[uid].doc.get(SUPERSEDED)) for uid in ("ended", "new")] == [True, False]


def test_a_failed_repair_does_not_change_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = InFlightRecords()
    with opened_stores(tmp_path, 1, in_flight) as (store,):
        insert(store, "u", "d-0")
        in_flight.put(make_record("v", "d-1", State.PREPARING))
        overwrite(tmp_path / JOURNAL, b'"u"')
        with monkeypatch.context() as patch:
            patch.setattr(journal, "write_new", fails)
            with pytest.raises(OSError, match="No space left"):
                store.journal.check()
        in_flight.drop("v")
        store.journal.check()
        assert uids(store) == ["u"]


@pytest.mark.parametrize("removed", [True, False])
def test_only_a_removed_file_is_logged_as_removed(
    tmp_path: Path, removed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with opened_stores(tmp_path) as (store,):
        caplog.clear()
        if removed:
            (tmp_path / JOURNAL).unlink()
        else:
            (tmp_path / JOURNAL).write_bytes(b"garbage")
        store.journal.check()
    assert ("was removed while it is in use: it is written again" in caplog.text) is removed
    assert ("is set aside as" in caplog.text) is not removed


@pytest.mark.parametrize(
    ("row", "is_kept"),
    [
        (None, False),
        (UnreadableRecord("u", "damaged", {}), False),
        (make_record("u", "d-0"), True),
        (msgspec.structs.replace(make_record("u", "d-0"), created=1.0), False),
        (make_record("u", "d-0", State.UNPREPARING), True),
        (make_record("u", "d-0", State.PREPARING), False),
    ],
)
def test_a_note_replaces_only_a_record_that_is_older_unreadable_or_not_prepared_yet(row: Any, is_kept: bool) -> None:
    record_with_note = make_record("u", "d-0")
    record_with_note.created = row.created if isinstance(row, Record) and row.created > 1 else 2.0
    assert journal._is_as_new(row, record_with_note) is is_kept


# --- one file ----------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Iterator[JournalFile]:
    path = tmp_path / JOURNAL
    write_new(path, new_header(DRIVER, 1, 1), b"").rename(path)
    opened_file = JournalFile(path)
    yield opened_file
    opened_file.close()


def line(uid: str, body: bytes = b"{}") -> bytes:
    return encode(Change(PUT, uid, "ns/n"), body)


def test_a_half_written_line_is_removed_before_the_next_write(file: JournalFile, tmp_path: Path) -> None:
    file.append(line("a"), sync=False)
    content = (tmp_path / JOURNAL).read_bytes()
    with (tmp_path / JOURNAL).open("ab") as writer:
        writer.write(line("b", b" " * 500)[:400])
    assert file.read_on() is True
    assert (file.end, file.size) == (len(content), len(content) + 400)
    file.append(line("c"), sync=False)
    assert (tmp_path / JOURNAL).read_bytes() == content + line("c")
    assert file.is_intact()


def test_a_file_that_was_cut_is_damaged(file: JournalFile, tmp_path: Path) -> None:
    file.append(line("a"), sync=False)
    os.truncate(tmp_path / JOURNAL, file.end - 1)
    assert file.read_on() is False
    assert file.fault == "it was cut"
    assert not file.is_intact()


def test_a_damaged_line_is_counted_and_the_lines_around_it_are_read(file: JournalFile, tmp_path: Path) -> None:
    with (tmp_path / JOURNAL).open("ab") as writer:
        writer.write(line("a") + b"X" * 30 + b"\n" + line("b"))
    assert file.read_on() is False
    assert file.fault == "1 of its lines cannot be read"
    assert file.records.uids() == {"a", "b"}
    assert file.is_intact()


def test_a_lost_newline_is_added_by_the_next_write(file: JournalFile, tmp_path: Path) -> None:
    with (tmp_path / JOURNAL).open("ab") as writer:
        writer.write(line("a")[:-1])
    assert file.read_on() is True
    assert file.records.uids() == {"a"}
    file.append(line("b"), sync=False)
    assert file.is_intact()
    reopened = JournalFile(tmp_path / JOURNAL)
    assert (reopened.records.uids(), reopened.fault) == ({"a", "b"}, "")
    reopened.close()


@pytest.mark.parametrize("keep", [True, False])
def test_a_write_is_synced_on_request_and_removed_unless_it_is_kept(
    file: JournalFile, tmp_path: Path, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (tmp_path / JOURNAL).read_bytes()
    synced: list[int] = []
    monkeypatch.setattr(journal_file.os, "fdatasync", synced.append)
    file.append(line("a"), sync=True, keep=keep)
    assert len(synced) == 1
    assert (tmp_path / JOURNAL).read_bytes() == content + line("a") * keep
    assert file.end == len(content + line("a") * keep)
    file.supersede()
    assert len(synced) == 1
    reopened = JournalFile(tmp_path / JOURNAL)
    assert reopened.is_superseded
    reopened.close()


def test_a_write_that_the_system_splits_is_complete(
    file: JournalFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(journal_file.os, "pwrite", lambda fd, data, offset: real(fd, data[:7], offset))
    read = os.pread
    monkeypatch.setattr(journal_file.os, "pread", lambda fd, size, offset: read(fd, min(size, 11), offset))
    file.append(line("a"), sync=False)
    reopened = JournalFile(tmp_path / JOURNAL)
    assert (reopened.records.uids(), reopened.fault) == ({"a"}, "")
    reopened.close()


def test_a_failed_write_does_not_change_the_file(
    file: JournalFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.append(line("a"), sync=False)
    content, old_end = (tmp_path / JOURNAL).read_bytes(), file.end
    real = os.pwrite

    def write_half(fd: int, data: bytes, offset: int) -> int:
        if offset > old_end:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:9], offset)

    with monkeypatch.context() as patch:
        patch.setattr(journal_file.os, "pwrite", write_half)
        with pytest.raises(OSError, match="No space left"):
            file.append(line("b"), sync=False)
    assert (tmp_path / JOURNAL).read_bytes() == content
    assert file.is_intact()


def test_a_changed_file_is_detected_by_its_inode_size_and_time(file: JournalFile, tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    assert file.is_unchanged(path.stat())
    assert file.was_touched()
    assert not file.was_touched()
    os.utime(path, ns=(1, 1))
    assert file.was_touched()
    with path.open("ab") as writer:
        writer.write(b"x")
    assert not file.is_unchanged(path.stat())
    (tmp_path / "copy").write_bytes(path.read_bytes()[:-1])
    assert not file.is_unchanged((tmp_path / "copy").stat())
    file.close()
    file.close()


@pytest.mark.parametrize(
    ("change", "body", "head"),
    [
        (Change(OPEN, format=1, driver="d", generation=1, repaired=1, id="i"), b"", b'{"op":"open","format":1,"driver":"d","generation":1,"repaired":1,"id":"i"}'),
        (Change(OPEN), b"", b'{"op":"open"}'),
        (Change(PUT, "u", "ns/c", (("p", "d", "s", "{}"),)), b'{"uid":"u"}', b'{"op":"put","uid":"u","claim":"ns/c","holds":[["p","d","s","{}"]]}'),
        (Change(DELETE, "u"), b"", b'{"op":"delete","uid":"u"}'),
        (Change(META, key="k", value="v"), b"", b'{"op":"meta","key":"k","value":"v"}'),
        (Change(META, key="k"), b"", b'{"op":"meta","key":"k"}'),
        (Change(MOVED), b"", b'{"op":"moved"}'),
    ],
)  # fmt: skip
def test_the_bytes_of_a_line_are_those_that_other_versions_read_and_write(
    change: Change, body: bytes, head: bytes
) -> None:
    parts = [b"%08x %s" % (zlib.crc32(part), part) for part in (head, body or head)]
    data = b"\t".join(parts) + b"\n"
    assert encode(change, body) == data
    (line,) = parse(data).lines
    assert (line.change, line.body) == (change, body)


# --- the records in memory ---------------------------------------------------------------------------------


def test_metadata_of_the_records_survives_the_process_until_it_is_removed(tmp_path: Path) -> None:
    for change, expected in (
        (lambda records: records.clear_meta(""), {}),
        (lambda records: records.set_meta("a:x", "1"), {"x": "1"}),
        (lambda records: records.set_meta("a:y", "2"), {"x": "1", "y": "2"}),
        (lambda records: records.clear_meta("a:x"), {"y": "2"}),
    ):
        with opened_stores(tmp_path) as (store,):
            do(store, change)
        with opened_stores(tmp_path) as (store,):
            assert do(store, lambda records: records.get_meta("a:")) == expected


def test_a_change_of_another_owner_or_state_has_no_effect() -> None:
    records, record = Records(), make_record("u", "d-0", State.PREPARING, "1-a")
    records.insert(record)
    for fence in (
        Fence("v", "1-a", State.PREPARING),
        Fence("u", "1-b", State.PREPARING),
        Fence("u", "1-a", State.PREPARED),
    ):
        assert records.update(make_record("u", "d-0"), fence) is False
        assert records.delete(fence) is False
    assert records.read("u") == record
    assert records.update(record, record.fence) is True
    assert records.delete(record.fence) is True
    assert (records.uids(), records.held_devices()) == (set(), {})


def test_only_missing_claims_that_have_not_ended_are_added() -> None:
    records, known_records = Records(), Records()
    records.insert(make_record("both", "d-0"))
    for uid, device in (("both", "d-9"), ("ended", "d-1"), ("missing", "d-2")):
        known_records.insert(make_record(uid, device, State.PREPARING))
    records.add_missing(known_records, {"ended"})
    assert records.uids() == {"both", "missing"}
    assert set(records.held_devices()) == {("node", "d-0"), ("node", "d-2")}


@pytest.mark.parametrize(
    ("tail", "lines", "damaged", "is_kept"),
    [(b"", 1, 0, True), (b"X", 1, 1, True), (b"XY", 0, 0, False), (None, 0, 0, False)],
)
def test_a_last_line_without_its_newline_counts_if_it_is_complete(
    tail: bytes | None, lines: int, damaged: int, is_kept: bool
) -> None:
    first, last = line("a"), line("b")[:-1]
    data = first + (last[:-1] if tail is None else last + tail)
    parsed = parse(data)
    assert (len(parsed.lines), parsed.damaged, parsed.end) == (1 + lines, damaged, len(data) if is_kept else len(first))


def test_a_body_without_its_head_replaces_the_devices_of_an_older_record() -> None:
    newer = make_record("u", "d-1")
    body = msgspec.json.encode({n: getattr(newer, n) for n in Record.__struct_fields__})
    records = Records()
    records.insert(make_record("u", "d-0"))
    records.apply(Line(None, body, b""))
    assert set(records.held_devices()) == {("node", "d-1")}
    assert records.holders(Hold("node", "d-0", "", "", "other")) == []


def test_prepared_claims_are_counted_also_next_to_unreadable_ones(tmp_path: Path) -> None:
    with opened_stores(tmp_path) as (store,):
        insert(store, "a", "d-0")
        do(store, lambda records: records.insert(make_record("b", "d-1", State.PREPARING)))
        append_body(tmp_path / JOURNAL, make_record("odd", "d-2"), b'{"uid":"odd"}')
        assert do(store, Records.count_prepared) == 1
        (unreadable,) = [r for r in do(store, Records.read_all) if isinstance(r, UnreadableRecord)]
        assert unreadable.reason != "its line in the journal is damaged"
        assert unreadable.shown == "ns/name-odd (UID odd)"


def test_only_the_holds_of_other_claims_on_the_same_supplies_count() -> None:
    records = Records()

    def put(uid: str, device: str, takes: Any, share: str = "", pool: str = "p") -> None:
        devices = [{"request": "r", "pool": pool, "device": device, "shareID": share, "takes": takes}]
        records.insert(Record(uid, "ns", uid, State.PREPARED, BOOT, doc={"devices": devices}), shared=True)

    counters, capacity = {"counters": {"s": {"c": "1"}}}, {"capacity": {"m": "1"}}
    put("mine", "a", counters)
    put("nothing", "b", {})
    put("unknown", "c", None)
    put("counts", "d", counters)
    put("share", "e", capacity, share="1")
    put("elsewhere", "f", counters, pool="q")

    def other_holders(*uids: str) -> list[str]:
        holds = [h for uid in uids for h in records.read(uid).holds()]  # type: ignore[union-attr]
        return [h.uid for h in records.other_holds(holds, uids[0])]

    assert other_holders("mine") == ["unknown", "counts", "share"]
    assert other_holders("nothing") == []
    put("share-2", "e", capacity, share="2")
    assert other_holders("share") == ["share-2"]
    assert other_holders("elsewhere") == []


@pytest.mark.parametrize("damaged_part", ["head", "body", "nothing"])
def test_each_intact_part_of_a_line_keeps_the_claim_and_its_holds(damaged_part: str) -> None:
    record = make_record("u", "d-0")
    body = msgspec.json.encode({n: getattr(record, n) for n in Record.__struct_fields__})
    head, _, body_bytes = encode(Change(PUT, "u", "ns/name-u", (("node", "d-0", "", "{}"),)), body).partition(b"\t")
    data = {"head": b"X" * len(head) + b"\t" + body_bytes, "body": head + b"\t" + b"X" * len(body_bytes[:-1]) + b"\n"}
    parsed = parse(data.get(damaged_part, head + b"\t" + body_bytes))
    assert parsed.damaged == (damaged_part != "nothing")
    records = Records()
    for line in parsed.lines:
        records.apply(line)
    assert records.uids() == {"u"}
    (hold,) = records._claims["u"].holds
    assert (hold.device, hold.takes) == ("d-0", "" if damaged_part == "head" else "{}")
    assert records._claims["u"].claim == "ns/name-u"
    assert (records.count_prepared(), records.holders(hold._replace(uid="other"))) == (
        int(damaged_part != "body"),
        ["u"],
    )
