"""Health on a node: the kubelet and the API server receive the health while a driver reports, hangs or fails."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.kubelet.plugins import dial
from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin import Device, Health, Pool, RetryableError, Taint
from dra_kubeletplugin._proto import health_v1_pb2, health_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.health_monitor import HealthMonitor
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver.calls import Calls
from tests.helpers.drivers import HealthReportingDriver, Toy, make_toy_class

HEALTHY, UNHEALTHY, UNKNOWN = health_v1_pb2.HEALTHY, health_v1_pb2.UNHEALTHY, health_v1_pb2.UNKNOWN


async def reports(node: DriverNode) -> AsyncIterator[dict[str, int]]:
    async with dial(node.plugin.paths.dra) as channel:
        stub = health_v1_pb2_grpc.DRAResourceHealthStub(channel)
        async for message in stub.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest()):
            yield {d.device.device_name: d.health for d in message.devices}


async def reported(node: DriverNode, device: str, health: int, timeout: float = 30) -> None:
    async with asyncio.timeout(timeout):
        async for report in reports(node):
            if report.get(device) == health:
                return


@pytest.mark.full
async def test_health_that_was_never_reported_is_unknown_however_long_the_driver_hangs() -> None:
    class Hanging(Toy):
        go_on = threading.Event()

        def health(self) -> dict[str, Health]:
            self.go_on.wait(120)
            return {"toy-0": Health(False, "hot")}

    async with node_with(Hanging, health_interval=0.1) as node:
        async for report in reports(node):
            assert set(report.values()) == {UNKNOWN}
            break
        await node.run_pod()
        Hanging.go_on.set()
        await reported(node, "toy-0", UNHEALTHY)


async def test_the_monitor_requests_health_after_discovery_so_that_no_report_is_lost() -> None:
    class Unhealthy(Toy):
        def health(self) -> dict[str, Health]:
            return {"toy-0": Health(False, "hot")}

    inventory = Inventory("node")
    watch = HealthMonitor(Unhealthy(), Calls(), inventory, Metrics(), interval=3600.0)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0.1)
    await inventory.update([Pool("node", _toys())])
    async with asyncio.timeout(30):
        await watch.first_call_done.wait()
    assert not inventory.healthy("toy-0")
    task.cancel()


async def test_the_same_failure_of_health_is_logged_once_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Toy):
        health_calls = 0

        def health(self) -> dict[str, Health]:
            Failing.health_calls += 1
            raise RetryableError("the bus is gone")

    async with node_with(Failing, health_interval=0.1) as node:
        async with asyncio.timeout(30):
            while Failing.health_calls < 5:
                await asyncio.sleep(0.02)
        counted = re.search(rb"^dra_health_failures_total (\S+)$", node.plugin.metrics.text(), re.MULTILINE)
        assert counted
        assert float(counted[1]) >= 4  # the fifth call may not have been counted yet
    assert len([r for r in caplog.records if "devices become unknown until health() succeeds" in r.getMessage()]) == 1


async def test_health_becomes_unknown_while_the_driver_fails_and_then_recovers() -> None:
    class Failing(HealthReportingDriver):
        fails = False

        def health(self) -> dict[str, Health]:
            if Failing.fails:
                raise OSError("the bus is gone")
            return {}

    async with node_with(Failing, health_interval=0.1) as node:
        node.plugin.inventory.health_timeout = 0.5
        await reported(node, "toy-0", HEALTHY)
        Failing.fails = True
        await asyncio.sleep(0.6)
        await reported(node, "toy-0", UNKNOWN)
        Failing.fails = False
        await reported(node, "toy-0", HEALTHY)


@pytest.mark.parametrize("reports_health", [True, False])
async def test_the_plugin_serves_exactly_the_registered_services(reports_health: bool) -> None:
    """Sends empty requests as any client can. Calls that are not registered return UNIMPLEMENTED."""
    known = {
        "v1.DRAPlugin": "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        "v1beta1.DRAPlugin": "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        "v1.DRAResourceHealth": "/v1.DRAResourceHealth/NodeWatchResources",
        "v1alpha1.DRAResourceHealth": "/v1alpha1.DRAResourceHealth/NodeWatchResources",
    }
    async with (
        node_with(HealthReportingDriver if reports_health else make_toy_class()) as node,
        dial(node.plugin.paths.dra) as channel,
    ):
        served = []
        for version, method in known.items():
            try:
                async with asyncio.timeout(30):
                    async for _ in channel.unary_stream(method)(b""):
                        served.append(version)
                        break
            except grpc.aio.AioRpcError as e:
                assert e.code() is grpc.StatusCode.UNIMPLEMENTED
        assert node.kubelet.plugins.newest("toy.example.com").services == served
        assert len(served) == (4 if reports_health else 2)


@pytest.mark.gates("ResourceHealthStatus")
async def test_all_streams_receive_a_report_at_once() -> None:
    """The next call of ``health()`` is an hour away. The test watches both API versions and the kubelet's own stream."""

    class Monitored(Toy):
        hot = False

        def health(self) -> dict[str, Health]:
            return {"toy-0": Health(False, "hot")} if Monitored.hot else {}

    async with node_with(Monitored, health_interval=3600.0) as node, dial(node.plugin.paths.dra) as channel:
        stubs = (
            (health_v1_pb2_grpc.DRAResourceHealthStub(channel), health_v1_pb2),
            (health_v1_pb2_grpc.DRAResourceHealthStub(channel), health_v1_pb2),
            (health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel), health_v1alpha1_pb2),
        )

        async def unhealthy(stub: Any, pb: Any) -> None:
            async for message in stub.NodeWatchResources(pb.NodeWatchResourcesRequest()):
                if {d.device.device_name: d.health for d in message.devices}.get("toy-0") == UNHEALTHY:
                    return

        waiting = [asyncio.create_task(unhealthy(*s)) for s in stubs]
        await reported(node, "toy-0", HEALTHY)
        Monitored.hot = True
        await asyncio.to_thread(node.plugin.driver.rescan)  # A thread of a vendor's library calls it like this.
        async with asyncio.timeout(30):
            await asyncio.gather(*waiting)
            while node.kubelet.health.of(("toy.example.com", "node-1", "toy-0")).health.value != "Unhealthy":
                await asyncio.sleep(0.01)


async def test_a_device_removed_in_use_is_unhealthy_in_the_stream_until_its_claim_ends() -> None:
    class Vanishing(HealthReportingDriver):
        pass

    async with node_with(Vanishing, health_interval=0.1) as node:
        await node.run_pod()
        ((_, device),) = await node.plugin.claims.held()
        Vanishing.devices = lambda self: [d for d in _toys() if d.name != device]  # type: ignore[assignment, method-assign, return-value]
        node.plugin.discovery.request()
        await reported(node, device, UNHEALTHY)
        await node.delete_pod()
        async with asyncio.timeout(30):
            async for report in reports(node):
                if device not in report:
                    break


@pytest.mark.gates("DRADeviceTaints")
@pytest.mark.parametrize(("policy", "effect"), [("", "NoExecute"), ("NoSchedule", "NoSchedule"), ("None", "None")])
async def test_the_driver_or_the_operator_sets_the_effect_of_a_fault(policy: str, effect: str) -> None:
    if effect == "None" and not Features.of().is_at_least("1.35"):
        pytest.skip("the effect None came with 1.35")

    class Broken(HealthReportingDriver):
        def health(self) -> dict[str, Health]:
            return {"toy-1": Health(False, "ECC", taints=[Taint(key="toy.example.com/ecc", effect="NoExecute")])}

    async with node_with(Broken, health_interval=0.1, unhealthy_effect=policy) as node:

        async def taints() -> list[tuple[str, str, str]]:
            devices = [d for s in node.cluster.slices() for d in s["spec"]["devices"]]
            return [(d["name"], t["key"], t["effect"]) for d in devices for t in d.get("taints") or []]

        assert await node.cluster.wait("the taint", taints) == [("toy-1", "toy.example.com/ecc", effect)]


def _toys() -> list[Device]:
    return [Device(f"toy-{i}", attributes={"index": i}, capacity={"memory": "1Gi"}) for i in range(4)]


async def test_a_removed_registration_socket_is_reported_and_the_kubelet_finds_the_plugin_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node_with(make_toy_class()) as node:
        first = node.kubelet.plugins.newest("toy.example.com").order
        node.plugin.paths.registration.unlink()

        async def has_registered_again() -> bool:
            newest = node.kubelet.plugins.newest("toy.example.com")
            return newest is not None and newest.order > first and not await node.plugin.not_ready()

        await node.cluster.wait("the second registration", has_registered_again)
        # The plugin logs the removal once. Readiness and metric were false until the kubelet registered the plugin again.
        assert sum("the registration socket was removed" in r.getMessage() for r in caplog.records) == 1
        await node.run_pod()
