"""Discovery calls the driver once at a time and soon after each change; no fault of a driver stops it."""

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

from dra_devkit.hosts import described
from dra_kubeletplugin import Device, Driver
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.discovery import DeviceDiscovery, Intervals
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.pool_state import Held
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import RecordsError
from tests.devices.discovery_arguments import QUICK, nothing_held
from tests.helpers.devices import published_devices
from tests.helpers.waiting import wait_until


class Scripted(Driver):
    """Returns the result of ``respond`` and counts the calls that run at the same time."""

    name = "scripted.example.com"

    def __init__(self, respond: Callable[[int], Any]) -> None:
        self.respond = respond
        self.call_times: list[float] = []
        self.running = 0
        self.max_running = 0

    def devices(self) -> Any:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        self.call_times.append(time.monotonic())
        try:
            return self.respond(len(self.call_times))
        finally:
            self.running -= 1


@contextlib.asynccontextmanager
async def scanning(
    tmp_path: Path, respond: Callable[[int], Any], pace: Intervals = QUICK, held: Any = nothing_held
) -> AsyncIterator[tuple[DeviceDiscovery, Scripted, Inventory]]:
    driver, inventory = Scripted(respond), Inventory("node")
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
    def respond(call: int) -> Any:
        if call > 1:
            return [Device("late")]
        raise error

    return respond


FAULTS: dict[str, Callable[[int], Any]] = {
    "StopIteration": raises(StopIteration()),
    "SystemExit": raises(SystemExit(0)),
    "CancelledError": raises(asyncio.CancelledError()),
    "KeyboardInterrupt": raises(KeyboardInterrupt()),
    "a group": raises(BaseExceptionGroup("both", [OSError("x"), SystemExit(1)])),
    "text that cannot be printed": raises(OSError("\ud800")),
    "None": lambda call: None if call == 1 else [Device("late")],
    "a generator": lambda call: (Device("x") for _ in range(2)) if call == 1 else [Device("late")],
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_any_failure_of_discovery_is_reported_counted_and_retried(tmp_path: Path, fault: str) -> None:
    again = threading.Event()

    def respond(call: int) -> Any:
        assert call == 1 or again.wait(60)
        return FAULTS[fault](call)

    async with scanning(tmp_path, respond, dataclasses.replace(QUICK, interval=60, hang=60)) as (scan, _, inventory):
        assert await scan.wait_for_first_call(60)
        assert scan.fault.endswith("; no claim can be prepared until devices() succeeds")
        assert scan.fault.encode()
        assert (scan.last_success, inventory.known) == (None, False)
        again.set()
        await wait_until(lambda: not scan.fault)
        assert inventory.known
        assert scan.last_success is not None


async def test_a_hanging_device_library_is_reported_with_seconds_and_its_late_result_is_used(
    tmp_path: Path,
) -> None:
    let_go = threading.Event()

    def respond(call: int) -> Any:
        let_go.wait(60)
        return [Device("late")]

    async with scanning(tmp_path, respond) as (scan, driver, inventory):
        assert not await scan.wait_for_first_call(0.05)
        await wait_until(
            lambda: re.fullmatch(r"the driver's devices\(\) has not returned for \d+ s", scan.fault) is not None
        )
        for _ in range(5):
            scan.request()
        await asyncio.sleep(0.1)
        assert len(driver.call_times) == 1, "two calls never run at the same time"
        let_go.set()
        await wait_until(lambda: inventory.known)
        await wait_until(lambda: scan.fault == "")


async def test_calls_never_overlap_and_the_last_result_is_in_force(tmp_path: Path) -> None:
    """The older of two calls takes longer, so its result would prevail if both calls ran at the same time."""

    def respond(call: int) -> Any:
        time.sleep(0.1 if call % 2 else 0.01)
        return [Device(f"seen-{call}")]

    async with scanning(tmp_path, respond) as (scan, driver, inventory):
        while len(driver.call_times) < 8:
            scan.request()
            await asyncio.sleep(0.01)
            newest = [int(d.name.removeprefix("seen-")) for d in inventory]
            assert not newest or newest[0] >= len(driver.call_times) - 1
        assert driver.max_running == 1


async def test_frequent_events_neither_block_discovery_nor_cause_one_call_each(tmp_path: Path) -> None:
    async with scanning(tmp_path, lambda _: [Device("a")], Intervals(interval=60)) as (scan, driver, _):
        assert await scan.wait_for_first_call(60)
        async with asyncio.timeout(60):
            while len(driver.call_times) < 3:
                scan.request()
                await asyncio.sleep(0.1)
        assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(driver.call_times))


async def test_an_event_during_a_call_causes_another_call(tmp_path: Path) -> None:
    async with scanning(tmp_path, lambda call: time.sleep(0.1) or [Device(f"seen-{call}")], dataclasses.replace(QUICK, interval=60)) as (scan, driver, inventory):  # fmt: skip
        await wait_until(lambda: len(driver.call_times) == 1)
        scan.request()
        await wait_until(lambda: inventory.get("seen-2") is not None)


async def test_a_request_may_come_from_any_thread(tmp_path: Path) -> None:
    async with scanning(tmp_path, lambda _: [], dataclasses.replace(QUICK, interval=60)) as (scan, driver, _):
        assert await scan.wait_for_first_call(60)
        await asyncio.to_thread(scan.request)
        await wait_until(lambda: len(driver.call_times) == 2)


async def test_removed_devices_stay_published_while_the_records_are_unreadable(tmp_path: Path) -> None:
    async def unreadable() -> Held:
        raise RecordsError("the disk is full")

    async with scanning(tmp_path, lambda call: [Device("a")] if call == 1 else [], held=unreadable) as (_, driver, inventory):  # fmt: skip
        await wait_until(lambda: len(driver.call_times) > 2)
        assert [d["name"] for d in published_devices(inventory)] == ["a"]
        assert inventory.has_gone


async def test_the_end_of_a_claim_starts_discovery_only_after_a_device_was_removed_in_use(tmp_path: Path) -> None:
    used: dict[tuple[str, str], dict[str, object]] = {("node", "a"): {}}

    async def held() -> Held:
        return used

    pace = dataclasses.replace(QUICK, interval=60)
    async with scanning(tmp_path, lambda call: [Device("a")] if call == 1 else [], pace, held) as (
        scan,
        driver,
        inventory,
    ):
        assert await scan.wait_for_first_call(60)
        scan.claim_ended()
        await asyncio.sleep(0.1)
        assert len(driver.call_times) == 1
        scan.request()
        await wait_until(lambda: inventory.has_gone)
        used.clear()
        scan.claim_ended()
        await wait_until(lambda: not inventory.has_gone)


async def test_binding_conditions_without_bind_are_logged_once_and_noted_while_they_exist(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unbound_device = Device(
        "waits", binding_conditions=["x.example.com/ok"], binding_failure_conditions=["x.example.com/no"]
    )
    discovered = [Device("plain")]
    async with scanning(tmp_path, lambda call: discovered) as (scan, _, _):
        assert await scan.wait_for_first_call(60)
        assert scan.note == ""
        discovered = [unbound_device]
        for _ in range(2):
            await scan.call_now()
            assert "device waits has binding conditions, and Scripted has no bind()" in scan.note
        discovered = [Device("plain")]
        await scan.call_now()
        assert scan.note == ""
    assert caplog.text.count("has no bind()") == 1


def test_a_thread_that_outlives_the_plugin_may_still_request_discovery(tmp_path: Path) -> None:
    async def run_and_close() -> DeviceDiscovery:
        async with scanning(tmp_path, lambda call: [Device("a")]) as (scan, _, _):
            assert await scan.wait_for_first_call(60)
        return scan

    asyncio.run(run_and_close()).request()
