"""A rollback that fails at one step: what is scheduled, logged and recorded, and what the claim that waits for it gets."""

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
from tests.claims.test_engine_steps import Plain, Undoing, in_flight
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import BOOT, DRIVER
from tests.helpers.waiting import wait_until


def full(*_: Any, **__: Any) -> Any:
    raise RecordsError("the disk is full")


def events(one: RunningManager) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    one.claims.engine.rollback.events.warn_claim = (  # type: ignore[method-assign]
        lambda claim, reason, message: found.append((f"{claim.namespace}/{claim.name}", f"{reason}: {message}"))
    )
    return found


async def test_a_failed_rollback_is_recorded_scheduled_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        retries, told = one.claims.engine.rollback.retries, events(one)
        await one.prepare(ref)
        driver.fault["unprepare"] = DriverError("x" * 2_000)
        for attempt in (1, 2):
            assert isinstance(await one.unprepare(ref), DraError)
            row = await one.claims.store.get("a")
            assert isinstance(row, Record)
            assert (row.state, row.owner, row.attempts, len(row.error)) == (State.UNPREPARING, "", attempt, 500)
            assert row.retry_at is not None
            assert retries._retries["a"].failures == attempt
        assert [r.levelno for r in caplog.records] == [logging.WARNING]
        assert caplog.records[0].getMessage().startswith("cannot roll back claim; its devices stay held: ")
        assert b"dra_rollback_failures_total 2.0" in one.metrics.text()
        assert len(told) == 2
        assert told[0][0] == "ns/a"
        assert told[0][1].startswith(
            "UnprepareFailed: cannot unprepare the claim; its devices stay held, and the plugin retries: "
        )
        changes = one.changes
        driver.fault.clear()
        assert await one.unprepare(ref) == ()
        assert (retries._retries, retries._logged, one.changes) == ({}, {}, changes + 1)


@pytest.mark.parametrize("error", [DriverError("no"), StoppingError("the plugin is shutting down")])
async def test_a_failed_prepare_that_cannot_be_rolled_back_is_an_event_unless_the_plugin_stops(
    tmp_path: Path, error: DraError
) -> None:
    api, driver = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        told = events(one)
        driver.fault = {"prepare": DriverError("first"), "unprepare": error}
        answer = await one.prepare(ref)
        assert "first" in str(answer)
        assert [text.partition(":")[0] for _, text in told] == ["RollbackFailed"] * isinstance(error, DriverError)
        assert all("cannot roll back the claim; its devices stay held" in text for _, text in told)


async def test_a_failed_prepare_whose_rollback_cannot_be_recorded_is_scheduled_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, driver = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        retries = one.claims.engine.rollback.retries
        driver.fault["prepare"] = DriverError("no")
        with monkeypatch.context() as patch:
            patch.setattr(Records, "update", full)
            assert isinstance(await one.prepare(ref), DriverError)
        assert "cannot roll back a failed prepare: " in caplog.text
        assert "the disk is full" in caplog.text
        assert retries._retries["a"].failures == 1
        assert await one.records() == {"a": "Preparing"}
        retries._retries["a"].due = 0.0
        task = asyncio.create_task(retries.run(one.claims.engine.rollback.tidy))
        await wait_until(lambda: not retries._retries)
        assert await one.records() == {}
        task.cancel()
        await asyncio.wait([task])


async def test_a_retry_of_a_claim_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    async with running_manager(tmp_path, Plain()) as one:
        retries = one.claims.engine.rollback.retries
        retries.failed("gone")
        assert b"dra_rollbacks_failing 1.0" in one.metrics.text()
        assert await one.claims.engine.rollback.tidy("gone") is False
        assert retries._retries == {}
        assert b"dra_rollbacks_failing 0.0" in one.metrics.text()


async def test_a_failed_prepare_whose_rollback_fails_too_is_logged_and_scheduled_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        driver.fault = {"prepare": DriverError("first"), "unprepare": DriverError("second")}
        await one.prepare(ref)
        assert one.claims.engine.rollback.retries._retries["a"].failures == 1
        assert "cannot roll back a failed prepare" not in caplog.text


@pytest.mark.parametrize("state", [State.PREPARED, State.PREPARING])
async def test_a_failed_prepare_whose_record_is_another_instance_s_now_is_left_to_it(
    tmp_path: Path, state: State
) -> None:
    api, driver = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        driver.go.clear()
        preparing = asyncio.create_task(one.prepare(ref))
        await driver.entered.wait()

        def take(records: Records) -> None:
            row = records.read("a")
            assert isinstance(row, Record)
            fence, row.state, row.owner = row.fence, state, "1-deadbeef" if state is State.PREPARING else ""
            row.doc = {**row.doc, "cdi": None, "complete": True}
            assert records.update(row, fence)

        await one.claims.store.do(take)
        driver.fault["prepare"] = DriverError("no")
        driver.go.set()
        answer = await preparing
        assert isinstance(answer, DraError) is (state is State.PREPARING)
        assert await one.records() == {"a": str(state)}
        assert in_flight(one) == []


# --- devices that other claims hold without using them -----------------------------------------------------


async def stale(one: RunningManager, uid: str = "old", device: str = "d-0") -> None:
    """Adds the record of a claim that was prepared before a reboot."""
    doc = {"devices": [{"request": "r", "pool": "node", "device": device}], "complete": True}
    record = Record(uid, "ns", uid, State.PREPARED, "an earlier " + BOOT, doc=doc)
    await one.claims.store.do(lambda records: records.insert(record))


async def test_a_stale_claim_is_rolled_back_for_the_claim_that_needs_its_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as one:
        await stale(one)
        assert not isinstance(await one.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
        assert await one.records() == {"a": "Prepared"}
        (line,) = [r for r in caplog.records if "because another claim needs them" in r.getMessage()]
        assert (vars(line)["claim"], line.levelno) == ("ns/old", logging.INFO)


@pytest.mark.parametrize(
    ("fault", "says"),
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
    tmp_path: Path, fault: DraError | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, driver = FakeApiServer(), Undoing()
    async with running_manager(tmp_path, driver, api) as one:
        await stale(one)
        if isinstance(fault, RecordsError):
            transitions = one.claims.engine.context.transitions
            monkeypatch.setattr(transitions, "free", full)
        elif fault:
            driver.fault["unprepare"] = fault
        else:
            driver.go.clear()
            one.claims.engine.rollback.holder_timeout = 0.05
        answer = await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        assert isinstance(answer, DeviceHeldError)
        assert says in str(answer)
        driver.go.set()


async def test_unfinished_work_of_a_dead_process_is_rolled_back_before_a_prepare(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api, driver = FakeApiServer(), Undoing()
    async with running_manager(tmp_path, driver, api) as one:
        driver.in_flight = one.claims.engine.context.in_flight
        doc = {"devices": [{"request": "r", "pool": "node", "device": "d-0"}]}
        record = Record("a", "ns", "a", State.PREPARING, "boot", "1-deadbeef", doc)
        await one.claims.store.do(lambda records: records.insert(record))
        assert not isinstance(await one.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
        assert driver.seen == [[State.UNPREPARING], [State.PREPARING]]
        (line,) = [r for r in caplog.records if "rolling it back first" in r.getMessage()]
        assert line.levelno == logging.INFO


async def test_only_files_without_a_record_are_orphans_and_only_damaged_files_are_restored(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as one:
        await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        rollback, specs = one.claims.engine.rollback, one.claims.files.specs
        assert rollback.holder_timeout == one.settings.call_timeout / 2
        assert await rollback.remove_orphan("a") is False
        assert await rollback.repair_files("a") is False
        assert await rollback.repair_files("unknown") is False
        specs.remove("a")
        assert await rollback.repair_files("a") is True
        assert specs.exists("a")
        await one.claims.store.do(lambda records: records.forget("a"))
        assert await rollback.remove_orphan("a") is True
        assert specs.uids() == []


async def test_a_stopping_plugin_starts_no_rollback(tmp_path: Path) -> None:
    async with running_manager(tmp_path, Plain()) as one:
        await one.claims.stop(0)
        with pytest.raises(StoppingError, match="its next start continues"):
            await one.claims.engine.rollback.tidy("a")


async def test_lines_of_a_rollback_in_the_background_have_the_claim(tmp_path: Path) -> None:
    class Looking(Plain):
        async def unprepare(self, claim: PreparedClaim) -> None:
            seen.append(dict(log_fields()))

    seen: list[dict[str, Any]] = []
    async with running_manager(tmp_path, Looking()) as one:
        record = Record("a", "ns", "a", State.PREPARING, "boot", doc={"devices": []})
        await one.claims.store.do(lambda records: records.insert(record))
        report = await one.claims.reconciler.once(ask_server=False)
        assert report.rolled_back == ["a"]
        assert [(f["claim"], f["claim_uid"]) for f in seen] == [("ns/a", "a")]
