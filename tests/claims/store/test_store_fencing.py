"""A write of a process that was considered dead has no effect. The holds of its claim are restored with the record."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import ClaimIdentity, Record, State
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.claims.record import Fence
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.transitions import NothingToDo, RollBack, Transitions
from dra_kubeletplugin.errors import ClaimTakenError, DeviceHeldError, HardwareUnknownError
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER, PoolSupply, make_record, memory_database
from tests.helpers.waiting import wait_until

owners = st.sampled_from(["", "1-aaaaaaaa", "2-bbbbbbbb"])
fences = st.builds(Fence, st.sampled_from(["u", "other"]), owners, st.sampled_from(State))


@settings(deadline=None)
@given(owner=owners, state=st.sampled_from(State), fence=fences, delete=st.booleans())
def test_a_write_with_a_stale_fence_has_no_effect(owner: str, state: State, fence: Fence, delete: bool) -> None:
    records = memory_database()
    records.insert(make_record("u", "d-0", state, owner))
    before = dict(records.stored())
    late_record = make_record("u", "d-0", State.PREPARED, "", complete=True)
    holds = fence == Fence("u", owner, state)
    assert (records.delete(fence) if delete else records.update(late_record, fence)) is holds
    assert (records.stored() == before) is not holds
    assert len(records.held_devices()) == len(records.uids())


class SlowDriver(Driver):
    """Waits in prepare for the event ``go``. The hardware is a dictionary that survives instances."""

    name = DRIVER

    def __init__(self, hardware: dict[str, str], wait: bool = False) -> None:
        self.hardware = hardware
        self.entered, self.go = asyncio.Event(), asyncio.Event()
        if not wait:
            self.go.set()

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            await claim.on_undo("release", device=d.name)
            self.hardware[d.name] = claim.uid
        self.entered.set()
        await self.go.wait()
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    def undo_release(self, claim: PreparedClaim, device: str) -> None:
        if self.hardware.get(device) == claim.uid:
            del self.hardware[device]


async def test_a_late_commit_of_an_instance_considered_dead_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware: dict[str, str] = {}
    api = FakeApiServer()
    ref = api.allocate("c", "u", "d-0", DRIVER)
    slow_driver = SlowDriver(hardware, wait=True)
    async with (
        running_manager(tmp_path, slow_driver, api) as first_manager,
        running_manager(tmp_path, SlowDriver(hardware), api) as second_manager,
    ):
        call = asyncio.create_task(first_manager.prepare(ref))
        await slow_driver.entered.wait()
        monkeypatch.setattr(second_manager.process, "alive", lambda _: False)
        assert await second_manager.unprepare(ref) == ()
        other = api.allocate("other", "v", "d-0", DRIVER)
        assert not isinstance(await second_manager.prepare(other), Exception)
        slow_driver.go.set()
        assert isinstance(await call, ClaimTakenError)
        assert await second_manager.records() == {"v": "Prepared"}
        assert hardware == {"d-0": "v"}


async def test_a_late_undo_step_is_refused_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared_devices: list[str] = []

    class LateDriver(SlowDriver):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            self.entered.set()
            await self.go.wait()
            await claim.on_undo("release", device="d-0")
            prepared_devices.append(claim.uid)
            return [d.prepared(ContainerEdits()) for d in claim.devices]

    api = FakeApiServer()
    ref = api.allocate("c", "u", "d-0", DRIVER)
    driver = LateDriver({}, wait=True)
    async with (
        running_manager(tmp_path, driver, api) as first_manager,
        running_manager(tmp_path, SlowDriver({}), api) as second_manager,
    ):
        call = asyncio.create_task(first_manager.prepare(ref))
        await driver.entered.wait()
        monkeypatch.setattr(second_manager.process, "alive", lambda _: False)
        await second_manager.unprepare(ref)
        driver.go.set()
        assert isinstance(await call, ClaimTakenError)
        assert prepared_devices == []
        assert await second_manager.records() == {}


@pytest.mark.parametrize("damage", [shutil.rmtree, lambda path: (path / "a.json").write_bytes(b"garbage")])
async def test_a_record_in_progress_is_restored_with_its_holds_when_its_file_is_lost(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    api = FakeApiServer()
    first, second = (api.allocate(n, n, "d-0", DRIVER) for n in ("a", "b"))
    slow_driver = SlowDriver({}, wait=True)
    async with running_manager(tmp_path, slow_driver, api) as manager:
        call = asyncio.create_task(manager.prepare(first))
        await slow_driver.entered.wait()
        damage(manager.settings.records_path)
        assert isinstance(await manager.prepare(second), DeviceHeldError | HardwareUnknownError)
        assert await manager.claims.recovery.once()
        assert isinstance(await manager.prepare(second), DeviceHeldError)
        slow_driver.go.set()
        assert not isinstance(await call, Exception)
        assert await manager.records() == {"a": "Prepared"}
        assert isinstance(await manager.prepare(second), DeviceHeldError)


# --- decision and state change in one transaction ---------------------------------------------------


def make_transitions(folder: Path, boot: str = "boot") -> Transitions:
    process = InstanceLock(folder)
    process.acquire()
    return Transitions(process, boot, lambda uid: False)


@given(new_state=st.sampled_from(["prepared", "gone", "taken over"]))
def test_a_stale_holder_is_checked_again_when_its_rollback_begins(
    tmp_path_factory: pytest.TempPathFactory, new_state: str
) -> None:
    folder = tmp_path_factory.mktemp("processes")
    transitions, other_transitions = make_transitions(folder), make_transitions(folder)
    records = memory_database()
    holder = make_record("holder", "d-0", State.UNPREPARING, "1-dead0000")
    records.insert(holder)
    stale = transitions.begin(records, make_record("new", "d-0"), None, PoolSupply())
    assert [r.uid for r in getattr(stale, "holders", [])] == ["holder"]
    match new_state:
        case "prepared":  # another instance rolled it back, and it was prepared again
            assert records.update(make_record("holder", "d-0"), holder.fence)
        case "gone":
            assert records.delete(holder.fence)
        case "taken over":
            assert isinstance(other_transitions.free(records, "holder"), RollBack)
    before = dict(records.stored())
    assert isinstance(transitions.free(records, "holder"), NothingToDo)
    assert records.stored() == before
    for instance in (transitions, other_transitions):
        instance.process.release()


class SlowUndoDriver(SlowDriver):
    """Waits in its undo method for the event ``may_undo``."""

    def __init__(self, hardware: dict[str, str]) -> None:
        super().__init__(hardware)
        self.undone_devices: list[str] = []
        self.undoing, self.may_undo = asyncio.Event(), asyncio.Event()

    async def undo_release(self, claim: PreparedClaim, device: str) -> None:  # type: ignore[override]
        self.undone_devices.append(device)
        self.undoing.set()
        await self.may_undo.wait()
        super().undo_release(claim, device)


@contextlib.asynccontextmanager
async def manager_after_reboot(
    folder: Path, api: FakeApiServer
) -> AsyncIterator[tuple[RunningManager, SlowUndoDriver]]:
    """Yields a manager in which the claim ``gone`` holds d-0 and d-1 since before a reboot."""
    hardware: dict[str, str] = {}
    stale_ref = api.allocate("gone", "gone", "d-0", DRIVER)
    results = api.claims["gone"]["status"]["allocation"]["devices"]["results"]
    results.append({**results[0], "device": "d-1", "request": "r1"})
    async with running_manager(folder, SlowDriver(hardware), api, boot="before") as first_manager:
        await first_manager.prepare(stale_ref)
    driver = SlowUndoDriver(hardware)
    async with running_manager(folder, driver, api) as restarted:
        yield restarted, driver


@pytest.mark.parametrize("cause", ["another prepare", "the kubelet", "a reconcile"])
async def test_a_prepare_waits_for_a_device_of_a_claim_that_is_being_rolled_back(
    tmp_path: Path, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    async with manager_after_reboot(tmp_path, api) as (manager, driver):
        transitions, checked_uids = manager.claims.engine.transitions, set[str]()
        begin = transitions.begin

        def begin_and_record(records: Records, record: Record, *args: Any) -> Any:
            decision = begin(records, record, *args)
            checked_uids.add(record.uid)
            return decision

        monkeypatch.setattr(transitions, "begin", begin_and_record)
        refs = [api.allocate(name, name, f"d-{i}", DRIVER) for i, name in enumerate("ab")]
        match cause:
            case "the kubelet":
                first = asyncio.create_task(manager.unprepare(ClaimIdentity("ns", "gone", "gone")))
            case "a reconcile":
                row = await manager.claims.store.get("gone")
                assert isinstance(row, Record)
                await manager.claims.store.do(
                    lambda records: transitions.free(records, "gone")
                )  # The rollback did not finish.
                first = asyncio.create_task(manager.claims.reconciler.once(ask_server=False))  # type: ignore[arg-type]
            case _:
                first = asyncio.create_task(manager.prepare(refs.pop()))
        await driver.undoing.wait()
        later_calls = [asyncio.create_task(manager.prepare(ref)) for ref in refs]
        await wait_until(lambda: {ref.uid for ref in refs} <= checked_uids)
        driver.may_undo.set()
        responses = [await task for task in (first, *later_calls)]
        assert not [a for a in responses if isinstance(a, Exception)]
        assert await manager.records() == dict.fromkeys(driver.hardware.values(), "Prepared")
        assert sorted(driver.undone_devices) == ["d-0", "d-1"]


async def test_an_undo_that_many_claims_wait_for_runs_once_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    async with manager_after_reboot(tmp_path, api) as (manager, driver):
        undone_devices, waiting_uids = list[str](), list[str]()
        start = manager.claims.tasks.start

        async def failing_undo(claim: PreparedClaim, device: str) -> None:
            undone_devices.append(device)
            await driver.may_undo.wait()
            raise RuntimeError("the board is stuck")

        def start_and_record(uid: str, *work: Any) -> Any:
            work_task = start(uid, *work)
            waiting_uids.extend([uid] if uid == "gone" else [])
            return work_task

        monkeypatch.setattr(driver, "undo_release", failing_undo)
        monkeypatch.setattr(manager.claims.tasks, "start", start_and_record)
        refs = [api.allocate(name, name, f"d-{i % 2}", DRIVER) for i, name in enumerate("abcdef")]
        calls = [asyncio.create_task(manager.prepare(ref)) for ref in refs]
        await wait_until(lambda: len(waiting_uids) == len(refs))
        driver.may_undo.set()
        responses = [await call for call in calls]
        assert {type(a) for a in responses} == {DeviceHeldError}
        assert all("ns/gone" in str(a) and "the board is stuck" in str(a) for a in responses)
        assert sorted(undone_devices) == ["d-0", "d-1"]


async def test_a_wait_for_a_long_undo_ends_with_an_error_that_names_the_claim_and_the_undo_continues(
    tmp_path: Path,
) -> None:
    api = FakeApiServer()
    async with manager_after_reboot(tmp_path, api) as (manager, driver):
        ref = api.allocate("new", "new", "d-0", DRIVER)
        manager.claims.engine.rollback.holder_timeout = 0.01
        response = await manager.prepare(ref)
        assert isinstance(response, DeviceHeldError)
        assert "still held by claim ns/gone" in str(response)
        assert "whose rollback takes longer" in str(response)
        manager.claims.engine.rollback.holder_timeout = 60
        driver.may_undo.set()
        assert not isinstance(await manager.prepare(ref), Exception)
        assert sorted(driver.undone_devices) == ["d-0", "d-1"]


async def test_a_claim_of_many_devices_gets_all_devices_that_other_claims_held_before_a_reboot(tmp_path: Path) -> None:
    count = 10
    api, hardware = FakeApiServer(), {}  # type: ignore[var-annotated]
    async with running_manager(tmp_path, SlowDriver(hardware), api, boot="before") as first_manager:
        for i in range(count):
            await first_manager.prepare(api.allocate(f"old-{i}", f"old-{i}", f"d-{i}", DRIVER))
    hardware.clear()
    ref = api.allocate("new", "new", "d-0", DRIVER)
    results = api.claims["new"]["status"]["allocation"]["devices"]["results"]
    results += [{**results[0], "device": f"d-{i}", "request": f"r{i}"} for i in range(1, count)]
    async with running_manager(tmp_path, SlowDriver(hardware), api) as restarted:
        assert not isinstance(await restarted.prepare(ref), Exception)
        assert await restarted.records() == {"new": "Prepared"}
        assert set(hardware.values()) == {"new"}
