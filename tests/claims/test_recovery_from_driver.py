"""After a loss of the records: the claims that the driver reports are checked and merged one by one, and recover is
called until it succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from dra_kubeletplugin import Driver, PreparedDevice, RecoveredClaim
from dra_kubeletplugin.claims import Record, RecordStore, State
from dra_kubeletplugin.claims import recovery as module
from dra_kubeletplugin.claims.recovery import Recovery
from dra_kubeletplugin.claims.store.records import RECOVER
from dra_kubeletplugin.claims.transitions import ENDED
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError
from tests.helpers.crash.record_stores import BOOT, DRIVER, insert, instance, make_record, write_body

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")


class RecoveringDriver(Driver):
    name = DRIVER

    def __init__(self) -> None:
        self.claims: Any = []
        self.calls = 0
        self.go = asyncio.Event()
        self.go.set()

    async def recover(self) -> list[RecoveredClaim]:
        self.calls += 1
        await self.go.wait()
        if isinstance(self.claims, Exception):
            raise self.claims
        return cast(list[RecoveredClaim], self.claims)


def claim(uid: str, devices: Any, namespace: str = "", name: str = "") -> RecoveredClaim:
    return RecoveredClaim(uid=uid, devices=devices, namespace=namespace, name=name)


def device(name: str = "d-0", **fields: Any) -> PreparedDevice:
    return PreparedDevice(**{"request": "r", "pool": "node", "name": name, **fields})


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RecordStore]:
    async with instance(tmp_path) as store:
        await store.do(lambda records: records.clear_meta(RECOVER))
        yield store


async def pending(store: RecordStore) -> None:
    await store.do(lambda records: records.set_meta(RECOVER, "pending"))


def recovery(store: RecordStore, driver: RecoveringDriver) -> Recovery:
    return Recovery(driver, Calls(), store, BOOT)


async def record(store: RecordStore, uid: str) -> Record:
    stored = await store.get(uid)
    assert isinstance(stored, Record)
    return stored


async def test_the_undo_steps_of_a_recovered_claim_are_recorded(store: RecordStore) -> None:
    await pending(store)
    driver = RecoveringDriver()
    step = ("board", {"board": "b-0"})
    driver.claims = [RecoveredClaim(uid="new", devices=[device()], undo_steps=[step])]
    assert await recovery(store, driver).once() is True
    assert (await record(store, "new")).undo == [{"step": "board", "data": {"board": "b-0"}}]


@pytest.mark.parametrize("steps", [5, ["board"], [("board", 5)], [(5, {})], [("board", {"x": object()})]])
async def test_undo_steps_that_cannot_be_recorded_are_an_error(store: RecordStore, steps: Any) -> None:
    await pending(store)
    driver = RecoveringDriver()
    driver.claims = [RecoveredClaim(uid="new", devices=[device()], undo_steps=steps)]
    recovered = recovery(store, driver)
    assert await recovered.once() is False
    assert "undo step" in recovered.fault.replace("_", " ")
    assert await store.get("new") is None


async def test_recover_is_called_only_after_a_loss_and_once(store: RecordStore) -> None:
    driver = RecoveringDriver()
    recovered = recovery(store, driver)
    recovered.fault = "of before"
    assert await recovered.once() is True
    assert (driver.calls, recovered.fault) == (0, "")
    await pending(store)
    for _ in range(2):
        assert await recovered.once() is True
    assert (driver.calls, recovered.report) == (1, [])


async def test_devices_in_hardware_are_held_and_claims_that_ended_are_rolled_back(store: RecordStore) -> None:
    await pending(store)
    await store.do(lambda records: records.set_meta(ENDED + "over", ""))
    driver = RecoveringDriver()
    driver.claims = [
        claim("new", [device("d-0", data={"n": 1}, share_id="s"), device("d-1")], "ns", "c"),
        claim("over", [device("d-2", admin_access=True)]),
        claim("late", [device("d-1")]),
    ]
    recovered = recovery(store, driver)
    assert await recovered.once() is True
    new_record, ended_record = await record(store, "new"), await record(store, "over")
    assert (new_record.state, new_record.boot_id, new_record.owner, new_record.namespace, new_record.name) == (
        State.PREPARED,
        BOOT,
        "",
        "ns",
        "c",
    )
    assert new_record.devices == [
        {"request": "r", "pool": "node", "device": "d-0", "shareID": "s", "data": {"n": 1}},
        {"request": "r", "pool": "node", "device": "d-1"},
    ]
    assert new_record.recovered and new_record.cdi is None
    assert ended_record.state is State.UNPREPARING
    assert ended_record.devices == [{"request": "r", "pool": "node", "device": "d-2", "adminAccess": True}]
    assert await store.get("late") is None
    assert recovered.report[0] == "2 claims reported by the driver: new, over"
    assert (
        "claim late was reported by the driver and is not recorded: device d-1 is still held by claim ns/c"
        in recovered.report[1]
    )
    assert len(recovered.report) == 2
    assert await store.do(lambda records: records.get_meta(ENDED)) == {}
    assert not await store.recovering()


async def test_a_record_from_a_file_gets_its_missing_fields_and_other_records_are_unchanged(store: RecordStore) -> None:
    await pending(store)
    lacking = make_record("file", "d-0", recovered=True)
    lacking.namespace = lacking.name = ""
    lacking.devices[0]["request"] = ""
    lacking.devices.append({"request": "mine", "pool": "node", "device": "d-1", "data": {"mine": 1}})
    lacking.devices.append({"pool": "node", "device": "d-9"})
    await insert(store, lacking)
    await insert(store, make_record("right", "d-5"))
    driver = RecoveringDriver()
    devices = [device("d-0", data={"n": 1}), device("d-1", data={"n": 2}, request="other"), device("d-7")]
    driver.claims = [
        claim("file", devices, "ns", "c"),
        claim("right", [device("d-5", data={"n": 3})], "x", "y"),
        claim("new", [device("d-8")]),
    ]
    recovered = recovery(store, driver)
    assert await recovered.once()
    file_record, unchanged_record = await record(store, "file"), await record(store, "right")
    assert file_record.devices == [
        {"request": "r", "pool": "node", "device": "d-0", "data": {"n": 1}},
        {"request": "mine", "pool": "node", "device": "d-1", "data": {"mine": 1}},
        {"pool": "node", "device": "d-9"},
    ]
    assert (file_record.namespace, file_record.name) == ("ns", "c")
    assert (unchanged_record.namespace, unchanged_record.name, "data" in unchanged_record.devices[0]) == (
        "ns",
        "name-right",
        False,
    )
    assert recovered.report == ["1 claim reported by the driver: new"]


async def test_a_superseded_claim_that_is_still_in_hardware_is_rolled_back_by_the_driver(store: RecordStore) -> None:
    await insert(store, make_record("u", "d-0", complete=True, superseded=True))
    await pending(store)
    driver = RecoveringDriver()
    driver.claims = [claim("u", [device()])]
    assert await recovery(store, driver).once()
    assert not (await record(store, "u")).superseded


async def test_a_claim_whose_record_cannot_be_read_is_reported_and_unchanged(store: RecordStore) -> None:
    await pending(store)
    write_body(store.path, make_record("odd", "d-0"), b"{")
    driver = RecoveringDriver()
    driver.claims = [claim("odd", [device("d-0")]), claim("new", [device("d-1")])]
    recovered = recovery(store, driver)
    assert await recovered.once()
    assert [("odd" in s, "cannot be read" in s) for s in recovered.report] == [(False, False), (True, True)]
    assert not isinstance(await store.get("odd"), Record)


INVALID = object()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({}, "recover() returned dict, not a list"),
        ("text", "recover() returned str, not a list"),
        ([INVALID], "recover() returned object, not RecoveredClaim"),
        ([claim("u", cast(Any, "devices"))], "not RecoveredClaim with a list"),
        ([claim("", [device()])], "without the UID"),
        ([claim("u", [cast(Any, INVALID)])], "(UID u) with object, not PreparedDevice"),
        ([claim("u", [device("")])], "with a device that has no name"),
        ([claim("u", [device(data={"x": {1}})])], "device d-0: "),
        ([claim("u", [device(pool="\n")])], "pool of a device is not printable text"),
        ([claim("u", [device(request=7)])], "request of a device is not printable text"),
        ([claim("u", [device("\t")])], "name of a device is not printable text"),
        ([claim("u", [device(share_id="\n")])], "share_id of a device is not printable text"),
        ([claim("u", [device()], namespace="\n")], "namespace is not printable text"),
        ([claim("u", [device()], name=cast(Any, None))], "name is not printable text"),
        ([claim("\x1b", [device()])], "uid is not printable text"),
        ([claim("a/../../b", [device()])], "not the UID of a ResourceClaim"),
        ([claim("\ud800", [device()])], "uid is not printable text"),
        ([claim("a\0b", [device()])], "uid is not printable text"),
        ([claim(cast(Any, 5), [device()])], "uid is not printable text"),
        ([claim("u", None)], "not RecoveredClaim with a list"),
        ([claim("u", [device(share_id=7)])], "share_id of a device is not printable text"),
        ([claim("u", [device(data=object())])], "device d-0: "),
        ([claim("u", [device(data={"x": "\ud800"})])], "device d-0: "),
        (DraError("hardware is away"), "hardware is away"),
    ],
)
async def test_an_invalid_return_value_changes_nothing_and_recover_is_called_again(
    store: RecordStore, returned: Any, message: str
) -> None:
    await pending(store)
    driver = RecoveringDriver()
    driver.claims = [claim("good", [device("d-8")]), *returned] if isinstance(returned, list) else returned
    recovered = recovery(store, driver)
    assert await recovered.once() is False
    assert message in recovered.fault
    assert await store.all() == []
    assert await store.recovering()
    driver.claims = None if message == "text" else ()
    assert await recovered.once() is True
    assert recovered.fault == ""
    assert not await store.recovering()


async def test_a_slow_recover_is_reported_and_called_once_and_all_callers_wait_for_it(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOW", 0.01)
    await pending(store)
    driver = RecoveringDriver()
    driver.go.clear()
    recovered = recovery(store, driver)
    tasks = [asyncio.create_task(recovered.once()) for _ in range(2)]
    async with asyncio.timeout(30):
        while "has not returned" not in recovered.fault:
            await asyncio.sleep(0.005)
    assert driver.calls == 1
    driver.go.set()
    assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == [True, True]
    assert (driver.calls, recovered.fault) == (1, "")
    await pending(store)
    assert await recovered.once()
    assert driver.calls == 2


async def test_a_claim_is_recorded_also_if_an_unreported_claim_has_its_device(
    store: RecordStore, caplog: pytest.LogCaptureFixture
) -> None:
    await insert(store, make_record("holder", "d-0"))
    await pending(store)
    driver = RecoveringDriver()
    driver.claims = [claim("u", [device()]), claim("v", [device("d-1")])]
    recovered = recovery(store, driver)
    assert await recovered.once()
    assert sorted(r.uid for r in await store.all()) == ["holder", "u", "v"]
    added_line, shared_line = recovered.report
    assert added_line == "1 claim reported by the driver: v"
    assert shared_line.startswith("claim u was reported by the driver, and another claim has its device: ")
    assert [r.getMessage() for r in caplog.records] == [f"records were completed: {s}" for s in recovered.report]
