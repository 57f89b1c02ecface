"""Around one prepare or unprepare: what is in flight, counted, logged and announced, and who waits for whom."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.telemetry.logs import log_fields
from dra_kubeletplugin.claims import ClaimIdentity, Record, State, engine
from dra_kubeletplugin.claims.batch_window import BatchWindow
from dra_kubeletplugin.claims.engine import _fields_with_pod
from dra_kubeletplugin.claims.record import InFlightRecords
from dra_kubeletplugin.claims.store.records import Records
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


class Plain(Driver):
    """Has nothing to undo."""

    name = DRIVER

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]


class Undoing(Plain):
    """``prepare`` and ``unprepare`` wait for ``go`` and raise ``fault``. ``seen`` has what was in flight in each call."""

    def __init__(self) -> None:
        self.fault: dict[str, Exception] = {}
        self.go = asyncio.Event()
        self.go.set()
        self.entered = asyncio.Event()
        self.in_flight: InFlightRecords | None = None
        self.seen: list[list[State]] = []

    async def _enter(self, what: str) -> None:
        if self.in_flight:
            self.seen.append([r.state for r in self.in_flight.records()])
        self.entered.set()
        await self.go.wait()
        if what in self.fault:
            raise self.fault[what]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        await self._enter("prepare")
        return await super().prepare(claim)

    async def unprepare(self, claim: PreparedClaim) -> None:
        await self._enter("unprepare")


def in_flight(one: RunningManager) -> list[Record]:
    return one.claims.engine.context.in_flight.records()


def requests(one: RunningManager) -> dict[str, int]:
    """The requests by operation and result."""
    out = {}
    for line in one.metrics.text().decode().splitlines():
        if line.startswith("dra_requests_total{"):
            labels, _, value = line.partition("{")[2].rpartition("} ")
            out[labels] = int(float(value))
    return out


# --- what is in flight, and who is told of changes ---------------------------------------------------------


@pytest.mark.parametrize("driver", [Plain, Undoing])
async def test_a_claim_is_in_flight_during_its_work_and_each_change_of_devices_is_announced_once(
    tmp_path: Path, driver: type[Driver]
) -> None:
    api, made = FakeApiServer(), driver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, made, api) as one:
        if isinstance(made, Undoing):
            made.in_flight = one.claims.engine.context.in_flight
        for count in (1, 2):
            assert not isinstance(await one.prepare(ref), DraError)
            assert (in_flight(one), one.changes) == ([], count if count == 1 else 1)
        assert await one.unprepare(ref) == ()
        assert (in_flight(one), one.changes) == ([], 2)
        assert await one.unprepare(ref) == ()
        assert (in_flight(one), one.changes) == ([], 2)
        if isinstance(made, Undoing):
            assert made.seen == [[State.PREPARING], [State.UNPREPARING]]


async def test_nothing_stays_in_flight_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api, driver = FakeApiServer(), Undoing()
    ref, other = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")
    async with running_manager(tmp_path, driver, api) as one:
        driver.fault["prepare"] = DriverError("no")
        assert isinstance(await one.prepare(ref), DriverError)
        assert (in_flight(one), one.changes) == ([], 1), "its device is free again"
        driver.fault["unprepare"] = DriverError("the card does not answer")
        assert isinstance(await one.prepare(ref), DriverError)
        assert in_flight(one) == []
        driver.fault.clear()
        assert isinstance(await one.prepare(ref), tuple | list)
        assert isinstance(await one.prepare(other), DraError)  # the device is held
        assert in_flight(one) == []

        def full(*_: Any, **__: Any) -> Any:
            raise RecordsError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(Records, "insert", full)
            assert isinstance(await one.prepare(api.allocate("c", "c", "d-1", DRIVER)), RecordsError)
        assert in_flight(one) == []
        with monkeypatch.context() as patch:
            patch.setattr(one.claims.store.journal, "commit", full)  # after the record was put among those in flight
            assert isinstance(await one.prepare(api.allocate("e", "e", "d-2", DRIVER)), RecordsError)
        assert in_flight(one) == []
        driver.fault["unprepare"] = DriverError("the card does not answer")
        assert isinstance(await one.unprepare(ref), DraError)
        assert in_flight(one) == []
        with monkeypatch.context() as patch:
            patch.setattr(Records, "update", full)
            assert isinstance(await one.unprepare(ref), RecordsError)
        assert in_flight(one) == []


async def test_a_prepare_whose_journal_is_lost_meanwhile_is_on_record_again(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        driver.go.clear()
        preparing = asyncio.create_task(one.prepare(ref))
        await driver.entered.wait()
        one.settings.records_path.write_bytes(b"garbage")
        await one.claims.store.check_file()
        assert await one.records() == {"a": "Preparing"}
        driver.go.set()
        assert not isinstance(await preparing, DraError)
        assert await one.records() == {"a": "Prepared"}


@pytest.mark.parametrize("when", ["step", "commit"])
async def test_a_prepare_whose_record_another_instance_took_over_stops(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stepping(Undoing):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            found = await super().prepare(claim)
            if when == "step":
                await claim.on_undo("it")
            return found

        async def undo_it(self, claim: PreparedClaim) -> None:
            pass

    api, driver = FakeApiServer(), Stepping()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        driver.go.clear()
        preparing = asyncio.create_task(one.prepare(ref))
        await driver.entered.wait()

        def take(records: Records) -> None:
            row = records.read("a")
            assert isinstance(row, Record)
            fence = row.fence
            row.owner = "1-deadbeef"
            assert records.update(row, fence)

        await one.claims.store.do(take)
        driver.go.set()
        answer = await preparing
        assert isinstance(answer, ClaimTakenError)
        says = "this instance stops its work" if when == "step" else "the kubelet retries"
        assert says in str(answer)
        assert await one.records() == {"a": "Preparing"}
        assert in_flight(one) == []


# --- two instances -----------------------------------------------------------------------------------------


async def test_a_claim_that_another_instance_works_on_is_waited_for(tmp_path: Path) -> None:
    api, slow = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, slow, api) as old, running_manager(tmp_path, Plain(), api) as new:
        for work, empty in (("prepare", False), ("unprepare", True)):
            slow.go.clear()
            slow.entered.clear()
            first = asyncio.create_task(getattr(old, work)(ref))
            await slow.entered.wait()
            second = asyncio.create_task(getattr(new, work)(ref))
            reads = new.claims.store.transactions
            await wait_until(lambda reads=reads: new.claims.store.transactions > reads + 3)  # type: ignore[misc]
            assert not second.done()
            slow.go.set()
            assert (await first == ()) is empty
            assert await second == await first
        assert await new.records() == {}


@pytest.mark.parametrize("work", ["prepare", "unprepare"])
async def test_an_instance_that_hangs_with_a_claim_is_named_after_a_bounded_time(tmp_path: Path, work: str) -> None:
    api, slow = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, slow, api) as old,
        running_manager(tmp_path, Plain(), api, lock_timeout=0.1) as new,
    ):
        slow.go.clear()
        first = asyncio.create_task(old.prepare(ref))
        await slow.entered.wait()
        answer = await getattr(new, work)(ref)
        assert isinstance(answer, ClaimBusyError)
        pid = old.process.id.partition("-")[0]
        assert f"(process {pid}) for more than 0.1 s: if that instance hangs, delete its pod" in str(answer)
        assert "has been Preparing in another instance" in str(answer)
        slow.go.set()
        assert not isinstance(await first, DraError)


async def test_a_claim_that_never_settles_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:
        rounds: list[int] = []

        async def again(*_: Any) -> Any:
            rounds.append(1)
            return engine.InProgress(Record("a", "ns", "a", State.PREPARING, "boot"))

        async def no_wait(record: Record) -> None:
            pass

        monkeypatch.setattr(one.claims.engine, "_wait_for_other", no_wait)
        monkeypatch.setattr(one.claims.engine, "_begin", again)
        monkeypatch.setattr(one.claims.engine.rollback, "unprepare", again)
        for work in (one.prepare, one.unprepare):
            assert isinstance(await work(ref), ClaimBusyError)
        assert len(rounds) == 2 * 20


# --- one call with several claims --------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims of a call wait for each other without a limit."""
    monkeypatch.setattr(engine, "BatchWindow", functools.partial(BatchWindow, max_wait=600.0))


@pytest.mark.usefixtures("patient")
async def test_claims_of_a_call_wait_neither_for_a_claim_that_fails_nor_for_one_in_flight_before(
    tmp_path: Path,
) -> None:
    api, driver = FakeApiServer(), Undoing()
    slow, quick, twice = (api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate("abc"))
    missing = ClaimIdentity("ns", "missing", "missing")
    async with running_manager(tmp_path, driver, api) as one:
        driver.go.clear()
        first = asyncio.create_task(one.prepare(slow))
        await driver.entered.wait()
        call = asyncio.create_task(one.claims.prepare([slow, missing, quick, quick, twice]))
        await wait_until(lambda: len(in_flight(one)) == 3)
        driver.go.set()
        answers = await call
        assert list(answers) == ["a", "missing", "b", "c"]
        assert isinstance(answers["missing"], ClaimNotFoundError)
        assert [u for u, a in answers.items() if isinstance(a, DraError)] == ["missing"]
        assert await first == answers["a"]
        assert requests(one) == {
            'operation="prepare",result="NOT_FOUND"': 1,
            'operation="prepare",result="ok"': 4,
        }
        assert await one.claims.prepare([]) == {}


async def test_work_that_takes_longer_than_a_call_continues_and_the_next_call_joins_it(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), Undoing()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api, call_timeout=0.05) as one:
        driver.go.clear()
        assert isinstance(await one.prepare(ref), StillWorkingError)
        driver.go.set()
        await wait_until(lambda: not one.claims.tasks.uids)
        assert not isinstance(await one.prepare(ref), DraError)


# --- the log -----------------------------------------------------------------------------------------------


class Lines(logging.Handler):
    """Each line with its own fields and those of its task."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.fields[record.getMessage()] = {**log_fields(), **vars(record)}


async def test_the_lines_of_a_claim_have_its_name_and_its_pod(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    api, lines = FakeApiServer(), Lines()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    api.claims["a"]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "1"}]
    logging.getLogger().addHandler(lines)
    try:
        async with running_manager(tmp_path, Undoing(), api) as one:
            await one.prepare(ref)
            await one.unprepare(ref)
    finally:
        logging.getLogger().removeHandler(lines)
    for text, pod in (("prepared claim", "ns/p"), ("unprepared claim", None)):
        found = lines.fields[text]
        assert (found["claim"], found["claim_uid"], found["devices"], found.get("pod")) == ("ns/a", "a", ["d-0"], pod)
        assert 0 <= found["duration_s"] < 60


def test_only_a_single_pod_is_named() -> None:
    ref = ClaimIdentity("ns", "c", "u")
    pod = {"resource": "pods", "name": "p"}
    for reserved, expected in (
        ([pod], "ns/p"),
        ([pod, {"resource": "other", "name": "x"}], "ns/p"),
        ([pod, {**pod, "name": "q"}], None),
        ([{"resource": "other", "name": "x"}], None),
        ([], None),
    ):
        assert _fields_with_pod(ref, reserved).get("pod") == expected
    assert _fields_with_pod(ref, [])["claim"] == "ns/c"


async def test_a_failure_that_returns_after_a_success_is_logged_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:
        for count in (1, 2):
            api.claims.clear()
            for _ in range(2):
                assert isinstance(await one.prepare(ref), ClaimNotFoundError)
            assert caplog.text.count("cannot prepare claim") == count
            api.allocate("a", "a", "d-0", DRIVER)
            assert not isinstance(await one.prepare(ref), DraError)


async def test_a_repeat_that_writes_a_file_again_names_the_claim(tmp_path: Path) -> None:
    api, lines = FakeApiServer(), Lines()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:
        await one.prepare(ref)
        one.claims.files.specs.remove("a")
        logging.getLogger().addHandler(lines)
        await one.prepare(ref)
        logging.getLogger().removeHandler(lines)
    ((text, fields),) = lines.fields.items()
    assert "written again" in text
    assert (fields["claim"], fields["claim_uid"]) == ("ns/a", "a")


async def test_a_prepare_with_an_undo_step_that_was_not_awaited_fails_and_is_undone(tmp_path: Path) -> None:
    class Forgetful(Undoing):
        undone = 0

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            claim.on_undo("it")
            return await super().prepare(claim)

        async def undo_it(self, claim: PreparedClaim) -> None:
            self.undone += 1

    api, driver = FakeApiServer(), Forgetful()
    async with running_manager(tmp_path, driver, api) as one:
        answer = await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        assert isinstance(answer, DriverError)
        assert "was not awaited" in str(answer)
        assert (driver.undone, await one.records()) == (1, {})


async def test_metadata_that_no_container_gets_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Telling(Plain):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return [d.prepared(metadata={"x": 1} if d.name != "d-0" else {}) for d in claim.devices]

    api = FakeApiServer()
    async with running_manager(tmp_path, Telling(), api) as one:
        for i, count in enumerate((0, 1, 1)):
            assert not isinstance(await one.prepare(api.allocate(f"c{i}", f"c{i}", f"d-{i}", DRIVER)), DraError)
            assert caplog.text.count("containers do not get it: set metadata = True in class Telling") == count


async def test_the_failures_that_are_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MAX_LOGGED", 2)
    async with running_manager(tmp_path, Plain()) as one:
        for i in range(4):
            assert isinstance(await one.prepare(ClaimIdentity("ns", f"c{i}", f"c{i}")), ClaimNotFoundError)
        assert list(one.claims.engine._logged_failures) == ["c2", "c3"]


# --- a slow API server -------------------------------------------------------------------------------------


async def test_a_late_response_of_the_api_server_is_dropped_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(FakeApiServer):
        def __init__(self) -> None:
            super().__init__()
            self.late: asyncio.Event | None = None

        async def raw(self, *args: Any, **options: Any) -> Any:
            if self.late:
                await self.late.wait()
                raise ApiError("too late")
            return await super().raw(*args, **options)

    monkeypatch.setattr(engine, "_ANSWER_FROM_RECORD_AFTER", 0.01)
    api = Slow()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with running_manager(tmp_path, Plain(), api) as one:
        first = await one.prepare(ref)
        api.late = asyncio.Event()
        assert await one.prepare(ref) == first
        await asyncio.sleep(0)
        assert not [t for t in asyncio.all_tasks() if "verify" in str(t.get_coro())], "the request is cancelled"
        look_up, late = one.claims.engine._prepared_record, api.late

        async def after_the_response(uid: str) -> Record | None:
            late.set()
            for _ in range(10):
                await asyncio.sleep(0)
            return await look_up(uid)

        monkeypatch.setattr(one.claims.engine, "_prepared_record", after_the_response)
        assert await one.prepare(ref) == first
    gc.collect()
    assert problems == []
