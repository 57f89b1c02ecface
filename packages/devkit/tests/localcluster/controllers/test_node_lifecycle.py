"""Pods and their claims while a node is unreachable and after it returns. Upstream: test/e2e/node/taints.go, podgc."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.controllers import pod_garbage
from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.node_lease import NAMESPACE
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import CLAIMS, LEASES, NODES, PODS
from tests.helpers.objects import pod

KEY = "node.kubernetes.io/"
TIMERS = Timers(plugin_poll_interval=0.02, pod_sync_backoff=0.05, node_monitor_grace_period=1.0, missing_node_wait=1.0)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1", "node-2"), timers=TIMERS) as cluster:
        yield cluster


def tolerations_for(seconds: int | None, key: str = "unreachable") -> list[JSON]:
    """Returns tolerations of an unreachable node for a number of seconds; None means without a limit."""
    toleration = {"key": KEY + key, "operator": "Exists", "effect": "NoExecute"}
    return [toleration if seconds is None else {**toleration, "tolerationSeconds": seconds}]


async def run_on_first_node(cluster: LocalCluster, name: str, **spec: Any) -> None:
    await cluster.apply(pod(name, nodeSelector={"kubernetes.io/hostname": "node-1"}, **spec))
    await cluster.wait_running(name)


async def taints(cluster: LocalCluster, name: str = "node-1") -> set[str]:
    spec = (await cluster.client.get(NODES, name))["spec"]
    return {f"{t['key'].removeprefix(KEY)}:{t['effect']}" for t in spec.get("taints") or []}


async def wait_for_taints(cluster: LocalCluster, *expected: str) -> None:
    async def has_taints() -> bool:
        return await taints(cluster) == set(expected)

    await cluster.wait(f"the taints {expected}", has_taints)


async def stop_first_kubelet(cluster: LocalCluster) -> None:
    """Stops the kubelet of the first node and waits until the node has the taints of an unreachable node."""
    await cluster.nodes["node-1"].kubelet.stop()
    await wait_for_taints(cluster, "unreachable:NoSchedule", "unreachable:NoExecute")


async def wait_until_terminating(cluster: LocalCluster, name: str) -> JSON:
    async def check() -> JSON | None:
        current = await cluster.pod(name)
        return current if current and current["metadata"].get("deletionTimestamp") else None

    current: JSON = await cluster.wait(f"{name} to be deleted", check)
    return current


async def wait_until_deleted(cluster: LocalCluster, name: str) -> None:
    async def check() -> bool:
        return await cluster.pod(name) is None

    await cluster.wait(f"{name} to be deleted completely", check)


async def wait_for_evictions(cluster: LocalCluster, name: str, *events: str) -> None:
    async def check() -> bool:
        evictions = [e for e in cluster.events(name) if e.startswith("TaintManagerEviction")]
        return evictions == [f"TaintManagerEviction: {e}" for e in events]

    await cluster.wait(f"{name}: {events}", check)


def disruption(pod_object: JSON) -> tuple[str, str] | None:
    conditions = {c["type"]: c for c in pod_object["status"]["conditions"]}
    disruption_target = conditions.get("DisruptionTarget")
    return (disruption_target["reason"], disruption_target["message"]) if disruption_target else None


async def test_a_pod_of_an_unreachable_node_is_marked_after_its_toleration_and_deleted_by_the_kubelet(
    cluster: LocalCluster,
) -> None:
    await run_on_first_node(cluster, "short", tolerations=tolerations_for(1))
    await run_on_first_node(cluster, "long")  # with the default toleration of 300 s from admission
    await run_on_first_node(cluster, "daemon", tolerations=tolerations_for(None))
    await stop_first_kubelet(cluster)
    evicted = await wait_until_terminating(cluster, "short")
    assert disruption(evicted) == ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    assert evicted["status"]["phase"] == "Running"
    await wait_for_evictions(cluster, "short", "Marking for deletion Pod default/short")
    await cluster.nodes["node-1"].kubelet.restart()
    await wait_until_deleted(cluster, "short")
    await wait_for_evictions(cluster, "long", "Cancelling deletion of Pod default/long")
    await wait_for_taints(cluster)
    for name in ("long", "daemon"):
        assert not (await cluster.client.get(PODS, name, "default"))["metadata"].get("deletionTimestamp")
    assert [e for e in cluster.events("daemon") if "Eviction" in e] == []


async def test_no_pod_is_evicted_while_all_nodes_are_unreachable(cluster: LocalCluster) -> None:
    await run_on_first_node(cluster, "p", tolerations=tolerations_for(0))
    await cluster.nodes["node-2"].kubelet.stop()

    async def second_is_unreachable() -> bool:
        return await taints(cluster, "node-2") == {"unreachable:NoSchedule", "unreachable:NoExecute"}

    await cluster.wait("the other node to be unreachable", second_is_unreachable)
    await cluster.nodes["node-1"].kubelet.stop()
    await wait_for_taints(cluster, "unreachable:NoSchedule")

    async def evictions_stopped() -> bool:
        return await taints(cluster, "node-2") == {"unreachable:NoSchedule"}

    await cluster.wait("evictions to stop", evictions_stopped)
    await wait_for_evictions(cluster, "p")
    await cluster.nodes["node-2"].kubelet.restart()  # one ready node shows that the network works
    await wait_until_terminating(cluster, "p")


async def test_a_node_with_status_not_ready_has_the_taint_not_ready(cluster: LocalCluster) -> None:
    await stop_first_kubelet(cluster)

    async def set_ready(status: str) -> None:
        ready = {"type": "Ready", "status": status, "reason": "KubeletNotReady"}
        await cluster.client.patch(NODES, "node-1", {"status": {"conditions": [ready]}}, sub="status")

    await set_ready("False")
    await wait_for_taints(cluster, "not-ready:NoSchedule", "not-ready:NoExecute")
    await set_ready("True")
    await wait_for_taints(cluster)


async def test_a_no_execute_taint_evicts_and_the_first_matching_toleration_applies(cluster: LocalCluster) -> None:
    def tolerations(*seconds: int | None) -> list[JSON]:
        keys: list[JSON] = [{"key": "maintenance", "operator": "Exists"}, {"operator": "Exists"}]
        return [
            t | ({} if s is None else {"tolerationSeconds": s, "effect": "NoExecute"})
            for t, s in zip(keys, seconds, strict=True)
        ]

    await run_on_first_node(cluster, "stays", tolerations=tolerations(None, 0))
    await run_on_first_node(cluster, "goes", tolerations=tolerations(0, None))
    await run_on_first_node(cluster, "bears-nothing")
    taint = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
    await cluster.client.patch(NODES, "node-1", {"spec": {"taints": [taint]}})
    await wait_until_deleted(cluster, "goes")  # the kubelet of this node runs
    await wait_until_deleted(cluster, "bears-nothing")
    assert [e for e in cluster.events("stays") if "Eviction" in e] == []
    assert (await cluster.pod("stays") or {})["status"]["phase"] == "Running"


async def test_a_force_deletion_cancels_the_scheduled_eviction(cluster: LocalCluster) -> None:
    await run_on_first_node(cluster, "p")
    await stop_first_kubelet(cluster)
    await cluster.client.delete(PODS, "p", "default", grace=0)
    await wait_for_evictions(cluster, "p", "Cancelling deletion of Pod default/p")
    await cluster.apply(pod("p"))  # a new pod of the same name, without a scheduled eviction
    replacement = await cluster.wait_running("p")
    assert replacement["spec"]["nodeName"] == "node-2"
    await wait_for_evictions(cluster, "p", "Cancelling deletion of Pod default/p")


async def test_pods_of_an_out_of_service_node_are_deleted_immediately(cluster: LocalCluster) -> None:
    """KEP-2268. On a ready node the taint evicts like every other taint."""
    await run_on_first_node(cluster, "p")
    await stop_first_kubelet(cluster)
    node = await cluster.client.get(NODES, "node-1")
    taint = {"key": pod_garbage.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    await cluster.client.patch(NODES, "node-1", {"spec": {"taints": [*node["spec"]["taints"], taint]}})
    await wait_until_deleted(cluster, "p")
    await wait_for_evictions(cluster, "p", "Cancelling deletion of Pod default/p", "Marking for deletion Pod default/p")


async def test_pods_of_a_deleted_node_fail_and_are_deleted_after_the_quarantine(
    cluster: LocalCluster,
) -> None:
    await cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-3"}})
    await cluster.apply(pod("p", nodeName="node-3"))
    body = {"metadata": {"finalizers": ["example.com/look"]}}
    await cluster.client.patch(PODS, "p", body, "default")  # keeps the deleted pod readable
    await cluster.client.delete(NODES, "node-3")
    failed = await wait_until_terminating(cluster, "p")
    assert failed["status"]["phase"] == "Failed"
    assert disruption(failed) == ("DeletionByPodGC", "PodGC: node no longer exists")
    await cluster.client.patch(PODS, "p", {"metadata": {"finalizers": None}}, "default")
    await wait_until_deleted(cluster, "p")


async def test_a_recreated_node_keeps_its_pods(cluster: LocalCluster) -> None:
    await cluster.apply(pod("stays", nodeName="node-3"), pod("goes", nodeName="node-4"))
    await cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-3"}})
    for name in ("stays", "goes"):  # triggers another reconciliation of each pod
        await cluster.client.patch(PODS, name, {"metadata": {"annotations": {"looked-at": "again"}}}, "default")
    await wait_until_deleted(cluster, "goes")
    assert await cluster.pod("stays") is not None


async def test_the_lease_of_a_deleted_node_is_deleted(cluster: LocalCluster) -> None:
    async def leases() -> set[str]:
        return {v["metadata"]["name"] for v in (await cluster.client.list(LEASES, NAMESPACE))["items"]}

    async def both_exist() -> bool:
        return await leases() == {"node-1", "node-2"}

    await cluster.wait("both leases", both_exist)
    await cluster.nodes["node-1"].kubelet.stop()
    await cluster.client.delete(NODES, "node-1")
    assert await leases() == {"node-2"}


async def test_a_claim_is_released_only_after_its_evicted_pod_is_deleted(cluster: LocalCluster) -> None:
    """The devices of an unreachable node stay allocated until a client confirms by a forced deletion that the node is dead."""
    from tests.helpers.objects import claim, device_class, slice_of

    fabric = slice_of("node-1", ["only"])
    fabric["spec"] = {**fabric["spec"], "allNodes": True, "pool": {**fabric["spec"]["pool"], "name": "fabric"}}
    del fabric["spec"]["nodeName"]
    await cluster.apply(device_class(), fabric, claim("c"), claim("d"))
    bound = await cluster.apply(
        pod("p", claims=["c"], tolerations=tolerations_for(0), nodeSelector={"kubernetes.io/hostname": "node-1"})
    )

    async def is_reserved() -> bool:
        status = (await cluster.client.get(CLAIMS, "c", "default")).get("status") or {}
        return [r["uid"] for r in status.get("reservedFor") or []] == [bound[0]["metadata"]["uid"]]

    await cluster.wait("the claim to be reserved", is_reserved)
    await stop_first_kubelet(cluster)
    await wait_until_terminating(cluster, "p")
    await cluster.apply(pod("next", claims=["d"]))

    async def is_waiting() -> bool:
        return "cannot allocate all claims" in "".join(cluster.events("next"))

    await cluster.wait("the next pod to wait", is_waiting)
    assert await is_reserved()
    await cluster.client.delete(PODS, "p", "default", grace=0)

    async def node_after_handover() -> str:
        """Returns the node of the next pod. The pod has a node only after its claim has the device."""
        new_status = (await cluster.client.get(CLAIMS, "d", "default")).get("status") or {}
        old_status = (await cluster.client.get(CLAIMS, "c", "default")).get("status") or {}
        is_moved = bool(new_status.get("allocation")) and not old_status.get("allocation")
        return (
            str((await cluster.client.get(PODS, "next", "default"))["spec"].get("nodeName") or "") if is_moved else ""
        )

    assert await cluster.wait("the allocation of the device to the next claim", node_after_handover) == "node-2"
