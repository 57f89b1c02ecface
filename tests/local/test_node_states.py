"""What a Node says of itself, as its kubelet and the node controller write it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube.resource import LEASES, NODES
from dra_kubeletplugin.local.cluster import LocalCluster
from dra_kubeletplugin.local.kubelet.node_lease import NAMESPACE

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
