"""The controller role against a local cluster, through sockets: pools of no node, binding conditions, leaders that come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import (
    BoundClaim,
    Claim,
    Config,
    Device,
    DeviceStatus,
    Driver,
    Nodes,
    PermanentError,
    Pool,
    PreparedDevice,
    RetryableError,
)
from dra_kubeletplugin.base.settings import ControllerSettings
from dra_kubeletplugin.errors import ApiError, LeaseLostError
from dra_kubeletplugin.kube.resource import CLAIMS, CONFIG_MAPS, LEASES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.plugin.controller.binding.binder import RetryIntervals
from dra_kubeletplugin.plugin.controller.controller import Controller

pytestmark = pytest.mark.gates("DRADeviceBindingConditions")

JSON = dict[str, Any]
NAME = "fabric.example.com"
ATTACHED, FAILED = f"{NAME}/attached", f"{NAME}/failed"
QUICK = RetryIntervals(first=0.02, longest=0.1)


class Options(Config):
    lanes: int = 4


class Fabric(Driver):
    """A fabric in memory, which outlives the process that drives it."""

    name = NAME
    config = Options

    def __init__(self, ports: dict[str, str] | None = None) -> None:
        self.ports = ports if ports is not None else {}  # device → UID of the claim that it is attached for
        self.calls_made: list[tuple[str, str]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.faults: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.lanes = 0

    async def pools(self) -> list[Pool]:
        devices = [
            Device(
                f"d{i}",
                binds_to_node=True,
                binding_conditions=[ATTACHED],
                binding_failure_conditions=[FAILED],
            )
            for i in range(2)
        ]
        return [Pool("fabric", devices, nodes=Nodes.all()), Pool("node-1", [Device("local")])]

    async def bind(self, claim: Claim) -> None:
        self.calls_made.append(("bind", claim.uid))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.gate.wait()
            if self.faults:
                raise self.faults.pop(0)
            for device in claim.devices:
                other = self.ports.setdefault(device.name, claim.uid)
                assert other == claim.uid, f"{device.name} is still attached for {other}"
                assert isinstance(device.config, Options)
                self.lanes = device.config.lanes
                await claim.report(device, DeviceStatus(data={"port": claim.node}))
        finally:
            self.under_way -= 1

    async def unbind(self, claim: BoundClaim) -> None:
        self.calls_made.append(("unbind", claim.uid))
        if self.faults:
            raise self.faults.pop(0)
        for device in claim.devices:
            if self.ports.get(device.name) == claim.uid:
                del self.ports[device.name]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


def settings(**changed: Any) -> ControllerSettings:
    # As long as in production, so that a slow machine loses no lead; at a stop it is given back, so nobody waits for its end.
    given = {"retry_period": 0.1, "shutdown_grace_period": 2.0} | changed
    return ControllerSettings(driver_name=NAME, namespace="default", sysfs_root=Path("/nonexistent"), **given)


@contextlib.asynccontextmanager
async def controlled(cluster: LocalCluster, driver: Driver, **changed: Any) -> AsyncIterator[Controller]:
    async with Controller(driver, settings(**changed), cluster.config, QUICK).running() as controller:
        yield controller


def claim_and_pod(name: str = "c", **exactly: Any) -> list[JSON]:
    api = {"apiVersion": "resource.k8s.io/v1"}
    request = {"name": "r", "exactly": {"deviceClassName": "fabric", **exactly}}
    container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "c"}]}}
    pod = {"containers": [container], "resourceClaims": [{"name": "c", "resourceClaimName": name}]}
    expression = f'device.driver == "{NAME}"'
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return [
        {**api, "kind": "DeviceClass", "metadata": {"name": "fabric"}, "spec": spec},
        {**api, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{name}"}, "spec": pod},
    ]


async def scheduled(cluster: LocalCluster, pod: str) -> None:
    async def check() -> bool:
        found = await cluster.pod(pod)
        return bool((found or {}).get("spec", {}).get("nodeName"))

    await cluster.wait(f"{pod} to be bound", check)


async def told(cluster: LocalCluster, pod: str) -> list[str]:
    """The scheduler's events of a pod that it has bound: the last one comes last."""
    await until(cluster, "the last event", lambda: any(e.startswith("Scheduled: ") for e in cluster.events(pod)))
    return cluster.events(pod)


async def until(cluster: LocalCluster, what: str, check: Callable[[], object]) -> None:
    async def asked() -> object:
        return check()

    await cluster.wait(what, asked)


async def records(cluster: LocalCluster) -> list[JSON]:
    return (await cluster.client.list(CONFIG_MAPS, "default"))["items"]


async def test_the_leader_publishes_the_pools_of_no_node_and_none_of_a_node(cluster: LocalCluster) -> None:
    async with controlled(cluster, Fabric()) as controller:
        await controller.ready(60)
        (found,) = cluster.slices(NAME)
        assert found["spec"]["pool"]["name"] == "fabric" and found["spec"]["allNodes"] is True
        assert not found["metadata"].get("ownerReferences")
        assert [d["name"] for d in found["spec"]["devices"]] == ["d0", "d1"]
    assert (await cluster.client.get(LEASES, f"{NAME}-controller", "default"))["spec"]["holderIdentity"] == ""


async def test_a_pod_waits_until_its_device_is_attached_and_it_is_detached_when_the_pod_is_gone(
    cluster: LocalCluster,
) -> None:
    driver = Fabric()
    driver.gate.clear()
    async with controlled(cluster, driver) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await until(cluster, "bind", lambda: driver.calls_made)
        assert len(await records(cluster)) == 1, "the record is there before bind is called"
        pod = await cluster.client.get(PODS, "pod-c", "default")
        assert pod["spec"].get("nodeName") is None
        driver.gate.set()
        await scheduled(cluster, "pod-c")

        async def reported() -> JSON | None:
            found = await cluster.client.get(CLAIMS, "c", "default")
            (device,) = found["status"].get("devices") or [{}]
            return device if device.get("data") and device.get("conditions") else None

        device = await cluster.wait("the report", reported)
        assert device["data"] == {"port": "node-1"}
        (condition,) = device["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (ATTACHED, "True", "Bound")
        uid = (await cluster.client.get(CLAIMS, "c", "default"))["metadata"]["uid"]
        assert driver.ports == {"d0": uid} and driver.lanes == 4
        patches = [
            path for method, path in cluster.api.injected_faults.calls if method == "PATCH" and "resourceclaims" in path
        ]
        assert len(patches) == 2, "what the driver reports, and the conditions, each once"
        await cluster.client.delete(PODS, "pod-c", "default", grace=0)
        await until(cluster, "unbind", lambda: not driver.ports)

        async def nothing_left() -> bool:
            return not await records(cluster)

        await cluster.wait("the record to go", nothing_left)
        assert driver.calls_made == [("bind", uid), ("unbind", uid)]


async def test_a_permanent_error_is_reported_to_the_scheduler_which_tries_again(cluster: LocalCluster) -> None:
    driver = Fabric()
    driver.faults = [PermanentError("port 3 is broken")]
    async with controlled(cluster, driver) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await scheduled(cluster, "pod-c")
    assert [what for what, _ in driver.calls_made] == ["bind", "unbind", "bind"]
    events = await told(cluster, "pod-c")
    failed = 'device binding failed: claim=c, reason=BindingFailed, message="port 3 is broken"'
    assert f'FailedScheduling: running PreBind plugin "DynamicResources": {failed}' in events
    freed = "1 resourceclaim not available on the node. deallocation of ResourceClaim completed"
    assert [e for e in events if e.startswith("FailedScheduling") and freed in e]


async def test_wrong_parameters_fail_the_binding_at_once(cluster: LocalCluster) -> None:
    driver = Fabric()
    async with controlled(cluster, driver) as controller:
        await controller.ready(60)
        device_class, claim, pod = claim_and_pod()
        opaque = {"opaque": {"driver": NAME, "parameters": {"lines": 4}}}
        claim["spec"]["devices"]["config"] = [opaque]
        await cluster.apply(device_class, claim, pod)
        await until(cluster, "the failure", lambda: any("did you mean 'lanes'?" in e for e in cluster.events("pod-c")))
    assert "bind" not in {what for what, _ in driver.calls_made}
    assert not driver.ports


@pytest.mark.parametrize("error", [RetryableError("the fabric manager restarts"), ValueError("odd"), SystemExit(3)])
async def test_whatever_else_bind_raises_is_tried_again(cluster: LocalCluster, error: Exception) -> None:
    driver = Fabric()
    driver.faults = [error, error]
    async with controlled(cluster, driver) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await scheduled(cluster, "pod-c")
        assert not any("device binding" in e for e in await told(cluster, "pod-c"))
        assert [what for what, _ in driver.calls_made] == ["bind"] * 3
        assert driver.most_under_way == 1


async def test_unbind_is_tried_again_and_the_next_claim_waits_for_it(cluster: LocalCluster) -> None:
    driver = Fabric()
    async with controlled(cluster, driver) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod(count=2))
        await scheduled(cluster, "pod-c")
        driver.faults = [RetryableError("busy"), RetryableError("busy")]
        await cluster.client.delete(PODS, "pod-c", "default", grace=0)
        await cluster.apply(*claim_and_pod("next", count=2)[1:])
        await scheduled(cluster, "pod-next")  # Fabric.bind asserts that nobody else is attached
        assert [what for what, _ in driver.calls_made] == ["bind", "unbind", "unbind", "unbind", "bind"]


async def test_a_claim_that_is_deleted_while_nobody_leads_is_unbound_by_the_next_leader(cluster: LocalCluster) -> None:
    ports: dict[str, str] = {}
    async with controlled(cluster, Fabric(ports)) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await scheduled(cluster, "pod-c")
    assert ports
    await cluster.client.delete(PODS, "pod-c", "default", grace=0)
    with contextlib.suppress(ApiError):
        await cluster.client.delete(CLAIMS, "c", "default")

    async def gone() -> bool:
        return not cluster.claims()

    await cluster.wait("the claim to go", gone)
    async with controlled(cluster, Fabric(ports)):
        await until(cluster, "unbind", lambda: not ports)


async def test_one_that_stands_by_is_ready_and_does_nothing(cluster: LocalCluster) -> None:
    first, second = Fabric(), Fabric()
    async with controlled(cluster, first) as leader:
        await leader.ready(60)
        async with controlled(cluster, second) as other:
            await until(cluster, "the election to be seen", lambda: other.elector.holder)
            assert await other.not_ready() == []
            assert await other.notes() == [f"on standby: {leader.identity} leads"]
            await cluster.apply(*claim_and_pod())
            await scheduled(cluster, "pod-c")
            assert not second.calls_made and len(first.calls_made) == 1


async def test_a_leader_that_is_cut_off_ends_before_the_next_begins(cluster: LocalCluster) -> None:
    driver = Fabric()
    with pytest.raises(
        LeaseLostError, match=rf"no longer leads: lease default/{NAME}-controller could not be renewed in time: "
    ):
        async with controlled(cluster, driver, lease_duration=2.0, renew_deadline=1.0) as controller:
            await controller.ready(60)
            with cluster.api_outage():
                await asyncio.sleep(30)


async def test_an_unreadable_record_is_kept_and_reported(cluster: LocalCluster) -> None:
    labels = {"dra-kubeletplugin.dev/bound-by": NAME}
    odd = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "odd", "labels": labels},
        "data": {"claim": "{"},
    }
    await cluster.apply(odd)
    async with controlled(cluster, Fabric()) as controller:
        await controller.ready(60)
        assert any(n.startswith("record odd cannot be read") for n in await controller.notes())
    assert [r["metadata"]["name"] for r in await records(cluster)] == ["odd"]


async def test_a_stop_lets_a_bind_end_and_reports_how_it_went(cluster: LocalCluster) -> None:
    driver = Fabric()
    driver.gate.clear()
    async with controlled(cluster, driver, shutdown_grace_period=60.0) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await until(cluster, "bind", lambda: driver.under_way)
        asyncio.get_running_loop().call_later(0.3, driver.gate.set)
    assert driver.ports and driver.under_way == 0
    await scheduled(cluster, "pod-c")
    assert (await cluster.client.get(LEASES, f"{NAME}-controller", "default"))["spec"]["holderIdentity"] == ""


async def test_the_lease_is_released_after_the_driver_has_stopped(cluster: LocalCluster) -> None:
    holders: list[str] = []

    class Stopping(Fabric):
        async def stop(self) -> None:
            lease = await cluster.client.get(LEASES, f"{NAME}-controller", "default")
            holders.append(lease["spec"]["holderIdentity"])

    async with controlled(cluster, Stopping()) as controller:
        await controller.ready(60)
    assert holders == [controller.identity]
    assert (await cluster.client.get(LEASES, f"{NAME}-controller", "default"))["spec"]["holderIdentity"] == ""


async def test_a_stop_does_not_wait_for_a_bind_that_hangs(cluster: LocalCluster) -> None:
    driver = Fabric()
    driver.gate.clear()
    async with controlled(cluster, driver, shutdown_grace_period=0.2) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await until(cluster, "bind", lambda: driver.under_way)
    assert driver.under_way == 0, "an async method is cancelled"
    driver.gate.set()
    async with controlled(cluster, driver):
        await scheduled(cluster, "pod-c")


async def test_work_ends_with_the_lead(cluster: LocalCluster) -> None:
    driver = Fabric()
    driver.gate.clear()
    with pytest.raises(LeaseLostError):
        async with controlled(cluster, driver) as controller:
            await controller.ready(60)
            await cluster.apply(*claim_and_pod())
            await until(cluster, "bind", lambda: driver.under_way)
            thief = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 1}}
            await cluster.client.patch(LEASES, f"{NAME}-controller", thief, "default")
            await asyncio.sleep(30)
    assert driver.under_way == 0
    driver.gate.set()
    async with controlled(cluster, driver):
        await scheduled(cluster, "pod-c")
