"""The plugin detects added and removed hardware by the kernel's events, and by an interval where there are no events."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pyudev

from dra_devkit.hosts import described, kernel
from dra_devkit.testing import node_with
from dra_kubeletplugin import Device
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.discovery import DeviceDiscovery, Intervals
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.host.described_events import Listener
from dra_kubeletplugin.host.events import kernel_events
from tests.helpers.drivers import Toy, make_toy_class

UEVENT = Path("/sys/class/mem/null/uevent")
real_events = pytest.mark.skipif(not os.access(UEVENT, os.W_OK), reason="needs root and a writable /sys")


@real_events
async def test_a_kernel_event_is_reported_only_to_listeners_of_its_subsystem() -> None:
    """A write to the null device's uevent file causes an event and changes nothing."""
    received, received_others = asyncio.Event(), asyncio.Event()
    sysfs = Path("/sys")
    with (
        kernel_events(sysfs, received_others.set, ("vfio-dev",)) as first,
        kernel_events(sysfs, received.set, ("mem",)) as second,
    ):
        assert (first, second) == (True, True)
        UEVENT.write_text("change")
        async with asyncio.timeout(30):
            await received.wait()
        await asyncio.sleep(0)
        assert not received_others.is_set()


@real_events
async def test_lost_events_cause_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without CAP_NET_ADMIN the buffer is small. Here it overflows before the event loop reads an event."""
    start = pyudev.Monitor.start

    def start_with_small_buffer(self: Any) -> None:
        start(self)
        with socket.socket(fileno=os.dup(self.fileno())) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    monkeypatch.setattr(pyudev.Monitor, "start", start_with_small_buffer)
    received, calls = asyncio.Event(), 0

    def notify() -> None:
        nonlocal calls
        calls += 1
        received.set()

    with kernel_events(Path("/sys"), notify, ("mem",)):
        for _ in range(200):
            UEVENT.write_text("change")
        async with asyncio.timeout(30):
            await received.wait()
        for _ in range(100):  # passes of the loop
            await asyncio.sleep(0)
        assert calls < 5  # the error of the socket does not wake the loop again and again
        received.clear()
        UEVENT.write_text("change")
        async with asyncio.timeout(30):
            await received.wait()


@real_events
async def test_an_event_during_the_first_scan_causes_a_second_scan() -> None:
    """The plugin must listen before the first scan. Otherwise it misses a device that is added during the scan."""

    class SlowScans(Toy):
        subsystems = ("mem",)
        scanning = threading.Event()
        go_on = threading.Event()
        scans = 0

        def devices(self) -> list[Device]:  # type: ignore[override]
            SlowScans.scans += 1
            self.scanning.set()
            self.go_on.wait(120)
            return [Device(f"scan-{SlowScans.scans}")]

    async def prepared_devices() -> set[str]:
        return set()

    inventory = Inventory("node")
    scan = DeviceDiscovery(
        SlowScans(), Calls(), inventory, prepared_devices, Metrics(), Path("/sys"), Intervals(interval=60)
    )
    task = asyncio.create_task(scan.run())
    await asyncio.to_thread(SlowScans.scanning.wait, 60)
    UEVENT.write_text("change")
    await asyncio.sleep(0.1)
    SlowScans.go_on.set()
    async with asyncio.timeout(30):
        while not len(inventory) or inventory.get("scan-1"):  # Events of other processes may cause further scans.
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task})


@real_events
async def test_events_of_the_driver_s_subsystems_cause_a_scan() -> None:
    class CountsScans(Toy):
        scans = 0

        async def devices(self) -> list[Device]:
            type(self).scans += 1
            return await super().devices()

    class ListensToMem(CountsScans):
        subsystems = ("mem",)

    async with node_with(ListensToMem) as node:
        before = ListensToMem.scans
        UEVENT.write_text("change")

        async def has_scanned() -> bool:
            return ListensToMem.scans > before

        await node.cluster.wait("a scan", has_scanned)
    with kernel_events(Path("/sys"), lambda: None, ()) as is_listening:
        assert not is_listening, "without subsystems, the plugin does not listen"


CARD = {"vendor": 0x10EE, "device": 0x5000, "class": 0x120000, "driver": "xclmgmt"}
WITH_NODE = {**CARD, "address": "0000:17:00.0", "classes": {"fpga": {"fpga0": {"dev": "240:0"}}}}
WITH_VFS = {**CARD, "address": "0000:18:00.0", "vfs": {"total": 2}}


@pytest.mark.parametrize(
    ("change", "subsystems"),
    [
        (lambda root: described.add_function(root, {**CARD, "address": "0000:99:00.0"}), {"pci"}),
        (lambda root: described.remove_function(root, "0000:17:00.0"), {"pci", "fpga"}),
        (lambda root: kernel.write(root, "bus/pci/drivers/xclmgmt/unbind", "0000:17:00.0"), {"pci", "fpga"}),
        (lambda root: kernel.write(root, "bus/pci/devices/0000:18:00.0/sriov_numvfs", "2"), {"pci"}),
        (lambda root: kernel.write(root, "bus/pci/devices/0000:18:00.0/driver_override", "vfio-pci"), set()),
    ],
    ids=["plugged", "unplugged", "unbound", "virtual functions", "an attribute"],
)
async def test_a_described_host_sends_the_same_events_as_the_kernel(
    tmp_path: Path, change: Callable[[Path], None], subsystems: set[str]
) -> None:
    root = described.build(tmp_path / "sys", {"functions": [WITH_NODE, WITH_VFS]})
    listeners = {name: Listener(root, (name,)) for name in ("pci", "fpga", "net")}
    change(root)
    assert {name for name, listener in listeners.items() if listener.has_new()} == subsystems
    assert not any(listener.has_new() for listener in listeners.values()), "each listener receives an event once"


async def test_a_listener_receives_new_events_of_a_described_host_and_no_earlier_ones(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", {"functions": [WITH_NODE]})
    notifications: asyncio.Queue[bool] = asyncio.Queue()
    with kernel_events(root, lambda: notifications.put_nowait(True)) as is_listening:
        assert is_listening
        described.remove_function(root, "0000:17:00.0")
        assert await asyncio.wait_for(notifications.get(), 60)
    assert notifications.empty()


async def test_a_removed_described_host_sends_no_events(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", {"functions": []})
    listener = Listener(root, ("pci",))
    shutil.rmtree(root)
    assert not listener.has_new()


async def test_an_unplugged_card_is_detected_before_the_rescan_interval() -> None:
    class Cards(Toy):
        def devices(self) -> list[Device]:
            return [fn.device() for fn in self.host.pci()]

    async with node_with(Cards, host={"functions": [WITH_NODE]}, rescan_interval=3600.0) as node:

        async def is_removed() -> bool:
            return not len(node.plugin.inventory)

        assert not await is_removed()
        described.remove_function(node.settings.sysfs_root, "0000:17:00.0")
        await node.cluster.wait("the removal of the card", is_removed)


async def test_an_added_device_is_published_within_the_rescan_interval() -> None:
    cls = make_toy_class()
    async with node_with(cls, host={"functions": []}, rescan_interval=0.1) as node:
        cls.count = 6

        async def has_six_devices() -> bool:
            return len(node.cluster.slices()[0]["spec"]["devices"]) == 6

        await node.cluster.wait("six devices", has_six_devices)
        cls.count = 2

        async def has_two_devices() -> bool:
            return len(node.cluster.slices()[0]["spec"]["devices"]) == 2

        await node.cluster.wait("two devices", has_two_devices)
        generation = node.cluster.slices()[0]["spec"]["pool"]["generation"]
        assert generation == 1


async def test_after_a_failed_scan_the_last_devices_stay_published_and_the_fault_is_reported() -> None:
    cls = make_toy_class()
    async with node_with(cls) as node:

        async def broken(self: object) -> list[object]:
            raise OSError("the bus does not respond")

        original = cls.devices
        cls.devices = broken  # type: ignore[assignment]
        node.plugin.discovery.request()

        async def fault_is_reported() -> bool:
            return any("the bus does not respond" in f for f in await node.plugin.not_ready())

        await node.cluster.wait("the fault in readiness", fault_is_reported)
        assert len(node.plugin.inventory) == 4
        cls.devices = original  # type: ignore[method-assign]

        async def is_ready() -> bool:
            return not await node.plugin.not_ready()

        await node.cluster.wait("readiness", is_ready)
        await node.run_pod()
