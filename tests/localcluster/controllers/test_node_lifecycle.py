"""What becomes of pods and their claims when a node dies, and when it comes back. Upstream: test/e2e/node/taints.go, podgc."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube.resource import CLAIMS, LEASES, NODES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.controllers import pod_garbage
from dra_kubeletplugin.localcluster.kubelet import Timers
from dra_kubeletplugin.localcluster.kubelet.node_lease import NAMESPACE
from tests.helpers.objects import pod

JSON = dict[str, Any]
KEY = "node.kubernetes.io/"
TIMERS = Timers(plugin_poll_interval=0.02, pod_sync_backoff=0.05, node_monitor_grace_period=1.0)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1", "node-2"), timers=TIMERS) as cluster:
        yield cluster


def patient(seconds: int | None, key: str = "unreachable") -> list[JSON]:
    """Tolerations of a pod that stays for so long on a node that is away, None: for ever."""
    found = {"key": KEY + key, "operator": "Exists", "effect": "NoExecute"}
    return [found if seconds is None else {**found, "tolerationSeconds": seconds}]


async def runs(cluster: LocalCluster, name: str, **spec: Any) -> None:
    await cluster.apply(pod(name, nodeSelector={"kubernetes.io/hostname": "node-1"}, **spec))
    await cluster.wait_running(name)


async def taints(cluster: LocalCluster, name: str = "node-1") -> set[str]:
    spec = (await cluster.client.get(NODES, name))["spec"]
    return {f"{t['key'].removeprefix(KEY)}:{t['effect']}" for t in spec.get("taints") or []}


async def tainted(cluster: LocalCluster, *wanted: str) -> None:
    async def are() -> bool:
        return await taints(cluster) == set(wanted)

    await cluster.wait(f"the taints {wanted}", are)


async def away(cluster: LocalCluster) -> None:
    """The kubelet of the first node is gone, and that is known."""
    await cluster.nodes["node-1"].kubelet.stop()
    await tainted(cluster, "unreachable:NoSchedule", "unreachable:NoExecute")


async def terminating(cluster: LocalCluster, name: str) -> JSON:
    async def check() -> JSON | None:
        found = await cluster.pod(name)
        return found if found and found["metadata"].get("deletionTimestamp") else None

    found: JSON = await cluster.wait(f"{name} to be deleted", check)
    return found


async def gone(cluster: LocalCluster, name: str) -> None:
    async def check() -> bool:
        return await cluster.pod(name) is None

    await cluster.wait(f"{name} to go", check)


async def told(cluster: LocalCluster, name: str, *events: str) -> None:
    async def check() -> bool:
        found = [e for e in cluster.events(name) if e.startswith("TaintManagerEviction")]
        return found == [f"TaintManagerEviction: {e}" for e in events]

    await cluster.wait(f"{name}: {events}", check)


def disruption(found: JSON) -> tuple[str, str] | None:
    conditions = {c["type"]: c for c in found["status"]["conditions"]}
    seen = conditions.get("DisruptionTarget")
    return (seen["reason"], seen["message"]) if seen else None


async def test_a_pod_of_a_node_that_is_away_is_deleted_when_its_tolerance_ends_and_stays_until_the_kubelet_is_back(
    cluster: LocalCluster,
) -> None:
    await runs(cluster, "short", tolerations=patient(1))
    await runs(cluster, "long")  # with 300 s of tolerance, as admission gives every pod
    await runs(cluster, "daemon", tolerations=patient(None))
    await away(cluster)
    found = await terminating(cluster, "short")
    assert disruption(found) == ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    assert found["status"]["phase"] == "Running"
    await told(cluster, "short", "Marking for deletion Pod default/short")
    await cluster.nodes["node-1"].kubelet.restart()
    await gone(cluster, "short")
    await told(cluster, "long", "Cancelling deletion of Pod default/long")
    await tainted(cluster)
    for name in ("long", "daemon"):
        assert not (await cluster.client.get(PODS, name, "default"))["metadata"].get("deletionTimestamp")
    assert [e for e in cluster.events("daemon") if "Eviction" in e] == []


async def test_nothing_is_evicted_while_no_node_is_well(cluster: LocalCluster) -> None:
    await runs(cluster, "p", tolerations=patient(0))
    await cluster.nodes["node-2"].kubelet.stop()

    async def other() -> bool:
        return await taints(cluster, "node-2") == {"unreachable:NoSchedule", "unreachable:NoExecute"}

    await cluster.wait("the other node to be away", other)
    await cluster.nodes["node-1"].kubelet.stop()
    await tainted(cluster, "unreachable:NoSchedule")

    async def stopped() -> bool:
        return await taints(cluster, "node-2") == {"unreachable:NoSchedule"}

    await cluster.wait("evictions to stop", stopped)
    await told(cluster, "p")
    await cluster.nodes["node-2"].kubelet.restart()  # and now it is known that it is not the network
    await terminating(cluster, "p")


async def test_a_node_whose_kubelet_reports_that_it_is_not_ready_has_the_other_taint(cluster: LocalCluster) -> None:
    await away(cluster)

    async def says(status: str) -> None:
        ready = {"type": "Ready", "status": status, "reason": "KubeletNotReady"}
        await cluster.client.patch(NODES, "node-1", {"status": {"conditions": [ready]}}, sub="status")

    await says("False")
    await tainted(cluster, "not-ready:NoSchedule", "not-ready:NoExecute")
    await says("True")
    await tainted(cluster)


async def test_any_taint_with_no_execute_evicts_and_the_first_toleration_for_it_counts(cluster: LocalCluster) -> None:
    def bears(*seconds: int | None) -> list[JSON]:
        both: list[JSON] = [{"key": "maintenance", "operator": "Exists"}, {"operator": "Exists"}]
        return [
            t | ({} if s is None else {"tolerationSeconds": s, "effect": "NoExecute"})
            for t, s in zip(both, seconds, strict=True)
        ]

    await runs(cluster, "stays", tolerations=bears(None, 0))
    await runs(cluster, "goes", tolerations=bears(0, None))
    await runs(cluster, "bears-nothing")
    taint = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
    await cluster.client.patch(NODES, "node-1", {"spec": {"taints": [taint]}})
    await gone(cluster, "goes")  # its kubelet is there
    await gone(cluster, "bears-nothing")
    assert [e for e in cluster.events("stays") if "Eviction" in e] == []
    assert (await cluster.pod("stays") or {})["status"]["phase"] == "Running"


async def test_a_pod_that_is_taken_by_force_while_it_is_tolerated_is_reported_no_more(cluster: LocalCluster) -> None:
    await runs(cluster, "p")
    await away(cluster)
    await cluster.client.delete(PODS, "p", "default", grace=0)
    await told(cluster, "p", "Cancelling deletion of Pod default/p")
    await cluster.apply(pod("p"))  # another of its name, and nothing is known against it
    found = await cluster.wait_running("p")
    assert found["spec"]["nodeName"] == "node-2"
    await told(cluster, "p", "Cancelling deletion of Pod default/p")


async def test_a_node_that_is_declared_out_of_service_has_its_pods_removed_at_once(cluster: LocalCluster) -> None:
    """KEP-2268. While it is ready the taint evicts as any other."""
    await runs(cluster, "p")
    await away(cluster)
    node = await cluster.client.get(NODES, "node-1")
    taint = {"key": pod_garbage.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    await cluster.client.patch(NODES, "node-1", {"spec": {"taints": [*node["spec"]["taints"], taint]}})
    await gone(cluster, "p")
    await told(cluster, "p", "Cancelling deletion of Pod default/p", "Marking for deletion Pod default/p")


async def test_pods_of_a_node_that_is_deleted_fail_and_go_after_a_while(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_garbage, "QUARANTINE", 0.2)
    await cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-3"}})
    await cluster.apply(pod("p", nodeName="node-3"))
    body = {"metadata": {"finalizers": ["example.com/look"]}}
    await cluster.client.patch(PODS, "p", body, "default")  # so that it can be looked at when it has gone
    await cluster.client.delete(NODES, "node-3")
    found = await terminating(cluster, "p")
    assert found["status"]["phase"] == "Failed"
    assert disruption(found) == ("DeletionByPodGC", "PodGC: node no longer exists")
    await cluster.client.patch(PODS, "p", {"metadata": {"finalizers": None}}, "default")
    await gone(cluster, "p")


async def test_a_node_that_comes_back_under_its_name_in_time_keeps_its_pods(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.apply(pod("stays", nodeName="node-3"), pod("goes", nodeName="node-4"))
    await cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-3"}})
    monkeypatch.setattr(pod_garbage, "QUARANTINE", 0.0)
    for name in ("stays", "goes"):  # has each looked at again
        await cluster.client.patch(PODS, name, {"metadata": {"annotations": {"looked-at": "again"}}}, "default")
    await gone(cluster, "goes")
    assert await cluster.pod("stays") is not None


async def test_the_lease_of_a_node_goes_with_it(cluster: LocalCluster) -> None:
    async def leases() -> set[str]:
        return {v["metadata"]["name"] for v in (await cluster.client.list(LEASES, NAMESPACE))["items"]}

    async def both() -> bool:
        return await leases() == {"node-1", "node-2"}

    await cluster.wait("both leases", both)
    await cluster.nodes["node-1"].kubelet.stop()
    await cluster.client.delete(NODES, "node-1")
    assert await leases() == {"node-2"}


async def test_a_claim_is_held_until_its_evicted_pod_is_gone_and_free_then(cluster: LocalCluster) -> None:
    """Between a node's death and the word of somebody who knows that it is dead, its devices are nobody else's."""
    from tests.helpers.objects import claim, device_class, slice_of

    fabric = slice_of("node-1", ["only"])
    fabric["spec"] = {**fabric["spec"], "allNodes": True, "pool": {**fabric["spec"]["pool"], "name": "fabric"}}
    del fabric["spec"]["nodeName"]
    await cluster.apply(device_class(), fabric, claim("c"), claim("d"))
    bound = await cluster.apply(
        pod("p", claims=["c"], tolerations=patient(0), nodeSelector={"kubernetes.io/hostname": "node-1"})
    )

    async def reserved() -> bool:
        held = (await cluster.client.get(CLAIMS, "c", "default")).get("status") or {}
        return [r["uid"] for r in held.get("reservedFor") or []] == [bound[0]["metadata"]["uid"]]

    await cluster.wait("the claim to be reserved", reserved)
    await away(cluster)
    await terminating(cluster, "p")
    await cluster.apply(pod("next", claims=["d"]))

    async def waits() -> bool:
        return "cannot allocate all claims" in "".join(cluster.events("next"))

    await cluster.wait("the next pod to wait", waits)
    assert await reserved()
    await cluster.client.delete(PODS, "p", "default", grace=0)

    async def handed_on() -> str:
        """The node of the next pod, which has one only after its claim has the device."""
        held = (await cluster.client.get(CLAIMS, "d", "default")).get("status") or {}
        freed = (await cluster.client.get(CLAIMS, "c", "default")).get("status") or {}
        moved = bool(held.get("allocation")) and not freed.get("allocation")
        return str((await cluster.client.get(PODS, "next", "default"))["spec"].get("nodeName") or "") if moved else ""

    assert await cluster.wait("the device to be handed on", handed_on) == "node-2"
