"""The local scheduler waits for binding conditions as Kubernetes does (KEP-5007): the recorded stories, failure and timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube.resource import CLAIMS, PODS, SLICES
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import Timers
from dra_kubeletplugin.resourceapi.defaulting import now

JSON = dict[str, Any]
DRIVER = "sim.example.com"
ATTACHED, FAILED = f"{DRIVER}/attached", f"{DRIVER}/failed"
OTHER = {"apiGroup": "tests.example.com", "resource": "tests", "name": "test", "uid": "test"}
REFUSED = 'FailedScheduling: running PreBind plugin "DynamicResources":'
PENDING = "BindingConditionsPending: waiting for binding conditions for device on node node-a"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(nodes=("node-a", "node-b"), timers=Timers(binding_timeout=600.0)) as cluster:
        yield cluster


def bound(name: str) -> JSON:
    return {
        "name": name,
        "bindsToNode": True,
        "bindingConditions": [ATTACHED],
        "bindingFailureConditions": [FAILED],
    }


def pool(name: str, devices: list[JSON], **where: Any) -> JSON:
    spec = {"driver": DRIVER, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices}
    spec |= where or {"nodeName": name}
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


async def waiting(cluster: LocalCluster) -> JSON:
    """The pod's claim once the pod waits."""

    async def check() -> bool:
        return any(e.startswith("BindingConditionsPending") for e in cluster.events("bp"))

    await cluster.wait("the pod to wait for binding conditions", check)
    return await claim(cluster)


async def say(
    cluster: LocalCluster, condition: str, devices: list[str], pool: str = "node-a", reason: str = "R"
) -> None:
    stated = {"type": condition, "status": "True", "reason": reason, "message": "m", "lastTransitionTime": now()}
    entries = [{"driver": DRIVER, "pool": pool, "device": d, "conditions": [stated]} for d in devices]
    await cluster.client.patch(CLAIMS, "c", {"status": {"devices": entries}}, "default", "status")


async def node_of(cluster: LocalCluster) -> str:
    async def check() -> str:
        pod = await cluster.pod("bp")
        return str((pod or {}).get("spec", {}).get("nodeName") or "")

    return str(await cluster.wait("the pod to be bound", check))


async def test_the_pod_has_a_nominated_node_and_no_other_until_the_condition_is_true(cluster: LocalCluster) -> None:
    await cluster.apply(pool("node-a", [bound("d0")]), *workload())
    found = await waiting(cluster)
    allocation = found["status"]["allocation"]
    assert allocation["devices"]["results"][0]["bindingConditions"] == [ATTACHED]
    assert [r["name"] for r in found["status"]["reservedFor"]] == ["bp"]
    pod = await cluster.client.get(PODS, "bp", "default")
    assert pod["status"]["nominatedNodeName"] == "node-a"
    assert "nodeName" not in pod["spec"]
    # The scheduler follows each kind by itself: who sees the pod before its claim says so, once, and that stays.
    assert not [c for c in pod["status"].get("conditions", []) if "binding" in c["message"]]
    await say(cluster, ATTACHED, ["d0"])
    assert await node_of(cluster) == "node-a"

    async def told() -> bool:
        events = cluster.events("bp")
        since = events[events.index(PENDING) :]
        return since[:2] == [PENDING, "Scheduled: Successfully assigned default/bp to node-a"]

    await cluster.wait("the event", told)
    pod = await cluster.client.get(PODS, "bp", "default")
    assert "nominatedNodeName" not in pod["status"]


async def test_every_device_must_be_ready(cluster: LocalCluster) -> None:
    await cluster.apply(pool("node-a", [bound("d0"), bound("d1")]), *workload(count=2))
    await waiting(cluster)
    await say(cluster, ATTACHED, ["d0"])
    # The scheduler has seen the first device and looks at another pod: nothing but its own state tells that it waits.
    await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})  # fmt: skip
    await cluster.wait_running("plain")
    assert "nodeName" not in (await cluster.client.get(PODS, "bp", "default"))["spec"]
    await say(cluster, ATTACHED, ["d0", "d1"])
    assert await node_of(cluster) == "node-a"


async def test_a_failure_takes_the_allocation_back_and_the_pod_is_tried_again(cluster: LocalCluster) -> None:
    await cluster.apply(pool("node-a", [bound("d0")]), *workload())
    first = await waiting(cluster)
    await say(cluster, FAILED, ["d0"], reason="NoPort")
    told = f'{REFUSED} device binding failed: claim=c, reason=NoPort, message="m"'

    async def again() -> JSON | None:
        found = await claim(cluster)
        status = found["status"]
        fresh = status.get("allocation") is not None and not status.get("devices")
        return found if fresh and told in cluster.events("bp") else None

    second = await cluster.wait("another allocation", again)
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert (await cluster.client.get(PODS, "bp", "default"))["status"]["nominatedNodeName"] == "node-a"
    await say(cluster, ATTACHED, ["d0"])
    assert await node_of(cluster) == "node-a"


async def test_after_a_failure_another_node_may_have_the_device_by_now(cluster: LocalCluster) -> None:
    await cluster.apply(pool("node-a", [bound("d0")]), *workload())
    await waiting(cluster)
    await cluster.apply(pool("node-b", [{"name": "plain"}]))
    await cluster.client.delete(SLICES, "s-node-a")

    async def tried_elsewhere() -> bool:
        """The scheduler follows each kind by itself: it may hear of the failure before it hears of the slice that is gone."""
        status = (await claim(cluster))["status"]
        results = status["allocation"]["devices"]["results"] if status.get("allocation") else []
        if [r["pool"] for r in results] == ["node-a"] and not status.get("devices"):
            await say(cluster, FAILED, ["d0"])
        return [r["pool"] for r in results] == ["node-b"]

    await cluster.wait("the other node", tried_elsewhere)
    assert await node_of(cluster) == "node-b"


async def test_who_is_not_ready_in_time_loses_the_allocation() -> None:
    async with LocalCluster(nodes=("node-a",), timers=Timers(binding_timeout=1.0)) as cluster:
        await cluster.apply(pool("node-a", [bound("d0")]), *workload())
        await waiting(cluster)

        async def told() -> bool:
            return f"{REFUSED} device binding timeout" in cluster.events("bp")

        await cluster.wait("the timeout", told)


async def test_a_pool_without_binding_conditions_comes_first(cluster: LocalCluster) -> None:
    everywhere = {"allNodes": True}
    await cluster.apply(pool("a-fabric", [bound("d0")], **everywhere), pool("node-a", [{"name": "plain"}]), *workload())
    assert await node_of(cluster) == "node-a"
    result = (await claim(cluster))["status"]["allocation"]["devices"]["results"][0]
    assert (result["pool"], result["device"]) == ("node-a", "plain")


async def test_a_pod_that_is_deleted_while_it_waits_leaves_nothing(cluster: LocalCluster) -> None:
    await cluster.apply(pool("node-a", [bound("d0")]), *workload())
    await waiting(cluster)
    await cluster.client.delete(PODS, "bp", "default")

    async def clean() -> bool:
        found = await claim(cluster)
        return found["status"] == {} and not found["metadata"].get("finalizers")

    await cluster.wait("the claim to be deallocated", clean)


async def test_a_claim_that_somebody_else_shares_is_not_taken_from_him(cluster: LocalCluster) -> None:
    """Who shares it is no pod that the scheduler knows: of two that it binds the failure is told to both, and takes both from it."""
    await cluster.apply(pool("node-a", [bound("d0")]), *workload())
    found = await waiting(cluster)
    found["status"]["reservedFor"].append(OTHER)
    await cluster.client.update(CLAIMS, found, "status")
    await say(cluster, FAILED, ["d0"])

    async def told() -> bool:
        events = cluster.events("bp")
        return any("device binding failed" in e for e in events) and any("still not schedulable" in e for e in events)

    await cluster.wait("the failure, and that nothing more can be done", told)
    status = (await claim(cluster))["status"]
    assert (status["allocation"], status["reservedFor"]) == (found["status"]["allocation"], [OTHER])
