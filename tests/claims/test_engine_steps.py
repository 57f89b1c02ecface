"""Steps of one prepare or unprepare: records, metrics, log lines, notifications of changes, and waits between calls."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.telemetry.logs import log_fields
from dra_kubeletplugin.claims import ClaimIdentity, Record, State, engine
from dra_kubeletplugin.claims.inflight import BatchWindow
from dra_kubeletplugin.claims.store.files import read_rows
from dra_kubeletplugin.claims.store.records import Records, file_name
from dra_kubeletplugin.errors import (
    ApiError,
    ClaimBusyError,
    ClaimNotFoundError,
    ClaimTakenError,
    DraError,
    DriverError,
    RecordsError,
    StillWorkingError,
)
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.waiting import wait_until


class PlainDriver(Driver):
    """A driver without undo."""

    name = DRIVER

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]


class BlockingDriver(PlainDriver):
    """``prepare`` and ``unprepare`` wait for ``go`` and raise ``fault``. ``states`` contains the recorded states in each
    call, if ``records`` returns them.
    """

    def __init__(self) -> None:
        self.fault: dict[str, Exception] = {}
        self.go = asyncio.Event()
        self.go.set()
        self.entered = asyncio.Event()
        self.records: Callable[[], Awaitable[dict[str, str]]] | None = None
        self.states: list[dict[str, str]] = []

    async def _enter(self, operation: str) -> None:
        if self.records:
            self.states.append(await self.records())
        self.entered.set()
        await self.go.wait()
        if operation in self.fault:
            raise self.fault[operation]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        await self._enter("prepare")
        return await super().prepare(claim)

    async def unprepare(self, claim: PreparedClaim) -> None:
        await self._enter("unprepare")


def requests(manager: RunningManager) -> dict[str, int]:
    """Returns the number of requests by operation and result."""
    out = {}
    for line in manager.metrics.text().decode().splitlines():
        if line.startswith("dra_requests_total{"):
            labels, _, value = line.partition("{")[2].rpartition("} ")
            out[labels] = int(float(value))
    return out


# --- records, and notifications of changes -----------------------------------------------------------------


@pytest.mark.parametrize("driver", [PlainDriver, BlockingDriver])
async def test_the_record_precedes_each_call_of_the_driver_and_each_change_of_devices_is_announced_once(
    tmp_path: Path, driver: type[Driver]
) -> None:
    api, driver_instance = FakeApiServer(), driver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver_instance, api) as manager:
        if isinstance(driver_instance, BlockingDriver):
            driver_instance.records = manager.records
        for _ in range(2):
            assert not isinstance(await manager.prepare(ref), DraError)
            assert manager.changes == 1
        for _ in range(2):
            assert await manager.unprepare(ref) == ()
            assert manager.changes == 2
        if isinstance(driver_instance, BlockingDriver):
            assert driver_instance.states == [{"a": "Preparing"}, {"a": "Unpreparing"}]


async def test_a_device_is_free_after_a_failed_prepare_and_held_after_a_failed_undo_or_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    ref, other_ref = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")

    def fail_on_full_disk(*_: Any, **__: Any) -> Any:
        raise RecordsError("the disk is full")

    async with running_manager(tmp_path, driver, api) as manager:
        driver.fault["prepare"] = DriverError("no")
        assert isinstance(await manager.prepare(ref), DriverError)
        assert (await manager.records(), manager.changes) == ({}, 1)
        driver.fault["unprepare"] = DriverError("the card does not answer")
        assert isinstance(await manager.prepare(ref), DriverError)
        assert await manager.records() == {"a": "Unpreparing"}
        driver.fault.clear()
        assert isinstance(await manager.prepare(ref), tuple | list)
        assert isinstance(await manager.prepare(other_ref), DraError)
        new_ref = api.allocate("c", "c", "d-1", DRIVER)
        for owner, method in ((Records, "insert"), (manager.claims.store.folder, "commit")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, method, fail_on_full_disk)
                assert isinstance(await manager.prepare(new_ref), RecordsError)
            assert await manager.records() == {"a": "Prepared"}
        driver.fault["unprepare"] = DriverError("the card does not answer")
        assert isinstance(await manager.unprepare(ref), DraError)
        with monkeypatch.context() as patch:
            patch.setattr(Records, "update", fail_on_full_disk)
            assert isinstance(await manager.unprepare(ref), RecordsError)
        assert await manager.records() == {"a": "Unpreparing"}
        assert isinstance(await manager.prepare(other_ref), DraError)
        assert await manager.records() == {"a": "Unpreparing"}


@pytest.mark.parametrize("damage", [shutil.rmtree, lambda path: (path / file_name("a")).write_bytes(b"garbage")])
async def test_a_prepare_whose_record_is_lost_writes_it_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        driver.go.clear()
        preparing = asyncio.create_task(manager.prepare(ref))
        await driver.entered.wait()
        damage(manager.settings.records_path)
        await manager.claims.store.check_files()
        assert await manager.records() == {"a": "Preparing"}
        damage(manager.settings.records_path)
        driver.go.set()
        assert not isinstance(await preparing, DraError)
        assert await manager.records() == {"a": "Prepared"}


@pytest.mark.parametrize("phase", ["step", "commit"])
async def test_a_prepare_stops_if_another_instance_took_over_its_record(tmp_path: Path, phase: str) -> None:
    class StepDriver(BlockingDriver):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            prepared = await super().prepare(claim)
            if phase == "step":
                await claim.on_undo("it")
            return prepared

        async def undo_it(self, claim: PreparedClaim) -> None:
            pass

    api, driver = FakeApiServer(), StepDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        driver.go.clear()
        preparing = asyncio.create_task(manager.prepare(ref))
        await driver.entered.wait()

        def take_over(records: Records) -> None:
            row = records.read("a")
            assert isinstance(row, Record)
            fence = row.fence
            row.owner = "1-deadbeef"
            assert records.update(row, fence)

        await manager.claims.store.do(take_over)
        driver.go.set()
        response = await preparing
        assert isinstance(response, ClaimTakenError)
        assert "this instance stops its work" in str(response)
        assert await manager.records() == {"a": "Preparing"}


# --- two instances -----------------------------------------------------------------------------------------


async def test_an_instance_waits_for_a_claim_that_another_instance_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, blocking_driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, blocking_driver, api) as old_manager,
        running_manager(tmp_path, PlainDriver(), api) as new_manager,
    ):
        store, reads = new_manager.claims.store, list[str]()
        get = store.get
        monkeypatch.setattr(store, "get", lambda uid: reads.append(uid) or get(uid))
        for operation, is_empty in (("prepare", False), ("unprepare", True)):
            blocking_driver.go.clear()
            blocking_driver.entered.clear()
            first = asyncio.create_task(getattr(old_manager, operation)(ref))
            await blocking_driver.entered.wait()
            second = asyncio.create_task(getattr(new_manager, operation)(ref))
            reads.clear()
            await wait_until(lambda: len(reads) > 3)
            assert not second.done()
            blocking_driver.go.set()
            assert (await first == ()) is is_empty
            assert await second == await first
        assert await new_manager.records() == {}


@pytest.mark.parametrize("operation", ["prepare", "unprepare"])
async def test_an_instance_that_hangs_with_a_claim_is_named_after_a_bounded_time(
    tmp_path: Path, operation: str
) -> None:
    api, blocking_driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, blocking_driver, api) as old_manager,
        running_manager(tmp_path, PlainDriver(), api, lock_timeout=0.1) as new_manager,
    ):
        blocking_driver.go.clear()
        first = asyncio.create_task(old_manager.prepare(ref))
        await blocking_driver.entered.wait()
        response = await getattr(new_manager, operation)(ref)
        assert isinstance(response, ClaimBusyError)
        pid = old_manager.process.id.partition("-")[0]
        assert f"(process {pid}) for more than 0.1 s: if that instance hangs, delete its pod" in str(response)
        assert "has been Preparing in another instance" in str(response)
        blocking_driver.go.set()
        assert not isinstance(await first, DraError)


async def test_a_claim_that_stays_busy_is_an_error_after_a_bounded_number_of_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        rounds: list[int] = []

        def never_ready(*_: Any) -> Any:
            rounds.append(1)
            return engine.InProgress(Record("a", "ns", "a", State.PREPARING, "boot"))

        for decision in ("begin", "end"):
            monkeypatch.setattr(manager.claims.engine.transitions, decision, never_ready)
        for work in (manager.prepare, manager.unprepare):
            assert isinstance(await work(ref), ClaimBusyError)
        assert len(rounds) == 2 * 20


# --- one call with several claims --------------------------------------------------------------------------


@pytest.fixture
def without_wait_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the limit for which the claims of a call wait for each other."""
    monkeypatch.setattr(engine, "BatchWindow", functools.partial(BatchWindow, max_wait=600.0))


@pytest.mark.usefixtures("without_wait_limit")
async def test_claims_of_a_call_wait_neither_for_a_failing_claim_nor_for_one_of_an_earlier_call(
    tmp_path: Path,
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    slow_ref, quick_ref, repeated_ref = (api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate("abc"))
    missing = ClaimIdentity("ns", "missing", "missing")
    async with running_manager(tmp_path, driver, api) as manager:
        driver.go.clear()
        first = asyncio.create_task(manager.prepare(slow_ref))
        await driver.entered.wait()
        call = asyncio.create_task(manager.claims.prepare([slow_ref, missing, quick_ref, quick_ref, repeated_ref]))
        await wait_until(lambda: {r.uid for r in read_rows(manager.settings.records_path)} == {"a", "b", "c"})
        driver.go.set()
        responses = await call
        assert list(responses) == ["a", "missing", "b", "c"]
        assert isinstance(responses["missing"], ClaimNotFoundError)
        assert [u for u, a in responses.items() if isinstance(a, DraError)] == ["missing"]
        assert await first == responses["a"]
        assert requests(manager) == {
            'operation="prepare",result="NOT_FOUND"': 1,
            'operation="prepare",result="ok"': 4,
        }
        assert await manager.claims.prepare([]) == {}


async def test_work_that_takes_longer_than_a_call_continues_and_the_next_call_joins_it(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api, call_timeout=0.05) as manager:
        driver.go.clear()
        assert isinstance(await manager.prepare(ref), StillWorkingError)
        driver.go.set()
        await wait_until(lambda: not manager.claims.tasks.uids)
        assert not isinstance(await manager.prepare(ref), DraError)


# --- the log -----------------------------------------------------------------------------------------------


class FieldRecorder(logging.Handler):
    """Records each line with its own fields and the fields of its task."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.fields[record.getMessage()] = {**log_fields(), **vars(record)}


async def test_the_log_lines_of_a_claim_contain_its_name_and_its_pod(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api, lines = FakeApiServer(), FieldRecorder()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    api.claims["a"]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "1"}]
    logging.getLogger().addHandler(lines)
    try:
        async with running_manager(tmp_path, BlockingDriver(), api) as manager:
            await manager.prepare(ref)
            await manager.unprepare(ref)
    finally:
        logging.getLogger().removeHandler(lines)
    for text, pod in (("prepared claim", "ns/p"), ("unprepared claim", None)):
        line_fields = lines.fields[text]
        assert (line_fields["claim"], line_fields["claim_uid"], line_fields["devices"], line_fields.get("pod")) == (
            "ns/a",
            "a",
            ["d-0"],
            pod,
        )
        assert 0 <= line_fields["duration_s"] < 60


@pytest.mark.parametrize("is_unreachable", [False, True])
async def test_a_repetition_that_writes_a_file_again_names_the_claim(tmp_path: Path, is_unreachable: bool) -> None:
    api, lines = FakeApiServer(), FieldRecorder()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await manager.prepare(ref)
        api.is_unreachable = is_unreachable
        logging.getLogger().addHandler(lines)
        await manager.prepare(ref)
        assert lines.fields == {}
        manager.claims.files.specs.remove("a")
        await manager.prepare(ref)
        logging.getLogger().removeHandler(lines)
    ((text, fields),) = lines.fields.items()
    assert "written again" in text
    assert (fields["claim"], fields["claim_uid"]) == ("ns/a", "a")


async def test_metadata_that_no_container_gets_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Telling(PlainDriver):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return [d.prepared(metadata={"x": 1} if d.name != "d-0" else {}) for d in claim.devices]

    api = FakeApiServer()
    async with running_manager(tmp_path, Telling(), api) as manager:
        for i, count in enumerate((0, 1, 1)):
            assert not isinstance(await manager.prepare(api.allocate(f"c{i}", f"c{i}", f"d-{i}", DRIVER)), DraError)
            assert caplog.text.count("containers do not get it: set metadata = True in class Telling") == count


# --- a slow API server -------------------------------------------------------------------------------------


async def test_a_late_response_of_the_api_server_is_dropped_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowApiServer(FakeApiServer):
        def __init__(self) -> None:
            super().__init__()
            self.release: asyncio.Event | None = None

        async def raw(self, *args: Any, **options: Any) -> Any:
            if self.release:
                await self.release.wait()
                raise ApiError("too late")
            return await super().raw(*args, **options)

    monkeypatch.setattr(engine, "_ANSWER_FROM_RECORD_AFTER", 0.01)
    api = SlowApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        first = await manager.prepare(ref)
        api.release = asyncio.Event()
        assert await manager.prepare(ref) == first
        await asyncio.sleep(0)
        assert not [t for t in asyncio.all_tasks() if "verify" in str(t.get_coro())], "the request is cancelled"
        get, released = manager.claims.store.get, api.release

        async def get_after_the_response(uid: str) -> Any:
            released.set()
            for _ in range(10):
                await asyncio.sleep(0)
            return await get(uid)

        monkeypatch.setattr(manager.claims.store, "get", get_after_the_response)
        assert await manager.prepare(ref) == first
    gc.collect()
    assert problems == []
