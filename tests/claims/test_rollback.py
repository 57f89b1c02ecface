"""A rollback succeeds whatever error made the prepare fail. A rollback that fails is retried with growing pauses, and
its reason is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, PreparedClaim
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims import ClaimIdentity, rollback_retries
from dra_kubeletplugin.claims.rollback_retries import RollbackRetries
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import DeviceHeldError, DraError, UndoFailedError
from dra_kubeletplugin.kube.event_recorder import Subject
from dra_tools.doctor.records import look
from tests.claims.test_claims_names_and_paths import (
    LONGEST_LABEL,
    LONGEST_NAME,
    UID,
    WithMetadata,
    allocate,
    files_of,
)
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.file_faults import FileFaults
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.waiting import wait_until

ERRORS = [
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT,
    errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EBUSY,
    errno.EINTR, errno.ENOTEMPTY, errno.ENODEV, errno.ETXTBSY, errno.EFBIG,
]  # fmt: skip
PREPARING = {"open", "write", "fchmod", "close", "rename"}
UNPREPARING = {"unlink"}
OTHER = "0b6a0c1e-0000-4000-8000-000000000002"


class HolderTrackingDriver(WithMetadata):
    """Records which claims hold device d-0. The unprepare raises ``failure``, if it is set."""

    def __init__(self) -> None:
        self.holders: set[str] = set()
        self.failure: Exception | None = None
        self.attempts = 0

    async def prepare(self, claim: Claim) -> Any:
        assert not self.holders - {claim.uid}, "a second holder"
        self.holders.add(claim.uid)
        return await super().prepare(claim)

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.attempts += 1
        if self.failure:
            raise self.failure
        self.holders.discard(claim.uid)


class FakeEventRecorder:
    """Records the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def warn_claim(self, claim: Subject, reason: str, message: str) -> None:
        self.events.append((claim.uid, reason, message))


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
    ref = allocate(api, LONGEST_NAME, request=f"{'r' * 63}/{'s' * 63}")
    other_ref = allocate(api, "other", OTHER)
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


# --- failing rollbacks ---------------------------------------------------------------------------------


@contextlib.contextmanager
def read_only(manager: RunningManager) -> Iterator[None]:
    """Makes the metadata files read-only, as after an error of their disk."""
    faults = FileFaults(manager.settings.plugin_dir / "dra-device-metadata")
    with faults.failing(errno.EROFS, lambda number: True):
        yield


async def fail_rollback(manager: RunningManager, ref: ClaimIdentity) -> None:
    """Prepares a claim and makes its rollback fail once."""
    await manager.prepare(ref)
    with read_only(manager):
        response = await manager.unprepare(ref)
    assert isinstance(response, UndoFailedError)


async def test_the_message_names_the_path_and_the_reason_and_no_other_folder(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), HolderTrackingDriver()
    ref = allocate(api)
    async with running_manager(tmp_path, driver, api) as manager:
        await fail_rollback(manager, ref)
        (record,) = await manager.claims.store.all()
        path = manager.settings.plugin_dir / f"dra-device-metadata/{UID}_r.json"
        assert record.error == (
            f"{path} cannot be removed (Read-only file system): its file system is read-only; see the kernel's log, and mount "
            "it writable"
        )
        with faults_of(manager).failing(errno.EIO, lambda number: True):
            await manager.unprepare(ref)
        (record,) = await manager.claims.store.all()
        assert "Input/output error" in record.error
        assert "read-only" not in record.error
        assert await manager.unprepare(ref) == ()


async def test_only_a_full_disk_leads_to_the_advice_to_free_space(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = allocate(api)
    async with running_manager(tmp_path, WithMetadata(), api) as manager:
        for error in ERRORS:
            with FileFaults(manager.settings.cdi_root).failing(error, lambda number: True):
                response = await manager.prepare(ref)
            assert isinstance(response, DraError)
            assert ("space" in str(response)) == (error == errno.ENOSPC)
            assert str(manager.settings.cdi_root) in str(response)
            assert manager.process.id not in str(response)  # the text is the same in each process


async def test_each_text_of_a_repeated_failure_is_logged_once_and_the_event_does_not_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), HolderTrackingDriver()
    ref, other_ref = allocate(api), allocate(api, "other", OTHER)
    events = FakeEventRecorder()
    async with running_manager(tmp_path, driver, api) as manager:
        manager.claims.engine.rollback.events = events  # type: ignore[assignment]
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
        assert len(set(events.events)) == 1
        ((uid, reason, text), *_) = events.events
        assert (uid, reason) == (UID, "UnprepareFailed")
        assert "the card does not answer" in text
        driver.failure = None
        assert not isinstance(await manager.prepare(other_ref), DraError)
        assert await manager.unprepare(ref) == ()


async def test_the_plugin_retries_without_a_call_and_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_retries, "_FIRST", 0.01)
    monkeypatch.setattr(rollback_retries, "_CHECK_INTERVAL", 0.001)
    api, driver = FakeApiServer(), HolderTrackingDriver()
    ref = allocate(api)
    async with running_manager(tmp_path, driver, api) as manager:
        await manager.prepare(ref)
        driver.failure = OSError("the card does not answer")
        await manager.unprepare(ref)
        retrying = asyncio.create_task(manager.claims.background()["rollbacks"]())
        await wait_until(lambda: driver.attempts > 4)
        driver.failure = None
        await wait_until(lambda: _records_are(manager, {}))
        retrying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await retrying
        assert files_of(manager) == []


async def _records_are(manager: RunningManager, expected: dict[str, str]) -> bool:
    return await manager.records() == expected


def test_the_pause_doubles_from_two_seconds_to_five_minutes() -> None:
    retries = RollbackRetries(Metrics())
    assert [retries.failed("u") for _ in range(10)] == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert retries.failed("v", 1_000_000) == 300  # the number of attempts in the record, after a restart
    assert [retries.failed("w"), retries.failed("w", 4), retries.failed("w", 1), retries.failed("w")] == [2, 16, 32, 64]
    retries.done("u")
    assert retries.failed("u") == 2


async def test_readiness_and_the_claims_command_show_the_claim_the_reason_the_attempts_and_the_next_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api, driver = FakeApiServer(), HolderTrackingDriver()
    ref = allocate(api)
    async with running_manager(tmp_path, driver, api) as manager:
        await fail_rollback(manager, ref)
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


async def test_a_forgotten_claim_leaves_no_metadata_files(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = allocate(api)
    async with running_manager(tmp_path, WithMetadata(), api) as manager:
        await manager.prepare(ref)
    options = ["--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path / "cdi"), "--driver-name", DRIVER]
    assert main(["claims", "forget", UID, "--yes", *options]) == 0
    assert files_of(manager) == []
