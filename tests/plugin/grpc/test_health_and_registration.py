"""The messages to the kubelet: health, registration and the claim services; and the lock for a socket's path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dra_kubeletplugin._proto import health_v1_pb2 as v1
from dra_kubeletplugin._proto import health_v1alpha1_pb2 as v1alpha1
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.health_policy import DeviceHealth
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.pool_state import DeviceKey
from dra_kubeletplugin.plugin.grpc.health import HealthService
from dra_kubeletplugin.plugin.grpc.registration import Registration

MIB = 1024 * 1024


# --- health -------------------------------------------------------------------------------------------------


class FakeInventory:
    """The health of an inventory as the service reads it."""

    def __init__(self, *health_entries: tuple[str, DeviceHealth], timeout: float = 30.0) -> None:
        self.health_entries = health_entries
        self.health_timeout = timeout
        self.health_version = 0
        self.changed = asyncio.Event()
        self.stale: float | None = None

    def expires_in(self) -> float | None:
        return self.stale

    def health(self) -> Iterator[tuple[DeviceKey, DeviceHealth]]:
        return ((DeviceKey("pool", name), health) for name, health in self.health_entries)

    async def health_changed(self, seen: int) -> int:
        while self.health_version == seen:
            await self.changed.wait()
        return self.health_version


def health(devices: FakeInventory, heartbeat: float | None = None) -> HealthService:
    return HealthService(cast(Inventory, devices), heartbeat)


async def messages_of(devices: FakeInventory, kind: Any = v1.NodeWatchResourcesResponse) -> list[Any]:
    return [message async for message in health(devices).messages(kind)]


@pytest.mark.parametrize("kind", [v1.NodeWatchResourcesResponse, v1alpha1.NodeWatchResourcesResponse])
async def test_the_report_of_a_device_contains_all_known_fields(kind: Any) -> None:
    entries = [(f"d{i}", DeviceHealth(h, f"m{i}", 5.9, 1.5)) for i, h in enumerate((True, False, None))]
    (message,) = await messages_of(FakeInventory(*entries), kind)
    assert isinstance(message, kind)
    fields = [(d.device.pool_name, d.device.device_name, d.message, d.last_updated_time) for d in message.devices]
    assert fields == [("pool", f"d{i}", f"m{i}", 5) for i in range(3)]
    assert [d.health for d in message.devices] == [v1.HEALTHY, v1.UNHEALTHY, v1.UNKNOWN]
    assert {d.health_check_timeout_seconds for d in message.devices} == {2}


@pytest.mark.parametrize(("length", "max_bytes"), [(0, 0), (1024, 1024), (1025, 1024), (5000, 1024)])
async def test_1024_bytes_of_a_text_are_reported(length: int, max_bytes: int) -> None:
    text = "x" * length
    (message,) = await messages_of(FakeInventory(("d", DeviceHealth(True, text))))
    assert message.devices[0].message == (text if length <= max_bytes else "x" * (max_bytes - 3) + "...")


async def test_a_message_is_at_most_as_long_as_grpc_allows() -> None:
    """The limit is 4 MiB less 64 KiB, and each entry counts as its texts and 40 bytes: 1,024 bytes in this test."""
    entries_per_message = (4 * MIB - 64 * 1024) // 1024
    text = "x" * (1024 - 40 - len("pool") - len("dev12345"))
    entries = [(f"dev{i:05}", DeviceHealth(None, text)) for i in range(entries_per_message + 1)]
    messages = await messages_of(FakeInventory(*entries))
    assert [len(m.devices) for m in messages] == [entries_per_message, 1]
    assert messages[0].ByteSize() < 4 * MIB
    assert [d.device.device_name for m in messages for d in m.devices] == [name for name, _ in entries]


async def test_the_stream_reports_all_devices_again_after_each_report_and_each_heartbeat() -> None:
    devices = FakeInventory(("d", DeviceHealth(True)))
    async with asyncio.timeout(30):
        unchanged_stream = health(devices, 60).stream(v1.NodeWatchResourcesResponse)
        await anext(unchanged_stream)
        next_message = asyncio.ensure_future(anext(unchanged_stream))
        await asyncio.sleep(0.02)
        assert not next_message.done(), "no change"
        devices.health_entries = (("d", DeviceHealth(False)),)
        devices.health_version += 1
        devices.changed.set()
        assert (await next_message).devices[0].health == v1.UNHEALTHY
        devices.stale = 0.0
        devices.changed.clear()
        stale_stream = health(devices, 60).stream(v1.NodeWatchResourcesResponse)
        for _ in range(2):
            await anext(stale_stream)
        heartbeat_stream = health(FakeInventory(), 0.01).stream(v1.NodeWatchResourcesResponse)
        for _ in range(3):
            await anext(heartbeat_stream)


# --- registration and claims --------------------------------------------------------------------------------


def value(metrics: Metrics, sample: str) -> float | None:
    lines = dict(line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if not line.startswith("#"))
    return next((float(v) for k, v in lines.items() if k.endswith(sample)), None)


async def notify(registration: Registration, *, registered: bool, error: str = "") -> None:
    await registration.NotifyRegistrationStatus(
        pb.RegistrationStatus(plugin_registered=registered, error=error), cast(Any, None)
    )


async def test_the_status_from_the_kubelet_is_reported_and_the_registration_time_is_measured_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    r = Registration("d.example.com", Path("/x"), ("v1.DRAPlugin",), metrics)
    assert not r.registered.is_set()
    for _ in range(2):
        await notify(r, registered=True)
        assert (r.registered.is_set(), r.error, value(metrics, "registered")) == (True, "", 1)
        assert value(metrics, "registration_duration_seconds_count") == 1
    await notify(r, registered=False)
    assert (r.registered.is_set(), r.error, value(metrics, "registered")) == (False, "no reason given", 0)
    assert "the kubelet retries" in caplog.messages[-1]
    await notify(r, registered=True)
    assert (r.registered.is_set(), r.error, value(metrics, "registered")) == (True, "", 1)
    assert value(metrics, "registration_duration_seconds_count") == 1, (
        "the kubelet registered the plugin again without a restart"
    )
    r.unregistered()
    assert (r.registered.is_set(), r.error, value(metrics, "registered")) == (False, "", 0)
    await notify(r, registered=True)
    r.lost()
    assert (r.registered.is_set(), value(metrics, "registered")) == (False, 0)
    await notify(r, registered=True)
    assert value(metrics, "registration_duration_seconds_count") == 2


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("no handler registered for plugin type: DRAPlugin", "DynamicResourceAllocation"),
        ("none of services supported by the plugin", "older than 1.32"),
        ("plugin validation failed: x", "the endpoint is refused"),
        ("something else", "the kubelet retries"),
    ],
)
async def test_a_refusal_is_reported_with_the_next_step(
    error: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    r = Registration("d.example.com", Path("/x"), ("v1.DRAPlugin",), Metrics())
    await notify(r, registered=False, error=error)
    assert r.error == error
    assert hint in caplog.messages[-1]


async def test_the_plugin_info_contains_the_configured_names() -> None:
    r = Registration("d.example.com", Path("/x"), ("v1.DRAPlugin", "v1beta1.DRAPlugin"), Metrics())
    info = await r.GetInfo(pb.InfoRequest(), cast(Any, None))
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "d.example.com", "/x")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
