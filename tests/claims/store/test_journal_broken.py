"""Failures at the worst moment, and files that a person puts in the place of the journal: no device with a holder
becomes free.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import RecordStore
from dra_kubeletplugin.claims.claim_files import note_of
from dra_kubeletplugin.claims.store import journal, journal_file
from dra_kubeletplugin.claims.store.offline import forget
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.claims.store.store import Mode, RecordJob
from dra_kubeletplugin.errors import DeviceHeldError, RecordsBusyError, RecordsError
from tests.helpers.crash.record_stores import JOURNAL, append_body, make_record, open_store


def do(store: RecordStore, operation: Any) -> Any:
    (response,) = store._work([RecordJob(operation)])
    if isinstance(response, BaseException):
        raise response
    return response


def insert(store: RecordStore, uid: str, device: str) -> None:
    do(store, lambda records: records.insert(make_record(uid, device)))


def check_held(store: RecordStore, *devices: str) -> None:
    for device in devices:
        with pytest.raises(DeviceHeldError):
            insert(store, "thief", device)


def kill(store: RecordStore) -> None:
    store.journal.drop()
    store.journal.process.release()


@contextlib.contextmanager
def stores(folder: Path, count: int) -> Iterator[list[RecordStore]]:
    opened = [open_store(folder, wait=0.01) for _ in range(count)]
    try:
        for store in opened:
            do(store, Records.read_all)
        yield opened
    finally:
        for store in opened:
            kill(store)


def fails(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def overwrite(path: Path, text: bytes) -> None:
    """Overwrites the line with ``text`` completely."""
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(b"X" * len(line) if text in line else line for line in lines))


def test_a_failed_repair_is_repeated_before_any_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of the other instance are unreadable. Its device is not free until it has responded."""
    with stores(tmp_path, 2) as (first, second):
        insert(second, "u", "d-0")
        overwrite(tmp_path / JOURNAL, b'"u"')
        with monkeypatch.context() as patch:
            patch.setattr(journal, "write_new", fails)
            with pytest.raises(RecordsError, match="disk is full"):
                insert(first, "thief", "d-0")
        with pytest.raises(RecordsBusyError):  # it waits for the other instance
            insert(first, "thief", "d-0")
        second.journal.check()
        check_held(first, "d-0")
        check_held(second, "d-0")


def test_an_overwritten_file_is_repaired_by_a_later_check_if_the_first_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores(tmp_path, 1) as (store,):
        insert(store, "u", "d-0")
        store.journal.check()
        overwrite(tmp_path / JOURNAL, b'"u"')
        with monkeypatch.context() as patch:
            patch.setattr(journal, "write_new", fails)
            with pytest.raises(OSError, match="No space left"):
                store.journal.check()
        store.journal.check()
        assert b'"u"' in (tmp_path / JOURNAL).read_bytes()


@pytest.mark.parametrize("method", ["append", "note_records"])
def test_a_store_waits_for_an_instance_that_cannot_append_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with stores(tmp_path, 2) as (first, second):
        insert(second, "u", "d-0")
        overwrite(tmp_path / JOURNAL, b'"u"')
        first.journal.check()
        with monkeypatch.context() as patch:
            target: Any = journal_file.JournalFile if method == "append" else os
            patch.setattr(target, method if method == "append" else "pwrite", fails)
            with pytest.raises(OSError, match="No space left"):
                second.journal.check()
        with pytest.raises(RecordsBusyError):
            insert(first, "thief", "d-0")
        second.journal.check()
        check_held(first, "d-0")
        check_held(second, "d-0")


def damage_lock_file(store: RecordStore) -> None:
    process = store.journal.process
    os.truncate(process._path(process.id), 0)


@pytest.mark.parametrize("damage", [os.unlink, lambda path: overwrite(path, b'"u"')])
def test_a_store_repairs_and_then_waits_for_an_instance_with_an_unreadable_lock_file(
    tmp_path: Path, damage: Any
) -> None:
    with stores(tmp_path, 2) as (first, second):
        insert(second, "u", "d-0")
        damage_lock_file(second)
        damage(tmp_path / JOURNAL)
        with pytest.raises(RecordsBusyError):
            insert(first, "thief", "d-0")
        second.journal.check()  # writes its lock file too
        check_held(first, "d-0")
        check_held(second, "d-0")


def test_an_instance_with_an_unreadable_lock_file_does_not_block_an_intact_journal(tmp_path: Path) -> None:
    with stores(tmp_path, 1) as (first,):
        insert(first, "u", "d-0")
        damage_lock_file(first)
        with stores(tmp_path, 1) as (second,):
            check_held(second, "d-0")
            insert(second, "v", "d-1")


def test_the_damaged_successor_of_a_known_file_keeps_its_claims(tmp_path: Path) -> None:
    """Another instance compacts the file, holds a device and is killed. Then a byte of its file is changed."""
    with stores(tmp_path, 2) as (first, second):
        insert(second, "u", "d-0")
        insert(first, "k", "d-1")
        do(first, Records.read_all)
        file = second.journal.file
        assert file
        do(second, Records.read_all)
        with second.journal.locked(1) as file:
            second.journal._replace(file, file.records, complete=True)
        insert(second, "late", "d-2")
        kill(second)
        path = tmp_path / JOURNAL
        path.write_bytes(path.read_bytes().replace(b"name-k", b"name-X", 1))
        first.journal.check()
        check_held(first, "d-0", "d-1", "d-2")


@pytest.mark.parametrize("generation", [1, 9])
def test_a_file_of_another_origin_does_not_replace_a_file_in_use(tmp_path: Path, generation: int) -> None:
    """A copy from an earlier installation of the plugin, or from another node, may have a higher generation."""
    (tmp_path / "other").mkdir()
    with stores(tmp_path / "other", 1) as (other,):
        with other.journal.locked(1) as file:
            for _ in range(generation - 1):
                other.journal._replace(file, file.records, complete=True)
                assert other.journal.file
                file = other.journal.file
        insert(other, "foreign", "d-9")
    with stores(tmp_path, 1) as (store,):
        insert(store, "u", "d-0")
        (tmp_path / "other" / JOURNAL).rename(tmp_path / JOURNAL)
        check_held(store, "d-0")
        insert(store, "new", "d-9")


def test_a_replaced_file_that_is_moved_back_is_recognized_as_outdated(tmp_path: Path) -> None:
    """An administrator moves the file away while the plugin runs, and moves it back while the plugin is stopped."""
    with stores(tmp_path, 1) as (store,):
        do(store, lambda records: records.clear_meta(RECOVER))
        (tmp_path / JOURNAL).rename(tmp_path / "away")
        insert(store, "u", "d-0")
    (tmp_path / "away").rename(tmp_path / JOURNAL)
    with stores(tmp_path, 1) as (store,):
        assert do(store, lambda records: records.has_meta(RECOVER))
        assert "a newer file had replaced it" in store.journal.report[0]


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "ftruncate"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failed_write_loses_only_its_own_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    """This holds also if the partial write cannot be removed from the file: a reader then treats it as a write of
    another instance.
    """
    with stores(tmp_path, 1) as (store,):
        insert(store, "u", "d-0")
        real = os.pwrite

        def write_half(fd: int, data: bytes, offset: int) -> int:
            real(fd, data[: len(data) // 2], offset)
            raise OSError(error, os.strerror(error))

        def fault(*_: Any) -> Any:
            raise OSError(error, os.strerror(error))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fault)
            if call != "fdatasync":
                patch.setattr(os, "pwrite", write_half)
            if call == "ftruncate":
                patch.setattr(os, "ftruncate", fault)
            (response,) = store._work([RecordJob(lambda records: records.insert(make_record("v", "d-1")), Mode.SYNC)])
            assert isinstance(response, RecordsError)
        check_held(store, "d-0")
        insert(store, "w", "d-1")
        assert [r.uid for r in do(store, Records.read_all)] == ["u", "w"]
        assert not do(store, lambda records: records.has_meta("lost"))
    with stores(tmp_path, 1) as (store,):
        assert {r.uid for r in do(store, Records.read_all)} == {"u", "w"}
        assert store.journal.report == []


def test_an_unreadable_folder_of_notes_is_not_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_read(self: ClaimSpecs) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    with stores(tmp_path, 1) as (store,):
        insert(store, "u", "d-0")
    (tmp_path / JOURNAL).unlink()
    monkeypatch.setattr(ClaimSpecs, "uids", fail_to_read)
    with pytest.raises(RecordsError, match="Input/output"), stores(tmp_path, 1):
        pass
    assert not (tmp_path / JOURNAL).exists()


def test_an_unreadable_note_frees_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is missing, so only the note contains the device, and the disk fails when the note is read."""
    with stores(tmp_path, 1) as (store,):
        insert(store, "u", "d-0")
        store.journal.specs.write_note("u", b"{}")
    (tmp_path / JOURNAL).unlink()

    def fail_to_read(self: ClaimSpecs, uid: str) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(ClaimSpecs, "note", fail_to_read)
    with pytest.raises(RecordsError, match="Input/output"), stores(tmp_path, 1):
        pass
    assert not (tmp_path / JOURNAL).exists()


@pytest.mark.parametrize("has_note", [True, False])
def test_a_claim_whose_unprepare_record_is_lost_is_held_and_is_not_answered_from_its_record(
    tmp_path: Path, has_note: bool
) -> None:
    """One instance unprepares a claim, the journal is overwritten, and the other instance knows only the prepared
    claim.
    """
    path = tmp_path / JOURNAL
    with stores(tmp_path, 2) as (first, second):
        insert(second, "u", "d-0")
        record = make_record("u", "d-0")
        if has_note:
            second.journal.specs.write_note("u", note_of(record))
        do(first, lambda records: records.forget("u"))
        path.write_bytes(b"garbage")
        first.journal.check()
        (row,) = do(second, Records.read_all)
        assert (row.state, row.partial) == (record.state, not has_note)
        check_held(first, "d-0")
        check_held(second, "d-0")


def test_forget_does_not_change_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    path.write_bytes(b"garbage")
    with pytest.raises(RecordsError, match="start the plugin"):
        forget(path, 0.01, "u")
    assert path.read_bytes() == b"garbage"


def test_a_copy_of_a_damaged_file_that_exceeds_the_free_space_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / JOURNAL).write_bytes(b"garbage" * 9)

    def write_half(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:9])
        fails()

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", fails)
        patch.setattr(Path, "write_bytes", write_half)
        with pytest.raises(RecordsError, match="disk is full"), stores(tmp_path, 1):
            pass
    assert list(tmp_path.glob("*.damaged-*")) == []


def test_the_devices_of_a_newer_record_are_held_even_if_its_head_is_damaged(tmp_path: Path) -> None:
    with stores(tmp_path, 1) as (store,):
        insert(store, "u", "d-0")
    path = tmp_path / JOURNAL
    body = b'{"uid":"n","namespace":"ns","name":"n","state":"Newer","doc":{"devices":[{"pool":"node","device":"d-1"}]}}'
    append_body(path, make_record("n", "d-1"), body)
    path.write_bytes(path.read_bytes().replace(b'"uid":"n","claim"', b'"uid":"X","claim"'))
    with stores(tmp_path, 1) as (store,):
        check_held(store, "d-0", "d-1")


def test_a_journal_that_is_temporarily_a_folder_or_a_link_is_an_error_and_loses_no_record(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    with stores(tmp_path, 1) as (store,):
        insert(store, "u", "d-0")
        path.rename(tmp_path / "away")
        path.mkdir()
        with pytest.raises(RecordsError, match="is a directory: move it away"):
            insert(store, "thief", "d-0")
        path.rmdir()
        path.symlink_to(tmp_path / "away")
        with pytest.raises(RecordsError, match="symbolic link"):
            insert(store, "thief", "d-0")
        path.unlink()
        check_held(store, "d-0")
