"""Steps of one prepare or unprepare: records, metrics, log lines, notifications of changes, waits between calls, and faults of the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, DeviceStatus, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.telemetry.logs import log_fields
from dra_kubeletplugin.claims import ClaimIdentity, Record
from dra_kubeletplugin.claims.store.files import read_rows, synced_path
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.claims.transitions import ENDED
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
from tests.helpers.crash.claim_drivers import BlockingDriver, PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import DRIVER, RECORDS, make_record
from tests.helpers.drivers import make_toy_class
from tests.helpers.waiting import wait_until


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


async def test_a_power_failure_in_prepare_loses_neither_the_record_nor_a_step(tmp_path: Path) -> None:
    """The file of a record has its second name only if it is synced: see store/test_folder_power_failure.py."""
    synced: list[bool] = []

    class SteppingDriver(PlainDriver):
        def note(self) -> None:
            path = manager.settings.records_path
            synced.append((path / "a.json").samefile(synced_path(path, "a.json")))

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            self.note()
            await claim.on_undo(self.part)
            self.note()
            await claim.shared_step(self.setup_power, "card")
            return await super().prepare(claim)

        async def setup_power(self, card: str) -> None:
            self.note()

        async def teardown_power(self, card: str) -> None: ...

        async def part(self, claim: PreparedClaim) -> None: ...

    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, SteppingDriver(), api) as manager:
        assert not isinstance(await manager.prepare(ref), DraError)
    assert synced == [True] * 3


async def test_a_device_is_free_after_a_failed_prepare_and_held_after_a_failed_undo_or_write(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    ref, other_ref = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")
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
        with failing_calls(errno.ENOSPC, "open", text=f"{RECORDS}/."):
            assert isinstance(await manager.prepare(api.allocate("c", "c", "d-1", DRIVER)), RecordsError)
            assert isinstance(await manager.unprepare(ref), RecordsError)
        assert await manager.records() == {"a": "Prepared"}
        driver.fault["unprepare"] = DriverError("the card does not answer")
        assert isinstance(await manager.unprepare(ref), DraError)
        assert isinstance(await manager.prepare(other_ref), DraError)
        assert await manager.records() == {"a": "Unpreparing"}


@pytest.mark.parametrize("phase", ["step", "commit"])
async def test_a_prepare_stops_if_another_instance_took_over_its_record(tmp_path: Path, phase: str) -> None:
    class StepDriver(BlockingDriver):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            prepared = await super().prepare(claim)
            if phase == "step":
                await claim.on_undo(self.it)
            return prepared

        async def it(self, claim: PreparedClaim) -> None:
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
        assert not manager.claims.files.specs.note_path("a").exists()


@pytest.mark.parametrize("operation", ["prepare", "unprepare"])
async def test_a_call_succeeds_if_only_the_result_of_its_last_write_is_lost(tmp_path: Path, operation: str) -> None:
    class StatusDriver(PlainDriver):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return [replace(d, status=DeviceStatus(data={"link": "up"})) for d in await super().prepare(claim)]

    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    is_prepare = operation == "prepare"
    async with running_manager(tmp_path, StatusDriver(), api) as manager:
        if not is_prepare:
            await manager.prepare(ref)
        with failing_calls(
            errno.EIO,
            "rename" if is_prepare else "unlink",
            text=f"{RECORDS}/a.json'",
            when=lambda number: (
                number == 1 + is_prepare
            ),  # the first rename writes the record before the driver is called
            takes_effect=True,
            do=lambda: manager.claims.files.specs.remove("a"),
        ) as calls:
            response = await (manager.prepare(ref) if is_prepare else manager.unprepare(ref))
        assert not isinstance(response, DraError)
        assert len(calls) >= 1 + is_prepare
        assert (await manager.records(), manager.changes) == (({"a": "Prepared"}, 1) if is_prepare else ({}, 2))
        assert manager.claims.files.specs.path("a").exists() is is_prepare, "the CDI file is written again"


async def test_the_files_of_a_prepare_whose_record_is_lost_are_removed_if_its_device_has_another_claim(
    tmp_path: Path,
) -> None:
    def lose_record(records: Records) -> None:
        records.forget("a")
        records.insert(make_record("b", "d-0"))

    class LosingDriver(PlainDriver):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            await manager.claims.store.do(lose_record)
            manager.claims.files.specs.write("a", {"kind": "x"})
            return await super().prepare(claim)

    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, LosingDriver(), api) as manager:
        assert isinstance(await manager.prepare(ref), DraError)
        assert await manager.records() == {"b": "Prepared"}
        assert manager.claims.files.specs.uids() == []


async def test_an_undo_whose_failure_cannot_be_recorded_is_not_restored_after_another_instance_has_undone_it(
    tmp_path: Path,
) -> None:
    class FailingDriver(PlainDriver):
        async def unprepare(self, claim: PreparedClaim) -> None:
            disk.enter_context(failing_calls(errno.ENOSPC, "open", text=f"{RECORDS}/."))
            raise DriverError("not now")

    api, disk = FakeApiServer(), contextlib.ExitStack()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, FailingDriver(), api) as old_manager,
        running_manager(tmp_path, PlainDriver(), api) as new_manager,
    ):
        await old_manager.prepare(ref)
        with disk:
            assert isinstance(await old_manager.unprepare(ref), RecordsError)
        # As if the old instance had been considered dead.
        await new_manager.claims.store.do(lambda records: records.forget("a"))
        new_manager.claims.files.remove_all("a")
        assert not isinstance(await new_manager.prepare(api.allocate("b", "b", "d-0", DRIVER)), DraError)
        assert await old_manager.records() == {"b": "Prepared"}


async def test_an_unprepare_is_remembered_while_recover_may_still_report_the_claim(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        ref = api.allocate("a", "a", "d-0", DRIVER)
        await manager.prepare(ref)
        await manager.claims.store.do(lambda records: records.set_meta(RECOVER, "pending"))
        assert await manager.unprepare(ref) == ()
        manager.claims.files.specs.write("without-a-record", {"kind": "x"})
        assert await manager.unprepare(ref._replace(uid="without-a-record")) == ()
        assert manager.claims.files.specs.uids() == []
        ended = await manager.claims.store.do(lambda records: records.get_meta(ENDED))
        assert set(ended) == {"a", "without-a-record"}


@pytest.mark.parametrize("superseded", [True, False])
async def test_a_superseded_claim_is_rolled_back_without_the_driver(superseded: bool) -> None:
    driver = make_toy_class()
    async with node_with(driver) as node:
        await node.run_pod()
        uid = (await node.claim_of("pod"))["metadata"]["uid"]

        def supersede(records: Records) -> None:
            row = records.read(uid)
            assert isinstance(row, Record)
            row.superseded = superseded
            assert records.update(row, row.fence)

        await node.plugin.claims.store.do(supersede)
        await node.delete_pod()
        assert (("unprepare", uid) in driver.calls) is not superseded
        assert await node.leftovers() == {"files": [], "records": [], "held": []}


# --- two instances -----------------------------------------------------------------------------------------


async def test_an_instance_waits_for_a_claim_that_another_instance_processes(
    tmp_path: Path,
) -> None:
    api, blocking_driver = FakeApiServer(), BlockingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, blocking_driver, api) as old_manager,
        running_manager(tmp_path, PlainDriver(), api) as new_manager,
    ):
        for operation, is_empty in (("prepare", False), ("unprepare", True)):
            blocking_driver.go.clear()
            blocking_driver.entered.clear()
            first = asyncio.create_task(getattr(old_manager, operation)(ref))
            await blocking_driver.entered.wait()
            second = asyncio.create_task(getattr(new_manager, operation)(ref))
            await new_manager.decided()
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


# --- one call with several claims --------------------------------------------------------------------------


async def test_claims_of_a_call_wait_neither_for_a_failing_claim_nor_for_one_of_an_earlier_call(
    tmp_path: Path,
) -> None:
    api, driver = FakeApiServer(), BlockingDriver()
    slow_ref, quick_ref, repeated_ref = (api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate("abc"))
    missing = ClaimIdentity("ns", "missing", "missing")
    async with running_manager(tmp_path, driver, api, batch=600.0) as manager:
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


async def test_a_claim_that_fails_repeatedly_in_the_same_way_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    holder, waiting_ref = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")

    async def count_log_lines() -> int:
        line_count = len(caplog.records)
        assert isinstance(await manager.prepare(waiting_ref), DraError)
        return sum(
            r.getMessage().startswith("cannot prepare claim") and vars(r)["claim"] == "ns/b"
            for r in caplog.records[line_count:]
        )

    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await manager.prepare(holder)
        assert [await count_log_lines() for _ in range(3)] == [1, 0, 0]
        api.is_unreachable = True
        assert await count_log_lines() == 1, "another reason"
        api.is_unreachable = False
        await manager.unprepare(holder)
        assert not isinstance(await manager.prepare(waiting_ref), DraError)
        await manager.unprepare(waiting_ref)
        await manager.prepare(holder)
        assert [await count_log_lines() for _ in range(2)] == [1, 0], "the failure is new after a success"


async def test_each_claim_of_a_failed_write_is_logged_with_its_own_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    refs = [api.allocate(uid, uid, f"d-{i}", DRIVER) for i, uid in enumerate("ab")]
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        with failing_calls(errno.ENOSPC, "fdatasync"):
            responses = await manager.claims.prepare(refs)
        assert {type(response) for response in responses.values()} == {RecordsError}
        lines = [vars(r) for r in caplog.records if "cannot prepare claim" in r.getMessage()]
        assert sorted((line["claim"], line["claim_uid"]) for line in lines) == [("ns/a", "a"), ("ns/b", "b")]


# --- a slow API server -------------------------------------------------------------------------------------


class SlowApiServer(FakeApiServer):
    release: asyncio.Event | None = None

    async def raw(self, *args: Any, **options: Any) -> Any:
        if self.release:
            await self.release.wait()
            raise ApiError("too late")
        return await super().raw(*args, **options)


async def test_a_late_response_of_the_api_server_is_dropped_silently(tmp_path: Path) -> None:
    api, problems = SlowApiServer(), list[Any]()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with running_manager(tmp_path, PlainDriver(), api, answer_from_record=0.01) as manager:
        first = await manager.prepare(ref)
        api.release = asyncio.Event()
        assert await manager.prepare(ref) == first
        await asyncio.sleep(0)
        assert not [t for t in asyncio.all_tasks() if "verify" in str(t.get_coro())], "the request is cancelled"
        api.release.set()
        assert await manager.prepare(ref) == first
    gc.collect()
    assert problems == []
