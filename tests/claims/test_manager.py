"""The claim manager as a whole: its start and close, its background tasks, and what readiness and metrics show."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims import manager as module
from dra_kubeletplugin.claims.manager import _notes_of
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.claims.store.records import RECOVER
from dra_kubeletplugin.errors import DeviceUnhealthyError, DraError, DriverError, RecordsError
from tests.claims.test_engine_steps import Plain, Undoing
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.waiting import wait_until

# --- start and close ---------------------------------------------------------------------------------------


async def test_a_start_rolls_back_what_a_crash_left_without_the_api_server_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as one:
        assert "reconciled at start" not in caplog.text
        assert not isinstance(await one.prepare(api.allocate("p", "p", "d-1", DRIVER)), DraError)
        record = Record("a", "ns", "a", State.PREPARING, "boot", "1-deadbeef", {"devices": []})
        await one.claims.store.do(lambda records: records.insert(record))
    api.claims.clear()
    async with running_manager(tmp_path, Plain(), api) as one:
        assert await one.records() == {"p": "Prepared"}
        assert [r.getMessage() for r in caplog.records if "reconciled" in r.msg] == [
            "reconciled at start: rolled back: 1"
        ]
        assert one.claims.reconciler._gone_since == {}, "the API server was not asked"
        assert one.changes == 1


async def test_a_close_ends_the_work_of_the_start_and_closes_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_START_TIMEOUT", 0.01)
    one = RunningManager(tmp_path, Plain(), FakeApiServer(), "boot")
    ended = asyncio.Event()

    async def hangs(**_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(one.claims.reconciler, "once", hangs)
    await one.open()
    assert await one.claims.store.all() == []
    assert one.claims.store.journal.file is not None
    await one.close()
    await asyncio.wait_for(ended.wait(), 30)
    assert one.claims.store.journal.file is None
    with pytest.raises(RecordsError):
        await one.claims.store.all()


@pytest.mark.parametrize(("policy", "refused"), [("refuse", True), ("warn", False)])
async def test_the_policy_decides_whether_an_unhealthy_device_is_prepared(
    tmp_path: Path, policy: str, refused: bool
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api, unhealthy_policy=policy) as one:
        one.inventory.healthy = lambda name, pool: False  # type: ignore[method-assign,assignment]
        one.inventory.unhealthy_reason = lambda name, pool: "hot"  # type: ignore[method-assign,assignment]
        answer = await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        assert isinstance(answer, DeviceUnhealthyError) is refused
        admin = await one.prepare(api.allocate("b", "b", "d-1", DRIVER, adminAccess=True))
        assert not isinstance(admin, DraError)


# --- background --------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RECOVER_CHECK", 600.0)
    monkeypatch.setattr(module, "_RECOVER_RETRY", (0.001, 0.004))


@pytest.mark.usefixtures("quick")
async def test_recovery_is_retried_with_growing_pauses_and_waits_for_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_manager(tmp_path, Plain()) as one:
        script: list[Any] = [False, RecordsError("the disk is full"), False, False, True]
        pauses: list[float] = []
        sleep, calls = asyncio.sleep, []

        async def once() -> bool:
            calls.append(1)
            found = script.pop(0) if script else True
            if isinstance(found, Exception):
                raise found
            return bool(found)

        async def slept(seconds: float) -> None:
            if seconds in {0.001, 0.002, 0.004, 0.008}:
                pauses.append(seconds)
            await sleep(0)

        monkeypatch.setattr(one.claims.recovery, "once", once)
        one.claims.store.opened.clear()
        task = asyncio.create_task(one.claims._keep_recovering())
        await asyncio.sleep(0.02)
        assert calls == [], "it waits for an opening"
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": slept}))
        one.claims.store.opened.set()
        await wait_until(lambda: len(calls) == 5)
        await sleep(0.02)
        assert (len(calls), pauses) == (5, [0.001, 0.002, 0.004, 0.004])
        assert caplog.text.count("recovery failed and is retried: the disk is full") == 1
        script[:] = [False]
        one.claims.store.opened.set()
        await wait_until(lambda: len(calls) == 7)
        assert pauses[4:] == [0.001], "the first pause again after a success"
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


async def test_recovery_that_another_instance_left_undone_is_found_without_an_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RECOVER_CHECK", 0.001)
    async with running_manager(tmp_path, Plain()) as one:
        task = asyncio.create_task(one.claims._keep_recovering())
        await one.claims.store.do(lambda records: records.set_meta(RECOVER, "pending"))

        async def recovered() -> bool:
            return not await one.claims.store.recovering()

        await wait_until(recovered)
        task.cancel()
        await asyncio.wait([task])


async def test_a_removed_journal_is_written_again_while_the_plugin_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECK_INTERVAL", 0.001)
    async with running_manager(tmp_path, Plain()) as one:
        path = one.settings.records_path
        assert path.exists()
        task = asyncio.create_task(one.claims._keep_checking_file())
        for _ in range(2):
            path.unlink()
            await wait_until(path.exists)
        task.cancel()
        await asyncio.wait([task])


async def test_each_background_task_is_started_by_its_name(tmp_path: Path) -> None:
    async with running_manager(tmp_path, Plain(), reconcile_interval=600.0) as one:
        tasks = {name: asyncio.ensure_future(run()) for name, run in one.claims.background().items()}
        await asyncio.sleep(0.02)
        assert sorted(tasks) == ["alerts", "device status", "reconciler", "records", "recovery", "rollbacks"]
        assert not [name for name, task in tasks.items() if task.done()]
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())


# --- what is shown -----------------------------------------------------------------------------------------


async def test_the_metrics_count_prepared_claims_and_show_whether_the_records_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as one:
        await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        await one.claims.measure()
        assert b"dra_prepared_claims 1.0" in one.metrics.text()
        assert b"dra_records_healthy 1.0" in one.metrics.text()
        one.claims.store.fault = "the disk is full"

        async def fails() -> int:
            raise RecordsError("the disk is full")

        monkeypatch.setattr(one.claims.store, "prepared", fails)
        await one.claims.measure()
        assert b"dra_prepared_claims 1.0" in one.metrics.text()
        assert b"dra_records_healthy 0.0" in one.metrics.text()


async def test_a_fault_is_shown_until_a_test_of_the_disk_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_manager(tmp_path, Plain()) as one:
        claims = one.claims
        assert await claims.faults() == []
        with monkeypatch.context() as patch:
            patch.setattr(module, "_PROBE_TIMEOUT", 0.01)
            patch.setattr(claims.store, "probe", asyncio.Event().wait)  # no test of the disk ends
            patch.setattr(claims.files, "probe", lambda: None)
            claims.store.fault, claims.recovery.fault, claims.files.fault = "records", "recovery", "files"
            assert await claims.faults() == ["records", "recovery", "files"]
        claims.store.fault, claims.files.fault = "records", "files"

        async def tested() -> bool:
            return await claims.faults() == ["recovery"]

        await wait_until(tested)


async def test_the_notes_are_those_of_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api, driver = FakeApiServer(), Undoing()
    async with running_manager(tmp_path, driver, api) as one:
        claims, ref = one.claims, api.allocate("a", "a", "d-0", DRIVER)
        await one.prepare(ref)
        driver.fault["unprepare"] = DriverError("the card does not answer")
        assert isinstance(await one.unprepare(ref), DraError)
        assert [n.partition(" (UID")[0] for n in await claims.notes()] == ["claim ns/a"]
        claims.store.journal.report.append("repaired")
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


async def test_the_snapshot_and_the_held_devices_are_those_of_the_records(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as one:
        await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        assert [(c.name, c.state) for c in (await one.claims.snapshot()).claims] == [("a", "prepared")]
        assert list(await one.claims.held()) == [("node", "d-0")]
