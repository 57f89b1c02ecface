"""The claim manager as a whole: its start and close, its background tasks, and its readiness, notes and metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims import manager as module
from dra_kubeletplugin.claims.manager import _notes_of
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.claims.store.records import RECOVER, file_name
from dra_kubeletplugin.errors import DeviceUnhealthyError, DraError, DriverError, RecordsError
from tests.claims.test_engine_steps import BlockingDriver, PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER, insert, make_record, remove_records
from tests.helpers.waiting import wait_until

# --- start and close ---------------------------------------------------------------------------------------


async def test_a_start_rolls_back_the_remains_of_a_crash_without_the_api_server_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        assert "reconciled at start" not in caplog.text
        assert not isinstance(await manager.prepare(api.allocate("p", "p", "d-1", DRIVER)), DraError)
        record = Record("a", "ns", "a", State.PREPARING, "boot", "1-deadbeef")
        await manager.claims.store.do(lambda records: records.insert(record))
    api.claims.clear()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        assert await manager.records() == {"p": "Prepared"}
        assert [r.getMessage() for r in caplog.records if "reconciled" in r.msg] == [
            "reconciled at start: rolled back: 1"
        ]
        assert manager.changes == 1


async def test_a_close_ends_the_work_of_the_start_and_closes_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_START_TIMEOUT", 0.01)
    manager = RunningManager(tmp_path, PlainDriver(), FakeApiServer(), "boot")
    has_ended = asyncio.Event()

    async def hangs(**_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    monkeypatch.setattr(manager.claims.reconciler, "once", hangs)
    await manager.open()
    assert await manager.claims.store.all() == []
    assert manager.claims.store.folder._fd >= 0
    await manager.close()
    await asyncio.wait_for(has_ended.wait(), 30)
    assert manager.claims.store.folder._fd < 0
    with pytest.raises(RecordsError):
        await manager.claims.store.all()


@pytest.mark.parametrize(("policy", "is_refused"), [("refuse", True), ("warn", False)])
async def test_the_policy_decides_whether_an_unhealthy_device_is_prepared(
    tmp_path: Path, policy: str, is_refused: bool
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api, unhealthy_policy=policy) as manager:
        manager.inventory.healthy = lambda name, pool: False  # type: ignore[method-assign,assignment]
        manager.inventory.unhealthy_reason = lambda name, pool: "hot"  # type: ignore[method-assign,assignment]
        response = await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        assert isinstance(response, DeviceUnhealthyError) is is_refused
        admin = await manager.prepare(api.allocate("b", "b", "d-1", DRIVER, adminAccess=True))
        assert not isinstance(admin, DraError)


# --- background --------------------------------------------------------------------------------------------


async def test_recovery_waits_for_a_repair_and_is_retried_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_RECOVER_CHECK", 600.0)
    monkeypatch.setattr(module, "_RECOVER_RETRY", (0.001, 0.004))
    async with running_manager(tmp_path, PlainDriver()) as manager:
        results: list[Any] = [False, RecordsError("the disk is full"), True, False, True]

        async def once() -> bool:
            result = results.pop(0)
            if isinstance(result, Exception):
                raise result
            return bool(result)

        monkeypatch.setattr(manager.claims.recovery, "once", once)
        manager.claims.store.repaired.clear()
        task = asyncio.create_task(manager.claims._keep_recovering())
        for left in (5, 2, 0):
            await asyncio.sleep(0.02)
            await wait_until(lambda left=left: len(results) == left)  # type: ignore[misc]
            assert caplog.text.count("recovery failed and is retried: the disk is full") == (left < 5)
            manager.claims.store.repaired.set()
        task.cancel()
        await asyncio.wait([task])


async def test_an_unfinished_recovery_of_another_instance_is_detected_without_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RECOVER_CHECK", 0.001)
    async with running_manager(tmp_path, PlainDriver()) as manager:
        task = asyncio.create_task(manager.claims._keep_recovering())
        await manager.claims.store.do(lambda records: records.set_meta(RECOVER, "pending"))

        async def is_recovered() -> bool:
            return not await manager.claims.store.recovering()

        await wait_until(is_recovered)
        task.cancel()
        await asyncio.wait([task])


async def test_a_removed_folder_is_written_again_while_the_plugin_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECK_INTERVAL", 0.001)
    async with running_manager(tmp_path, PlainDriver()) as manager:
        await insert(manager.claims.store, make_record("a", "d-0"))
        path = manager.settings.records_path
        task = asyncio.create_task(manager.claims._keep_checking_files())
        for _ in range(2):
            remove_records(path)
            await wait_until((path / file_name("a")).exists)
        task.cancel()
        await asyncio.wait([task])


async def test_each_background_task_is_started_by_its_name(tmp_path: Path) -> None:
    async with running_manager(tmp_path, PlainDriver(), reconcile_interval=600.0) as manager:
        tasks = {name: asyncio.ensure_future(run()) for name, run in manager.claims.background().items()}
        await asyncio.sleep(0.02)
        assert sorted(tasks) == ["alerts", "device status", "reconciler", "records", "recovery", "rollbacks"]
        assert not [name for name, task in tasks.items() if task.done()]
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())


# --- readiness, notes and metrics --------------------------------------------------------------------------


async def test_the_metrics_count_prepared_claims_and_show_whether_the_records_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        await manager.claims.measure()
        assert b"dra_prepared_claims 1.0" in manager.metrics.text()
        assert b"dra_records_healthy 1.0" in manager.metrics.text()
        manager.claims.store.fault = "the disk is full"

        async def fails() -> int:
            raise RecordsError("the disk is full")

        monkeypatch.setattr(manager.claims.store, "prepared", fails)
        await manager.claims.measure()
        assert b"dra_prepared_claims 1.0" in manager.metrics.text()
        assert b"dra_records_healthy 0.0" in manager.metrics.text()


async def test_a_fault_is_shown_until_a_test_of_the_disk_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_manager(tmp_path, PlainDriver()) as manager:
        claims = manager.claims
        assert await claims.faults() == []
        with monkeypatch.context() as patch:
            patch.setattr(module, "_PROBE_TIMEOUT", 0.01)
            patch.setattr(claims.store, "probe", asyncio.Event().wait)  # no test of the disk ends
            patch.setattr(claims.files, "probe", lambda: None)
            claims.store.fault, claims.recovery.fault, claims.files.fault = "records", "recovery", "files"
            assert await claims.faults() == ["records", "recovery", "files"]
        claims.store.fault, claims.files.fault = "records", "files"

        async def is_tested() -> bool:
            return await claims.faults() == ["recovery"]

        await wait_until(is_tested)


async def test_the_notes_contain_the_faults_of_every_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        claims, ref = manager.claims, api.allocate("a", "a", "d-0", DRIVER)
        await manager.prepare(ref)
        driver.fault["unprepare"] = DriverError("the card does not answer")
        assert isinstance(await manager.unprepare(ref), DraError)
        assert [n.partition(" (UID")[0] for n in await claims.notes()] == ["claim ns/a"]
        claims.store.folder.report.append("repaired")
        claims.recovery.report.append("recovered")
        claims.reports.fault = "reports"
        monkeypatch.setattr(claims.engine.verifier, "stuck", lambda: "stuck")
        assert (await claims.notes())[:4] == ["repaired", "recovered", "reports", "stuck"]

        async def fails() -> Any:
            raise RecordsError("the disk is full")

        monkeypatch.setattr(claims.store, "everything", fails)
        assert await claims.notes() == ["repaired", "recovered", "reports", "stuck"]


@pytest.mark.parametrize("failing", [0, 19, 20, 21, 25])
def test_at_most_twenty_failing_rollbacks_are_listed(failing: int) -> None:
    rows = [Record(f"u{i}", "ns", "c", State.UNPREPARING, "b", error="e", attempts=1) for i in range(failing)]
    rows.append(Record("fine", "ns", "c", State.PREPARED, "b"))
    notes = list(_notes_of([UnreadableRecord("odd", "damaged", {}), *rows]))
    assert notes[0] == "the record of claim ?/? (UID odd) cannot be read: damaged"
    assert len(notes) == 1 + min(failing, 20) + (failing > 20)
    if failing > 20:
        assert notes[-1] == f"{failing - 20} more claims cannot be rolled back: see `dra claims` on the node"
    if failing:
        assert notes[1] == "claim ns/c (UID u0) cannot be rolled back and keeps its devices (tried 1 time): e"


async def test_the_held_devices_match_the_records(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        assert list(await manager.claims.held()) == [("node", "d-0")]
