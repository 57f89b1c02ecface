"""The claim manager as a whole: its start and close, its background tasks, and its readiness, notes and metrics."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from dra_kubeletplugin import Health, RecoveredClaim
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.store.records import RECOVER, file_name
from dra_kubeletplugin.errors import DeviceUnhealthyError, DraError, DriverError, RecordsError
from tests.helpers.crash.claim_drivers import BlockingDriver, PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.file_faults import FileFaults, failing_calls
from tests.helpers.crash.record_stores import (
    DRIVER,
    RECORDS,
    damage_file,
    insert,
    make_record,
    open_store,
    remove_records,
)
from tests.helpers.waiting import wait_until


class HangingRecovery(PlainDriver):
    """``recover`` waits for ``go``, and raises ``fault``."""

    fault: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.recoveries = 0

    async def recover(self) -> list[RecoveredClaim]:
        self.recoveries += 1
        await self.go.wait()
        if self.fault:
            raise self.fault
        return []


# --- start and close ---------------------------------------------------------------------------------------


async def test_a_start_rolls_back_the_remains_of_a_crash_without_the_api_server_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        assert "reconciled at start" not in caplog.text
        assert not isinstance(await manager.prepare(api.allocate("p", "p", "d-1", DRIVER)), DraError)
        record = Record("a", "ns", "a", State.PREPARING, "boot", "1-deadbeef")
        await manager.claims.store.do(lambda records: records.insert(record))
    api.claims.clear()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        assert await manager.records() == {"p": "Prepared"}
        assert [r.getMessage() for r in caplog.records if "reconciled" in r.msg] == [
            "reconciled at start: rolled back: 1"
        ]
        assert manager.changes == 1


async def test_a_start_continues_while_a_step_takes_long_and_a_close_ends_that_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = RunningManager(tmp_path, HangingRecovery(), FakeApiServer(), "boot", start=0.01)
    await manager.open()
    assert "takes long and continues in the background: calling the driver's recover()" in caplog.text
    assert await manager.claims.store.all() == []
    await manager.close()
    await wait_until(lambda: not [t for t in asyncio.all_tasks() if "recover" in t.get_name()])
    with pytest.raises(RecordsError):
        await manager.claims.store.all()


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (errno.ENOSPC, "open", "claims cannot be prepared or unprepared: calling the driver's recover(): "),
        (0, "open", "a step of the start failed unexpectedly: calling the driver's recover()"),
    ],
)
async def test_a_failure_of_the_start_is_logged_and_does_not_end_it(
    tmp_path: Path, error: int, call: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        if not error:
            raise KeyError("odd")

    with failing_calls(error, call, text=f"{RECORDS}/", do=fail):
        async with running_manager(tmp_path, PlainDriver()):
            assert message in caplog.text


# --- background --------------------------------------------------------------------------------------------


async def test_recovery_is_retried_until_it_succeeds_and_waits_for_the_next_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = HangingRecovery()
    driver.go.set()
    driver.fault = OSError("the bus does not respond")
    waits = {"recover_check": 600.0, "recover_retries": (0.001, 0.004)}
    async with running_manager(tmp_path, driver, **waits) as manager, manager.background("recovery"):
        await wait_until(lambda: driver.recoveries > 3)
        with failing_calls(errno.ENOSPC, "open", text=f"{RECORDS}/"):
            driver.fault = None
            await wait_until(lambda: "recovery failed and is retried: " in caplog.text)
        await wait_until(lambda: is_recovered(manager))
        count = driver.recoveries
        remove_records(manager.settings.records_path)
        await manager.claims.store.check_files()
        await wait_until(lambda: driver.recoveries > count)
        await wait_until(lambda: is_recovered(manager))


async def is_recovered(manager: RunningManager) -> bool:
    return not await manager.claims.store.recovering()


async def test_an_unfinished_recovery_of_another_instance_that_died_is_detected_without_a_repair(
    tmp_path: Path,
) -> None:
    async with running_manager(tmp_path, PlainDriver(), recover_check=0.001) as manager, manager.background("recovery"):
        other_store = open_store(manager.settings.plugin_dir)
        await other_store.do(lambda records: records.set_meta(RECOVER, "pending"))
        await other_store.close()
        other_store.folder.process.release()
        await wait_until(lambda: is_recovered(manager))


async def test_a_removed_folder_is_written_again_while_the_plugin_is_idle(tmp_path: Path) -> None:
    async with running_manager(tmp_path, PlainDriver(), files=0.001) as manager:
        await insert(manager.claims.store, make_record("a", "d-0"))
        path = manager.settings.records_path
        async with manager.background("records"):
            for _ in range(2):
                remove_records(path)
                await wait_until((path / file_name("a")).exists)


# --- readiness, notes and metrics --------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["records", "files"])
async def test_a_fault_is_shown_until_a_test_of_the_disk_succeeds(tmp_path: Path, folder: str) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        claims, path = manager.claims, {"records": tmp_path / "plugins", "files": tmp_path / "cdi"}[folder]
        assert await claims.faults() == []
        await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        await claims.measure()
        assert b"dra_prepared_claims 1.0" in manager.metrics.text()
        assert b"dra_records_healthy 1.0" in manager.metrics.text()
        with FileFaults(path).failing(errno.EROFS, lambda number: True):
            assert isinstance(await manager.prepare(api.allocate("b", "b", "d-1", DRIVER)), DraError)
            (fault,) = await claims.faults()
            assert "read-only" in fault
            await claims.measure()
            assert b"dra_prepared_claims 1.0" in manager.metrics.text()
            assert f"dra_records_healthy {float(folder != 'records')}".encode() in manager.metrics.text()
            await claims.notes()  # what is known in memory does not need the disk
        await wait_until(lambda: has_no_fault(manager))


async def has_no_fault(manager: RunningManager) -> bool:
    return await manager.claims.faults() == []


@pytest.mark.parametrize("failing", [0, 1, 20, 21])
async def test_the_notes_list_unreadable_records_and_at_most_twenty_failing_rollbacks(
    tmp_path: Path, failing: int
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    refs = [api.allocate(f"c{i:02}", f"c{i:02}", f"d-{i}", DRIVER) for i in range(failing)]
    async with running_manager(tmp_path, driver, api) as manager:
        await manager.claims.prepare([*refs, api.allocate("odd", "odd", "d-38", DRIVER)])
        driver.fault["unprepare"] = DriverError("the card does not answer")
        await manager.claims.unprepare(refs)
    manager.claims.files.specs.remove_note("odd")
    (manager.settings.records_path / ".odd.synced").unlink()
    damage_file(manager.settings.records_path, "odd")
    async with running_manager(tmp_path, driver, api) as manager:
        notes = [n for n in await manager.claims.notes() if "UID" in n or "more claims" in n]
        assert notes[0].startswith("the record of claim ?/? (UID odd) cannot be read: ")
        assert len(notes) == 1 + min(failing, 20) + (failing > 20)
        if failing > 20:
            assert notes[-1] == f"{failing - 20} more claims cannot be rolled back: see `dra claims` on the node"
        if failing:
            start = "claim ns/c00 (UID c00) cannot be rolled back and keeps its devices (tried 2 times, next in "
            assert notes[1].startswith(start)
            assert "the card does not answer" in notes[1]


@pytest.mark.parametrize(("policy", "is_refused"), [("refuse", True), ("warn", False)])
async def test_the_policy_decides_whether_an_unhealthy_device_is_prepared(
    tmp_path: Path, policy: str, is_refused: bool
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api, unhealthy_policy=policy) as manager:
        await manager.inventory.set_health({f"d-{i}": Health(False, "hot") for i in range(2)}, 0.0)
        response = await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        assert isinstance(response, DeviceUnhealthyError) is is_refused
        admin = await manager.prepare(api.allocate("b", "b", "d-1", DRIVER, adminAccess=True))
        assert not isinstance(admin, DraError)
