"""Edge cases of the engine and the records: a failure within a batch, a failed command, a repeated prepare, a lost
note.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dra_kubeletplugin import Claim, ContainerEdits, DeviceStatus, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import ClaimIdentity, Record, engine
from dra_kubeletplugin.claims.record import SUPERSEDED, Fence
from dra_kubeletplugin.claims.store import offline
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.claims.verification import Verifier
from dra_kubeletplugin.errors import DraError, DriverError, RecordsError
from dra_kubeletplugin.testing import node_with
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import (
    DRIVER,
    insert,
    instance,
    make_record,
    make_record_with_file,
    open_store,
    records_locked,
)
from tests.helpers.drivers import make_toy_class


class Plain(Driver):
    name = DRIVER

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        pass


# --- a batch ------------------------------------------------------------------------------------------------


def insert_meta(key: str, *, fail: bool = False) -> Any:
    def operation(records: Records) -> str:
        records.set_meta(f"note:{key}", key)
        if fail:
            raise KeyError(key)
        return key

    return operation


async def test_only_the_failed_operation_of_a_batch_is_rolled_back(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.check_file()
        transactions = store.transactions
        results = await asyncio.gather(
            *(store.do(insert_meta(k, fail=k in "bd")) for k in "abcde"), return_exceptions=True
        )
        assert store.transactions == transactions + 1
        assert [r if isinstance(r, str) else type(r) for r in results] == ["a", KeyError, "c", KeyError, "e"]
        assert await store.do(lambda records: sorted(records.get_meta("note:"))) == ["a", "c", "e"]


# --- an operator's command ----------------------------------------------------------------------------------


def test_a_failed_command_leaves_the_file_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (path := tmp_path / "records.journal").touch()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "pread", fail)
    path.write_bytes(b"x")
    with pytest.raises(RecordsError, match="Input/output error"):
        offline.read_rows(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


# --- a start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_slow", "fault", "message"),
    [
        (is_slow, fault, message)
        for is_slow in (False, True)
        for fault, message in (
            (RecordsError("the disk is full"), "claims cannot be prepared or unprepared"),
            (KeyError("odd"), "failed unexpectedly: rolling back claims"),
        )
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
    async with asyncio.timeout(30):
        while message not in caplog.text:
            await asyncio.sleep(0.001)
    await manager.close()


# --- a repetition -------------------------------------------------------------------------------------------


async def test_only_a_file_that_was_written_again_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as manager:
        for _ in range(2):
            assert not isinstance(await manager.prepare(ref), DraError)
        assert "written again" not in caplog.text
        ClaimSpecs(tmp_path / "cdi", DRIVER).remove("a")
        assert not isinstance(await manager.prepare(ref), DraError)
        assert caplog.text.count("written again") == 1


# --- the claim in the API server ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "pods"),
    [
        ({"reservedFor": [{"name": "p", "uid": "1"}, {"name": "q", "uid": "2"}]}, ["p", "q"]),
        ({"reservedFor": []}, []),
        ({"reservedFor": None}, []),
        ({}, []),
        (None, []),
    ],
)
async def test_the_pods_of_a_claim_are_those_in_reserved_for(status: Any, pods: list[str]) -> None:
    unused = cast(Any, None)
    api = FakeApiServer()
    api.claims["c"] = {"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "status": status}
    verifier = Verifier(cast(Any, api), unused, unused, unused, DRIVER)
    claim_read = await verifier.fetch(ClaimIdentity("ns", "c", "u"))
    assert claim_read is not None
    assert [p["name"] for p in claim_read.fields.reserved_for] == pods
    assert (claim_read.fields.metadata.uid, claim_read.fields.results(DRIVER), list(claim_read.fields.config())) == (
        "u",
        [],
        [],
    )


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
        engine = manager.claims.engine
        engine.context = msgspec.structs.replace(engine.context, changed=lambda: notifications.append("changed"))
        assert not isinstance(await manager.prepare(ref), DraError)
        assert await manager.records() == {"a": "Prepared"}
        assert notifications == ["changed", ("a", ("node", "d-0", ""))]
        assert manager.claims.files.specs.exists("a"), "the CDI file is written again"


async def test_the_files_of_a_prepare_whose_record_is_lost_are_removed_if_its_device_has_another_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as manager:

        def lose_record(records: Records, record: Record, fence: Fence) -> bool:
            monkeypatch.undo()
            records.forget("a")
            records.insert(make_record("b", "d-0"))
            return False

        monkeypatch.setattr(Records, "update", lose_record)
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
        monkeypatch.setattr(engine, "_LOG_AGAIN", 0.0)
        assert await count_log_lines() == 1
        monkeypatch.undo()
        api.is_unreachable = True
        assert await count_log_lines() == 1, "another reason"
        api.is_unreachable = False
        await manager.unprepare(holder)
        assert not isinstance(await manager.prepare(waiting_ref), DraError)
        api.claims.clear()
        assert [await count_log_lines() for _ in range(2)] == [1, 0]


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
        old_manager.claims.store.journal.drop()
        assert await old_manager.records() == {"b": "Prepared"}


async def test_a_close_is_bounded_and_does_not_block_the_loop_while_another_process_holds_the_records(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, wait=600)
    await store.all()
    holder = contextlib.ExitStack()
    holder.enter_context(records_locked(store.path))
    insert_task = asyncio.create_task(store.do(lambda records: records.insert(make_record("a", "d-0"))))
    is_reading = threading.Event()
    read_task = asyncio.create_task(store.do(lambda records: is_reading.set(), Mode.READ))
    assert await asyncio.to_thread(is_reading.wait, 30)  # in the same batch, before the write, which waits
    await store.close(0.1)
    assert not insert_task.done()
    holder.close()
    await asyncio.gather(read_task, insert_task)
    store.journal.process.release()


# --- a note without a record -------------------------------------------------------------------------------


async def test_a_note_without_a_record_restores_the_record_and_triggers_recovery_from_the_driver(
    tmp_path: Path,
) -> None:
    async with instance(tmp_path) as store:
        await store.check_file()
        await insert(store, make_record_with_file(tmp_path, "kept", "d-0"))
        await insert(store, make_record_with_file(tmp_path, "lost", "d-1"))
        await store.do(lambda records: (records.clear_meta(RECOVER), records.forget("lost")))
    async with instance(tmp_path) as store:
        assert {r.uid for r in await store.all()} == {"kept", "lost"}
        assert store.journal.report == ["1 record lost and rebuilt: lost"]
        assert await store.recovering()


async def test_files_of_a_claim_that_another_instance_unprepared_are_removed_and_not_restored(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as manager:
        await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        claims, specs = manager.claims, manager.claims.files.specs
        record = await claims.store.get("a")
        assert isinstance(record, Record)
        await claims.store.do(lambda records: records.forget("a"))
        specs.path("a").write_text("{}")  # a file that needs a repair
        assert not await claims.engine.rollback.restore_files(record)
        assert not specs.path("a").exists()
        assert not specs.note_path("a").exists()


async def test_each_claim_of_a_failed_write_is_logged_with_its_own_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    api = FakeApiServer()
    refs = [api.allocate(uid, uid, f"d-{uid}", DRIVER) for uid in "ab"]
    async with running_manager(tmp_path, Plain(), api) as manager:
        monkeypatch.setattr("dra_kubeletplugin.claims.store.journal.Journal.commit", fail)
        responses = await manager.claims.engine.prepare(refs)
        assert responses["a"] is responses["b"]  # one write, one exception
        lines = [vars(r) for r in caplog.records if "cannot prepare claim" in r.getMessage()]
        assert [(line["claim"], line["claim_uid"]) for line in lines] == [("ns/a", "a"), ("ns/b", "b")]
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
            row.doc = {**row.doc, SUPERSEDED: superseded}
            assert records.update(row, row.fence)

        await node.plugin.claims.store.do(supersede)
        await node.delete_pod()
        assert (("unprepare", uid) in driver.calls) is not superseded
        assert await node.leftovers() == {"files": [], "records": [], "held": []}
