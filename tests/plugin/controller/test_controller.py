"""The controller role against a local cluster, through sockets: pools without a node, binding conditions, and changes
of the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin import (
    PermanentError,
    RetryableError,
)
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError, LeaseLostError
from dra_kubeletplugin.kube.resource import CLAIMS, LEASES, PODS
from tests.plugin.controller.fabric import (
    ATTACHED,
    NAME,
    FabricDriver,
    claim_and_pod,
    records,
    running_controller,
    wait_for,
    wait_scheduled,
    wait_unrecorded,
)

pytestmark = pytest.mark.gates("DRADeviceBindingConditions")


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


async def scheduler_events(cluster: LocalCluster, pod: str) -> list[str]:
    """Returns the scheduler's events of a pod, after the event of its binding."""
    await wait_for(cluster, "the last event", lambda: any(e.startswith("Scheduled: ") for e in cluster.events(pod)))
    return cluster.events(pod)


async def test_the_leader_publishes_the_pools_without_a_node_and_no_pool_of_a_node(cluster: LocalCluster) -> None:
    async with running_controller(cluster, FabricDriver()) as controller:
        await controller.ready(60)
        (slice_object,) = cluster.slices(NAME)
        assert slice_object["spec"]["pool"]["name"] == "fabric" and slice_object["spec"]["allNodes"] is True
        assert not slice_object["metadata"].get("ownerReferences")
        assert [d["name"] for d in slice_object["spec"]["devices"]] == ["d0", "d1"]
    assert (await cluster.client.get(LEASES, f"{NAME}-controller", "default"))["spec"]["holderIdentity"] == ""


async def test_a_pod_waits_until_its_device_is_attached_and_the_device_is_detached_after_the_pod(
    cluster: LocalCluster,
) -> None:
    driver = FabricDriver()
    driver.gate.clear()
    async with running_controller(cluster, driver) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await wait_for(cluster, "bind", lambda: driver.calls_made)
        assert len(await records(cluster)) == 1, "the record exists before the call of bind"
        pod = await cluster.client.get(PODS, "pod-c", "default")
        assert pod["spec"].get("nodeName") is None
        driver.gate.set()
        await wait_scheduled(cluster, "pod-c")

        async def has_status() -> JSON | None:
            claim = await cluster.client.get(CLAIMS, "c", "default")
            (device,) = claim["status"].get("devices") or [{}]
            return device if device.get("data") and device.get("conditions") else None

        device = await cluster.wait("the report", has_status)
        assert device["data"] == {"port": "node-1"}
        (condition,) = device["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (ATTACHED, "True", "Bound")
        uid = (await cluster.client.get(CLAIMS, "c", "default"))["metadata"]["uid"]
        assert driver.ports == {"d0": uid} and driver.lanes == 4
        patches = [
            path for method, path in cluster.api.injected_faults.calls if method == "PATCH" and "resourceclaims" in path
        ]
        assert len(patches) == 2, "one patch for the report of the driver and one for the conditions"
        await cluster.client.delete(PODS, "pod-c", "default", grace=0)
        await wait_for(cluster, "unbind", lambda: not driver.ports)

        await wait_unrecorded(cluster)
        assert driver.calls_made == [("bind", uid), ("unbind", uid)]


async def test_a_permanent_error_is_reported_to_the_scheduler_which_tries_again(cluster: LocalCluster) -> None:
    driver = FabricDriver()
    driver.faults = [PermanentError("port 3 is broken")]
    async with running_controller(cluster, driver) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await wait_scheduled(cluster, "pod-c")
    assert [name for name, _ in driver.calls_made] == ["bind", "unbind", "bind"]
    events = await scheduler_events(cluster, "pod-c")
    failed = 'device binding failed: claim=c, reason=BindingFailed, message="port 3 is broken"'
    assert f'FailedScheduling: running PreBind plugin "DynamicResources": {failed}' in events
    freed = "1 resourceclaim not available on the node. deallocation of ResourceClaim completed"
    assert [e for e in events if e.startswith("FailedScheduling") and freed in e]


async def test_wrong_parameters_fail_the_binding_at_once(cluster: LocalCluster) -> None:
    driver = FabricDriver()
    async with running_controller(cluster, driver) as controller:
        await controller.ready(60)
        device_class, claim, pod = claim_and_pod()
        opaque = {"opaque": {"driver": NAME, "parameters": {"lines": 4}}}
        claim["spec"]["devices"]["config"] = [opaque]
        await cluster.apply(device_class, claim, pod)
        await wait_for(
            cluster, "the failure", lambda: any("did you mean 'lanes'?" in e for e in cluster.events("pod-c"))
        )
    assert "bind" not in {name for name, _ in driver.calls_made}
    assert not driver.ports


@pytest.mark.parametrize("error", [RetryableError("the fabric manager restarts"), ValueError("odd"), SystemExit(3)])
async def test_any_other_exception_of_bind_is_retried(cluster: LocalCluster, error: Exception) -> None:
    driver = FabricDriver()
    driver.faults = [error, error]
    async with running_controller(cluster, driver) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await wait_scheduled(cluster, "pod-c")
        assert not any("device binding" in e for e in await scheduler_events(cluster, "pod-c"))
        assert [name for name, _ in driver.calls_made] == ["bind"] * 3
        assert driver.max_running_calls == 1


async def test_a_failed_unbind_is_retried_and_the_next_claim_waits_for_it(cluster: LocalCluster) -> None:
    driver = FabricDriver()
    async with running_controller(cluster, driver) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod(count=2))
        await wait_scheduled(cluster, "pod-c")
        driver.faults = [RetryableError("busy"), RetryableError("busy")]
        await cluster.client.delete(PODS, "pod-c", "default", grace=0)
        await cluster.apply(*claim_and_pod("next", count=2)[1:])
        await wait_scheduled(cluster, "pod-next")  # FabricDriver.bind asserts that no other claim is attached
        assert [name for name, _ in driver.calls_made] == ["bind", "unbind", "unbind", "unbind", "bind"]


async def test_a_claim_that_is_deleted_without_a_leader_is_unbound_by_the_next_leader(cluster: LocalCluster) -> None:
    ports: dict[str, str] = {}
    async with running_controller(cluster, FabricDriver(ports)) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await wait_scheduled(cluster, "pod-c")
    assert ports
    await cluster.client.delete(PODS, "pod-c", "default", grace=0)
    with contextlib.suppress(ApiError):
        await cluster.client.delete(CLAIMS, "c", "default")

    async def is_deleted() -> bool:
        return not cluster.claims()

    await cluster.wait("the claim to be deleted", is_deleted)
    async with running_controller(cluster, FabricDriver(ports)):
        await wait_for(cluster, "unbind", lambda: not ports)


async def test_a_standby_controller_is_ready_and_does_nothing(cluster: LocalCluster) -> None:
    first, second = FabricDriver(), FabricDriver()
    async with running_controller(cluster, first) as leader:
        await leader.ready(60)
        async with running_controller(cluster, second) as standby:
            await wait_for(cluster, "the election to be seen", lambda: standby.elector.holder)
            assert await standby.not_ready() == []
            assert await standby.notes() == [f"on standby: {leader.identity} leads"]
            await cluster.apply(*claim_and_pod())
            await wait_scheduled(cluster, "pod-c")
            assert not second.calls_made and len(first.calls_made) == 1


async def test_a_leader_without_a_connection_ends_before_the_next_leader_begins(cluster: LocalCluster) -> None:
    driver = FabricDriver()
    with pytest.raises(
        LeaseLostError, match=rf"no longer leads: lease default/{NAME}-controller could not be renewed in time: "
    ):
        async with running_controller(cluster, driver, lease_duration=2.0, renew_deadline=1.0) as controller:
            await controller.ready(60)
            with cluster.api_outage():
                await asyncio.sleep(30)


async def test_an_unreadable_record_is_kept_and_reported(cluster: LocalCluster) -> None:
    labels = {"dra-kubeletplugin.dev/bound-by": NAME}
    unreadable = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "odd", "labels": labels},
        "data": {"claim": "{"},
    }
    await cluster.apply(unreadable)
    async with running_controller(cluster, FabricDriver()) as controller:
        await controller.ready(60)
        assert any(n.startswith("record odd cannot be read") for n in await controller.notes())
    assert [r["metadata"]["name"] for r in await records(cluster)] == ["odd"]


async def test_a_stop_waits_for_a_bind_and_reports_its_result(cluster: LocalCluster) -> None:
    driver = FabricDriver()
    driver.gate.clear()
    async with running_controller(cluster, driver, shutdown_grace_period=60.0) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await wait_for(cluster, "bind", lambda: driver.running_calls)
        asyncio.get_running_loop().call_later(0.3, driver.gate.set)
    assert driver.ports and driver.running_calls == 0
    await wait_scheduled(cluster, "pod-c")
    assert (await cluster.client.get(LEASES, f"{NAME}-controller", "default"))["spec"]["holderIdentity"] == ""


async def test_the_lease_is_released_after_the_driver_has_stopped(cluster: LocalCluster) -> None:
    holders: list[str] = []

    class StoppingDriver(FabricDriver):
        async def stop(self) -> None:
            lease = await cluster.client.get(LEASES, f"{NAME}-controller", "default")
            holders.append(lease["spec"]["holderIdentity"])

    async with running_controller(cluster, StoppingDriver()) as controller:
        await controller.ready(60)
    assert holders == [controller.identity]
    assert (await cluster.client.get(LEASES, f"{NAME}-controller", "default"))["spec"]["holderIdentity"] == ""


async def test_a_stop_does_not_wait_for_a_hanging_bind(cluster: LocalCluster) -> None:
    driver = FabricDriver()
    driver.gate.clear()
    async with running_controller(cluster, driver, shutdown_grace_period=0.2) as controller:
        await controller.ready(60)
        await cluster.apply(*claim_and_pod())
        await wait_for(cluster, "bind", lambda: driver.running_calls)
    assert driver.running_calls == 0, "an async method is cancelled"
    driver.gate.set()
    async with running_controller(cluster, driver):
        await wait_scheduled(cluster, "pod-c")


async def test_binding_work_ends_with_the_loss_of_the_lease(cluster: LocalCluster) -> None:
    driver = FabricDriver()
    driver.gate.clear()
    with pytest.raises(LeaseLostError):
        async with running_controller(cluster, driver) as controller:
            await controller.ready(60)
            await cluster.apply(*claim_and_pod())
            await wait_for(cluster, "bind", lambda: driver.running_calls)
            other_holder = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 1}}
            await cluster.client.patch(LEASES, f"{NAME}-controller", other_holder, "default")
            await asyncio.sleep(30)
    assert driver.running_calls == 0
    driver.gate.set()
    async with running_controller(cluster, driver):
        await wait_scheduled(cluster, "pod-c")
