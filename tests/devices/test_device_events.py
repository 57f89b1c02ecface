"""Events on the Node about devices that become unhealthy and recover, and the reason in the slices."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, ClassVar, NamedTuple

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Device, Health, Pool, Taint
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.device_events import DeviceEvents
from dra_kubeletplugin.devices.health_policy import HealthPolicy
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.event_recorder import EventRecorder, Subject
from dra_kubeletplugin.resourceapi.unhealthy_reason import reason_of
from dra_kubeletplugin.resourceapi.validation.slices import validate_device
from dra_tools.usage.rows import DeviceRow, HealthRow
from dra_tools.usage.usage import count_usage
from tests.helpers.devices import published_devices
from tests.helpers.drivers import HealthReportingDriver
from tests.helpers.publisher import scripted_api_server
from tests.helpers.waiting import wait_until

UNHEALTHY = Taint(key="dra-kubeletplugin.dev/unhealthy")


class QueuedEvent(NamedTuple):
    type: str
    reason: str
    message: str


class Recorder:
    """Keeps queued Events."""

    def __init__(self) -> None:
        self.queued: list[QueuedEvent] = []

    def warn(self, about: Subject, reason: str, message: str) -> None:
        assert about.kind == "Node"
        self.queued.append(QueuedEvent("Warning", reason, message))

    def inform(self, about: Subject, reason: str, message: str) -> None:
        self.queued.append(QueuedEvent("Normal", reason, message))

    def take(self) -> list[QueuedEvent]:
        out, self.queued = self.queued, []
        return out


async def inventory_of(*names: str) -> Inventory:
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY, healthy_after=1))
    await inventory.update([Pool("node", [Device(n) for n in names])])
    return inventory


def events_of(inventory: Inventory) -> tuple[DeviceEvents, Recorder]:
    recorder = Recorder()
    return DeviceEvents(recorder, inventory, "node"), recorder  # type: ignore[arg-type]


async def test_a_fault_and_a_recovery_cause_one_event_each_with_the_driver_s_text() -> None:
    inventory = await inventory_of("a", "b")
    events, recorder = events_of(inventory)
    for at in range(3):
        await inventory.set_health({"a": Health(False, "the fan stands still")}, float(at))
        events.check()
    assert recorder.take() == [("Warning", "DeviceUnhealthy", "a is unhealthy: the fan stands still")]
    for at in range(3, 6):
        await inventory.set_health({}, float(at))
        events.check()
    assert recorder.take() == [
        ("Normal", "DeviceHealthy", "a is healthy again; the fault was: the fan stands still"),
    ]


async def test_devices_that_fail_together_cause_one_event_for_one_text_and_few_events_for_many_texts() -> None:
    inventory = await inventory_of(*(f"d{i}" for i in range(40)))
    events, recorder = events_of(inventory)
    await inventory.set_health({f"d{i}": Health(False, "too hot") for i in range(10, 15)}, 0.0)
    events.check()
    assert recorder.take() == [("Warning", "DeviceUnhealthy", "d10, d11, d12 and 2 more are unhealthy: too hot")]
    await inventory.set_health({f"d{i}": Health(False, f"fault {i}") for i in range(40)}, 1.0)
    events.check()
    texts = [e.message for e in recorder.take()]
    assert len(texts) == 11
    assert texts[-1].endswith("are unhealthy: other faults, which `dra top` shows")


async def test_a_removed_device_causes_no_recovery_event() -> None:
    inventory = await inventory_of("a", "b")
    events, recorder = events_of(inventory)
    await inventory.set_health({"a": Health(False, "hot")}, 0.0)
    events.check()
    recorder.take()
    await inventory.update([Pool("node", [Device("b")])])
    events.check()
    assert recorder.take() == []


async def test_a_text_that_differs_in_each_report_costs_one_write_in_ten_minutes() -> None:
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY), clock=lambda: 1199.0)
    await inventory.update([Pool("node", [Device("a")])])
    events, recorder = events_of(inventory)
    versions = set()
    for second in range(1200):
        await inventory.set_health({"a": Health(False, f"{second} degrees")}, float(second))
        events.check()
        versions.add(inventory.version)
    assert [e.message for e in recorder.take()] == ["a is unhealthy: 0 degrees", "a is unhealthy: 600 degrees"]
    assert len(versions) == 2, "each version causes one write of the slice"
    assert inventory.unhealthy_reason("a") == "600 degrees"
    ((_, health),) = inventory.health()
    assert health.message == "1199 degrees", "the kubelet and the status page receive the text of the last report"


async def test_a_flapping_device_causes_one_counted_event_of_each_kind() -> None:
    async with scripted_api_server() as server, KubeClient(server.config) as client:
        inventory = await inventory_of("a")
        recorder = EventRecorder(client, "d.example.com", "node", Metrics())
        events = DeviceEvents(recorder, inventory, "node")
        tasks = [asyncio.create_task(recorder.run()), asyncio.create_task(events.run())]
        writes: list[str] = []

        def count(request: Any) -> None:
            writes.extend([request.method] if "/events" in request.path else [])

        server.instead = count
        for second in range(50):
            await inventory.set_health({"a": Health(second % 2 == 1, "flaps")}, float(second))
            events.check()
        await wait_until(lambda: len(server.storage.list("events")) == 2)
        assert {e["reason"] for e in server.storage.list("events")} == {"DeviceUnhealthy", "DeviceHealthy"}
        assert writes == ["POST", "POST"], "the count of an Event is written once a minute at most"
        for task in tasks:
            assert not task.done()
            task.cancel()


async def test_the_slice_contains_a_reason_of_64_bytes_until_the_fault_ends() -> None:
    inventory = await inventory_of("a", "b")
    await inventory.set_health(
        {"a": Health(False, "link 3 has lost its carrier: " + "é" * 60), "b": Health(None, "?")}, 0.0
    )
    a, b = published_devices(inventory)
    assert reason_of(a).startswith("link 3 has lost its carrier: é") and reason_of(a).endswith("...")
    assert not validate_device(a, "d") and reason_of(b) == ""
    await inventory.set_health({}, 1.0)
    assert "attributes" not in published_devices(inventory)[0]


async def test_a_device_with_the_maximum_of_attributes_is_published_without_the_reason() -> None:
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY))
    await inventory.update([Pool("node", [Device("a", attributes={f"n{i}": i for i in range(32)})])])
    await inventory.set_health({"a": Health(False, "hot")}, 0.0)
    (device,) = published_devices(inventory)
    assert len(device["attributes"]) == 32 and device["taints"] and not validate_device(device, "d")


async def test_the_slice_also_contains_a_fault_without_a_taint() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("a")])])
    await inventory.set_health({"a": Health(False, "hot")}, 0.0)
    (device,) = published_devices(inventory)
    assert (reason_of(device), device.get("taints")) == ("hot", None)


async def test_the_next_instance_also_explains_an_unhealthy_free_device() -> None:
    class Driver(HealthReportingDriver):
        report: ClassVar[dict[str, Health]] = {}
        delay: ClassVar[float] = 0.0

        def health(self) -> dict[str, Health]:
            time.sleep(self.delay)
            return self.report

    async with node_with(Driver) as node:
        Driver.report = {"toy-1": Health(False, "the fan stands still")}
        node.plugin.driver.rescan()
        storage = node.cluster.api.storage
        await wait_until(lambda: [e for e in storage.list("events") if e["reason"] == "DeviceUnhealthy"])
        (event,) = (e for e in storage.list("events") if e["reason"] == "DeviceUnhealthy")
        assert event["message"] == "toy-1 is unhealthy: the fan stands still"
        assert (event["involvedObject"]["kind"], event["metadata"]["namespace"]) == ("Node", "default")
        await node.plugin.published(30)

        def row() -> DeviceRow:
            slices = storage.list("resourceslices.resource.k8s.io")
            return next(d for d in count_usage(slices, []).devices if d.name == "toy-1")

        assert (row().health, row().message) == (HealthRow.UNHEALTHY, "the fan stands still")
        await node.stop()
        assert row().message == "the fan stands still"
        versions = [s["metadata"]["resourceVersion"] for s in storage.list("resourceslices.resource.k8s.io")]
        Driver.delay = 0.5
        await node.start()
        await node.plugin.published(30)
        assert (row().health, row().message) == (HealthRow.UNHEALTHY, "the fan stands still")
        after = [s["metadata"]["resourceVersion"] for s in storage.list("resourceslices.resource.k8s.io")]
        assert after == versions, "the taint and the text stay, also before the first health report"
        (event,) = (e for e in storage.list("events") if e["reason"] == "DeviceUnhealthy")


async def test_one_log_line_names_all_parts_of_a_card(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dra_kubeletplugin.devices")
    parts = [f"card-part-{i}" for i in range(12)]
    inventory = await inventory_of(*reversed(parts), "other")
    await inventory.set_health(dict.fromkeys(parts, Health(False, "too hot")) | {"other": Health(False)}, 0.0)
    await inventory.set_health(dict.fromkeys(parts, Health(False, "too hot")), 1.0)
    assert [(r.levelname, r.getMessage(), vars(r)["devices"]) for r in caplog.records] == [
        ("WARNING", "devices are unhealthy: card-part-0, card-part-1, card-part-2 and 9 more: too hot", parts),
        ("WARNING", "devices are unhealthy: other: no reason given", ["other"]),
        ("INFO", "devices are healthy again: other", ["other"]),
    ]
