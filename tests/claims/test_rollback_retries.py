"""A scheduled retry is not lost, and the memory for failed rollbacks and for the state of the CDI folder is small and
correct.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
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
from dra_kubeletplugin.errors import DraError, RecordsError, StoppingError
from tests.claims.test_rollback import HolderTrackingDriver
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.waiting import wait_until

FAST_UID, SLOW_UID = (f"0b6a0c1e-0000-4000-8000-00000000000{i}" for i in (1, 2))


class SlowUndoDriver(HolderTrackingDriver):
    """The unprepare of SLOW_UID waits. The unprepare of any claim raises ``failure``, if it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting = asyncio.Event()
        self.resume = asyncio.Event()

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        if self.failure:
            raise self.failure
        if claim.uid == SLOW_UID:
            self.is_waiting.set()
            await self.resume.wait()


async def test_a_retry_that_is_scheduled_during_a_reconcile_pass_survives_the_pass(tmp_path: Path) -> None:
    """Without this, the end of the pass uses the result of its own earlier work on the claim, and removes the retry."""
    api, driver = FakeApiServer(), SlowUndoDriver()
    fast_ref, slow_ref = api.allocate("fast", FAST_UID, "d-0", DRIVER), api.allocate("slow", SLOW_UID, "d-1", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        retries = manager.claims.engine.rollback.retries
        driver.failure = OSError("the card does not answer")
        for ref in fast_ref, slow_ref:
            assert not isinstance(await manager.prepare(ref), DraError)
            assert isinstance(await manager.unprepare(ref), DraError)
        driver.failure = None
        reconciling = asyncio.create_task(manager.claims.reconciler.once(ask_server=False))
        await driver.is_waiting.wait()
        await wait_until(lambda: FAST_UID not in retries.due)
        assert not isinstance(await manager.prepare(fast_ref), DraError)
        driver.failure = OSError("the card does not answer")
        assert isinstance(await manager.unprepare(fast_ref), DraError)
        assert FAST_UID in retries.due
        driver.failure = None
        driver.resume.set()
        await reconciling
        assert FAST_UID in retries.due
        assert SLOW_UID not in retries.due


def test_probes_of_a_hanging_folder_use_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = ClaimSpecs(tmp_path, "gpu.example.com")
    files = ClaimFiles(specs, MetadataFiles(tmp_path / "plugin", specs.driver))
    has_begun, resume = threading.Event(), threading.Event()

    def hang() -> None:
        has_begun.set()
        resume.wait()

    monkeypatch.setattr(specs, "probe", hang)
    files.fault = "the disk is full"
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
    retries = RollbackRetries(Metrics())
    rollbacks = FakeRollbacks(retries, list(results))
    task = asyncio.create_task(retries.run(rollbacks))
    await asyncio.sleep(0)
    yield retries, rollbacks
    assert not task.done(), "run() never returns"
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_retries, "_FIRST", 0.0)
    monkeypatch.setattr(rollback_retries, "_CHECK_INTERVAL", 0.001)


@pytest.mark.usefixtures("retry_at_once")
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


@pytest.mark.usefixtures("retry_at_once")
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
    state: State, error: str, attempts: int, due: float | None, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_retries, "time", SimpleNamespace(time=lambda: 1000.0))
    retry_at = None if due is None else 1000.0 + due
    record = Record("u", "ns", "c", state, "b", error=error, attempts=attempts, retry_at=retry_at)
    assert retry_note(record) == note
