"""The journal is removed, or lost with all files. The devices in the records of another instance or of the driver are
not allocated twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice, RecoveredClaim
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, RecordStore, State, recovery
from dra_kubeletplugin.claims.claim_files import note_of
from dra_kubeletplugin.claims.holders import HeldByError
from dra_kubeletplugin.claims.record import SUPERSEDED
from dra_kubeletplugin.claims.store import journal
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.errors import (
    DeviceHeldError,
    DraError,
    DriverError,
    HardwareUnknownError,
    RecordsBusyError,
    RecordsError,
)
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import (
    DRIVER,
    JOURNAL,
    insert,
    instance,
    make_record,
    make_record_with_file,
    open_store,
)
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]


# --- a removed file while two instances write -------------------------------------------------------


def remove(folder: Path) -> None:
    (folder / JOURNAL).unlink(missing_ok=True)


WORKER = """
import asyncio, json, sys
from pathlib import Path
from dra_kubeletplugin.errors import DeviceHeldError, RecordsError
from tests.helpers.crash.record_stores import insert, make_record, open_store

async def main():
    store, name = open_store(Path(sys.argv[1])), sys.argv[2]
    await store.all()
    print(json.dumps("ready"), flush=True)
    loop = asyncio.get_running_loop()

    async def look():
        while True:
            await asyncio.sleep(0.05)  # as a plugin does, which has more time
            await store.check_file()

    looking = asyncio.create_task(look())
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        trial = line.strip()
        got = []
        for i in range(6):
            try:
                await insert(store, make_record(f"{name}-{trial}-{i}", f"d-{trial}-{i}"))
                got.append(i)
            except (DeviceHeldError, RecordsError):
                pass
        print(json.dumps(got), flush=True)
    looking.cancel()
    await store.close()

asyncio.run(main())
"""


class Worker:
    """An instance in a separate process, which tries to get six devices in each trial."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, folder: Path, name: str) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, str(folder), name, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        )  # fmt: skip
        worker = cls(process)
        assert await worker.result() == "ready"
        return worker

    def start_trial(self, trial: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{trial}\n".encode())

    async def result(self) -> Any:
        assert self.process.stdout
        async with asyncio.timeout(60):
            return json.loads(await self.process.stdout.readline())

    async def stop(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        await self.process.wait()


def damage(path: Path, trial: int) -> None:
    """Removes, replaces or overwrites the file.

    A file that is cut between the write of one instance and the next read of the other instance loses records that only
    the file contained.
    """
    chance = random.Random(trial)
    match chance.choice(["replaced", "removed", "overwritten"]):
        case "replaced":
            (path.parent / "garbage").write_bytes(chance.randbytes(chance.choice([0, 9, 8192])))
            (path.parent / "garbage").rename(path)
        case "removed":
            remove(path.parent)
        case "overwritten":
            with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
                file.write(chance.randbytes(100))


@pytest.mark.crash
@pytest.mark.parametrize(
    "damage_file",
    [lambda path, _: remove(path.parent), damage],
    ids=["removed", "anything"],
)
async def test_a_file_removed_while_two_instances_write_allocates_no_device_twice(
    tmp_path: Path, damage_file: Callable[[Path, int], None]
) -> None:
    workers = [await Worker.start(tmp_path, name) for name in ("a", "b")]
    path = tmp_path / "records.journal"
    instance_of_device: dict[str, str] = {}
    try:
        for trial in range(30):
            for worker in workers:
                worker.start_trial(trial)
            await asyncio.sleep(0.0005 * (trial % 12))
            damage_file(path, trial)
            for name, worker in zip("ab", workers, strict=True):
                for i in await worker.result():
                    device = f"d-{trial}-{i}"
                    assert device not in instance_of_device, (
                        f"{device} is allocated to {instance_of_device[device]} and to {name}"
                    )
                    instance_of_device[device] = name
    finally:
        for worker in workers:
            await worker.stop()
    assert len(instance_of_device) > 150
    async with instance(tmp_path) as store:
        recorded = {r.devices[0]["device"]: r.uid[0] for r in await store.all()}
    assert {d: n for d, n in recorded.items() if d in instance_of_device} == instance_of_device


# --- a file that is removed more than once ----------------------------------------------------------


async def finish_recovery(store: RecordStore) -> None:
    """Marks the recovery as complete, as if the driver had reported its claims."""
    await store.do(lambda records: records.clear_meta(RECOVER))


async def kill(store: RecordStore) -> None:
    """Stops all writes and closes the files, as after SIGKILL."""
    await store._batcher.close(5)
    store.journal.drop()
    store.journal.process.release()


async def test_an_instance_with_older_records_never_replaces_a_newer_file(
    tmp_path: Path,
) -> None:
    async with instance(tmp_path, wait=0.1) as active, instance(tmp_path, wait=0.1) as idle:
        await active.all()
        await idle.all()
        for device in ("d-0", "d-1", "d-2"):  # however often the file is removed
            remove(tmp_path)
            await insert(active, make_record(f"u-{device}", device))
        remove(tmp_path)
        with pytest.raises(RecordsBusyError, match=f"process {os.getpid()} of the plugin, which has it open"):
            await insert(idle, make_record("thief", "d-2"))
        async with instance(tmp_path, wait=0.1) as new_instance:
            with pytest.raises(RecordsBusyError, match="which has it open"):
                await new_instance.all()
            await active.check_file()
            for store in (idle, new_instance):
                with pytest.raises(DeviceHeldError):
                    await insert(store, make_record("thief", "d-2"))
                assert len(await store.all()) == 3


async def test_instances_of_one_generation_need_not_wait_for_each_other(tmp_path: Path) -> None:
    async with instance(tmp_path) as first, instance(tmp_path) as second:
        stores = [first, second]
        for i in range(6):
            await asyncio.gather(first.all(), second.all())
            remove(tmp_path)
            await insert(stores[i % 2], make_record(f"u-{i}", f"d-{i}"))
        assert len(await first.all()) == len(await second.all()) == 6


@pytest.mark.parametrize("file", ["gone", "there"])
async def test_records_of_a_dead_instance_are_rebuilt_from_notes_and_the_driver_and_replace_an_outdated_copy(
    tmp_path: Path, file: str
) -> None:
    """The newest file is missing, and its instance is dead. The remaining older copy contains claims that have ended
    since.
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
        remove(tmp_path)
        specs = ClaimSpecs(tmp_path / "cdi", DRIVER)
        for record in (ended_record, changed_record):
            assert await active.do(lambda records, fence=record.fence: records.delete(fence))
            specs.remove_note(record.uid)
        for uid, device in (("new", "d-0"), ("c", "d-5")):
            await insert(active, make_record_with_file(tmp_path, uid, device))
        await kill(active)
        remove(tmp_path)
        if file == "there":  # another process without these records has created a file
            (tmp_path / JOURNAL).write_bytes(b"garbage" * 1000)
        assert {r.uid: r.devices[0]["device"] for r in await idle.all()} == {
            "new": "d-0", "e": "d-0", "c": "d-5", "k": "d-2", "p": "d-3",
        }, "the end of a claim may be lost, and its device is held until the claim is unprepared again"  # fmt: skip
        assert await idle.recovering()


@pytest.mark.parametrize("step", ["write_new", "rename"])
async def test_a_copy_that_cannot_be_renamed_loses_nothing_and_the_next_copy_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    async with instance(tmp_path) as first, instance(tmp_path) as second:
        await insert(first, make_record("a", "d-0"))
        await second.all()
        remove(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(*((journal, step) if step == "write_new" else (Path, step)), fails)
            with pytest.raises(RecordsError, match="the disk is full"):
                await insert(first, make_record("b", "d-1"))
        await insert(second, make_record("c", "d-2"))
        assert {r.uid for r in await first.all()} == {"a", "c"}


@pytest.mark.parametrize("note, superseded", [(1.0, True), (2e9, False)])
async def test_a_rebuilt_claim_whose_device_belongs_to_a_newer_claim_is_rolled_back_without_the_driver(
    tmp_path: Path, note: float, superseded: bool
) -> None:
    async with instance(tmp_path) as store:
        await finish_recovery(store)
        await insert(store, make_record_with_file(tmp_path, "recorded", "d-0"))
    older = make_record("noted", "d-0")
    older.created = note
    ClaimSpecs(tmp_path / "cdi", DRIVER).write_note("noted", note_of(older))
    async with instance(tmp_path) as store:
        is_superseded = {r.uid: bool(r.doc.get(SUPERSEDED)) for r in await store.all()}
        assert is_superseded == {"noted": superseded, "recorded": False}
        with pytest.raises(HeldByError):
            await insert(store, make_record("thief", "d-0"))


async def test_the_newest_of_rebuilt_claims_with_one_device_is_rolled_back_by_the_driver(tmp_path: Path) -> None:
    for i, uid in enumerate(("b", "c", "a")):
        record = make_record(uid, "d-0")
        record.created = i
        ClaimSpecs(tmp_path / "cdi", DRIVER).write_note(uid, note_of(record))
    async with instance(tmp_path) as store:
        is_superseded = {r.uid: bool(r.doc.get(SUPERSEDED)) for r in await store.all()}
        assert is_superseded == {"a": False, "b": True, "c": True}


async def test_two_claims_with_one_device_both_hold_it_if_the_end_of_one_is_lost(tmp_path: Path) -> None:
    """The plugin is killed, and an older copy replaces the records."""
    killed_manager = open_store(tmp_path)
    await finish_recovery(killed_manager)
    specs = ClaimSpecs(tmp_path / "cdi", DRIVER)
    ended_record, kept_record = (make_record_with_file(tmp_path, u, d) for u, d in (("ended", "d-0"), ("kept", "d-1")))
    for record in (ended_record, kept_record):
        await insert(killed_manager, record)
    copy = (tmp_path / JOURNAL).read_bytes()
    await killed_manager.do(lambda records: records.delete(ended_record.fence))
    specs.remove("ended")
    specs.remove_note("ended")
    await insert(killed_manager, make_record_with_file(tmp_path, "later", "d-0"))
    await kill(killed_manager)
    (tmp_path / JOURNAL).write_bytes(copy)
    async with instance(tmp_path) as store:
        assert {r.uid for r in await store.all()} == {"ended", "later", "kept"}
        assert await store.recovering()
        assert any("two claims have one device" in line for line in store.journal.report)
        for uid in ("ended", "later"):  # in either order, the device is free only after both
            with pytest.raises(HeldByError):
                await insert(store, make_record("thief", "d-0"))
            await store.do(lambda records, uid=uid: records.forget(uid))  # type: ignore[misc]
        await insert(store, make_record("new", "d-0"))


@pytest.mark.parametrize("size", [0, 9, 8192])
async def test_a_file_that_replaces_a_file_in_use_is_set_aside_and_never_read(tmp_path: Path, size: int) -> None:
    async with instance(tmp_path, wait=0.1) as first, instance(tmp_path, wait=0.1) as second:
        for i in range(40):
            await insert(first, make_record(f"u-{i}", f"d-{i}"))
        (tmp_path / "garbage").write_bytes(os.urandom(size))
        (tmp_path / "garbage").rename(tmp_path / JOURNAL)
        with pytest.raises(RecordsBusyError):
            await second.all()
        await first.check_file()
        assert len(await second.all()) == 40
        (damaged_file,) = tmp_path.glob("*.damaged-*")
        assert damaged_file.stat().st_size == size


async def test_a_file_that_is_removed_during_a_write_is_written_again_with_this_write(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.all()

        def insert_and_remove_file(records: Records) -> None:
            records.insert(make_record("a", "d-0"))
            remove(tmp_path)

        await store.do(insert_and_remove_file)
        async with instance(tmp_path) as other_instance:
            assert [r.uid for r in await other_instance.all()] == ["a"]


async def test_an_instance_does_not_wait_for_a_closed_instance(tmp_path: Path) -> None:
    async with instance(tmp_path, wait=0.1) as closing, instance(tmp_path, wait=0.1) as remaining:
        await finish_recovery(remaining)
        await closing.all()
        remove(tmp_path)
        await insert(closing, make_record("a", "d-0"))
        await closing.close()
        remove(tmp_path)
        await insert(remaining, make_record("b", "d-1"))
        assert await remaining.recovering()


@pytest.mark.parametrize("edits", [{}, {"D": "0"}], ids=["without CDI edits", "with"])
async def test_a_prepared_claim_is_held_after_a_kill_and_a_loss_of_the_records_at_that_moment(
    tmp_path: Path, edits: dict[str, str]
) -> None:
    class EmptyDriver(Driver):
        name = DRIVER

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return [d.prepared(ContainerEdits(env=edits)) for d in claim.devices]

    api = FakeApiServer()
    killed_manager = RunningManager(tmp_path, EmptyDriver(), api, "boot")
    await killed_manager.open()
    assert not isinstance(await killed_manager.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
    await kill(killed_manager.claims.store)
    killed_manager.settings.records_path.unlink()
    async with running_manager(tmp_path, EmptyDriver(), api) as restarted:
        assert isinstance(await restarted.prepare(api.allocate("b", "b", "d-0", DRIVER)), DeviceHeldError)


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
    """Prepares a claim without CDI edits and removes the journal and the claim's note while no plugin runs."""
    async with running_manager(folder, RecoveringDriver(), api) as first_manager:
        assert not isinstance(await first_manager.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
    first_manager.settings.records_path.unlink()
    first_manager.claims.files.specs.remove_note("a")
    return first_manager


async def test_after_the_loss_of_the_journal_the_driver_recovers_its_claims_also_without_cdi_edits(
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


async def test_a_conflicting_recovered_claim_is_reported_and_does_not_stop_other_claims(tmp_path: Path) -> None:
    returned = [
        recovered_claim("a", prepared_device("d-0")),
        recovered_claim("thief", prepared_device("d-0")),
        recovered_claim("c", prepared_device("d-2")),
    ]
    async with running_manager(tmp_path, driver_returning(returned)) as restarted:
        assert await restarted.records() == {"a": "Prepared", "c": "Prepared"}
        assert any(
            "thief was reported by the driver and is not recorded: device d-0" in n
            for n in await restarted.claims.notes()
        )
        assert await restarted.claims.faults() == []


async def test_a_claim_that_only_the_hardware_has_is_rolled_back_before_its_device_is_prepared_again(
    tmp_path: Path,
) -> None:
    """The journal was lost, with the end of one claim and the beginning of another."""

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


async def test_recovered_admin_access_holds_nothing_and_conflicts_with_no_claim(tmp_path: Path) -> None:
    returned = [
        recovered_claim("a", prepared_device("d-0")),
        recovered_claim("admin", prepared_device("d-0", admin_access=True)),
    ]
    async with running_manager(tmp_path, driver_returning(returned)) as restarted:
        assert await restarted.records() == {"a": "Prepared", "admin": "Prepared"}
        record = await restarted.claims.store.get("admin")
        assert isinstance(record, Record)
        assert record.holds() == []
        assert record.prepared_claim("boot").devices[0].admin_access


WRONG: dict[str, Any] = {
    "no list": 5,
    "no claims": [5],
    "no UID": [recovered_claim("")],
    "a UID that is a number": [recovered_claim(5)],  # type: ignore[arg-type]
    "a UID that is no text": [recovered_claim("\ud800")],
    "a UID with a NUL": [recovered_claim("a\0b")],
    "a namespace that is nothing": [recovered_claim("u", namespace=None)],
    "devices that are nothing": [RecoveredClaim(uid="u", devices=None)],  # type: ignore[arg-type]
    "devices of another kind": [recovered_claim("u", "d-0")],  # type: ignore[arg-type]
    "a device without a name": [recovered_claim("u", prepared_device(None))],  # type: ignore[arg-type]
    "a share that is a number": [recovered_claim("u", prepared_device("d-0", share_id=7))],
    "data that is no JSON": [recovered_claim("u", prepared_device("d-0", data=object()))],
    "data that is no text": [recovered_claim("u", prepared_device("d-0", data={"x": "\ud800"}))],
    "an exception": RuntimeError("\ud800"),
    "an end": SystemExit(3),
}


@pytest.mark.parametrize("returned", WRONG.values(), ids=WRONG)
async def test_a_wrong_return_value_of_recover_is_reported_in_readiness_and_recover_is_called_again(
    tmp_path: Path, returned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._RECOVER_RETRY", (0.01, 0.01))
    api, driver = FakeApiServer(), driver_returning(returned)
    if isinstance(returned, BaseException):

        def raises() -> None:
            raise returned

        driver.result = raises
    async with running_manager(tmp_path, driver, api) as restarted:
        (fault,) = await restarted.claims.faults()
        assert fault.startswith(
            "recover() of the driver failed, so the plugin does not know which hardware is in use: "
        )
        new_ref = api.allocate("x", "x", "d-9", DRIVER)
        assert isinstance(await restarted.prepare(new_ref), HardwareUnknownError)
        recovery_task = asyncio.create_task(restarted.claims.background()["recovery"]())  # type: ignore[arg-type]
        driver.result = [recovered_claim("a", prepared_device("d-0"))]

        async def is_complete() -> bool:
            return await restarted.claims.faults() == []

        await wait_until(is_complete)
        assert not recovery_task.done()
        recovery_task.cancel()
        assert "a" in await restarted.records()
        assert not isinstance(await restarted.prepare(new_ref), DraError)


async def test_recover_is_called_for_another_instance_that_died_before_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._RECOVER_CHECK", 0.01)
    api = FakeApiServer()
    async with running_manager(
        tmp_path, driver_returning([recovered_claim("a", prepared_device("d-0"))]), api
    ) as manager:
        recovery_task = asyncio.create_task(manager.claims.background()["recovery"]())  # type: ignore[arg-type]
        await manager.claims.store.do(lambda records: records.forget("a"))
        other_store = open_store(manager.settings.plugin_dir, in_flight=manager.claims.store.journal.in_flight)
        await other_store.do(lambda records: records.set_meta(RECOVER, "pending"))
        await kill(other_store)

        async def is_merged() -> bool:
            return await manager.records() == {"a": "Prepared"} and not await manager.claims.store.recovering()

        await wait_until(is_merged)
        assert not isinstance(await manager.prepare(api.allocate("x", "x", "d-9", DRIVER)), DraError)
        recovery_task.cancel()


async def test_a_hanging_recover_is_reported_is_called_once_and_blocks_no_unprepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_SLOW", 0.05)
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._START_TIMEOUT", 0.3)
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._RECOVER_RETRY", (0.01, 0.01))
    resume, calls = threading.Event(), []

    def hangs() -> list[RecoveredClaim]:
        calls.append(1)
        resume.wait(110)  # longer than the test timeout
        return [recovered_claim("a", prepared_device("d-0"))]

    api = FakeApiServer()
    async with running_manager(tmp_path, driver_returning(hangs), api) as restarted:
        recovery_task = asyncio.create_task(restarted.claims.background()["recovery"]())  # type: ignore[arg-type]

        async def is_reported() -> bool:
            return any("has not returned for" in f for f in await restarted.claims.faults())

        await wait_until(is_reported)
        new_ref = api.allocate("x", "x", "d-9", DRIVER)
        assert isinstance(await restarted.prepare(new_ref), HardwareUnknownError)
        assert not isinstance(await restarted.unprepare(new_ref), DraError)
        resume.set()

        async def is_merged() -> bool:
            return "a" in await restarted.records()

        await wait_until(is_merged)
        assert calls == [1]

        async def has_no_fault() -> bool:
            return await restarted.claims.faults() == []

        await wait_until(has_no_fault)
        recovery_task.cancel()


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
        first_manager.settings.records_path.write_bytes(b"")
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
