"""Edge cases of the engine and the records: a failure within a batch, a failed command, a repeated prepare, a lost
note.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, ContainerEdits, DeviceStatus, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.record import Fence
from dra_kubeletplugin.claims.store import files
from dra_kubeletplugin.claims.store.records import RECOVER, Records, file_name
from dra_kubeletplugin.claims.transitions import ENDED
from dra_kubeletplugin.errors import DraError, DriverError, RecordsError
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import (
    DRIVER,
    RECORDS,
    make_record,
)
from tests.helpers.drivers import make_toy_class
from tests.helpers.waiting import wait_until


class Plain(Driver):
    name = DRIVER

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        pass


def test_a_failed_command_leaves_the_file_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (path := tmp_path / RECORDS).mkdir()
    (path / "u.json").write_bytes(b"x")
    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(os, "read", fail)
    monkeypatch.setattr(os, "unlink", fail)
    descriptors = []
    for _ in range(2):  # the first round opens files that the process keeps
        for command in (lambda: files.read_rows(path), lambda: files.forget(path, 1, "u")):
            with pytest.raises(RecordsError, match="Input/output error"):
                command()
        descriptors.append(len(list(Path("/proc/self/fd").iterdir())))
    assert descriptors[0] == descriptors[1]


# --- a start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (RecordsError("the disk is full"), "claims cannot be prepared or unprepared"),
        (KeyError("odd"), "failed unexpectedly: rolling back claims"),
    ],
)
async def test_a_failure_of_the_start_is_reported_also_if_the_start_takes_long(
    tmp_path: Path,
    is_slow: bool,
    fault: Exception,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._START_TIMEOUT", 0.01 if is_slow else 100.0)
    manager = RunningManager(tmp_path, Plain(), FakeApiServer(), "boot")
    resume = asyncio.Event()
    if not is_slow:
        resume.set()

    async def fail(**options: Any) -> str:
        await resume.wait()
        raise fault

    monkeypatch.setattr(manager.claims.reconciler, "once", fail)
    await manager.open()
    assert (message in caplog.text) is not is_slow
    assert ("takes long and continues in the background: rolling back claims" in caplog.text) is is_slow
    resume.set()
    await wait_until(lambda: message in caplog.text)
    await manager.close()


# --- a prepare that fails, or seems to ------------------------------------------------------------------------


class StatusDriver(Plain):
    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        status = DeviceStatus(data={"link": "up"})
        return [d.prepared(ContainerEdits(env={"X": d.name}), status=status) for d in claim.devices]


async def test_a_prepare_succeeds_if_only_the_result_of_its_commit_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, StatusDriver(), api) as manager:
        store, attempt, update = manager.claims.store, manager.claims.store._attempt, Records.update
        faults: list[OSError] = []

        def update_and_fail(self: Records, record: Record, fence: Fence) -> bool:
            faults.append(OSError(errno.EIO, os.strerror(errno.EIO)))
            monkeypatch.setattr(Records, "update", update)
            return update(self, record, fence)

        def attempt_and_fail(*args: Any, **options: Any) -> Any:
            result = attempt(*args, **options)
            if faults:
                manager.claims.files.specs.remove("a")
                raise faults.pop()
            return result

        notifications: list[Any] = []
        monkeypatch.setattr(Records, "update", update_and_fail)
        monkeypatch.setattr(store, "_attempt", attempt_and_fail)
        monkeypatch.setattr(
            manager.claims.reports, "queue", lambda key, statuses: notifications.append((key.uid, *statuses))
        )
        manager.claims.engine.rollback.changed = lambda: notifications.append("changed")
        assert not isinstance(await manager.prepare(ref), DraError)
        assert await manager.records() == {"a": "Prepared"}
        assert notifications == ["changed", ("a", ("node", "d-0", ""))]
        assert manager.claims.files.specs.exists("a"), "the CDI file is written again"


async def test_the_files_of_a_prepare_whose_record_is_lost_are_removed_if_its_device_has_another_claim(
    tmp_path: Path,
) -> None:
    def lose_record(records: Records) -> None:
        records.forget("a")
        records.insert(make_record("b", "d-0"))

    class LosingDriver(Plain):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            await manager.claims.store.do(lose_record)
            manager.claims.files.specs.write("a", {"kind": "x"})
            return await super().prepare(claim)

    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, LosingDriver(), api) as manager:
        assert isinstance(await manager.prepare(ref), DraError)
        assert await manager.records() == {"b": "Prepared"}
        assert manager.claims.files.specs.uids() == []


async def test_a_claim_that_fails_repeatedly_in_the_same_way_is_logged_once_per_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    holder, waiting_ref = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")

    async def count_log_lines() -> int:
        line_count = len(caplog.records)
        assert isinstance(await manager.prepare(waiting_ref), DraError)
        return sum(
            r.getMessage().startswith("cannot prepare claim") and vars(r)["claim"] == "ns/b"
            for r in caplog.records[line_count:]
        )

    async with running_manager(tmp_path, Plain(), api) as manager:
        await manager.prepare(holder)
        assert [await count_log_lines() for _ in range(3)] == [1, 0, 0]
        with monkeypatch.context() as patch:
            patch.setattr(manager.claims.engine._logged, "again_after", 0.0)
            assert await count_log_lines() == 1
        api.is_unreachable = True
        assert await count_log_lines() == 1, "another reason"
        api.is_unreachable = False
        await manager.unprepare(holder)
        assert not isinstance(await manager.prepare(waiting_ref), DraError)
        await manager.unprepare(waiting_ref)
        await manager.prepare(holder)
        assert [await count_log_lines() for _ in range(2)] == [1, 0], "the failure is new after a success"


async def test_an_undo_whose_failure_cannot_be_recorded_is_not_restored_after_another_instance_has_undone_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailingDriver(Plain):
        async def unprepare(self, claim: PreparedClaim) -> None:
            raise DriverError("not now")

    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, FailingDriver(), api) as old_manager,
        running_manager(tmp_path, Plain(), api) as new_manager,
    ):
        await old_manager.prepare(ref)

        def fail_on_full_disk(*_: Any) -> bool:
            raise RecordsError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(Records, "update", fail_on_full_disk)
            assert isinstance(await old_manager.unprepare(ref), DraError)
        await new_manager.claims.store.do(
            lambda records: records.forget("a")
        )  # as if the old instance had been considered dead
        new_manager.claims.files.remove_all("a")
        assert not isinstance(await new_manager.prepare(api.allocate("b", "b", "d-0", DRIVER)), DraError)
        assert await old_manager.records() == {"b": "Prepared"}


async def test_an_unprepare_is_remembered_while_recover_may_still_report_the_claim(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as manager:
        ref = api.allocate("a", "a", "d-0", DRIVER)
        await manager.prepare(ref)
        await manager.claims.store.do(lambda records: records.set_meta(RECOVER, "pending"))
        assert await manager.unprepare(ref) == ()
        manager.claims.files.specs.write("without-a-record", {"kind": "x"})
        assert await manager.unprepare(ref._replace(uid="without-a-record")) == ()
        assert manager.claims.files.specs.uids() == []
        ended = await manager.claims.store.do(lambda records: records.get_meta(ENDED))
        assert set(ended) == {"a", "without-a-record"}


# --- a note without a record -------------------------------------------------------------------------------


async def test_files_of_a_claim_that_another_instance_unprepared_are_removed_and_not_restored(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as manager:
        await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        claims, specs = manager.claims, manager.claims.files.specs
        record = await claims.store.get("a")
        assert isinstance(record, Record)
        await claims.store.do(lambda records: records.forget("a"))
        specs.path("a").write_text("{}")  # a file that needs a repair
        assert not await claims.engine.rollback.restore_files(record.uid)
        assert not specs.path("a").exists()
        assert not specs.note_path("a").exists()


async def test_an_unprepare_frees_the_devices_if_only_the_result_of_its_transaction_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as manager:
        await manager.prepare(ref)
        unlink = os.unlink

        def unlink_and_fail(path: str) -> None:
            unlink(path)
            if path == str(manager.settings.records_path / file_name("a")):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "unlink", unlink_and_fail)
        assert await manager.unprepare(ref) == ()
        assert (await manager.records(), manager.changes) == ({}, 2)


async def test_each_claim_of_a_failed_write_is_logged_with_its_own_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    api = FakeApiServer()
    refs = [api.allocate(uid, uid, f"d-{uid}", DRIVER) for uid in "ab"]
    async with running_manager(tmp_path, Plain(), api) as manager:
        monkeypatch.setattr(manager.claims.store.folder, "commit", fail)
        responses = await manager.claims.engine.prepare(refs)
        assert {type(response) for response in responses.values()} == {RecordsError}
        lines = [vars(r) for r in caplog.records if "cannot prepare claim" in r.getMessage()]
        assert sorted((line["claim"], line["claim_uid"]) for line in lines) == [("ns/a", "a"), ("ns/b", "b")]
        monkeypatch.undo()


@pytest.mark.parametrize("superseded", [True, False])
async def test_a_superseded_claim_is_rolled_back_without_the_driver(superseded: bool) -> None:
    driver = make_toy_class()
    async with node_with(driver) as node:
        await node.run_pod()
        uid = (await node.claim_of("pod"))["metadata"]["uid"]

        def supersede(records: Records) -> None:
            row = records.read(uid)
            assert isinstance(row, Record)
            row.superseded = superseded
            assert records.update(row, row.fence)

        await node.plugin.claims.store.do(supersede)
        await node.delete_pod()
        assert (("unprepare", uid) in driver.calls) is not superseded
        assert await node.leftovers() == {"files": [], "records": [], "held": []}
