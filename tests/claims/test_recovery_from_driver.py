"""After the records were lost: what the driver tells of its hardware is checked, merged claim by claim, and asked for until it
is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from dra_kubeletplugin import Driver, PreparedDevice, RecoveredClaim
from dra_kubeletplugin.claims import Record, RecordStore, State
from dra_kubeletplugin.claims import recovery as module
from dra_kubeletplugin.claims.record import SUPERSEDED
from dra_kubeletplugin.claims.recovery import Recovery
from dra_kubeletplugin.claims.store.records import RECOVER
from dra_kubeletplugin.claims.transitions import ENDED
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError
from tests.helpers.crash.record_stores import BOOT, DRIVER, append_body, insert, instance, make_record

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")


class Telling(Driver):
    name = DRIVER

    def __init__(self) -> None:
        self.told: Any = []
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()

    async def recover(self) -> list[RecoveredClaim]:
        self.asked += 1
        await self.go.wait()
        if isinstance(self.told, Exception):
            raise self.told
        return cast(list[RecoveredClaim], self.told)


def claim(uid: str, devices: Any, namespace: str = "", name: str = "") -> RecoveredClaim:
    return RecoveredClaim(uid=uid, devices=devices, namespace=namespace, name=name)


def device(name: str = "d-0", **more: Any) -> PreparedDevice:
    return PreparedDevice(**{"request": "r", "pool": "node", "name": name, **more})


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RecordStore]:
    async with instance(tmp_path) as store:
        await store.do(lambda records: records.clear_meta(RECOVER))
        yield store


async def pending(store: RecordStore) -> None:
    await store.do(lambda records: records.set_meta(RECOVER, "pending"))


def recovery(store: RecordStore, driver: Telling) -> Recovery:
    return Recovery(driver, Calls(), store, BOOT)


async def record(store: RecordStore, uid: str) -> Record:
    found = await store.get(uid)
    assert isinstance(found, Record)
    return found


async def test_the_undo_steps_of_a_recovered_claim_are_recorded(store: RecordStore) -> None:
    await pending(store)
    driver = Telling()
    step = ("board", {"board": "b-0"})
    driver.told = [RecoveredClaim(uid="new", devices=[device()], undo_steps=[step])]
    assert await recovery(store, driver).once() is True
    assert (await record(store, "new")).steps == [{"step": "board", "data": {"board": "b-0"}}]


@pytest.mark.parametrize("steps", [5, ["board"], [("board", 5)], [(5, {})], [("board", {"x": object()})]])
async def test_undo_steps_that_cannot_be_recorded_are_an_error(store: RecordStore, steps: Any) -> None:
    await pending(store)
    driver = Telling()
    driver.told = [RecoveredClaim(uid="new", devices=[device()], undo_steps=steps)]
    asks = recovery(store, driver)
    assert await asks.once() is False
    assert "undo step" in asks.fault.replace("_", " ")
    assert await store.get("new") is None


async def test_a_driver_is_asked_only_after_a_loss_and_once(store: RecordStore) -> None:
    driver = Telling()
    asks = recovery(store, driver)
    asks.fault = "of before"
    assert await asks.once() is True
    assert (driver.asked, asks.fault) == (0, "")
    await pending(store)
    for _ in range(2):
        assert await asks.once() is True
    assert (driver.asked, asks.report) == (1, [])


async def test_what_the_hardware_has_is_held_and_what_ended_meanwhile_is_left_to_be_undone(store: RecordStore) -> None:
    await pending(store)
    await store.do(lambda records: records.set_meta(ENDED + "over", ""))
    driver = Telling()
    driver.told = [
        claim("new", [device("d-0", data={"n": 1}, share_id="s"), device("d-1")], "ns", "c"),
        claim("over", [device("d-2", admin_access=True)]),
        claim("late", [device("d-1")]),
    ]
    asks = recovery(store, driver)
    assert await asks.once() is True
    new, over = await record(store, "new"), await record(store, "over")
    assert (new.state, new.boot_id, new.owner, new.namespace, new.name) == (State.PREPARED, BOOT, "", "ns", "c")
    assert new.doc == {
        "devices": [
            {"request": "r", "pool": "node", "device": "d-0", "shareID": "s", "data": {"n": 1}},
            {"request": "r", "pool": "node", "device": "d-1"},
        ],
        "cdi": None,
        "complete": False,
        "rebuilt": True,
    }
    assert over.state is State.UNPREPARING
    assert over.devices == [{"request": "r", "pool": "node", "device": "d-2", "adminAccess": True}]
    assert await store.get("late") is None
    assert asks.report[0] == "2 claims reported by the driver: new, over"
    assert (
        "claim late was reported by the driver and is not recorded: device d-1 is still held by claim ns/c"
        in asks.report[1]
    )
    assert len(asks.report) == 2
    assert await store.do(lambda records: records.get_meta(ENDED)) == {}
    assert not await store.recovering()


async def test_a_record_of_a_file_gets_what_it_lacks_and_any_other_is_right(store: RecordStore) -> None:
    await pending(store)
    lacking = make_record("file", "d-0", rebuilt=True, more="kept")
    lacking.namespace = lacking.name = ""
    lacking.devices[0]["request"] = ""
    lacking.doc["devices"].append({"request": "mine", "pool": "node", "device": "d-1", "data": {"mine": 1}})
    lacking.doc["devices"].append({"pool": "node", "device": "d-9"})
    await insert(store, lacking)
    await insert(store, make_record("right", "d-5"))
    driver = Telling()
    told = [device("d-0", data={"n": 1}), device("d-1", data={"n": 2}, request="other"), device("d-7")]
    driver.told = [
        claim("file", told, "ns", "c"),
        claim("right", [device("d-5", data={"n": 3})], "x", "y"),
        claim("new", [device("d-8")]),
    ]
    asks = recovery(store, driver)
    assert await asks.once()
    found, right = await record(store, "file"), await record(store, "right")
    assert found.devices == [
        {"request": "r", "pool": "node", "device": "d-0", "data": {"n": 1}},
        {"request": "mine", "pool": "node", "device": "d-1", "data": {"mine": 1}},
        {"pool": "node", "device": "d-9"},
    ]
    assert (found.namespace, found.name, found.doc["more"]) == ("ns", "c", "kept")
    assert (right.namespace, right.name, "data" in right.devices[0]) == ("ns", "name-right", False)
    assert asks.report == ["1 claim reported by the driver: new"]


async def test_a_superseded_claim_that_the_hardware_still_has_is_undone_by_the_driver(store: RecordStore) -> None:
    await insert(store, make_record("u", "d-0", complete=True, superseded=True))
    await pending(store)
    driver = Telling()
    driver.told = [claim("u", [device()])]
    assert await recovery(store, driver).once()
    assert not (await record(store, "u")).doc.get(SUPERSEDED)


async def test_a_claim_whose_record_cannot_be_read_is_reported_and_left(store: RecordStore) -> None:
    await pending(store)
    append_body(store.path, make_record("odd", "d-0"), b"{")
    driver = Telling()
    driver.told = [claim("odd", [device("d-0")]), claim("new", [device("d-1")])]
    asks = recovery(store, driver)
    assert await asks.once()
    assert [("odd" in s, "cannot be read" in s) for s in asks.report] == [(False, False), (True, True)]
    assert not isinstance(await store.get("odd"), Record)


ODD = object()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({}, "recover() returned dict, not a list"),
        ("text", "recover() returned str, not a list"),
        ([ODD], "recover() returned object, not RecoveredClaim"),
        ([claim("u", cast(Any, "devices"))], "not RecoveredClaim with a list"),
        ([claim("", [device()])], "without the UID"),
        ([claim("u", [cast(Any, ODD)])], "(UID u) with object, not PreparedDevice"),
        ([claim("u", [device("")])], "with a device that has no name"),
        ([claim("u", [device(data={"x": {1}})])], "device d-0: "),
        ([claim("u", [device(pool="\n")])], "pool of a device is not printable text"),
        ([claim("u", [device(request=7)])], "request of a device is not printable text"),
        ([claim("u", [device("\t")])], "name of a device is not printable text"),
        ([claim("u", [device(share_id="\n")])], "share_id of a device is not printable text"),
        ([claim("u", [device()], namespace="\n")], "namespace is not printable text"),
        ([claim("u", [device()], name=cast(Any, None))], "name is not printable text"),
        ([claim("\x1b", [device()])], "uid is not printable text"),
        (DraError("hardware is away"), "hardware is away"),
    ],
)
async def test_an_answer_that_makes_no_sense_changes_nothing_and_is_requested_again(
    store: RecordStore, told: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    await pending(store)
    driver = Telling()
    driver.told = [claim("good", [device("d-8")]), *told] if isinstance(told, list) else told
    asks = recovery(store, driver)
    assert await asks.once() is False
    assert says in asks.fault
    assert await store.all() == []
    assert await store.recovering()
    driver.told = None if says == "text" else ()
    assert await asks.once() is True
    assert asks.fault == ""
    assert not await store.recovering()


async def test_a_driver_that_takes_long_is_reported_asked_once_and_waited_for(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOW", 0.01)
    await pending(store)
    driver = Telling()
    driver.go.clear()
    asks = recovery(store, driver)
    waiting = [asyncio.create_task(asks.once()) for _ in range(2)]
    async with asyncio.timeout(30):
        while "has not returned" not in asks.fault:
            await asyncio.sleep(0.005)
    assert driver.asked == 1
    driver.go.set()
    assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == [True, True]
    assert (driver.asked, asks.fault) == (1, "")
    await pending(store)
    assert await asks.once()
    assert driver.asked == 2


async def test_a_claim_whose_device_a_claim_has_that_the_driver_did_not_report_is_recorded_too(
    store: RecordStore, caplog: pytest.LogCaptureFixture
) -> None:
    await insert(store, make_record("holder", "d-0"))
    await pending(store)
    driver = Telling()
    driver.told = [claim("u", [device()]), claim("v", [device("d-1")])]
    asks = recovery(store, driver)
    assert await asks.once()
    assert sorted(r.uid for r in await store.all()) == ["holder", "u", "v"]
    added, shared = asks.report
    assert added == "1 claim reported by the driver: v"
    assert shared.startswith("claim u was reported by the driver, and another claim has its device: ")
    assert [r.getMessage() for r in caplog.records] == [f"records were completed: {s}" for s in asks.report]
