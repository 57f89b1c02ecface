"""The local scheduler waits for binding conditions as Kubernetes does (KEP-5007): recorded scenarios, failure and timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import CLAIMS, PODS, SLICES
from dra_kubeletplugin.resourceapi.defaulting import now

DRIVER = "sim.example.com"
ATTACHED, FAILED = f"{DRIVER}/attached", f"{DRIVER}/failed"
OTHER = {"apiGroup": "tests.example.com", "resource": "tests", "name": "test", "uid": "test"}
REFUSED = 'FailedScheduling: running PreBind plugin "DynamicResources":'


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(nodes=("node-a", "node-b"), timers=Timers(binding_timeout=600.0)) as cluster:
        yield cluster


def device_with_conditions(name: str) -> JSON:
    return {
        "name": name,
        "bindsToNode": True,
        "bindingConditions": [ATTACHED],
        "bindingFailureConditions": [FAILED],
    }


def pool(name: str, devices: list[JSON], **placement: Any) -> JSON:
    spec = {"driver": DRIVER, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices}
    spec |= placement or {"nodeName": name}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"s-{name}"},
        "spec": spec,
    }


def workload(count: int = 1) -> list[JSON]:
    expression = f'device.driver == "{DRIVER}"'
    request = {"name": "r", "exactly": {"deviceClassName": "sim", "count": count}}
    container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "c"}]}}
    pod = {"containers": [container], "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
    api = {"apiVersion": "resource.k8s.io/v1"}
    return [
        {**api, "kind": "DeviceClass", "metadata": {"name": "sim"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}},
        {**api, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bp"}, "spec": pod},
    ]  # fmt: skip


async def claim(cluster: LocalCluster) -> JSON:
    return await cluster.client.get(CLAIMS, "c", "default")


async def wait_for_claim(cluster: LocalCluster) -> JSON:
    """Waits until the pod waits for binding conditions. Returns its claim."""

    async def check() -> bool:
        return any(e.startswith("BindingConditionsPending") for e in cluster.events("bp"))

    await cluster.wait("the pod to wait for binding conditions", check)
    return await claim(cluster)


async def set_condition(
    cluster: LocalCluster, condition: str, devices: list[str], pool: str = "node-a", reason: str = "R"
) -> None:
    entry = {"type": condition, "status": "True", "reason": reason, "message": "m", "lastTransitionTime": now()}
    entries = [{"driver": DRIVER, "pool": pool, "device": d, "conditions": [entry]} for d in devices]
    await cluster.client.patch(CLAIMS, "c", {"status": {"devices": entries}}, "default", "status")


async def node_of(cluster: LocalCluster) -> str:
    async def check() -> str:
        pod = await cluster.pod("bp")
        return str((pod or {}).get("spec", {}).get("nodeName") or "")

    return str(await cluster.wait("the pod to be bound", check))


async def test_a_failure_condition_deallocates_the_claim_and_retries_the_pod(cluster: LocalCluster) -> None:
    await cluster.apply(pool("node-a", [device_with_conditions("d0")]), *workload())
    first = await wait_for_claim(cluster)
    await set_condition(cluster, FAILED, ["d0"], reason="NoPort")
    event = f'{REFUSED} device binding failed: claim=c, reason=NoPort, message="m"'

    async def is_reallocated() -> JSON | None:
        claim_object = await claim(cluster)
        status = claim_object["status"]
        is_new = status.get("allocation") is not None and not status.get("devices")
        return claim_object if is_new and event in cluster.events("bp") else None

    second = await cluster.wait("another allocation", is_reallocated)
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert (await cluster.client.get(PODS, "bp", "default"))["status"]["nominatedNodeName"] == "node-a"
    await set_condition(cluster, ATTACHED, ["d0"])
    assert await node_of(cluster) == "node-a"


async def test_a_pod_runs_on_another_node_after_a_failure_condition(cluster: LocalCluster) -> None:
    await cluster.apply(pool("node-a", [device_with_conditions("d0")]), *workload())
    await wait_for_claim(cluster)
    await cluster.apply(pool("node-b", [{"name": "plain"}]))
    await cluster.client.delete(SLICES, "s-node-a")

    async def is_allocated_on_other_node() -> bool:
        """The scheduler watches each kind separately, so it may see the failure before it sees the deletion of the slice."""
        status = (await claim(cluster))["status"]
        results = status["allocation"]["devices"]["results"] if status.get("allocation") else []
        if [r["pool"] for r in results] == ["node-a"] and not status.get("devices"):
            await set_condition(cluster, FAILED, ["d0"])
        return [r["pool"] for r in results] == ["node-b"]

    await cluster.wait("the other node", is_allocated_on_other_node)
    assert await node_of(cluster) == "node-b"


async def test_the_binding_timeout_deallocates_the_claim() -> None:
    async with LocalCluster(nodes=("node-a",), timers=Timers(binding_timeout=1.0)) as cluster:
        await cluster.apply(pool("node-a", [device_with_conditions("d0")]), *workload())
        await wait_for_claim(cluster)

        async def has_event() -> bool:
            return f"{REFUSED} device binding timeout" in cluster.events("bp")

        await cluster.wait("the timeout", has_event)


async def test_a_claim_with_another_consumer_stays_allocated_after_a_failure(cluster: LocalCluster) -> None:
    """The other consumer is not a pod of this scheduler. For two pods of this scheduler, the failure releases the claim of both."""
    await cluster.apply(pool("node-a", [device_with_conditions("d0")]), *workload())
    claim_object = await wait_for_claim(cluster)
    claim_object["status"]["reservedFor"].append(OTHER)
    await cluster.client.update(CLAIMS, claim_object, "status")
    await set_condition(cluster, FAILED, ["d0"])

    async def has_events() -> bool:
        events = cluster.events("bp")
        return any("device binding failed" in e for e in events) and any("still not schedulable" in e for e in events)

    await cluster.wait("the events of the failure and of the failed preemption", has_events)
    status = (await claim(cluster))["status"]
    assert (status["allocation"], status["reservedFor"]) == (claim_object["status"]["allocation"], [OTHER])
