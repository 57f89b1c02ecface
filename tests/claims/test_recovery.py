"""Records that are removed, replaced or damaged: no claim is lost, and no device gets a second claim. The sources are the
memory of the instances, the notes and the driver.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice, RecoveredClaim
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import RecordStore, State
from dra_kubeletplugin.claims.store.files import forget
from dra_kubeletplugin.claims.store.records import NODE_FILE, RECOVER
from dra_kubeletplugin.errors import DeviceHeldError, DraError, DriverError, HardwareUnknownError
from tests.helpers.crash.claim_drivers import RecordingDriver
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import (
    DRIVER,
    RECORDS,
    damage_file,
    insert,
    instance,
    kill,
    make_record,
    make_record_with_file,
    open_store,
    remove_records,
)
from tests.helpers.waiting import wait_until


def remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove_records(folder / RECORDS)


# --- a folder that is removed or replaced ---------------------------------------------------------------


async def finish_recovery(store: RecordStore) -> None:
    """Marks the recovery as complete, as if the driver had reported its claims."""
    await store.do(lambda records: records.clear_meta(RECOVER))


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_records_of_a_dead_instance_are_restored_from_notes_and_older_memory(
    tmp_path: Path, is_replaced: bool
) -> None:
    """The folder is lost, and the instance with the newest records is dead. The memory of the other one has claims that have
    ended since.
    """
    async with instance(tmp_path) as idle:
        active = open_store(tmp_path)
        await finish_recovery(active)
        ended_record, changed_record, kept_record = (
            make_record_with_file(tmp_path, u, d) for u, d in (("e", "d-0"), ("c", "d-1"), ("k", "d-2"))
        )
        unfinished = make_record("p", "d-3", State.PREPARING, "1-dead")
        for record in (ended_record, changed_record, kept_record, unfinished):
            await insert(active, record)
        await idle.all()
        specs = ClaimSpecs(tmp_path / "cdi", DRIVER)
        for record in (ended_record, changed_record):
            specs.remove_note(record.uid)
            assert await active.do(lambda records, fence=record.fence: records.delete(fence))
        for uid, device in (("new", "d-0"), ("c", "d-5")):
            await insert(active, make_record_with_file(tmp_path, uid, device))
        await kill(active)
        remove(tmp_path)
        if is_replaced:
            (tmp_path / RECORDS).mkdir()
            (tmp_path / RECORDS / NODE_FILE).write_bytes(b"garbage" * 1000)
        devices = {r.uid: r.devices[0]["device"] for r in await idle.all()}
        assert devices == {"new": "d-0", "e": "d-0", "c": "d-5", "k": "d-2", "p": "d-3"}, (
            "the end of a claim may be lost, and its device is held until the claim is unprepared again"
        )
        assert {r.uid for r in await idle.all() if r.superseded} == {"e"}
        assert await idle.recovering()


# --- a loss of the records while no plugin runs ---------------------------------------------------------


async def test_without_a_copy_no_claim_is_prepared_until_the_damaged_claim_is_forgotten(tmp_path: Path) -> None:
    """The driver has no recover(), and the note could not be written."""
    api, driver = FakeApiServer(), RecordingDriver()
    lost_ref, new_ref = api.allocate("a", "a", "d-0", DRIVER), api.allocate("b", "b", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        assert not isinstance(await manager.prepare(lost_ref), DraError)
        manager.claims.files.specs.remove_note("a")
    damage_file(manager.settings.records_path, "a")
    for _ in range(2):  # also after another start
        async with running_manager(tmp_path, driver, api) as manager:
            assert isinstance(await manager.prepare(new_ref), HardwareUnknownError)
            assert driver.unprepared == [], "its pod may run"
            (fault,) = await manager.claims.faults()
            assert "when the pods of these claims are gone, run `dra claims forget UID`: a" in fault
            assert any("(UID a) cannot be read" in note for note in await manager.claims.notes())
    async with running_manager(tmp_path, driver, api) as manager:
        forget(manager.settings.records_path, 1, "a", lambda: manager.claims.files.remove_all("a"))
        assert await manager.claims.recovery.once()
        assert not isinstance(await manager.prepare(new_ref), DraError)


# --- recovery from the driver -----------------------------------------------------------------------


class RecoveringDriver(Driver):
    """A driver without CDI edits: only its records and the hardware contain its claims."""

    name = DRIVER
    result: Any = ()

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits()) for d in claim.devices]

    def recover(self) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result() if callable(self.result) else self.result


def prepared_device(name: str, **fields: Any) -> PreparedDevice:
    return PreparedDevice(**{"request": "r", "pool": "node", "name": name, **fields})


def recovered_claim(uid: str, *devices: PreparedDevice, **fields: Any) -> RecoveredClaim:
    return RecoveredClaim(uid=uid, devices=list(devices), **fields)


def driver_returning(returned: Any) -> RecoveringDriver:
    driver = RecoveringDriver()
    driver.result = returned
    return driver


async def lose_records(folder: Path, api: FakeApiServer) -> RunningManager:
    """Prepares a claim without CDI edits and removes the records and the claim's note while no plugin runs."""
    async with running_manager(folder, RecoveringDriver(), api) as first_manager:
        assert not isinstance(await first_manager.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
    remove_records(first_manager.settings.records_path)
    first_manager.claims.files.specs.remove_note("a")
    return first_manager


async def test_after_the_loss_of_the_records_the_driver_recovers_its_claims_also_without_cdi_edits(
    tmp_path: Path,
) -> None:
    api = FakeApiServer()
    await lose_records(tmp_path, api)
    async with running_manager(
        tmp_path, driver_returning([recovered_claim("a", prepared_device("d-0"), namespace="ns", name="a")]), api
    ) as restarted:
        assert await restarted.records() == {"a": "Prepared"}
        assert isinstance(await restarted.prepare(api.allocate("b", "b", "d-0", DRIVER)), DeviceHeldError)
        assert await restarted.unprepare(api.allocate("a", "a", "d-0", DRIVER)) == ()
        assert await restarted.records() == {}


async def test_a_claim_that_only_the_hardware_has_is_rolled_back_before_its_device_is_prepared_again(
    tmp_path: Path,
) -> None:
    """The records were lost, with the end of one claim and the beginning of another."""

    class RecordingDriver(RecoveringDriver):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            self.calls.append(f"prepare {claim.uid}")
            return await super().prepare(claim)

        async def unprepare(self, claim: PreparedClaim) -> None:
            self.calls.append(f"unprepare {claim.uid} {claim.devices[0].name} {claim.complete}")

    api, driver = FakeApiServer(), RecordingDriver()
    driver.result = [recovered_claim("begun", prepared_device("d-0"))]
    async with running_manager(tmp_path, driver, api) as manager:
        driver.result = []
        store = manager.claims.store
        await store.do(lambda records: records.forget("begun"))
        await insert(store, make_record("ended", "d-0", complete=True))
        await store.do(lambda records: records.set_meta(RECOVER, "pending"))
        driver.result = [recovered_claim("begun", prepared_device("d-0"))]
        assert await manager.claims.recovery.once()
        assert await manager.records() == {"begun": "Prepared", "ended": "Prepared"}
        ref = api.allocate("begun", "begun", "d-0", DRIVER)
        assert isinstance(await manager.prepare(ref), DeviceHeldError)
        assert driver.calls == ["unprepare begun d-0 False"]
        await manager.unprepare(api.allocate("ended", "ended", "d-0", DRIVER))
        assert not isinstance(await manager.prepare(ref), DraError)
        assert driver.calls[2:] == ["prepare begun"]


async def test_a_hanging_recover_is_reported_is_called_once_and_blocks_no_unprepare(tmp_path: Path) -> None:
    resume, calls = threading.Event(), []

    def hangs() -> list[RecoveredClaim]:
        calls.append(1)
        resume.wait(110)  # longer than the test timeout
        return [recovered_claim("a", prepared_device("d-0"))]

    api, waits = FakeApiServer(), {"start": 0.3, "recover_slow": 0.05, "recover_check": 0.01}
    async with (
        running_manager(tmp_path, driver_returning(hangs), api, **waits) as manager,  # type: ignore[arg-type]
        manager.background("recovery"),
    ):
        await wait_until(lambda: has_fault(manager, "has not returned for"))
        new_ref = api.allocate("x", "x", "d-9", DRIVER)
        assert isinstance(await manager.prepare(new_ref), HardwareUnknownError)
        assert not isinstance(await manager.unprepare(new_ref), DraError)
        resume.set()
        await wait_until(lambda: has_fault(manager, ""))
        assert (await manager.records(), calls) == ({"a": "Prepared"}, [1])


async def has_fault(manager: RunningManager, text: str) -> bool:
    """Whether there is a fault with ``text``; if it is empty, whether there is none."""
    faults = " ".join(await manager.claims.faults())
    return text in faults if text else not faults


@pytest.mark.parametrize("is_on_record", [True, False])
async def test_a_claim_that_is_unprepared_before_the_driver_reports_it_is_not_held(
    tmp_path: Path, is_on_record: bool
) -> None:
    """A driver may have read its hardware before the unprepare, and return after it."""
    api = FakeApiServer()
    if is_on_record:
        async with running_manager(tmp_path, RecoveringDriver(), api) as first_manager:
            await first_manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
            await wait_until(lambda: first_manager.claims.files.specs.note_path("a").exists())
        remove_records(first_manager.settings.records_path)
    else:
        await lose_records(tmp_path, api)
    driver = driver_returning(DriverError("not yet"))
    async with running_manager(tmp_path, driver, api) as restarted:
        assert ("a" in await restarted.records()) is is_on_record
        assert await restarted.unprepare(api.allocate("a", "a", "d-0", DRIVER)) == ()
        driver.result = [recovered_claim("a", prepared_device("d-0")), recovered_claim("b", prepared_device("d-1"))]
        assert await restarted.claims.recovery.once()
        await restarted.claims.reconciler.once(ask_server=False)
        assert await restarted.records() == {"b": "Prepared"}
