"""The folder of the records is replaced by an older copy or removed, or its first opening fails: nothing that was known gets lost."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import State
from dra_kubeletplugin.claims.metadata_files import generation
from dra_kubeletplugin.claims.record import VERSION, UnreadableRecord
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.errors import DraError, RecordsBusyError, RecordsError
from tests.helpers.crash.claim_drivers import PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import (
    BOOT,
    DRIVER,
    RECORDS,
    Store,
    damage_file,
    end_recovery,
    make_record,
    make_record_with_file,
    open_store,
    records_locked,
    remove_records,
    set_version,
)

UID = "11111111-1111-1111-1111-111111111111"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open store with the claim u-0 and its note."""
    opened = open_store(tmp_path)
    end_recovery(opened)
    opened.run_now(lambda records: records.insert(make_record_with_file(tmp_path, "u-0", "d-0")), Mode.SYNC)
    yield opened
    opened.stop()


def damage_both(folder: Path, uid: str) -> None:
    """Leaves no version of a claim's record that can be read."""
    damage_file(folder / RECORDS, uid)
    (folder / RECORDS / f".{uid}.synced").unlink()


def replace_by(folder: Path, copy: Path) -> None:
    remove_records(folder / RECORDS)
    shutil.copytree(copy, folder / RECORDS)


def test_memory_is_newer_than_an_older_copy_of_the_folder_with_the_same_states(store: Store, tmp_path: Path) -> None:
    metadata = {"generation": 1, "podClaim": "", "requests": {"r": [{"driver": DRIVER, "pool": "node", "name": "d-1"}]}}
    shared = {"step": "t", "key": "k", "data": {}}
    for record in (
        make_record_with_file(tmp_path, "u-1", "d-1", metadata=metadata),
        make_record("u-2", "d-2", State.UNPREPARING, shared=[{**shared, "ready": True}]),
    ):
        store.run_now(lambda records, record=record: records.insert(record), Mode.SYNC)
    shutil.copytree(tmp_path / RECORDS, tmp_path / "copy")

    def update(records: Records) -> None:
        updated: Any = records.read("u-1")
        updated.metadata = {**metadata, "updates": {"r": 5}}
        assert records.update(updated, updated.fence)
        undone: Any = records.read("u-2")
        undone.undone, undone.shared = True, [{**shared, "ready": False}]
        assert records.update(undone, undone.fence)

    def state() -> tuple[int, bool, bool]:
        rows: dict[str, Any] = {row.uid: row for row in store.run_now(Records.read_all, Mode.READ)}
        return generation(rows["u-1"], "r"), rows["u-2"].undone, rows["u-2"].shared[0]["ready"]

    store.run_now(update)
    assert state() == (6, True, False)
    replace_by(tmp_path, tmp_path / "copy")
    store.folder.check()
    assert state() == (6, True, False)


def test_after_a_failed_first_opening_no_read_finds_an_empty_store(store: Store, tmp_path: Path) -> None:
    store.stop()
    run = open_store(tmp_path, wait=0.05)
    damage_both(tmp_path, "u-0")
    for note in (tmp_path / "cdi").glob(".*"):
        note.unlink()
    with failing_calls(errno.EIO, "rename"), pytest.raises(RecordsError):
        run.run_now(Records.read_all, Mode.READ)
    with records_locked(tmp_path / RECORDS), pytest.raises(RecordsBusyError):
        run.run_now(Records.read_all, Mode.READ)
    assert [row.uid for row in run.run_now(Records.read_all, Mode.READ)] == ["u-0"]
    run.stop()


def test_a_record_of_a_newer_version_is_not_replaced_by_the_copy_of_this_version(store: Store, tmp_path: Path) -> None:
    store.stop()
    set_version(tmp_path / RECORDS, "u-0", VERSION + 1)
    before = (tmp_path / RECORDS / "u-0.json").read_bytes()
    restarted = open_store(tmp_path)
    (row,) = restarted.run_now(Records.read_all, Mode.READ)
    assert isinstance(row, UnreadableRecord)
    assert (tmp_path / RECORDS / "u-0.json").read_bytes() == before
    restarted.stop()


class PartDriver(PlainDriver):
    """Remembers the calls that change the hardware."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        await claim.on_undo(self.part)
        self.calls.append("on")
        return await super().prepare(claim)

    async def part(self, claim: PreparedClaim) -> None:
        self.calls.append("off")


async def test_a_claim_that_another_instance_has_ended_is_not_answered_from_memory_after_the_folder_was_removed(
    tmp_path: Path,
) -> None:
    api, driver = FakeApiServer(), PartDriver()
    ref = api.allocate("c", UID, "d-1", DRIVER)
    async with (
        running_manager(tmp_path, driver, api, BOOT) as first,
        running_manager(tmp_path, driver, api, BOOT) as second,
    ):
        assert not isinstance(await first.prepare(ref), DraError)
        assert await second.unprepare(ref) == ()
        remove_records(first.settings.records_path)
        response = await first.prepare(ref)
        assert isinstance(response, DraError) or driver.calls[-1] == "on"


async def test_a_cdi_folder_that_cannot_be_read_does_not_stop_claims_without_cdi_edits(tmp_path: Path) -> None:
    class Plain(PlainDriver):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return [d.prepared() for d in claim.devices]

    (tmp_path / "cdi").write_text("a file")
    api = FakeApiServer()
    ref = api.allocate("c", UID, "d-1", DRIVER)
    async with running_manager(tmp_path, Plain(), api, BOOT) as manager:
        assert not isinstance(await manager.prepare(ref), DraError)
        assert await manager.unprepare(ref) == ()
