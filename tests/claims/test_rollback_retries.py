"""A retry that is scheduled is not lost, and what is remembered of failed rollbacks and of the CDI folder is small and right."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_kubeletplugin import Claim, PreparedClaim
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, State, rollback_retries
from dra_kubeletplugin.claims.claim_files import ClaimFiles
from dra_kubeletplugin.claims.metadata_files import MetadataFiles
from dra_kubeletplugin.claims.rollback_retries import RollbackRetries, retry_note
from dra_kubeletplugin.driver import PreparedDevice
from dra_kubeletplugin.errors import DraError, RecordsError, StoppingError, UndoFailedError
from tests.claims.test_rollback import Counting
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.waiting import wait_until

FAST, SLOW = (f"0b6a0c1e-0000-4000-8000-00000000000{i}" for i in (1, 2))


class SlowToUndo(Counting):
    """The unprepare of SLOW waits; that of any claim raises ``broken``, where that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        if self.broken:
            raise self.broken
        if claim.uid == SLOW:
            self.waits.set()
            await self.goes_on.wait()


async def test_a_retry_that_is_scheduled_during_a_reconciling_pass_survives_the_pass(tmp_path: Path) -> None:
    """Before, the end of the pass took the result of its own earlier work on the claim for the newest, and forgot the retry."""
    api, driver = FakeApiServer(), SlowToUndo()
    fast, slow = api.allocate("fast", FAST, "d-0", DRIVER), api.allocate("slow", SLOW, "d-1", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        retries = one.claims.engine.rollback.retries
        driver.broken = OSError("the card does not answer")
        for ref in fast, slow:
            assert not isinstance(await one.prepare(ref), DraError)
            assert isinstance(await one.unprepare(ref), DraError)
        driver.broken = None
        reconciling = asyncio.create_task(one.claims.reconciler.once(ask_server=False))
        await driver.waits.wait()
        await wait_until(lambda: FAST not in retries._retries)
        assert not isinstance(await one.prepare(fast), DraError)
        driver.broken = OSError("the card does not answer")
        assert isinstance(await one.unprepare(fast), DraError)
        assert FAST in retries._retries
        driver.broken = None
        driver.goes_on.set()
        await reconciling
        assert FAST in retries._retries
        assert SLOW not in retries._retries


def test_long_texts_that_are_logged_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_retries.log, "log", lambda *args, **kwargs: None)  # else pytest keeps them
    retries = RollbackRetries(Metrics())
    retries.log("u", "text")
    tracemalloc.start()
    try:
        for i in range(1_000):
            retries.log(f"u{i % 20}", f"text {i} {'x' * 60_000}")
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()


def test_two_probes_of_the_folder_at_once_find_no_fault(tmp_path: Path) -> None:
    """Readiness and the operator's page probe in threads of their own."""
    specs = ClaimSpecs(tmp_path, "gpu.example.com")
    files = ClaimFiles(specs, MetadataFiles(tmp_path / "plugin", specs.driver))
    faults: set[str] = set()

    def probe() -> None:
        for _ in range(2_000):
            files.probe()
            faults.add(files.fault)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=probe) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert faults == {""}


def test_probes_of_a_folder_that_hangs_keep_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = ClaimSpecs(tmp_path, "gpu.example.com")
    files = ClaimFiles(specs, MetadataFiles(tmp_path / "plugin", specs.driver))
    began, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        goes_on.wait()

    monkeypatch.setattr(specs, "probe", hang)
    files.fault = "the disk is full"
    first = threading.Thread(target=files.probe)
    first.start()
    began.wait()
    for _ in range(100):
        files.probe()
    assert files.fault == "the disk is full"
    goes_on.set()
    first.join()
    assert files.fault == ""


# --- the schedule alone ------------------------------------------------------------------------------------


class Rollbacks:
    """Rolls back as a rollback does: forgets the claim, or raises what ``script`` has for the attempt."""

    def __init__(self, retries: RollbackRetries, script: list[Exception | None]) -> None:
        self.retries = retries
        self.script = script
        self.tried: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, uid: str) -> bool:
        self.tried.append(uid)
        await self.go.wait()
        if error := self.script.pop(0) if self.script else None:
            raise error
        self.retries.done(uid)
        return True


@contextlib.asynccontextmanager
async def running(*script: Exception | None) -> AsyncIterator[tuple[RollbackRetries, Rollbacks]]:
    retries = RollbackRetries(Metrics())
    rollbacks = Rollbacks(retries, list(script))
    task = asyncio.create_task(retries.run(rollbacks))
    await asyncio.sleep(0)
    yield retries, rollbacks
    assert not task.done(), "run() never returns"
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_retries, "_FIRST", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_each_claim_is_tried_once_at_a_time_until_its_rollback_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    broken = RecordsError("the records cannot be written")
    async with running(broken, broken, broken) as (retries, rollbacks):
        rollbacks.go.clear()
        for uid in "ab":
            retries.failed(uid)
        await wait_until(lambda: sorted(rollbacks.tried) == ["a", "b"])
        retries._wake.set()
        await asyncio.sleep(0.01)
        assert len(rollbacks.tried) == 2
        rollbacks.go.set()
        await wait_until(lambda: not retries._retries)
        assert len(rollbacks.tried) == 5
    assert caplog.text.count("cannot roll back claim: the records cannot be written") == 2  # once for each claim


@pytest.mark.usefixtures("at_once")
async def test_a_rollback_that_scheduled_its_own_retry_keeps_it_and_logs_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retries = RollbackRetries(Metrics())

    async def undo_fails(uid: str) -> bool:
        retries._retries[uid].due = 1e9 + time.monotonic()
        raise UndoFailedError("the card does not answer")

    task = asyncio.create_task(retries.run(undo_fails))
    retries.failed("u")
    await wait_until(lambda: 1e9 < retries._retries["u"].due < math.inf)
    await asyncio.sleep(0)
    assert retries._retries["u"].failures == 1
    task.cancel()
    await asyncio.wait([task])
    assert caplog.text == ""


@pytest.mark.usefixtures("at_once")
async def test_a_plugin_that_stops_schedules_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with running(StoppingError("the plugin is shutting down")) as (retries, rollbacks):
        retries.failed("u")
        await wait_until(lambda: rollbacks.tried)
        await asyncio.sleep(0.01)
        assert rollbacks.tried == ["u"]
        assert retries._retries["u"].failures == 1
    assert caplog.text == ""


def test_a_pause_ends_with_the_earliest_retry_and_is_at_most_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_retries, "time", SimpleNamespace(monotonic=lambda: 100.0))
    retries = RollbackRetries(Metrics())
    assert retries._pause() == 300.0
    retries.failed("a", 5)
    assert retries._pause() == 32.0
    retries.failed("b", 3)
    assert retries._pause() == 8.0
    retries._retries["c"] = rollback_retries._Retry(1, 99.0)
    assert retries._pause() == 0.0


def test_the_failures_on_record_count_also_after_those_of_this_process() -> None:
    retries = RollbackRetries(Metrics())
    assert [retries.failed("u"), retries.failed("u", 4), retries.failed("u", 1), retries.failed("u")] == [2, 16, 32, 64]


def test_a_text_is_logged_once_for_a_claim_until_the_claim_is_rolled_back(caplog: pytest.LogCaptureFixture) -> None:
    retries = RollbackRetries(Metrics())
    caplog.set_level("INFO")
    for _ in range(2):
        retries.log("u", "text %s", 1)
        retries.log("u", "text %s", 2, level=logging.INFO)
        retries.log("v", "text %s", 1)
    assert [(r.levelname, r.getMessage(), r.claim_uid) for r in caplog.records] == [  # type: ignore[attr-defined]
        ("ERROR", "text 1", "u"), ("INFO", "text 2", "u"), ("ERROR", "text 1", "v")
    ]  # fmt: skip
    retries.done("u")
    for uid in "uv":
        retries.log(uid, "text %s", 1)
    assert [r.claim_uid for r in caplog.records[3:]] == ["u"]  # type: ignore[attr-defined]


def test_the_log_fields_name_the_claim_of_the_record(caplog: pytest.LogCaptureFixture) -> None:
    record = Record("u", "ns", "c", State.UNPREPARING, "boot")
    RollbackRetries(Metrics()).log("u", "text", claim=record)
    assert (caplog.records[0].claim, caplog.records[0].claim_uid) == ("ns/c", "u")  # type: ignore[attr-defined]


def test_the_bounds_of_what_is_remembered_are_exact(caplog: pytest.LogCaptureFixture) -> None:
    retries = RollbackRetries(Metrics())
    for i in range(50):
        retries.log("u", f"text {i}")
    retries.log("u", "text 0")
    assert len(caplog.records) == 50
    retries.log("u", "text 50")
    retries.log("u", "text 0")
    assert len(caplog.records) == 52
    for i in range(999):
        retries.log(f"v{i}", "text")
    assert len(retries._logged) == 1_000
    retries.log("w", "text")
    assert len(retries._logged) == 1_000
    assert "u" not in retries._logged


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
def test_the_note_of_a_retry(
    state: State, error: str, attempts: int, due: float | None, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_retries, "time", SimpleNamespace(time=lambda: 1000.0))
    doc = {} if due is None else {"retryAt": 1000.0 + due}
    assert retry_note(Record("u", "ns", "c", state, "b", doc=doc, error=error, attempts=attempts)) == note
