"""The database is removed, or lost with all that files could tell: what another instance, or the driver, knows is not handed out twice."""

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


# --- a removed file, two instances that write -------------------------------------------------------


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
    """An instance in a process of its own, which tries to get six devices in each trial."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, folder: Path, name: str) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, str(folder), name, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        )  # fmt: skip
        made = cls(process)
        assert await made.answer() == "ready"
        return made

    def ask(self, trial: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{trial}\n".encode())

    async def answer(self) -> Any:
        assert self.process.stdout
        async with asyncio.timeout(60):
            return json.loads(await self.process.stdout.readline())

    async def stop(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        await self.process.wait()


def any_harm(path: Path, trial: int) -> None:
    """The file is removed, replaced or overwritten.

    A file that is cut between the write of one instance and the next read of the other loses what no one else knows.
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
    "harm",
    [lambda path, _: remove(path.parent), any_harm],
    ids=["removed", "anything"],
)
async def test_a_file_removed_while_two_instances_write_gives_no_device_twice(
    tmp_path: Path, harm: Callable[[Path, int], None]
) -> None:
    workers = [await Worker.start(tmp_path, name) for name in ("a", "b")]
    path = tmp_path / "records.journal"
    told: dict[str, str] = {}
    try:
        for trial in range(30):
            for worker in workers:
                worker.ask(trial)
            await asyncio.sleep(0.0005 * (trial % 12))
            harm(path, trial)
            for name, worker in zip("ab", workers, strict=True):
                for i in await worker.answer():
                    device = f"d-{trial}-{i}"
                    assert device not in told, f"{device} was given to {told[device]} and to {name}"
                    told[device] = name
    finally:
        for worker in workers:
            await worker.stop()
    assert len(told) > 150
    async with instance(tmp_path) as store:
        known = {r.devices[0]["device"]: r.uid[0] for r in await store.all()}
    assert {d: n for d, n in known.items() if d in told} == told


# --- a file that is removed more than once ----------------------------------------------------------


async def recovered(store: RecordStore) -> None:
    """The driver has told what its hardware knows."""
    await store.do(lambda records: records.clear_meta(RECOVER))


async def die(store: RecordStore) -> None:
    """As killed: nothing is written any more, and the kernel closes what was open."""
    await store._batcher.close(5)
    store.journal.drop()
    store.journal.process.release()


async def test_an_instance_that_slept_while_the_file_was_written_again_never_puts_its_own_in_place_of_the_newer(
    tmp_path: Path,
) -> None:
    async with instance(tmp_path, wait=0.1) as awake, instance(tmp_path, wait=0.1) as asleep:
        await awake.all()
        await asleep.all()
        for device in ("d-0", "d-1", "d-2"):  # whatever was removed how often
            remove(tmp_path)
            await insert(awake, make_record(f"u-{device}", device))
        remove(tmp_path)
        with pytest.raises(RecordsBusyError, match=f"process {os.getpid()} of the plugin, which has it open"):
            await insert(asleep, make_record("thief", "d-2"))
        async with instance(tmp_path, wait=0.1) as third:
            with pytest.raises(RecordsBusyError, match="which has it open"):
                await third.all()
            await awake.check_file()
            for store in (asleep, third):
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
async def test_what_the_dead_knew_is_reported_by_notes_and_the_driver_and_an_outdated_copy_gives_way(
    tmp_path: Path, file: str
) -> None:
    """The newest file is gone, and who had it: of what is left an older copy tells of claims that ended since."""
    async with instance(tmp_path) as asleep:
        awake = open_store(tmp_path)
        await recovered(awake)
        ended, changed, kept = (
            make_record_with_file(tmp_path, u, d) for u, d in (("e", "d-0"), ("c", "d-1"), ("k", "d-2"))
        )
        unfinished = make_record("p", "d-3", State.PREPARING, "1-dead")
        for record in (ended, changed, kept, unfinished):
            await insert(awake, record)
        await asleep.all()
        remove(tmp_path)
        specs = ClaimSpecs(tmp_path / "cdi", DRIVER)
        for record in (ended, changed):
            assert await awake.do(lambda records, fence=record.fence: records.delete(fence))
            specs.remove_note(record.uid)
        for uid, device in (("new", "d-0"), ("c", "d-5")):
            await insert(awake, make_record_with_file(tmp_path, uid, device))
        await die(awake)
        remove(tmp_path)
        if file == "there":  # somebody else, who knew nothing, has made one
            (tmp_path / JOURNAL).write_bytes(b"garbage" * 1000)
        assert {r.uid: r.devices[0]["device"] for r in await asleep.all()} == {
            "new": "d-0", "e": "d-0", "c": "d-5", "k": "d-2", "p": "d-3",
        }, "the end of a claim may be lost, and its device is held until it is unprepared once more"  # fmt: skip
        assert await asleep.recovering()


@pytest.mark.parametrize("step", ["write_new", "rename"])
async def test_a_copy_that_gets_no_name_loses_nothing_and_the_next_one_is_whole(
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
async def test_a_rebuilt_claim_whose_device_a_newer_claim_got_is_undone_without_the_driver(
    tmp_path: Path, note: float, superseded: bool
) -> None:
    async with instance(tmp_path) as store:
        await recovered(store)
        await insert(store, make_record_with_file(tmp_path, "recorded", "d-0"))
    older = make_record("noted", "d-0")
    older.created = note
    ClaimSpecs(tmp_path / "cdi", DRIVER).write_note("noted", note_of(older))
    async with instance(tmp_path) as store:
        found = {r.uid: bool(r.doc.get(SUPERSEDED)) for r in await store.all()}
        assert found == {"noted": superseded, "recorded": False}
        with pytest.raises(HeldByError):
            await insert(store, make_record("thief", "d-0"))


async def test_the_newest_of_rebuilt_claims_with_one_device_is_undone_by_the_driver(tmp_path: Path) -> None:
    for i, uid in enumerate(("b", "c", "a")):
        record = make_record(uid, "d-0")
        record.created = i
        ClaimSpecs(tmp_path / "cdi", DRIVER).write_note(uid, note_of(record))
    async with instance(tmp_path) as store:
        found = {r.uid: bool(r.doc.get(SUPERSEDED)) for r in await store.all()}
        assert found == {"a": False, "b": True, "c": True}


async def test_of_two_claims_with_one_device_both_hold_it_where_the_end_of_one_is_lost(tmp_path: Path) -> None:
    """The plugin is killed, and an older copy is put in the place of the records."""
    killed = open_store(tmp_path)
    await recovered(killed)
    specs = ClaimSpecs(tmp_path / "cdi", DRIVER)
    ended, kept = (make_record_with_file(tmp_path, u, d) for u, d in (("ended", "d-0"), ("kept", "d-1")))
    for record in (ended, kept):
        await insert(killed, record)
    copy = (tmp_path / JOURNAL).read_bytes()
    await killed.do(lambda records: records.delete(ended.fence))
    specs.remove("ended")
    specs.remove_note("ended")
    await insert(killed, make_record_with_file(tmp_path, "later", "d-0"))
    await die(killed)
    (tmp_path / JOURNAL).write_bytes(copy)
    async with instance(tmp_path) as store:
        assert {r.uid for r in await store.all()} == {"ended", "later", "kept"}
        assert await store.recovering()
        assert any("two claims have one device" in line for line in store.journal.report)
        for uid in ("ended", "later"):  # whichever goes first, the device is free after both
            with pytest.raises(HeldByError):
                await insert(store, make_record("thief", "d-0"))
            await store.do(lambda records, uid=uid: records.forget(uid))  # type: ignore[misc]
        await insert(store, make_record("new", "d-0"))


@pytest.mark.parametrize("size", [0, 9, 8192])
async def test_what_comes_in_the_place_of_a_file_in_use_is_set_aside_and_never_read(tmp_path: Path, size: int) -> None:
    async with instance(tmp_path, wait=0.1) as first, instance(tmp_path, wait=0.1) as second:
        for i in range(40):
            await insert(first, make_record(f"u-{i}", f"d-{i}"))
        (tmp_path / "garbage").write_bytes(os.urandom(size))
        (tmp_path / "garbage").rename(tmp_path / JOURNAL)
        with pytest.raises(RecordsBusyError):
            await second.all()
        await first.check_file()
        assert len(await second.all()) == 40
        (aside,) = tmp_path.glob("*.damaged-*")
        assert aside.stat().st_size == size


async def test_what_is_removed_while_it_is_written_to_is_written_again_with_the_last_write(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.all()

        def removed(records: Records) -> None:
            records.insert(make_record("a", "d-0"))
            remove(tmp_path)

        await store.do(removed)
        async with instance(tmp_path) as other:
            assert [r.uid for r in await other.all()] == ["a"]


async def test_who_lets_go_of_the_records_is_waited_for_no_more(tmp_path: Path) -> None:
    async with instance(tmp_path, wait=0.1) as leaving, instance(tmp_path, wait=0.1) as staying:
        await recovered(staying)
        await leaving.all()
        remove(tmp_path)
        await insert(leaving, make_record("a", "d-0"))
        await leaving.close()
        remove(tmp_path)
        await insert(staying, make_record("b", "d-1"))
        assert await staying.recovering()


@pytest.mark.parametrize("edits", [{}, {"D": "0"}], ids=["without CDI edits", "with"])
async def test_what_was_answered_is_held_though_the_plugin_dies_and_the_records_are_lost_at_that_moment(
    tmp_path: Path, edits: dict[str, str]
) -> None:
    class Plain(Driver):
        name = DRIVER

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return [d.prepared(ContainerEdits(env=edits)) for d in claim.devices]

    api = FakeApiServer()
    killed = RunningManager(tmp_path, Plain(), api, "boot")
    await killed.open()
    assert not isinstance(await killed.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
    await die(killed.claims.store)
    killed.settings.records_path.unlink()
    async with running_manager(tmp_path, Plain(), api) as after:
        assert isinstance(await after.prepare(api.allocate("b", "b", "d-0", DRIVER)), DeviceHeldError)


# --- what the driver knows --------------------------------------------------------------------------


class Knowing(Driver):
    """Without CDI edits: only its records, and the hardware, tell of its claims."""

    name = DRIVER
    answer: Any = ()

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits()) for d in claim.devices]

    def recover(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


def a_device(name: str, **fields: Any) -> PreparedDevice:
    return PreparedDevice(**{"request": "r", "pool": "node", "name": name, **fields})


def known(uid: str, *devices: PreparedDevice, **fields: Any) -> RecoveredClaim:
    return RecoveredClaim(uid=uid, devices=list(devices), **fields)


def knowing(answer: Any) -> Knowing:
    driver = Knowing()
    driver.answer = answer
    return driver


async def lost(folder: Path, api: FakeApiServer) -> RunningManager:
    """A claim is prepared without CDI edits, and the database and its note go while nobody runs."""
    async with running_manager(folder, Knowing(), api) as before:
        assert not isinstance(await before.prepare(api.allocate("a", "a", "d-0", DRIVER)), DraError)
    before.settings.records_path.unlink()
    before.claims.files.specs.remove_note("a")
    return before


async def test_a_database_that_is_gone_has_the_driver_asked_though_no_claim_has_cdi_edits(tmp_path: Path) -> None:
    api = FakeApiServer()
    await lost(tmp_path, api)
    async with running_manager(
        tmp_path, knowing([known("a", a_device("d-0"), namespace="ns", name="a")]), api
    ) as after:
        assert await after.records() == {"a": "Prepared"}
        assert isinstance(await after.prepare(api.allocate("b", "b", "d-0", DRIVER)), DeviceHeldError)
        assert await after.unprepare(api.allocate("a", "a", "d-0", DRIVER)) == ()
        assert await after.records() == {}


async def test_one_claim_that_conflicts_is_reported_and_does_not_stop_the_others(tmp_path: Path) -> None:
    answer = [known("a", a_device("d-0")), known("thief", a_device("d-0")), known("c", a_device("d-2"))]
    async with running_manager(tmp_path, knowing(answer)) as after:
        assert await after.records() == {"a": "Prepared", "c": "Prepared"}
        assert any(
            "thief was reported by the driver and is not recorded: device d-0" in n for n in await after.claims.notes()
        )
        assert await after.claims.faults() == []


async def test_what_only_the_hardware_knows_is_undone_first_though_a_record_gives_its_device_to_another(
    tmp_path: Path,
) -> None:
    """The log was lost, with the end of one claim and the beginning of another."""

    class Undone(Knowing):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            self.calls.append(f"prepare {claim.uid}")
            return await super().prepare(claim)

        async def unprepare(self, claim: PreparedClaim) -> None:
            self.calls.append(f"unprepare {claim.uid} {claim.devices[0].name} {claim.complete}")

    api, driver = FakeApiServer(), Undone()
    driver.answer = [known("begun", a_device("d-0"))]
    async with running_manager(tmp_path, driver, api) as one:
        driver.answer = []
        store = one.claims.store
        await store.do(lambda records: records.forget("begun"))
        await insert(store, make_record("ended", "d-0", complete=True))
        await store.do(lambda records: records.set_meta(RECOVER, "pending"))
        driver.answer = [known("begun", a_device("d-0"))]
        assert await one.claims.recovery.once()
        assert await one.records() == {"begun": "Prepared", "ended": "Prepared"}
        ref = api.allocate("begun", "begun", "d-0", DRIVER)
        assert isinstance(await one.prepare(ref), DeviceHeldError)
        assert driver.calls == ["unprepare begun d-0 False"]
        await one.unprepare(api.allocate("ended", "ended", "d-0", DRIVER))
        assert not isinstance(await one.prepare(ref), DraError)
        assert driver.calls[2:] == ["prepare begun"]


async def test_admin_access_that_the_driver_reports_holds_nothing_and_conflicts_with_nobody(tmp_path: Path) -> None:
    answer = [known("a", a_device("d-0")), known("admin", a_device("d-0", admin_access=True))]
    async with running_manager(tmp_path, knowing(answer)) as after:
        assert await after.records() == {"a": "Prepared", "admin": "Prepared"}
        record = await after.claims.store.get("admin")
        assert isinstance(record, Record)
        assert record.holds() == []
        assert record.prepared_claim("boot").devices[0].admin_access


WRONG: dict[str, Any] = {
    "no list": 5,
    "no claims": [5],
    "no UID": [known("")],
    "a UID that is a number": [known(5)],  # type: ignore[arg-type]
    "a UID that is no text": [known("\ud800")],
    "a UID with a NUL": [known("a\0b")],
    "a namespace that is nothing": [known("u", namespace=None)],
    "devices that are nothing": [RecoveredClaim(uid="u", devices=None)],  # type: ignore[arg-type]
    "devices of another kind": [known("u", "d-0")],  # type: ignore[arg-type]
    "a device without a name": [known("u", a_device(None))],  # type: ignore[arg-type]
    "a share that is a number": [known("u", a_device("d-0", share_id=7))],
    "data that is no JSON": [known("u", a_device("d-0", data=object()))],
    "data that is no text": [known("u", a_device("d-0", data={"x": "\ud800"}))],
    "an exception": RuntimeError("\ud800"),
    "an end": SystemExit(3),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
async def test_a_wrong_answer_of_recover_is_reported_in_readiness_and_asked_again(
    tmp_path: Path, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._RECOVER_RETRY", (0.01, 0.01))
    api, driver = FakeApiServer(), knowing(answer)
    if isinstance(answer, BaseException):

        def raises() -> None:
            raise answer

        driver.answer = raises
    async with running_manager(tmp_path, driver, api) as after:
        (fault,) = await after.claims.faults()
        assert fault.startswith(
            "recover() of the driver failed, so the plugin does not know which hardware is in use: "
        )
        new = api.allocate("x", "x", "d-9", DRIVER)
        assert isinstance(await after.prepare(new), HardwareUnknownError)
        asking = asyncio.create_task(after.claims.background()["recovery"]())  # type: ignore[arg-type]
        driver.answer = [known("a", a_device("d-0"))]

        async def merged() -> bool:
            return "a" in await after.records()

        await wait_until(merged)
        assert not asking.done()
        asking.cancel()
        assert await after.claims.faults() == []
        assert not isinstance(await after.prepare(new), DraError)


async def test_the_driver_is_asked_for_another_instance_that_died_before_it_could_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._RECOVER_CHECK", 0.01)
    api = FakeApiServer()
    async with running_manager(tmp_path, knowing([known("a", a_device("d-0"))]), api) as one:
        asking = asyncio.create_task(one.claims.background()["recovery"]())  # type: ignore[arg-type]
        await one.claims.store.do(lambda records: records.forget("a"))
        other = open_store(one.settings.plugin_dir, in_flight=one.claims.store.journal.in_flight)
        await other.do(lambda records: records.set_meta(RECOVER, "pending"))
        await die(other)

        async def merged() -> bool:
            return await one.records() == {"a": "Prepared"} and not await one.claims.store.recovering()

        await wait_until(merged)
        assert not isinstance(await one.prepare(api.allocate("x", "x", "d-9", DRIVER)), DraError)
        asking.cancel()


async def test_a_recover_that_hangs_is_reported_is_called_once_and_holds_up_no_unprepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_SLOW", 0.05)
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._START_TIMEOUT", 0.3)
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._RECOVER_RETRY", (0.01, 0.01))
    go, calls = threading.Event(), []

    def hangs() -> list[RecoveredClaim]:
        calls.append(1)
        go.wait(110)  # longer than the test may take
        return [known("a", a_device("d-0"))]

    api = FakeApiServer()
    async with running_manager(tmp_path, knowing(hangs), api) as after:
        asking = asyncio.create_task(after.claims.background()["recovery"]())  # type: ignore[arg-type]

        async def told() -> bool:
            return any("has not returned for" in f for f in await after.claims.faults())

        await wait_until(told)
        new = api.allocate("x", "x", "d-9", DRIVER)
        assert isinstance(await after.prepare(new), HardwareUnknownError)
        assert not isinstance(await after.unprepare(new), DraError)
        go.set()

        async def merged() -> bool:
            return "a" in await after.records()

        await wait_until(merged)
        assert calls == [1]

        async def mended() -> bool:
            return await after.claims.faults() == []

        await wait_until(mended)
        asking.cancel()


@pytest.mark.parametrize("on_record", [True, False])
async def test_what_the_kubelet_unprepared_before_the_driver_reported_it_is_not_held(
    tmp_path: Path, on_record: bool
) -> None:
    """A driver may have looked at its hardware before, and answer after."""
    api = FakeApiServer()
    if on_record:
        async with running_manager(tmp_path, Knowing(), api) as before:
            await before.prepare(api.allocate("a", "a", "d-0", DRIVER))
            await wait_until(lambda: before.claims.files.specs.note_path("a").exists())
        before.settings.records_path.write_bytes(b"")
    else:
        await lost(tmp_path, api)
    driver = knowing(DriverError("not yet"))
    async with running_manager(tmp_path, driver, api) as after:
        assert ("a" in await after.records()) is on_record
        assert await after.unprepare(api.allocate("a", "a", "d-0", DRIVER)) == ()
        driver.answer = [known("a", a_device("d-0")), known("b", a_device("d-1"))]
        assert await after.claims.recovery.once()
        await after.claims.reconciler.once(ask_server=False)
        assert await after.records() == {"b": "Prepared"}
