"""A retry that is scheduled is not lost, and what is remembered of failed rollbacks and of the CDI folder is small and right."""

from __future__ import annotations

import asyncio
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from dra_kubeletplugin import Claim, PreparedClaim
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import rollback_retries
from dra_kubeletplugin.claims.claim_files import ClaimFiles
from dra_kubeletplugin.claims.metadata_files import MetadataFiles
from dra_kubeletplugin.claims.rollback_retries import RollbackRetries
from dra_kubeletplugin.driver import PreparedDevice
from dra_kubeletplugin.errors import DraError
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
