"""A write of a process that was considered dead has no effect. The holds of its claim are restored with the record."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import ClaimIdentity, State
from dra_kubeletplugin.claims.record import Fence
from dra_kubeletplugin.errors import ClaimTakenError, DeviceHeldError, HardwareUnknownError
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER, make_record, memory_database

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
    """Waits in prepare for ``go``, and in its undo method for ``may_undo``. The hardware is a dictionary that survives instances."""

    name = DRIVER

    def __init__(self, hardware: dict[str, str], *, waits: bool = False, is_late: bool = False) -> None:
        self.hardware = hardware
        self.is_late = is_late  # the undo step is registered after the wait
        self.entered, self.go, self.undoing, self.may_undo = (asyncio.Event() for _ in range(4))
        self.may_undo.set()
        if not waits:
            self.go.set()
        self.undone_devices: list[str] = []
        self.failure: Exception | None = None

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            if self.is_late:
                self.entered.set()
                await self.go.wait()
            await claim.on_undo(self.release, device=d.name)
            self.hardware[d.name] = claim.uid
        self.entered.set()
        await self.go.wait()
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def release(self, claim: PreparedClaim, device: str) -> None:
        self.undone_devices.append(device)
        self.undoing.set()
        await self.may_undo.wait()
        if self.failure:
            raise self.failure
        if self.hardware.get(device) == claim.uid:
            del self.hardware[device]


@pytest.mark.parametrize("is_late", [False, True], ids=["commit", "undo step"])
async def test_a_late_write_of_an_instance_considered_dead_is_refused_and_changes_nothing(
    tmp_path: Path, is_late: bool
) -> None:
    hardware: dict[str, str] = {}
    api, slow_driver = FakeApiServer(), SlowDriver(hardware, waits=True, is_late=is_late)
    ref = api.allocate("c", "u", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, slow_driver, api) as first_manager,
        running_manager(tmp_path, SlowDriver(hardware), api) as second_manager,
    ):
        call = asyncio.create_task(first_manager.prepare(ref))
        await slow_driver.entered.wait()
        first_manager.process.release()  # the lock is lost, although the process works
        assert await second_manager.unprepare(ref) == ()
        other = api.allocate("other", "v", "d-0", DRIVER)
        assert not isinstance(await second_manager.prepare(other), Exception)
        slow_driver.go.set()
        assert isinstance(await call, ClaimTakenError)
        assert await second_manager.records() == {"v": "Prepared"}
        assert hardware == {"d-0": "v"}


@pytest.mark.parametrize("damage", [shutil.rmtree, lambda path: (path / "a.json").write_bytes(b"garbage")])
async def test_a_record_in_progress_is_restored_with_its_holds_when_its_file_is_lost(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    api = FakeApiServer()
    first, second = (api.allocate(n, n, "d-0", DRIVER) for n in ("a", "b"))
    slow_driver = SlowDriver({}, waits=True)
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


# --- a device of a claim that is being rolled back --------------------------------------------------


@contextlib.asynccontextmanager
async def manager_after_reboot(
    folder: Path, api: FakeApiServer, **options: float
) -> AsyncIterator[tuple[RunningManager, SlowDriver]]:
    """Yields a manager in which the claim ``gone`` holds d-0 and d-1 since before a reboot, and a driver whose undo waits."""
    hardware: dict[str, str] = {}
    stale_ref = api.allocate("gone", "gone", "d-0", DRIVER)
    results = api.claims["gone"]["status"]["allocation"]["devices"]["results"]
    results.append({**results[0], "device": "d-1", "request": "r1"})
    async with running_manager(folder, SlowDriver(hardware), api, boot="before") as first_manager:
        await first_manager.prepare(stale_ref)
    driver = SlowDriver(hardware)
    driver.may_undo.clear()
    async with running_manager(folder, driver, api, **options) as restarted:
        yield restarted, driver


@pytest.mark.parametrize("cause", ["another prepare", "the kubelet", "a reconcile", "another prepare, in vain"])
async def test_prepares_wait_for_one_undo_of_a_claim_that_is_being_rolled_back(tmp_path: Path, cause: str) -> None:
    api = FakeApiServer()
    async with manager_after_reboot(tmp_path, api) as (manager, driver):
        refs = [api.allocate(name, name, f"d-{i % 2}", DRIVER) for i, name in enumerate("abcdef")]
        match cause:
            case "the kubelet":
                first = asyncio.ensure_future(manager.unprepare(ClaimIdentity("ns", "gone", "gone")))
            case "a reconcile":
                transitions = manager.claims.engine.transitions  # a rollback that did not finish
                await manager.claims.store.do(lambda records: transitions.free(records, "gone"))
                first = asyncio.ensure_future(manager.claims.reconciler.once(ask_server=False))
            case _:
                first = asyncio.ensure_future(manager.prepare(refs.pop()))
        await driver.undoing.wait()
        calls = [asyncio.create_task(manager.prepare(ref)) for ref in refs]
        await manager.decided()
        is_in_vain = cause.endswith("in vain")
        driver.failure = RuntimeError("the board is stuck") if is_in_vain else None
        driver.may_undo.set()
        responses = [await call for call in (first, *calls)]
        assert sorted(driver.undone_devices) == ["d-0", "d-1"], "one undo for all of them"
        errors = [a for a in responses if isinstance(a, DeviceHeldError)]
        if is_in_vain:
            assert len(errors) == len(responses)
            assert all("ns/gone" in str(a) and "the board is stuck" in str(a) for a in errors)
        else:
            assert await manager.records() == dict.fromkeys(driver.hardware.values(), "Prepared")
            assert len(driver.hardware) == 2
            assert len(errors) == len(responses) - 2 - (not cause.startswith("another"))


async def test_a_wait_for_a_long_undo_ends_with_an_error_that_names_the_claim_and_the_undo_continues(
    tmp_path: Path,
) -> None:
    api = FakeApiServer()
    async with manager_after_reboot(tmp_path, api, call_timeout=1) as (manager, driver):
        response = await manager.prepare(ref := api.allocate("new", "new", "d-0", DRIVER))
        assert isinstance(response, DeviceHeldError)
        assert "still held by claim ns/gone" in str(response)
        assert "whose rollback takes longer" in str(response)
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
