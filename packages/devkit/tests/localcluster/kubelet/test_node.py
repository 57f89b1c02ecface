"""The status of a Node, written by its kubelet and the node controller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.node_lease import NAMESPACE
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import LEASES, NODES
from tests.helpers.objects import pod

TAINT = "node.kubernetes.io/"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1",)) as cluster:
        yield cluster


async def conditions(cluster: LocalCluster) -> dict[str, JSON]:
    node = await cluster.client.get(NODES, "node-1")
    return {c["type"]: c for c in node["status"]["conditions"]}


async def test_a_kubelet_holds_the_lease_of_its_node(cluster: LocalCluster) -> None:
    async def leases() -> list[JSON]:
        return (await cluster.client.list(LEASES, NAMESPACE))["items"]  # type: ignore[no-any-return]

    [lease] = await cluster.wait("the lease", leases)
    node = await cluster.client.get(NODES, "node-1")
    assert (lease["metadata"]["name"], lease["spec"]["holderIdentity"]) == ("node-1", "node-1")
    assert [o["uid"] for o in lease["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]


@pytest.mark.kubectl
async def test_kubectl_describes_a_node_without_errors(cluster: LocalCluster) -> None:
    async def has_lease() -> bool:
        return bool((await cluster.client.list(LEASES, NAMESPACE))["items"])

    await cluster.wait("the lease", has_lease)
    argv = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "describe", "node", "node-1"]
    pipe = asyncio.subprocess.PIPE
    done = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
    out, err = (part.decode() for part in await done.communicate())
    assert (done.returncode, err) == (0, "")
    assert "HolderIdentity:  node-1" in out
    assert "KubeletHasSufficientMemory" in out
    assert "Failed" not in out


async def test_a_restarted_kubelet_keeps_unchanged_conditions(cluster: LocalCluster) -> None:
    before = await conditions(cluster)
    foreign = {"type": "GPUFine", "status": "False", "reason": "Hot", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    old = {**before["Ready"], "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"status": {"conditions": [old, foreign]}}
    await cluster.client.patch(NODES, "node-1", status, sub="status")
    await cluster.node.kubelet.restart()
    after = await conditions(cluster)
    assert after["Ready"]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert after["GPUFine"]["reason"] == "Hot"
    assert set(before) | {"GPUFine"} == set(after)


@pytest.mark.parametrize(
    ("kind", "status", "key"),
    [
        ("Ready", "False", "not-ready"),
        ("Ready", "Unknown", "unreachable"),
        ("MemoryPressure", "True", "memory-pressure"),
        ("DiskPressure", "True", "disk-pressure"),
        ("PIDPressure", "True", "pid-pressure"),
        ("NetworkUnavailable", "True", "network-unavailable"),
    ],
)
async def test_a_node_in_a_bad_state_gets_a_no_schedule_taint(
    cluster: LocalCluster, kind: str, status: str, key: str
) -> None:
    """Upstream: nodelifecycle, nodeConditionToTaintKeyStatusMap."""
    good = list((await conditions(cluster)).values())
    bad = [c for c in good if c["type"] != kind] + [{"type": kind, "status": status}]

    async def taints() -> set[str]:
        spec = (await cluster.client.get(NODES, "node-1"))["spec"]
        return {t["key"].removeprefix(TAINT) for t in spec.get("taints") or [] if t["effect"] == "NoSchedule"}

    async def has_taints(expected: set[str]) -> bool:
        return await taints() == expected

    await cluster.wait("a node without taints", lambda: has_taints(set()))
    await cluster.client.patch(NODES, "node-1", {"status": {"conditions": bad}}, sub="status")
    await cluster.wait(f"the taint {key}", lambda: has_taints({key}))
    await cluster.client.patch(NODES, "node-1", {"status": {"conditions": good}}, sub="status")
    await cluster.wait("the removal of the taint", lambda: has_taints(set()))


QUICK = Timers(node_monitor_grace_period=1.0)


async def test_a_node_with_a_stopped_kubelet_is_not_ready_and_gets_no_pods() -> None:
    """Upstream: monitorNodeHealth. Running pods keep running."""
    async with LocalCluster(("node-1",), timers=QUICK) as cluster:
        await cluster.apply(pod("before"))
        await cluster.wait_running("before")
        await cluster.node.kubelet.stop()

        async def taints() -> set[str]:
            spec = (await cluster.client.get(NODES, "node-1"))["spec"]
            return {f"{t['key'].removeprefix(TAINT)}:{t['effect']}" for t in spec.get("taints") or []}

        async def is_unknown() -> bool:
            ready, current = (await conditions(cluster))["Ready"], await cluster.pod("before")
            assert current is not None
            pod_conditions = {c["type"]: c["status"] for c in current["status"]["conditions"]}
            observed = (ready["status"], ready["reason"], pod_conditions["Ready"], current["status"]["phase"])
            return observed == ("Unknown", "NodeStatusUnknown", "False", "Running") and await taints() == {
                "unreachable:NoSchedule"
            }

        await cluster.wait("the node to be unknown", is_unknown)
        await cluster.apply(pod("after"))

        async def is_waiting() -> bool:
            return "untolerated taint" in "".join(cluster.events("after"))

        await cluster.wait("the pod to wait", is_waiting)
        await cluster.node.kubelet.restart()
        await cluster.wait_running("after")

        async def is_ready_again() -> bool:
            return (await conditions(cluster))["Ready"]["reason"] == "KubeletReady" and await taints() == set()

        await cluster.wait("the node to be ready", is_ready_again)


async def test_a_running_kubelet_reports_ready_after_the_status_unknown() -> None:
    async with LocalCluster(("node-1",), timers=QUICK) as cluster:
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        await cluster.client.patch(NODES, "node-1", {"status": {"conditions": [unknown]}}, sub="status")

        async def is_ready() -> bool:
            return (await conditions(cluster))["Ready"]["status"] == "True"

        await cluster.wait("the node to be ready", is_ready)


async def test_a_node_without_a_kubelet_is_ignored() -> None:
    """A client created the node; it has no Lease."""
    async with LocalCluster(("node-1",), timers=QUICK) as cluster:
        ready = {"type": "Ready", "status": "True"}
        await cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fake"}, "status": {}})
        await cluster.client.patch(NODES, "fake", {"status": {"conditions": [ready]}}, sub="status")
        await cluster.node.kubelet.stop()

        async def is_unknown() -> bool:
            return (await conditions(cluster))["Ready"]["status"] == "Unknown"

        await cluster.wait("the other node to be unknown", is_unknown)
        assert (await cluster.client.get(NODES, "fake"))["status"]["conditions"][0]["status"] == "True"


@pytest.mark.full
async def test_a_paused_machine_reports_no_node_as_unknown() -> None:
    """The kubelets and the node controller pause together."""
    async with LocalCluster(("node-1",), timers=QUICK) as cluster:

        async def renew_time() -> str:
            leases = (await cluster.client.list(LEASES, NAMESPACE))["items"]
            return str(leases[0]["spec"]["renewTime"]) if leases else ""

        async def is_renewed(before: str) -> bool:
            return await renew_time() != before

        for _ in range(3):
            before = await cluster.wait("the lease", renew_time)
            time.sleep(1.5)  # noqa: ASYNC251 - simulates a paused machine
            await cluster.wait("a renewal", lambda before=before: is_renewed(before))
        assert not [e for e in cluster.events("node-1") if "NodeNotReady" in e]
