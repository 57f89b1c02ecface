"""A check of parameters that hangs keeps its thread, whichever way its caller gave up; when all are kept, that is said at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest

from dra_kubeletplugin.driver.checks import ParameterChecks
from dra_kubeletplugin.errors import DriverFailedError
from tests.claims.test_rollback import HolderTrackingDriver
from tests.helpers.crash.claim_manager import running_manager


async def test_threads_of_callers_that_were_cancelled_are_counted() -> None:
    """As where a claim is answered from its record, because the API server or the check takes long."""
    checks, goes_on = ParameterChecks(2), threading.Event()
    began = threading.Semaphore(0)

    def hang() -> None:
        began.release()
        goes_on.wait()

    try:
        for _ in range(2):
            task = asyncio.create_task(checks(hang, 30))
            await asyncio.to_thread(began.acquire)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        before = time.monotonic()
        with pytest.raises(DriverFailedError, match="all 2 threads run checks that have not returned"):
            await checks(lambda: None, 30)
        assert time.monotonic() - before < 15
    finally:
        goes_on.set()
    while checks.stuck():
        await asyncio.sleep(0.01)
    await checks(lambda: None, 30)


async def test_a_caller_that_was_cancelled_before_its_check_began_keeps_no_thread() -> None:
    checks, goes_on = ParameterChecks(1), threading.Event()
    running = asyncio.create_task(checks(goes_on.wait, 30))
    waiting = asyncio.create_task(checks(lambda: None, 30))
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert checks.stuck() == ""
    goes_on.set()
    assert await running


async def test_readiness_notes_that_claims_with_large_parameters_cannot_be_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_manager(tmp_path, HolderTrackingDriver()) as one:
        assert await one.claims.notes() == []
        monkeypatch.setattr(one.claims.engine.verifier._resolver._checks, "stuck", lambda: "all threads run checks")
        (note,) = await one.claims.notes()
        assert note == (
            "claims with large parameters cannot be prepared: all threads run checks: restart the plugin's pod"
        )
        assert await one.claims.faults() == []  # it serves all other claims
