"""A hanging check of parameters occupies its thread after its caller is cancelled. Without a free thread, a check fails immediately."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest

from dra_kubeletplugin.driver.checks import ParameterChecks
from dra_kubeletplugin.errors import DriverFailedError
from tests.helpers.crash.claim_drivers import HolderTrackingDriver
from tests.helpers.crash.claim_manager import running_manager
from tests.helpers.waiting import wait_until


async def test_a_check_fails_if_checks_of_cancelled_callers_use_all_threads() -> None:
    """The claim manager cancels the caller if the API server or the check is slow, and responds from the record."""
    checks, gate = ParameterChecks(2), threading.Event()
    began = threading.Semaphore(0)

    def hang() -> None:
        began.release()
        gate.wait()

    try:
        for _ in range(2):
            task = asyncio.create_task(checks(hang, 1))
            await asyncio.to_thread(began.acquire)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await wait_until(checks.stuck)
        before = time.monotonic()
        with pytest.raises(DriverFailedError, match="all 2 threads run checks that have not returned"):
            await checks(lambda: None, 30)
        assert time.monotonic() - before < 15
    finally:
        gate.set()
    while checks.stuck():
        await asyncio.sleep(0.01)
    await checks(lambda: None, 30)


async def test_a_caller_that_is_cancelled_before_its_check_begins_occupies_no_thread() -> None:
    checks, gate = ParameterChecks(1), threading.Event()
    running = asyncio.create_task(checks(gate.wait, 30))
    waiting = asyncio.create_task(checks(lambda: None, 30))
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert checks.stuck() == ""
    gate.set()
    assert await running


async def test_readiness_reports_that_claims_with_large_parameters_cannot_be_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_manager(tmp_path, HolderTrackingDriver()) as running:
        assert await running.claims.notes() == []
        monkeypatch.setattr(running.claims.engine.verifier._resolver._checks, "stuck", lambda: "all threads run checks")
        (note,) = await running.claims.notes()
        assert note == (
            "claims with large parameters cannot be prepared: all threads run checks: restart the plugin's pod"
        )
        assert await running.claims.faults() == []  # The plugin serves all other claims.
