"""A rollback that fails at one step: its schedule, log lines, record and events, and the error of the claim that waits
for it.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import PreparedClaim
from dra_kubeletplugin.base.telemetry.logs import log_fields
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.errors import DeviceHeldError, DraError, DriverError, RecordsError, StoppingError
from tests.claims.test_engine_steps import BlockingDriver, PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import BOOT, DRIVER
from tests.helpers.waiting import wait_until


def fail_on_full_disk(*_: Any, **__: Any) -> Any:
    raise RecordsError("the disk is full")


def record_events(manager: RunningManager) -> list[tuple[str, str]]:
    events: list[tuple[str, str]] = []
    manager.claims.engine.rollback.events.warn_claim = (  # type: ignore[method-assign]
        lambda claim, reason, message: events.append((f"{claim.namespace}/{claim.name}", f"{reason}: {message}"))
    )
    return events


async def test_a_failed_rollback_is_recorded_scheduled_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        retries, events = manager.claims.engine.rollback.retries, record_events(manager)
        await manager.prepare(ref)
        driver.fault["unprepare"] = DriverError("x" * 2_000)
        for attempt in (1, 2):
            assert isinstance(await manager.unprepare(ref), DraError)
            row = await manager.claims.store.get("a")
            assert isinstance(row, Record)
            assert (row.state, row.owner, row.attempts, len(row.error)) == (State.UNPREPARING, "", attempt, 500)
            assert row.retry_at is not None
            assert set(retries.due) == {"a"}
        assert [r.levelno for r in caplog.records] == [logging.WARNING]
        assert caplog.records[0].getMessage().startswith("cannot roll back claim; its devices stay held: ")
        assert b"dra_rollback_failures_total 2.0" in manager.metrics.text()
        assert len(events) == 2
        assert events[0][0] == "ns/a"
        assert events[0][1].startswith(
            "UnprepareFailed: cannot unprepare the claim; its devices stay held, and the plugin retries: "
        )
        changes = manager.changes
        driver.fault.clear()
        assert await manager.unprepare(ref) == ()
        assert (retries.due, manager.changes) == ({}, changes + 1)


@pytest.mark.parametrize("error", [DriverError("second"), StoppingError("the plugin is shutting down")])
async def test_a_failed_prepare_that_cannot_be_rolled_back_is_scheduled_once_and_an_event_unless_the_plugin_stops(
    tmp_path: Path, error: DraError, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        events = record_events(manager)
        driver.fault = {"prepare": DriverError("first"), "unprepare": error}
        assert "first" in str(await manager.prepare(ref))
        assert [text.partition(":")[0] for _, text in events] == ["RollbackFailed"] * isinstance(error, DriverError)
        assert all("cannot roll back the claim; its devices stay held" in text for _, text in events)
        assert set(manager.claims.engine.rollback.retries.due) == {"a"}
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
            f"cannot roll back claim; its devices stay held: {error}",
            "cannot prepare claim: DRIVER: first [DRA-E003]",
        ]


async def test_a_failed_prepare_whose_rollback_cannot_be_recorded_is_scheduled_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        retries = manager.claims.engine.rollback.retries
        driver.fault["prepare"] = DriverError("no")
        with monkeypatch.context() as patch:
            patch.setattr(Records, "update", fail_on_full_disk)
            assert isinstance(await manager.prepare(ref), DriverError)
        assert "cannot roll back a failed prepare: " in caplog.text
        assert "the disk is full" in caplog.text
        assert set(retries.due) == {"a"}
        assert await manager.records() == {"a": "Preparing"}
        retries.due["a"] = 0.0
        task = asyncio.create_task(retries.run(manager.claims.engine.rollback.tidy))
        await wait_until(lambda: not retries.due)
        assert await manager.records() == {}
        task.cancel()
        await asyncio.wait([task])


async def test_the_retry_of_a_claim_without_a_record_is_removed(tmp_path: Path) -> None:
    async with running_manager(tmp_path, PlainDriver()) as manager:
        retries = manager.claims.engine.rollback.retries
        retries.failed("gone")
        assert b"dra_rollbacks_failing 1.0" in manager.metrics.text()
        assert await manager.claims.engine.rollback.tidy("gone") is False
        assert retries.due == {}
        assert b"dra_rollbacks_failing 0.0" in manager.metrics.text()


# --- devices of claims from before a reboot ----------------------------------------------------------------


async def insert_stale_record(manager: RunningManager, uid: str = "old", device: str = "d-0") -> None:
    """Adds the record of a claim that was prepared before a reboot."""
    devices = [{"request": "r", "pool": "node", "device": device}]
    record = Record(uid, "ns", uid, State.PREPARED, "an earlier " + BOOT, "", devices, complete=True)
    await manager.claims.store.do(lambda records: records.insert(record))


async def test_a_stale_claim_is_rolled_back_for_the_claim_that_needs_its_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await insert_stale_record(manager)
        assert not isinstance(await manager.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
        assert await manager.records() == {"a": "Prepared"}
        (line,) = [r for r in caplog.records if "because another claim needs them" in r.getMessage()]
        assert (vars(line)["claim"], line.levelno) == ("ns/old", logging.INFO)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            DriverError("the card does not answer"),
            "a device is still held: claim ns/old (UID old) cannot be rolled back: ",
        ),
        (RecordsError("x"), "a device is still held by claim ns/old (UID old), which cannot be rolled back: "),
        (
            None,
            "a device is still held by claim ns/old (UID old), whose rollback takes longer than 0.05 s: the kubelet retries",
        ),
    ],
    ids=["undo fails", "records fail", "undo is slow"],
)
async def test_a_claim_gets_the_reason_why_a_stale_claim_keeps_its_device(
    tmp_path: Path, fault: DraError | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        await insert_stale_record(manager)
        if isinstance(fault, RecordsError):
            transitions = manager.claims.engine.transitions
            monkeypatch.setattr(transitions, "free", fail_on_full_disk)
        elif fault:
            driver.fault["unprepare"] = fault
        else:
            driver.go.clear()
            manager.claims.engine.rollback.holder_timeout = 0.05
        response = await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        assert isinstance(response, DeviceHeldError)
        assert message in str(response)
        driver.go.set()


async def test_unfinished_work_of_a_dead_process_is_rolled_back_before_a_prepare(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api, driver = FakeApiServer(), BlockingDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        driver.records = manager.records
        devices = [{"request": "r", "pool": "node", "device": "d-0"}]
        record = Record("a", "ns", "a", State.PREPARING, "boot", "1-deadbeef", devices)
        await manager.claims.store.do(lambda records: records.insert(record))
        assert not isinstance(await manager.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
        assert driver.states == [{"a": "Unpreparing"}, {"a": "Preparing"}]
        (line,) = [r for r in caplog.records if "rolling it back first" in r.getMessage()]
        assert line.levelno == logging.INFO


async def test_a_stopping_plugin_starts_no_rollback(tmp_path: Path) -> None:
    async with running_manager(tmp_path, PlainDriver()) as manager:
        await manager.claims.stop(0)
        with pytest.raises(StoppingError, match="its next start continues"):
            await manager.claims.engine.rollback.tidy("a")


async def test_log_lines_of_a_background_rollback_contain_the_claim(tmp_path: Path) -> None:
    class FieldRecordingDriver(PlainDriver):
        async def unprepare(self, claim: PreparedClaim) -> None:
            fields.append(dict(log_fields()))

    fields: list[dict[str, Any]] = []
    async with running_manager(tmp_path, FieldRecordingDriver()) as manager:
        record = Record("a", "ns", "a", State.PREPARING, "boot")
        await manager.claims.store.do(lambda records: records.insert(record))
        report = await manager.claims.reconciler.once(ask_server=False)
        assert report.rolled_back == ["a"]
        assert [(f["claim"], f["claim_uid"]) for f in fields] == [("ns/a", "a")]
