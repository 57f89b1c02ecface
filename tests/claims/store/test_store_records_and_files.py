"""The store writes a claim's record and its files in one batch. A failure affects only its own claim, and the order of
steps is fixed.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.cdi import directory
from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.claim_files import read_note
from dra_kubeletplugin.claims.inflight import BatchWindow
from dra_kubeletplugin.claims.record import Fence
from dra_kubeletplugin.claims.store.records import HeldByError, Records
from dra_kubeletplugin.errors import DraError, RecordsError, UndoFailedError
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER, insert, instance, make_record


class EmptyDriver(Driver):
    name = DRIVER

    def devices(self) -> list[Any]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"D": d.name})) for d in claim.devices]


class FileListingDriver(EmptyDriver):
    """Records the suffixes of the files that exist when ``unprepare`` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.suffixes: list[list[str]] = []
        self.folder = Path()

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.suffixes.append(sorted(p.suffix for p in self.folder.iterdir()))


async def test_a_failed_operation_reverts_only_its_own_changes(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:

        def twice(records: Records) -> None:
            records.insert(make_record("bad", "d-9"))
            records.insert(make_record("bad", "d-9"), shared=True)

        def fail_on_full_folder(records: Records) -> None:
            records.insert(make_record("worse", "d-8"))
            raise RecordsError("the folder is full")

        result = await asyncio.gather(
            insert(store, make_record("first", "d-0")),
            store.do(twice),
            store.do(fail_on_full_folder),
            insert(store, make_record("held", "d-0")),
            insert(store, make_record("last", "d-1")),
            return_exceptions=True,
        )
        assert [type(f) for f in result] == [type(None), ValueError, RecordsError, HeldByError, type(None)]
        assert {r.uid for r in await store.all()} == {"first", "last"}
        assert {device for _, device in await store.held()} == {"d-0", "d-1"}


async def test_a_prepare_takes_two_transactions_a_repetition_one_and_an_unprepare_one_or_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchWindow.__init__, "__defaults__", (60.0,))  # waits for the slowest claim
    for driver, hops in ((EmptyDriver(), 1), (FileListingDriver(), 2)):
        api, folder = FakeApiServer(), tmp_path / type(driver).__name__
        refs = [api.allocate(f"c{i}", f"c{i}", f"d-{i}", DRIVER) for i in range(8)]
        async with running_manager(folder, driver, api) as manager:
            if isinstance(driver, FileListingDriver):
                driver.folder = manager.settings.cdi_root
            store, batches = manager.claims.store, list[int]()
            work = store._work
            monkeypatch.setattr(
                store, "_work", lambda jobs, work=work, found=batches: found.append(len(jobs)) or work(jobs)
            )
            for call, transactions in (
                (manager.claims.prepare, 2),
                (manager.claims.prepare, 1),
                (manager.claims.unprepare, hops),
            ):
                batches.clear()
                await call(refs)
                assert len(batches) == transactions


async def test_the_cdi_spec_is_removed_before_the_driver_unprepares(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), FileListingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        driver.folder = manager.settings.cdi_root
        await manager.prepare(ref)
        assert manager.claims.files.specs.note_path("a").exists()
        assert await manager.unprepare(ref) == ()
        assert driver.suffixes == [[".record"]]
        assert list(driver.folder.iterdir()) == []


@pytest.mark.parametrize("driver", [EmptyDriver(), FileListingDriver()], ids=["nothing to undo", "unprepare"])
async def test_a_spec_that_cannot_be_removed_keeps_its_record_and_its_device(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    refs = [api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("stuck", "fine"))]
    async with running_manager(tmp_path, driver, api) as manager:
        if isinstance(driver, FileListingDriver):
            driver.folder = manager.settings.cdi_root
        await manager.claims.prepare(refs)
        specs = manager.claims.files.specs
        remove = specs.remove

        def fails(uid: str) -> None:
            if uid == "stuck":
                raise PermissionError(1, "Operation not permitted")
            remove(uid)

        monkeypatch.setattr(specs, "remove", fails)
        responses = await manager.claims.unprepare(refs)
        assert isinstance(responses["stuck"], DraError)
        assert responses["fine"] == ()
        (record,) = await manager.claims.store.all()
        assert (record.uid, record.state, record.attempts) == ("stuck", "Unpreparing", 1)
        assert "Operation not permitted" in record.error
        assert set(await manager.claims.held()) == {("node", "d-0")}
        monkeypatch.undo()
        assert await manager.unprepare(refs[0]) == ()
        assert await manager.claims.store.all() == []


async def test_a_prepared_claim_has_a_note_and_a_claim_whose_commit_fails_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref, failing_ref = (api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate("ab"))
    update = Records.update

    def update_except_b(self: Records, record: Record, fence: Fence) -> bool:
        return record.uid != "b" and update(self, record, fence)

    monkeypatch.setattr(Records, "update", update_except_b)
    async with running_manager(tmp_path, EmptyDriver(), api) as manager:
        responses = await manager.claims.prepare([ref, failing_ref])
        specs = manager.claims.files.specs
        assert not isinstance(responses["a"], DraError)
        assert specs.note_path("a").stat().st_mode & 0o777 == 0o600
        assert isinstance(responses["b"], DraError)
        assert not specs.note_path("b").exists()


async def test_a_note_that_cannot_be_written_fails_no_claim_and_the_next_pass_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, EmptyDriver(), api) as manager:
        specs = manager.claims.files.specs
        with monkeypatch.context() as patch:

            def fail_on_full_disk(fd: int, data: bytes) -> None:
                os.write(fd, data[:9])
                raise OSError(28, "No space left on device")

            patch.setattr(specs, "write", lambda *_: None)
            patch.setattr(directory, "write_all", fail_on_full_disk)
            assert not isinstance(await manager.prepare(ref), DraError)
        assert not specs.note_path("a").exists()
        specs.note_path("a").touch()  # as after a killed write
        assert read_note(specs, "a") is None
        await manager.claims.reconciler.once(ask_server=False)
        note = read_note(specs, "a")
        assert note
        assert note.head.state == "Prepared"
        assert [p.name for p in specs.root.iterdir() if ".tmp-" in p.name] == []


@pytest.mark.parametrize("driver", [EmptyDriver(), FileListingDriver()], ids=["nothing to undo", "unprepare"])
async def test_a_claim_whose_note_cannot_be_removed_keeps_its_record_and_is_not_restored(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref, other_ref = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")
    async with running_manager(tmp_path, driver, api) as manager:
        if isinstance(driver, FileListingDriver):
            driver.folder = manager.settings.cdi_root
        await manager.prepare(ref)
        specs = manager.claims.files.specs
        assert specs.note_path("a").exists()

        def fails(uid: str) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(specs, "remove_note", fails)
        first = await manager.unprepare(ref)
        monkeypatch.undo()
        assert isinstance(first, UndoFailedError)
        assert await manager.records() == {"a": "Unpreparing"}  # the rollback is retried
        assert await manager.unprepare(ref) == ()
    async with running_manager(tmp_path, driver, api) as restarted:
        assert await restarted.records() == {}
        assert not isinstance(await restarted.prepare(other_ref), DraError)
