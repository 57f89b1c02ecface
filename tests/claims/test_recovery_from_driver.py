"""After a loss of the records: the claims that the driver reports are checked and merged one by one, and recover is
called until it succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from dra_kubeletplugin import Driver, PreparedClaim, PreparedDevice, RecoveredClaim, SharedStep
from dra_kubeletplugin.claims import Record, RecordStore, State
from dra_kubeletplugin.claims.recovery import Recovery
from dra_kubeletplugin.claims.store.records import RECOVER, Records
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

    def board(self, claim: PreparedClaim, board: str) -> None: ...

    def setup_firmware(self, card: str, version: str) -> None: ...

    def teardown_firmware(self, card: str, version: str) -> None: ...

    async def recover(self) -> list[RecoveredClaim]:
        self.calls += 1
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
    return Recovery(driver, Calls(), store, BOOT, 60.0)


async def record(store: RecordStore, uid: str) -> Record:
    stored = await store.get(uid)
    assert isinstance(stored, Record)
    return stored


async def test_recover_is_called_only_after_a_loss_and_once(store: RecordStore) -> None:
    driver = RecoveringDriver()
    recovered = Recovery(driver, Calls(), store, BOOT, 0.05)
    recovered.fault = "of before"
    assert await recovered.once() is True
    assert (driver.calls, recovered.fault) == (0, "")
    await pending(store)
    for _ in range(2):
        assert await recovered.once() is True
    await asyncio.sleep(0.1)
    assert (driver.calls, recovered.report, recovered.fault) == (1, [], "")


async def test_devices_in_hardware_are_held_and_claims_that_ended_are_rolled_back(store: RecordStore) -> None:
    await pending(store)
    await store.do(lambda records: records.set_meta(ENDED + "over", ""))
    driver = RecoveringDriver()
    driver.claims = [
        RecoveredClaim(
            uid="new",
            devices=[device("d-0", data={"n": 1}, share_id="s"), device("d-1")],
            namespace="ns",
            name="c",
            undo_steps=[(driver.board, {"board": "b-0"})],
            shared_steps=[SharedStep(driver.setup_firmware, "card-0", {"version": "4.2"})],
        ),
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
    assert new_record.undo == [{"step": "board", "data": {"board": "b-0"}}]
    step = {"step": "firmware", "key": "card-0", "data": {"version": "4.2"}, "ready": True}
    assert (new_record.shared, new_record.shared_unknown, ended_record.shared_unknown) == ([step], False, True)
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
    assert await store.do(Records.damaged) == []
    assert not await store.recovering()


async def test_a_claim_that_is_recorded_is_unchanged(store: RecordStore) -> None:
    await pending(store)
    await insert(store, make_record("right", "d-5"))
    before = await record(store, "right")
    driver = RecoveringDriver()
    driver.claims = [claim("right", [device("d-5", data={"n": 3})], "x", "y"), claim("new", [device("d-8")])]
    recovered = recovery(store, driver)
    assert await recovered.once()
    assert await record(store, "right") == before
    assert recovered.report == ["1 claim reported by the driver: new"]


async def test_a_superseded_claim_that_is_still_in_hardware_is_rolled_back_by_the_driver(store: RecordStore) -> None:
    await insert(store, make_record("keeper", "d-0"))
    superseded = make_record("u", "d-0", State.UNPREPARING, complete=True, superseded=True)
    await store.do(lambda records: records.insert(superseded, shared=True))
    await pending(store)
    driver = RecoveringDriver()
    driver.claims = [claim("u", [device()])]
    assert await recovery(store, driver).once()
    (store.path / "any-change").touch()
    await store.do(lambda records: None)  # settles conflicts again
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


def invalid_claim(**fields: Any) -> list[RecoveredClaim]:
    return [RecoveredClaim(**{"uid": "u", "devices": [device()], **fields})]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("text", "recover() returned str, not a list"),
        ([object()], "recover() returned object (UID ?), which is not a RecoveredClaim with devices"),
        (invalid_claim(devices="devices"), "RecoveredClaim (UID u), which is not a RecoveredClaim with devices"),
        (invalid_claim(devices=None), "not a RecoveredClaim with"),
        (invalid_claim(devices=[object()]), "not a RecoveredClaim with"),
        (invalid_claim(devices=[device(data={"x": {1}})]), "data of d-0.x is of type set"),
        (invalid_claim(undo_steps=5), "not a RecoveredClaim with"),
        (invalid_claim(undo_steps=[("board", {"x": 1})]), "on_undo() got 'board': pass a method of the driver"),
        (invalid_claim(undo_steps=[(5, {})]), "on_undo() got int: pass a method of the driver"),
        (invalid_claim(devices=[device(share_id=7)]), "a name that is not printable text: 7"),
        (invalid_claim(devices=[device(pool="\n")]), "a name that is not printable text"),
        (invalid_claim(namespace="\ud800"), "a name that is not printable text"),
        (invalid_claim(name=None), "a name that is not printable text: None"),
        (invalid_claim(uid="a\0b"), "a name that is not printable text"),
        (invalid_claim(uid="a/../../b"), "not the UID of a ResourceClaim"),
        (invalid_claim(uid=""), "without a UID, or with a device that has no name"),
        (invalid_claim(devices=[device("")]), "without a UID, or with a device that has no name"),
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
    driver.claims = None
    assert await recovered.once() is True
    assert recovered.fault == ""
    assert not await store.recovering()


class Text(str):
    __slots__ = ()


async def test_names_may_be_of_a_subclass_of_str(store: RecordStore) -> None:
    await pending(store)
    driver = RecoveringDriver()
    step, shared = (
        (driver.board, {"board": Text("3")}),
        SharedStep(driver.setup_firmware, Text("card"), {"version": Text("1")}),
    )
    driver.claims = [
        RecoveredClaim(uid=Text("u"), devices=[device(Text("d-0"))], undo_steps=[step], shared_steps=[shared])
    ]
    assert await recovery(store, driver).once()
    found = await record(store, "u")
    assert (found.devices[0]["device"], found.undo[0]["step"], found.shared[0]["key"]) == ("d-0", "board", "card")


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
