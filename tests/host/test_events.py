"""Hardware that comes and goes is noticed: by the kernel's own events where there are any, by looking elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_kubeletplugin import Device
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.discovery import DeviceDiscovery, Intervals
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DriverError
from dra_kubeletplugin.host import events
from dra_kubeletplugin.host.events import kernel_events
from dra_kubeletplugin.host.fake import described, kernel
from dra_kubeletplugin.host.fake.uevents import Listener
from dra_kubeletplugin.testing import node_with
from tests.helpers.drivers import Toy, make_toy_class

UEVENT = Path("/sys/class/mem/null/uevent")
real_events = pytest.mark.skipif(not os.access(UEVENT, os.W_OK), reason="needs root and a writable /sys")


@real_events
async def test_a_real_kernel_event_is_reported_to_who_requested_its_subsystem_only() -> None:
    """The event is made by writing to the null device's uevent file, which changes nothing."""
    told, others = asyncio.Event(), asyncio.Event()
    sysfs = Path("/sys")
    with (
        kernel_events(sysfs, others.set, ("vfio-dev",)) as first,
        kernel_events(sysfs, told.set, ("mem",)) as second,
    ):
        assert (first, second) == (True, True)
        UEVENT.write_text("change")
        async with asyncio.timeout(30):
            await told.wait()
        await asyncio.sleep(0)
        assert not others.is_set()


@real_events
async def test_events_that_were_lost_are_a_reason_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without CAP_NET_ADMIN gets a small buffer; more than it holds comes before the loop reads any."""
    opened = events._uevents

    def small() -> socket.socket:
        found = opened()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return found

    monkeypatch.setattr(events, "_uevents", small)
    told = asyncio.Event()
    with kernel_events(Path("/sys"), told.set, ("vfio-dev",)):
        for _ in range(200):
            UEVENT.write_text("change")
        async with asyncio.timeout(30):
            await told.wait()


@real_events
async def test_what_arrives_during_the_first_look_is_seen_by_a_second_one() -> None:
    """Events were listened for after the first look only: a device that came during it was missing for a minute."""

    class Slow(Toy):
        subsystems = ("mem",)
        looking = threading.Event()
        go_on = threading.Event()
        looks = 0

        def devices(self) -> list[Device]:  # type: ignore[override]
            Slow.looks += 1
            self.looking.set()
            self.go_on.wait(120)
            return [Device(f"look-{Slow.looks}")]

    async def held() -> set[str]:
        return set()

    inventory = Inventory("node")
    scan = DeviceDiscovery(Slow(), Calls(), inventory, held, Metrics(), Path("/sys"), Intervals(interval=60))
    task = asyncio.create_task(scan.run())
    await asyncio.to_thread(Slow.looking.wait, 60)
    UEVENT.write_text("change")
    await asyncio.sleep(0.1)
    Slow.go_on.set()
    async with asyncio.timeout(30):
        while not len(inventory) or inventory.get("look-1"):  # events of others may make it look more often
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task})


@real_events
async def test_the_driver_reports_which_subsystems_are_a_reason_to_look() -> None:
    class Counting(Toy):
        looks = 0

        async def devices(self) -> list[Device]:
            type(self).looks += 1
            return await super().devices()

    class Asking(Counting):
        subsystems = ("mem",)

    async with node_with(Asking) as node:
        before = Asking.looks
        UEVENT.write_text("change")

        async def looked() -> bool:
            return Asking.looks > before

        await node.cluster.wait("a look", looked)
    with kernel_events(Path("/sys"), lambda: None, ()) as works:
        assert not works, "a driver that asks for none gets none"


@pytest.mark.parametrize("wrong", ["pci", ("pci", ""), (5,)])
def test_subsystems_that_are_no_list_are_refused_where_they_are_written(wrong: object) -> None:
    with pytest.raises(DriverError, match="is not a list of kernel subsystems"):
        type("Wrong", (Toy,), {"subsystems": wrong})


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
async def test_a_described_host_reports_what_the_kernel_would(
    tmp_path: Path, change: Callable[[Path], None], subsystems: set[str]
) -> None:
    root = described.build(tmp_path / "sys", {"functions": [WITH_NODE, WITH_VFS]})
    listeners = {name: Listener(root, (name,)) for name in ("pci", "fpga", "net")}
    change(root)
    assert {name for name, listener in listeners.items() if listener.has_new()} == subsystems
    assert not any(listener.has_new() for listener in listeners.values()), "told once"


async def test_a_listener_is_woken_by_a_described_host_and_by_no_event_of_before(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", {"functions": [WITH_NODE]})
    heard: asyncio.Queue[bool] = asyncio.Queue()
    with kernel_events(root, lambda: heard.put_nowait(True)) as works:
        assert works
        described.remove_function(root, "0000:17:00.0")
        assert await asyncio.wait_for(heard.get(), 60)
    assert heard.empty()


async def test_a_described_host_that_is_gone_reports_nothing(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", {"functions": []})
    listener = Listener(root, ("pci",))
    shutil.rmtree(root)
    assert not listener.has_new()


async def test_a_card_that_is_unplugged_is_seen_long_before_the_interval(tmp_path: Path) -> None:
    class Cards(Toy):
        def devices(self) -> list[Device]:
            return [fn.device() for fn in self.host.pci()]

    async with node_with(Cards, host={"functions": [WITH_NODE]}, rescan_interval=3600.0) as node:

        async def gone() -> bool:
            return not len(node.plugin.inventory)

        described.remove_function(node.settings.sysfs_root, "0000:17:00.0")
        await node.cluster.wait("the card to go", gone)


async def test_a_device_that_is_plugged_in_is_published_within_the_interval() -> None:
    cls = make_toy_class()
    async with node_with(cls, host={"functions": []}, rescan_interval=0.1) as node:
        cls.count = 6

        async def published() -> bool:
            return len(node.cluster.slices()[0]["spec"]["devices"]) == 6

        await node.cluster.wait("six devices", published)
        cls.count = 2

        async def fewer() -> bool:
            return len(node.cluster.slices()[0]["spec"]["devices"]) == 2

        await node.cluster.wait("two devices", fewer)
        generation = node.cluster.slices()[0]["spec"]["pool"]["generation"]
        assert generation == 1


async def test_devices_that_cannot_be_listed_leave_the_last_answer_in_force_and_are_reported() -> None:
    cls = make_toy_class()
    async with node_with(cls) as node:

        async def broken(self: object) -> list[object]:
            raise OSError("the bus is gone")

        original = cls.devices
        cls.devices = broken  # type: ignore[assignment]
        node.plugin.discovery.request()

        async def told() -> bool:
            return any("the bus is gone" in f for f in await node.plugin.not_ready())

        await node.cluster.wait("the fault in readiness", told)
        assert len(node.plugin.inventory) == 4
        cls.devices = original  # type: ignore[method-assign]

        async def well() -> bool:
            return not await node.plugin.not_ready()

        await node.cluster.wait("readiness", well)
        await node.run_pod()
