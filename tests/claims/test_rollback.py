"""A rollback succeeds whatever error made the prepare fail. A rollback that fails is retried with growing pauses, and its reason is
reported to the log, to Events, to readiness and to the claim that waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import re
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.telemetry.logs import log_fields
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import ClaimIdentity, Record, State
from dra_kubeletplugin.claims.claim_files import ClaimFiles
from dra_kubeletplugin.claims.metadata_files import MetadataFiles
from dra_kubeletplugin.claims.rollback_retries import RollbackRetries, retry_note
from dra_kubeletplugin.claims.waits import Waits
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import (
    DeviceHeldError,
    DraError,
    DriverError,
    RecordsError,
    StoppingError,
    UndoFailedError,
)
from dra_kubeletplugin.kube.event_recorder import Subject
from dra_tools.doctor.records import look
from tests.helpers.crash.claim_drivers import (
    LONGEST_LABEL,
    LONGEST_NAME,
    UID,
    BlockingDriver,
    HolderTrackingDriver,
    MetadataDriver,
    PlainDriver,
    allocate_long,
    files_of,
)
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.file_faults import FileFaults, failing_calls
from tests.helpers.crash.record_stores import BOOT, DRIVER, RECORDS
from tests.helpers.waiting import wait_until

ERRORS = [
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT,
    errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EBUSY,
    errno.EINTR, errno.ENOTEMPTY, errno.ENODEV, errno.ETXTBSY, errno.EFBIG,
]  # fmt: skip
PREPARING = {"open", "write", "fchmod", "close", "rename"}
UNPREPARING = {"unlink"}
OTHER = "0b6a0c1e-0000-4000-8000-000000000002"


class FakeEventRecorder:
    """Records the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def warn_claim(self, claim: Subject, reason: str, message: str) -> None:
        self.events.append((claim.uid, reason, message))


def record_events(manager: RunningManager) -> list[tuple[str, str, str]]:
    recorder = FakeEventRecorder()
    manager.claims.engine.rollback.events = recorder  # type: ignore[assignment]
    return recorder.events


def faults_of(manager: RunningManager) -> FileFaults:
    return FileFaults(manager.settings.cdi_root, manager.settings.plugin_dir / "dra-device-metadata")


# --- failures of file operations ----------------------------------------------------------------------


async def check_claims(
    manager: RunningManager, driver: HolderTrackingDriver, ref: ClaimIdentity, other_ref: ClaimIdentity
) -> None:
    """Asserts that after the faults the claim can be unprepared, the other claim can be prepared, and no state is
    left.
    """
    if not isinstance(await manager.prepare(ref), DraError):
        assert isinstance(await manager.prepare(other_ref), DeviceHeldError)
        assert driver.holders == {ref.uid}
    assert await manager.unprepare(ref) == ()
    assert not isinstance(await manager.prepare(other_ref), DraError)
    assert await manager.unprepare(other_ref) == ()
    await manager.claims.reconciler.once()
    assert await manager.records() == {}
    assert driver.holders == set()
    assert [p for p in files_of(manager) if p.is_dir() or not p.name.startswith(".")] == []
    assert [p for p in files_of(manager) if p.name.endswith(".record")] == []


@pytest.mark.cases(12)
@pytest.mark.parametrize("operation", ["prepare", "unprepare"])
@pytest.mark.parametrize("is_permanent", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("error", ERRORS, ids=[errno.errorcode[e] for e in ERRORS])
async def test_an_error_at_any_file_operation_leaves_no_state(
    tmp_path: Path, error: int, is_permanent: bool, operation: str
) -> None:
    api, driver = FakeApiServer(), HolderTrackingDriver()
    ref = allocate_long(api, LONGEST_NAME, request=f"{'r' * 63}/{'s' * 63}")
    other_ref = allocate_long(api, "other", OTHER)
    async with running_manager(tmp_path, driver, api) as manager:
        faults, failed = faults_of(manager), set()
        for number in range(200):
            if operation == "unprepare":
                assert not isinstance(await manager.prepare(ref), DraError)
            with faults.failing(error, lambda n, at=number: n >= at if is_permanent else n == at):  # type: ignore[misc]
                await (manager.prepare(ref) if operation == "prepare" else manager.unprepare(ref))
            failed |= set(faults.failed)
            await check_claims(manager, driver, ref, other_ref)
            if faults.count <= number:
                assert failed >= (PREPARING if operation == "prepare" else UNPREPARING)
                return
    raise AssertionError("more file operations than expected")


async def test_only_a_full_disk_leads_to_the_advice_to_free_space(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = allocate_long(api)
    async with running_manager(tmp_path, MetadataDriver(), api) as manager:
        for error in ERRORS:
            with FileFaults(manager.settings.cdi_root).failing(error, lambda number: True):
                response = await manager.prepare(ref)
            assert isinstance(response, DraError)
            assert ("space" in str(response)) == (error == errno.ENOSPC)
            assert str(manager.settings.cdi_root) in str(response)
            assert manager.process.id not in str(response)  # the text is the same in each process


# --- failing rollbacks ---------------------------------------------------------------------------------


async def test_readiness_and_the_claims_command_show_the_claim_the_reason_the_attempts_and_the_next_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api, driver = FakeApiServer(), HolderTrackingDriver()
    ref = allocate_long(api)
    async with running_manager(tmp_path, driver, api) as manager:
        await manager.prepare(ref)
        metadata = manager.settings.plugin_dir / "dra-device-metadata"
        with FileFaults(metadata).failing(errno.EROFS, lambda number: True):
            assert isinstance(await manager.unprepare(ref), UndoFailedError)
        (record,) = await manager.claims.store.all()
        reason = "cannot be removed (Read-only file system): its file system is read-only; see the kernel's log, and mount it writable"
        assert record.error == f"{metadata}/{UID}_r.json {reason}"
        assert await manager.claims.faults() == []  # the node serves all other claims
        (note,) = await manager.claims.notes()
        assert re.fullmatch(
            rf"claim {LONGEST_LABEL}/c \(UID {UID}\) cannot be rolled back and keeps its devices \(tried 1 time, next in [0-2] s\): "
            r".*Read-only file system.*",
            note,
        )
        options = ["--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path / "cdi"), "--driver-name", DRIVER]
        assert main(["claims", *options]) == 0
        output = capsys.readouterr().out
        assert "Read-only file system" in output
        assert "tried 1 time, next in " in output
        assert main(["claims", *options, "-o", "json"]) == 0
        assert '"nextAttempt": "20' in capsys.readouterr().out
        (finding,) = [finding async for finding in look(tmp_path, tmp_path / "cdi", None)]
        assert "cannot be rolled back and keeps its devices (tried 1 time, next in " in finding.text


async def test_each_text_of_a_repeated_failure_is_logged_once_and_the_event_does_not_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), HolderTrackingDriver()
    ref, other_ref = allocate_long(api), allocate_long(api, "other", OTHER)
    async with running_manager(tmp_path, driver, api) as manager:
        events = record_events(manager)
        await manager.prepare(ref)
        driver.failure = OSError("the card does not answer")
        caplog.set_level(logging.INFO)
        for _ in range(20):
            assert isinstance(await manager.unprepare(ref), UndoFailedError)
            response = await manager.prepare(other_ref)
            assert isinstance(response, DeviceHeldError)
            assert "the card does not answer" in str(response)
            await manager.claims.reconciler.once()
        assert driver.attempts == 60
        lines = [r.getMessage() for r in caplog.records]
        # A repeated failure of a driver method is logged at the 1st, 2nd, 4th and 8th failure, and so on.
        lines = [line for line in lines if "reconciled: " not in line and " times: " not in line]
        assert len(lines) == len(set(lines)) < 8, lines
        assert len(set(events)) == 1
        ((uid, reason, text), *_) = events
        assert (uid, reason) == (UID, "UnprepareFailed")
        assert "the card does not answer" in text
        driver.failure = None
        assert not isinstance(await manager.prepare(other_ref), DraError)
        assert await manager.unprepare(ref) == ()


async def test_the_plugin_retries_without_a_call_and_with_growing_pauses(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), HolderTrackingDriver()
    ref = allocate_long(api)
    waits: dict[str, Any] = {"rollback_retries": (0.01, 300.0), "rollback_check": 0.001}
    async with running_manager(tmp_path, driver, api, **waits) as manager:
        await manager.prepare(ref)
        driver.failure = OSError("the card does not answer")
        await manager.unprepare(ref)
        async with manager.background("rollbacks"):
            await wait_until(lambda: driver.attempts > 4)
            driver.failure = None
            await wait_until(lambda: _records_are(manager, {}))
        assert files_of(manager) == []


async def _records_are(manager: RunningManager, expected: dict[str, str]) -> bool:
    return await manager.records() == expected


def test_the_pause_doubles_from_two_seconds_to_five_minutes() -> None:
    retries = RollbackRetries(Metrics(), Waits())
    assert [retries.failed("u") for _ in range(10)] == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert retries.failed("v", 1_000_000) == 300  # the number of attempts in the record, after a restart
    assert [retries.failed("w"), retries.failed("w", 4), retries.failed("w", 1), retries.failed("w")] == [2, 16, 32, 64]
    retries.done("u")
    assert retries.failed("u") == 2


async def test_a_forgotten_claim_leaves_no_metadata_files(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = allocate_long(api)
    async with running_manager(tmp_path, MetadataDriver(), api) as manager:
        await manager.prepare(ref)
    options = ["--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path / "cdi"), "--driver-name", DRIVER]
    assert main(["claims", "forget", UID, "--yes", *options]) == 0
    assert files_of(manager) == []


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
        assert events[0][:2] == ("a", "UnprepareFailed")
        assert events[0][2].startswith("cannot unprepare the claim; its devices stay held, and the plugin retries: ")
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
        assert [reason for _, reason, _ in events] == ["RollbackFailed"] * isinstance(error, DriverError)
        assert all("cannot roll back the claim; its devices stay held" in text for _, _, text in events)
        assert set(manager.claims.engine.rollback.retries.due) == {"a"}
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
            f"cannot roll back claim; its devices stay held: {error}",
            "cannot prepare claim: DRIVER: first [DRA-E003]",
        ]


async def test_a_failed_prepare_whose_rollback_cannot_be_recorded_is_scheduled_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api, rollback_retries=(0.001, 1.0), rollback_check=0.001) as manager:
        driver.fault["prepare"] = DriverError("no")
        driver.go.clear()
        preparing = asyncio.create_task(manager.prepare(ref))
        await driver.entered.wait()
        with failing_calls(errno.ENOSPC, "open", text=f"{RECORDS}/."):
            driver.go.set()
            assert isinstance(await preparing, DriverError)
        assert "cannot roll back a failed prepare: " in caplog.text
        assert "the disk is full" in caplog.text
        assert await manager.records() == {"a": "Preparing"}
        async with manager.background("rollbacks"):
            await wait_until(lambda: _records_are(manager, {}))


async def test_the_retry_of_a_claim_without_a_record_is_removed(tmp_path: Path) -> None:
    async with running_manager(tmp_path, PlainDriver()) as manager:
        retries = manager.claims.engine.rollback.retries
        retries.failed("gone")
        assert b"dra_rollbacks_failing 1.0" in manager.metrics.text()
        assert await manager.claims.engine.rollback.tidy("gone") is False
        assert retries.due == {}
        assert b"dra_rollbacks_failing 0.0" in manager.metrics.text()


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


class SlowUndoDriver(HolderTrackingDriver):
    """The unprepare of "slow" waits. The unprepare of any claim raises ``failure``, if it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting = asyncio.Event()
        self.resume = asyncio.Event()

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        if self.failure:
            raise self.failure
        if claim.uid == "slow":
            self.is_waiting.set()
            await self.resume.wait()


async def test_a_retry_that_is_scheduled_during_a_reconcile_pass_survives_the_pass(tmp_path: Path) -> None:
    """Without this, the end of the pass uses the result of its own earlier work on the claim, and removes the retry."""
    api, driver = FakeApiServer(), SlowUndoDriver()
    fast_ref, slow_ref = api.allocate("fast", "fast", "d-0", DRIVER), api.allocate("slow", "slow", "d-1", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        retries = manager.claims.engine.rollback.retries
        driver.failure = OSError("the card does not answer")
        for ref in fast_ref, slow_ref:
            assert not isinstance(await manager.prepare(ref), DraError)
            assert isinstance(await manager.unprepare(ref), DraError)
        driver.failure = None
        reconciling = asyncio.create_task(manager.claims.reconciler.once(ask_server=False))
        await driver.is_waiting.wait()
        await wait_until(lambda: "fast" not in retries.due)
        assert not isinstance(await manager.prepare(fast_ref), DraError)
        driver.failure = OSError("the card does not answer")
        assert isinstance(await manager.unprepare(fast_ref), DraError)
        assert "fast" in retries.due
        driver.failure = None
        driver.resume.set()
        await reconciling
        assert "fast" in retries.due
        assert "slow" not in retries.due


def test_probes_of_a_hanging_folder_use_one_thread(tmp_path: Path) -> None:
    files = ClaimFiles(ClaimSpecs(tmp_path, DRIVER), MetadataFiles(tmp_path / "plugin", DRIVER))
    has_begun, resume = threading.Event(), threading.Event()

    def hang() -> None:
        has_begun.set()
        resume.wait()

    files.fault = "the disk is full"
    with failing_calls(0, "open", text=str(tmp_path), do=hang):
        first = threading.Thread(target=files.probe)
        first.start()
        has_begun.wait()
        for _ in range(100):
            files.probe()
        assert files.fault == "the disk is full"
        resume.set()
        first.join()
    assert files.fault == ""


# --- the schedule alone ------------------------------------------------------------------------------------


class FakeRollbacks:
    """Forgets the claim as a rollback does, or raises the next exception in ``results``."""

    def __init__(self, retries: RollbackRetries, results: list[Exception | None]) -> None:
        self.retries = retries
        self.results = results
        self.uids: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, uid: str) -> bool:
        self.uids.append(uid)
        await self.go.wait()
        if error := self.results.pop(0) if self.results else None:
            raise error
        self.retries.done(uid)
        return True


@contextlib.asynccontextmanager
async def running_retries(*results: Exception | None) -> AsyncIterator[tuple[RollbackRetries, FakeRollbacks]]:
    retries = RollbackRetries(Metrics(), Waits(rollback_retries=(0.0, 0.0), rollback_check=0.001))
    rollbacks = FakeRollbacks(retries, list(results))
    task = asyncio.create_task(retries.run(rollbacks))
    await asyncio.sleep(0)
    yield retries, rollbacks
    assert not task.done(), "run() never returns"
    task.cancel()
    await asyncio.wait([task])


async def test_one_rollback_of_a_claim_runs_at_a_time_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    failure = RecordsError("the records cannot be written")
    async with running_retries(failure, failure, failure) as (retries, rollbacks):
        rollbacks.go.clear()
        for uid in "ab":
            retries.failed(uid)
        await wait_until(lambda: sorted(rollbacks.uids) == ["a", "b"])
        await asyncio.sleep(0.01)
        assert len(rollbacks.uids) == 2
        rollbacks.go.set()
        await wait_until(lambda: not retries.due)
        assert len(rollbacks.uids) == 5
    assert caplog.text.count("cannot roll back claim: the records cannot be written") == 2  # once for each claim


async def test_a_stopping_plugin_schedules_no_retry(caplog: pytest.LogCaptureFixture) -> None:
    async with running_retries(StoppingError("the plugin is shutting down")) as (retries, rollbacks):
        retries.failed("u")
        await wait_until(lambda: rollbacks.uids)
        await asyncio.sleep(0.01)
        assert rollbacks.uids == ["u"]
        assert retries.due == {"u": math.inf}
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("state", "error", "attempts", "due", "note"),
    [
        (State.PREPARED, "e", 1, 5.0, ""),
        (State.UNPREPARING, "", 1, 5.0, ""),
        (State.UNPREPARING, "e", 1, 5.0, "tried 1 time, next in 5 s"),
        (State.UNPREPARING, "e", 2, -5.0, "tried 2 times, next in 0 s"),
        (State.UNPREPARING, "e", 0, None, "tried 0 times"),
    ],
)
def test_the_retry_note_contains_the_attempts_and_the_next_time(
    state: State, error: str, attempts: int, due: float | None, note: str
) -> None:
    retry_at = None if due is None else time.time() + due + 0.4
    record = Record("u", "ns", "c", state, "b", error=error, attempts=attempts, retry_at=retry_at)
    assert retry_note(record) == note


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
        (
            None,
            "a device is still held by claim ns/old (UID old), whose rollback takes longer than 0.5 s: the kubelet retries",
        ),
    ],
    ids=["undo fails", "undo is slow"],
)
async def test_a_claim_gets_the_reason_why_a_stale_claim_keeps_its_device(
    tmp_path: Path, fault: DraError | None, message: str
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    async with running_manager(tmp_path, driver, api, call_timeout=60 if fault else 1) as manager:
        await insert_stale_record(manager)
        if fault:
            driver.fault["unprepare"] = fault
        else:
            driver.go.clear()
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
