"""What a Node says of itself, as its kubelet and the node controller write it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube.resource import LEASES, NODES
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import Timers
from dra_kubeletplugin.localcluster.kubelet.node_lease import NAMESPACE
from tests.helpers.objects import pod

JSON = dict[str, Any]
TAINT = "node.kubernetes.io/"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1",)) as cluster:
        yield cluster


async def conditions(cluster: LocalCluster) -> dict[str, JSON]:
    node = await cluster.client.get(NODES, "node-1")
    return {c["type"]: c for c in node["status"]["conditions"]}


async def test_a_kubelet_holds_the_lease_of_its_node(cluster: LocalCluster) -> None:
    async def made() -> list[JSON]:
        return (await cluster.client.list(LEASES, NAMESPACE))["items"]  # type: ignore[no-any-return]

    [lease] = await cluster.wait("the lease", made)
    node = await cluster.client.get(NODES, "node-1")
    assert (lease["metadata"]["name"], lease["spec"]["holderIdentity"]) == ("node-1", "node-1")
    assert [o["uid"] for o in lease["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]


@pytest.mark.kubectl
async def test_kubectl_describes_a_node_without_a_complaint(cluster: LocalCluster) -> None:
    async def made() -> bool:
        return bool((await cluster.client.list(LEASES, NAMESPACE))["items"])

    await cluster.wait("the lease", made)
    argv = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "describe", "node", "node-1"]
    pipe = asyncio.subprocess.PIPE
    done = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
    out, err = (part.decode() for part in await done.communicate())
    assert (done.returncode, err) == (0, "")
    assert "HolderIdentity:  node-1" in out
    assert "KubeletHasSufficientMemory" in out
    assert "Failed" not in out


async def test_a_kubelet_that_starts_again_keeps_what_has_not_changed(cluster: LocalCluster) -> None:
    before = await conditions(cluster)
    theirs = {"type": "GPUFine", "status": "False", "reason": "Hot", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    old = {**before["Ready"], "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"status": {"conditions": [old, theirs]}}
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
async def test_a_node_in_a_bad_state_takes_no_new_pods(cluster: LocalCluster, kind: str, status: str, key: str) -> None:
    """Upstream: nodelifecycle, nodeConditionToTaintKeyStatusMap."""
    good = list((await conditions(cluster)).values())
    bad = [c for c in good if c["type"] != kind] + [{"type": kind, "status": status}]

    async def taints() -> set[str]:
        spec = (await cluster.client.get(NODES, "node-1"))["spec"]
        return {t["key"].removeprefix(TAINT) for t in spec.get("taints") or [] if t["effect"] == "NoSchedule"}

    async def are(wanted: set[str]) -> bool:
        return await taints() == wanted

    await cluster.wait("a node without taints", lambda: are(set()))
    await cluster.client.patch(NODES, "node-1", {"status": {"conditions": bad}}, sub="status")
    await cluster.wait(f"the taint {key}", lambda: are({key}))
    await cluster.client.patch(NODES, "node-1", {"status": {"conditions": good}}, sub="status")
    await cluster.wait("the taint to go", lambda: are(set()))


QUICK = Timers(node_monitor_grace_period=1.0)


async def test_a_node_whose_kubelet_is_not_heard_is_not_ready_and_takes_no_pods_until_it_is_back() -> None:
    """Upstream: monitorNodeHealth. What runs there runs on."""
    async with LocalCluster(("node-1",), timers=QUICK) as cluster:
        await cluster.apply(pod("before"))
        await cluster.wait_running("before")
        await cluster.node.kubelet.stop()

        async def taints() -> set[str]:
            spec = (await cluster.client.get(NODES, "node-1"))["spec"]
            return {f"{t['key'].removeprefix(TAINT)}:{t['effect']}" for t in spec.get("taints") or []}

        async def is_away() -> bool:
            ready, known = (await conditions(cluster))["Ready"], await cluster.pod("before")
            assert known is not None
            now = {c["type"]: c["status"] for c in known["status"]["conditions"]}
            said = (ready["status"], ready["reason"], now["Ready"], known["status"]["phase"])
            return said == ("Unknown", "NodeStatusUnknown", "False", "Running") and await taints() == {
                "unreachable:NoSchedule"
            }

        await cluster.wait("the node to be unknown", is_away)
        await cluster.apply(pod("after"))

        async def waits() -> bool:
            return "untolerated taint" in "".join(cluster.events("after"))

        await cluster.wait("the pod to wait", waits)
        await cluster.node.kubelet.restart()
        await cluster.wait_running("after")

        async def is_back() -> bool:
            return (await conditions(cluster))["Ready"]["reason"] == "KubeletReady" and await taints() == set()

        await cluster.wait("the node to be known as ready", is_back)


async def test_a_kubelet_that_was_taken_for_dead_reports_that_it_lives() -> None:
    async with LocalCluster(("node-1",), timers=QUICK) as cluster:
        dead = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        await cluster.client.patch(NODES, "node-1", {"status": {"conditions": [dead]}}, sub="status")

        async def lives() -> bool:
            return (await conditions(cluster))["Ready"]["status"] == "True"

        await cluster.wait("the node to be ready", lives)


async def test_a_node_that_somebody_made_by_hand_is_left_alone() -> None:
    """It has no kubelet, and no Lease."""
    async with LocalCluster(("node-1",), timers=QUICK) as cluster:
        ready = {"type": "Ready", "status": "True"}
        await cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fake"}, "status": {}})
        await cluster.client.patch(NODES, "fake", {"status": {"conditions": [ready]}}, sub="status")
        await cluster.node.kubelet.stop()

        async def is_away() -> bool:
            return (await conditions(cluster))["Ready"]["status"] == "Unknown"

        await cluster.wait("the other node to be unknown", is_away)
        assert (await cluster.client.get(NODES, "fake"))["status"]["conditions"][0]["status"] == "True"


@pytest.mark.full
async def test_a_machine_that_stood_still_takes_no_node_for_dead() -> None:
    """All of it stood: the kubelets, and who listens to them."""
    async with LocalCluster(("node-1",), timers=QUICK) as cluster:

        async def renewed() -> str:
            leases = (await cluster.client.list(LEASES, NAMESPACE))["items"]
            return str(leases[0]["spec"]["renewTime"]) if leases else ""

        async def again(before: str) -> bool:
            return await renewed() != before

        for _ in range(3):
            before = await cluster.wait("the lease", renewed)
            time.sleep(1.5)  # noqa: ASYNC251 - the machine stands still
            await cluster.wait("a renewal", lambda before=before: again(before))
        assert not [e for e in cluster.events("node-1") if "NodeNotReady" in e]
