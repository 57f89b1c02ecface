"""A writer that was taken for dead has no effect, whatever it writes and whenever; what it held comes back with its record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import ClaimIdentity, Record, State
from dra_kubeletplugin.claims.capacity import Hold
from dra_kubeletplugin.claims.instances import InstanceLock
from dra_kubeletplugin.claims.record import Fence
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.transitions import NothingToDo, Prepare, RollBack, Transitions
from dra_kubeletplugin.errors import ClaimTakenError, DeviceHeldError
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
    before = records.all_lines()
    late = make_record("u", "d-0", State.PREPARED, "", late=True)
    holds = fence == Fence("u", owner, state)
    assert (records.delete(fence) if delete else records.update(late, fence)) is holds
    assert (records.all_lines() == before) is not holds
    assert len(records.held_devices()) == len(records.uids())


class Slow(Driver):
    """Waits in prepare until it is let go; what it holds is a set that outlives processes."""

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


async def test_a_late_commit_of_an_instance_taken_for_dead_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware: dict[str, str] = {}
    api = FakeApiServer()
    ref = api.allocate("c", "u", "d-0", DRIVER)
    slow = Slow(hardware, wait=True)
    async with running_manager(tmp_path, slow, api) as late, running_manager(tmp_path, Slow(hardware), api) as quick:
        call = asyncio.create_task(late.prepare(ref))
        await slow.entered.wait()
        monkeypatch.setattr(quick.process, "alive", lambda _: False)
        assert await quick.unprepare(ref) == ()
        other = api.allocate("other", "v", "d-0", DRIVER)
        assert not isinstance(await quick.prepare(other), Exception)
        slow.go.set()
        assert isinstance(await call, ClaimTakenError)
        assert await quick.records() == {"v": "Prepared"}
        assert hardware == {"d-0": "v"}


async def test_a_step_that_is_registered_late_is_refused_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    class Late(Slow):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            self.entered.set()
            await self.go.wait()
            await claim.on_undo("release", device="d-0")
            taken.append(claim.uid)
            return [d.prepared(ContainerEdits()) for d in claim.devices]

    api = FakeApiServer()
    ref = api.allocate("c", "u", "d-0", DRIVER)
    driver = Late({}, wait=True)
    async with running_manager(tmp_path, driver, api) as late, running_manager(tmp_path, Slow({}), api) as quick:
        call = asyncio.create_task(late.prepare(ref))
        await driver.entered.wait()
        monkeypatch.setattr(quick.process, "alive", lambda _: False)
        await quick.unprepare(ref)
        driver.go.set()
        assert isinstance(await call, ClaimTakenError)
        assert taken == []
        assert await quick.records() == {}


def lose(path: Path) -> None:
    path.unlink()


def garble(path: Path) -> None:
    path.write_bytes(b"not a journal at all" * 500)


@pytest.mark.parametrize("damage", [lose, garble])
async def test_a_record_in_work_comes_back_with_its_holds_when_the_database_is_lost(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    api = FakeApiServer()
    first, second = (api.allocate(n, n, "d-0", DRIVER) for n in ("a", "b"))
    slow = Slow({}, wait=True)
    async with running_manager(tmp_path, slow, api) as one:
        call = asyncio.create_task(one.prepare(first))
        await slow.entered.wait()
        damage(one.settings.records_path)
        assert isinstance(await one.prepare(second), DeviceHeldError)
        slow.go.set()
        assert not isinstance(await call, Exception)
        assert await one.records() == {"a": "Prepared"}
        assert isinstance(await one.prepare(second), DeviceHeldError)


# --- judged and marked in one transaction -----------------------------------------------------------


def judge(folder: Path, boot: str = "boot") -> Transitions:
    process = InstanceLock(folder)
    process.acquire()
    return Transitions(DRIVER, process, boot, lambda uid: False)


@given(now=st.sampled_from(["prepared", "gone", "taken over"]))
def test_a_holder_that_looked_stale_is_judged_again_when_it_is_marked(
    tmp_path_factory: pytest.TempPathFactory, now: str
) -> None:
    folder = tmp_path_factory.mktemp("processes")
    ours, others = judge(folder), judge(folder)
    records = memory_database()
    holder = make_record("holder", "d-0", State.UNPREPARING, "1-dead0000")
    records.insert(holder)
    stale = ours.begin(records, make_record("new", "d-0"), None, PoolSupply())
    assert [r.uid for r in getattr(stale, "holders", [])] == ["holder"]
    match now:
        case "prepared":  # undone by another instance, and prepared again
            assert records.update(make_record("holder", "d-0"), holder.fence)
        case "gone":
            assert records.delete(holder.fence)
        case "taken over":
            assert isinstance(others.free(records, "holder"), RollBack)
    before = records.all_lines()
    assert isinstance(ours.free(records, "holder"), NothingToDo)
    assert records.all_lines() == before
    for each in (ours, others):
        each.process.release()


async def test_a_stale_holder_that_is_prepared_again_meanwhile_keeps_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, hardware = FakeApiServer(), {}  # type: ignore[var-annotated]
    old, new = (api.allocate(n, n, "d-0", DRIVER) for n in ("old", "new"))
    async with running_manager(tmp_path, Slow(hardware), api, boot="before") as before:
        await before.prepare(old)
    hardware.clear()
    async with running_manager(tmp_path, Slow(hardware), api) as one:
        free = one.claims.engine.rollback.free

        async def prepared_in_between(holders: Any) -> None:
            monkeypatch.undo()
            assert not isinstance(await one.prepare(old), Exception)
            await free(holders)

        monkeypatch.setattr(one.claims.engine.rollback, "free", prepared_in_between)
        assert isinstance(await one.prepare(new), DeviceHeldError)
        assert hardware == {"d-0": "old"}
        assert await one.records() == {"old": "Prepared"}


class SlowToUndo(Slow):
    """Waits in its undo until it is let go."""

    def __init__(self, hardware: dict[str, str]) -> None:
        super().__init__(hardware)
        self.undone: list[str] = []
        self.undoing, self.may_undo = asyncio.Event(), asyncio.Event()

    async def undo_release(self, claim: PreparedClaim, device: str) -> None:  # type: ignore[override]
        self.undone.append(device)
        self.undoing.set()
        await self.may_undo.wait()
        super().undo_release(claim, device)


@contextlib.asynccontextmanager
async def left_over(folder: Path, api: FakeApiServer) -> AsyncIterator[tuple[RunningManager, SlowToUndo]]:
    """A room where the claim ``gone`` holds d-0 and d-1, from before a reboot."""
    hardware: dict[str, str] = {}
    gone = api.allocate("gone", "gone", "d-0", DRIVER)
    results = api.claims["gone"]["status"]["allocation"]["devices"]["results"]
    results.append({**results[0], "device": "d-1", "request": "r1"})
    async with running_manager(folder, Slow(hardware), api, boot="before") as before:
        await before.prepare(gone)
    driver = SlowToUndo(hardware)
    async with running_manager(folder, driver, api) as after:
        yield after, driver


@pytest.mark.parametrize("begun", ["another prepare", "the kubelet", "a reconcile"])
async def test_who_needs_a_device_of_a_claim_that_is_being_undone_waits_for_it(
    tmp_path: Path, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    async with left_over(tmp_path, api) as (one, driver):
        judge, judged = one.claims.engine.context.transitions, set[str]()
        begin = judge.begin

        def seen(records: Records, wanted: Record, *more: Any) -> Any:
            verdict = begin(records, wanted, *more)
            judged.add(wanted.uid)
            return verdict

        monkeypatch.setattr(judge, "begin", seen)
        refs = [api.allocate(name, name, f"d-{i}", DRIVER) for i, name in enumerate("ab")]
        match begun:
            case "the kubelet":
                first = asyncio.create_task(one.unprepare(ClaimIdentity("ns", "gone", "gone")))
            case "a reconcile":
                row = await one.claims.store.get("gone")
                assert isinstance(row, Record)
                await one.claims.store.do(
                    lambda records: judge.free(records, "gone")
                )  # an undo that did not come to its end
                first = asyncio.create_task(one.claims.reconciler.once(ask_server=False))  # type: ignore[arg-type]
            case _:
                first = asyncio.create_task(one.prepare(refs.pop()))
        await driver.undoing.wait()
        late = [asyncio.create_task(one.prepare(ref)) for ref in refs]
        await wait_until(lambda: {ref.uid for ref in refs} <= judged)
        driver.may_undo.set()
        answers = [await task for task in (first, *late)]
        assert not [a for a in answers if isinstance(a, Exception)]
        assert await one.records() == dict.fromkeys(driver.hardware.values(), "Prepared")
        assert sorted(driver.undone) == ["d-0", "d-1"]


async def test_an_undo_that_many_claims_wait_for_is_tried_once_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    async with left_over(tmp_path, api) as (one, driver):
        tries, waits = list[str](), list[str]()
        start = one.claims.tasks.start

        async def broken(claim: PreparedClaim, device: str) -> None:
            tries.append(device)
            await driver.may_undo.wait()
            raise RuntimeError("the board is stuck")

        def started(uid: str, *work: Any) -> Any:
            found = start(uid, *work)
            waits.extend([uid] if uid == "gone" else [])
            return found

        monkeypatch.setattr(driver, "undo_release", broken)
        monkeypatch.setattr(one.claims.tasks, "start", started)
        refs = [api.allocate(name, name, f"d-{i % 2}", DRIVER) for i, name in enumerate("abcdef")]
        calls = [asyncio.create_task(one.prepare(ref)) for ref in refs]
        await wait_until(lambda: len(waits) == len(refs))
        driver.may_undo.set()
        answers = [await call for call in calls]
        assert {type(a) for a in answers} == {DeviceHeldError}
        assert all("ns/gone" in str(a) and "the board is stuck" in str(a) for a in answers)
        assert sorted(tries) == ["d-0", "d-1"]


async def test_who_waits_long_for_an_undo_is_reported_for_which_and_the_undo_goes_on(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with left_over(tmp_path, api) as (one, driver):
        ref = api.allocate("new", "new", "d-0", DRIVER)
        one.claims.engine.rollback.holder_timeout = 0.01
        answer = await one.prepare(ref)
        assert isinstance(answer, DeviceHeldError)
        assert "still held by claim ns/gone" in str(answer)
        assert "whose rollback takes longer" in str(answer)
        one.claims.engine.rollback.holder_timeout = 60
        driver.may_undo.set()
        assert not isinstance(await one.prepare(ref), Exception)
        assert sorted(driver.undone) == ["d-0", "d-1"]


@pytest.mark.parametrize("count", [1, 10, 30])
async def test_a_claim_of_many_devices_gets_all_that_other_claims_held_before_a_reboot(
    tmp_path: Path, count: int
) -> None:
    api, hardware = FakeApiServer(), {}  # type: ignore[var-annotated]
    async with running_manager(tmp_path, Slow(hardware), api, boot="before") as before:
        for i in range(count):
            await before.prepare(api.allocate(f"old-{i}", f"old-{i}", f"d-{i}", DRIVER))
    hardware.clear()
    ref = api.allocate("new", "new", "d-0", DRIVER)
    results = api.claims["new"]["status"]["allocation"]["devices"]["results"]
    results += [{**results[0], "device": f"d-{i}", "request": f"r{i}"} for i in range(1, count)]
    async with running_manager(tmp_path, Slow(hardware), api) as after:
        assert not isinstance(await after.prepare(ref), Exception)
        assert await after.records() == {"new": "Prepared"}
        assert set(hardware.values()) == {"new"}


def test_a_fresh_record_and_its_holds_are_written_together(tmp_path: Path) -> None:
    ours = judge(tmp_path)
    records = memory_database()
    assert isinstance(ours.begin(records, make_record("u", "d-0"), None, PoolSupply()), Prepare)
    assert records.holders(Hold("node", "d-0", "", "", "")) == ["u"]
    with pytest.raises(DeviceHeldError, match="still held by claim ns/name-u"):
        ours.begin(records, make_record("v", "d-0"), None, PoolSupply())
    assert isinstance(records.read("u"), Record)
    assert records.read("v") is None
    ours.process.release()
