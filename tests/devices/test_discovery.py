"""One look at the devices at a time, soon after whatever changed them, and no driver that can stop it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Device, Driver
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.discovery import DeviceDiscovery, Intervals
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.pool_state import Held
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import RecordsError
from dra_kubeletplugin.host.fake import described
from tests.helpers.devices import published_devices
from tests.helpers.waiting import wait_until

QUICK = Intervals(interval=0.05, hang=0.2, settle=0.01, burst=0.05, apart=0.01, retry=0.01)


class Scripted(Driver):
    """Answers what ``answer`` does, and counts how many calls run at once."""

    name = "scripted.example.com"

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer
        self.looks: list[float] = []
        self.at_once = 0
        self.most = 0

    def devices(self) -> Any:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.looks.append(time.monotonic())
        try:
            return self.answer(len(self.looks))
        finally:
            self.at_once -= 1


async def nothing_held() -> Held:
    return {}


@contextlib.asynccontextmanager
async def scanning(
    tmp_path: Path, answer: Callable[[int], Any], pace: Intervals = QUICK, held: Any = nothing_held
) -> AsyncIterator[tuple[DeviceDiscovery, Scripted, Inventory]]:
    driver, inventory = Scripted(answer), Inventory("node")
    sysfs = described.build(tmp_path / "sys", {"functions": []})
    scan = DeviceDiscovery(driver, Calls(), inventory, held, Metrics(), sysfs, pace)
    task = asyncio.create_task(scan.run())
    try:
        yield scan, driver, inventory
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait({task})


def raises(error: BaseException) -> Callable[[int], Any]:
    def answer(look: int) -> Any:
        if look > 1:
            return [Device("late")]
        raise error

    return answer


ODD: dict[str, Callable[[int], Any]] = {
    "StopIteration": raises(StopIteration()),
    "SystemExit": raises(SystemExit(0)),
    "CancelledError": raises(asyncio.CancelledError()),
    "KeyboardInterrupt": raises(KeyboardInterrupt()),
    "a group": raises(BaseExceptionGroup("both", [OSError("x"), SystemExit(1)])),
    "text that cannot be printed": raises(OSError("\ud800")),
    "None": lambda look: None if look == 1 else [Device("late")],
    "no devices": lambda look: [object()] if look == 1 else [Device("late")],
    "a generator that breaks": lambda look: (1 // 0 for _ in range(2)) if look == 1 else [Device("late")],
    "a million": lambda look: itertools.repeat(Device("x"), 10**6) if look == 1 else [Device("late")],
    "names twice": lambda look: [Device("x"), Device("x")] if look == 1 else [Device("late")],
}


@pytest.mark.parametrize("what", ODD)
async def test_a_look_that_fails_in_any_way_is_reported_counted_and_tried_again(tmp_path: Path, what: str) -> None:
    again = threading.Event()

    def answer(look: int) -> Any:
        assert look == 1 or again.wait(60)
        return ODD[what](look)

    async with scanning(tmp_path, answer, dataclasses.replace(QUICK, interval=60, hang=60)) as (scan, _, inventory):
        assert await scan.wait_for_first_call(60)
        assert scan.fault.endswith("; no claim can be prepared until devices() succeeds")
        assert scan.fault.encode()
        assert (scan.last_success, inventory.known) == (None, False)
        again.set()
        await wait_until(lambda: not scan.fault)
        assert inventory.known
        assert scan.last_success is not None


async def test_a_device_library_that_hangs_is_reported_with_seconds_and_its_late_answer_is_taken(
    tmp_path: Path,
) -> None:
    let_go = threading.Event()

    def answer(look: int) -> Any:
        let_go.wait(60)
        return [Device("late")]

    async with scanning(tmp_path, answer) as (scan, driver, inventory):
        assert not await scan.wait_for_first_call(0.05)
        await wait_until(
            lambda: re.fullmatch(r"the driver's devices\(\) has not returned for \d+ s", scan.fault) is not None
        )
        for _ in range(5):
            scan.request()
        await asyncio.sleep(0.1)
        assert len(driver.looks) == 1, "never twice at once"
        let_go.set()
        await wait_until(lambda: inventory.known)
        await wait_until(lambda: scan.fault == "")


async def test_looks_never_overlap_and_what_was_seen_last_is_in_force(tmp_path: Path) -> None:
    """The older of two looks takes longer, so it would win if both ran."""

    def answer(look: int) -> Any:
        time.sleep(0.1 if look % 2 else 0.01)
        return [Device(f"seen-{look}")]

    async with scanning(tmp_path, answer) as (scan, driver, inventory):
        while len(driver.looks) < 8:
            scan.request()
            await asyncio.sleep(0.01)
            newest = [int(d.name.removeprefix("seen-")) for d in inventory]
            assert not newest or newest[0] >= len(driver.looks) - 1
        assert driver.most == 1


async def test_events_every_100_ms_neither_put_looks_off_for_ever_nor_cause_one_each(tmp_path: Path) -> None:
    async with scanning(tmp_path, lambda _: [Device("a")], Intervals(interval=60)) as (scan, driver, _):
        assert await scan.wait_for_first_call(60)
        async with asyncio.timeout(60):
            while len(driver.looks) < 3:
                scan.request()
                await asyncio.sleep(0.1)
        assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(driver.looks))


async def test_an_event_during_a_look_is_followed_by_another_look(tmp_path: Path) -> None:
    async with scanning(tmp_path, lambda look: time.sleep(0.1) or [Device(f"seen-{look}")], dataclasses.replace(QUICK, interval=60)) as (scan, driver, inventory):  # fmt: skip
        await wait_until(lambda: len(driver.looks) == 1)
        scan.request()
        await wait_until(lambda: inventory.get("seen-2") is not None)


async def test_a_request_may_come_from_any_thread(tmp_path: Path) -> None:
    async with scanning(tmp_path, lambda _: [], dataclasses.replace(QUICK, interval=60)) as (scan, driver, _):
        assert await scan.wait_for_first_call(60)
        await asyncio.to_thread(scan.request)
        await wait_until(lambda: len(driver.looks) == 2)


async def test_while_the_records_cannot_be_read_what_vanishes_stays_published(tmp_path: Path) -> None:
    async def unreadable() -> Held:
        raise RecordsError("the disk is full")

    async with scanning(tmp_path, lambda look: [Device("a")] if look == 1 else [], held=unreadable) as (_, driver, inventory):  # fmt: skip
        await wait_until(lambda: len(driver.looks) > 2)
        assert [d["name"] for d in published_devices(inventory)] == ["a"]
        assert inventory.has_gone


async def test_the_end_of_a_claim_causes_a_look_only_where_a_device_vanished_in_use(tmp_path: Path) -> None:
    used: dict[tuple[str, str], dict[str, object]] = {("node", "a"): {}}

    async def held() -> Held:
        return used

    pace = dataclasses.replace(QUICK, interval=60)
    async with scanning(tmp_path, lambda look: [Device("a")] if look == 1 else [], pace, held) as (
        scan,
        driver,
        inventory,
    ):
        assert await scan.wait_for_first_call(60)
        scan.claim_ended()
        await asyncio.sleep(0.1)
        assert len(driver.looks) == 1
        scan.request()
        await wait_until(lambda: inventory.has_gone)
        used.clear()
        scan.claim_ended()
        await wait_until(lambda: not inventory.has_gone)


async def test_binding_conditions_that_nobody_makes_true_are_reported_once_and_for_as_long_as_there_are_any(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waits = Device("waits", binding_conditions=["x.example.com/ok"], binding_failure_conditions=["x.example.com/no"])
    there = [Device("plain")]
    async with scanning(tmp_path, lambda look: there) as (scan, _, _):
        assert await scan.wait_for_first_call(60)
        assert scan.note == ""
        there = [waits]
        for _ in range(2):
            await scan.call_now()
            assert "device waits has binding conditions, and Scripted has no bind()" in scan.note
        there = [Device("plain")]
        await scan.call_now()
        assert scan.note == ""
    assert caplog.text.count("has no bind()") == 1


def test_a_vendor_s_thread_that_outlives_the_plugin_may_still_state_that_devices_changed(tmp_path: Path) -> None:
    async def life() -> DeviceDiscovery:
        async with scanning(tmp_path, lambda look: [Device("a")]) as (scan, _, _):
            assert await scan.wait_for_first_call(60)
        return scan

    asyncio.run(life()).request()
