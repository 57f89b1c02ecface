"""A node dies, its pods are taken from it and their claims given to another, and it comes back: nothing leaks, nothing is had twice.

Everything that comes back after such an absence asks the records, not its memory: kubelet and plugin start at the same time, and in
either order, also where the kubelet has forgotten what it had.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin.host.fake import described
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import Timers
from dra_kubeletplugin.localcluster.kubelet.node import STATUS_UNKNOWN
from dra_kubeletplugin.resourceapi.kubernetes_releases import Features
from dra_kubeletplugin.testing import ClaimSpec, Request, pods
from tests.helpers.crash.harness import DRIVER, NodeHarness

pytestmark = pytest.mark.crash
JSON = dict[str, Any]
DEVICES = 4  # of each node
EVICTED = [
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
]


@contextlib.asynccontextmanager
async def two_nodes(folder: Path, release: str = "") -> AsyncIterator[tuple[NodeHarness, NodeHarness]]:
    """Each with the plugin as a process of its own, and with hardware of its own."""
    timers = Timers(
        plugin_poll_interval=0.02, pod_sync_backoff=0.1, slice_wipe_delay=30, node_monitor_grace_period=600
    )  # a machine that is only busy loses no node
    async with LocalCluster(("node-1", "node-2"), timers=timers, features=Features.of(release)) as cluster:
        await cluster.apply(pods.device_class("devices", DRIVER))
        boxes = []
        for name in cluster.nodes:
            (folder / name).mkdir()
            boxes.append(NodeHarness(cluster, folder / name, node=name))
        try:
            for b in boxes:
                await b.start()
            yield boxes[0], boxes[1]
        finally:
            for b in boxes:
                for name in list(b.plugins):
                    await b.kill(name)


def claim(name: str, *, count: int = 1) -> JSON:
    return pods.claim(name, ClaimSpec(Request(count=count)))


def on(node: str, name: str, claim: str) -> JSON:
    made = pods.pod(name, claims=[claim], restart_policy="Always")
    made["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": node} if node else {}}
    return made


async def died(b: NodeHarness, *, plugin: bool = True) -> None:
    """The kubelet is gone, and the plugin at once with it, with whatever was under way; and the cluster knows.

    What the node controller says of such a node is said for it, so that this does not depend on time.
    """
    await b.node.kubelet.stop()
    if plugin:
        await b.kill()
    conditions = (await b.cluster.client.get(NODES, b.node.name))["status"]["conditions"]
    unknown = {"status": "Unknown", "reason": STATUS_UNKNOWN}
    status = {"conditions": [c | unknown if c["type"] == "Ready" else c for c in conditions]}
    await b.cluster.client.patch(NODES, b.node.name, {"status": status}, sub="status")

    async def known() -> bool:
        spec = (await b.cluster.client.get(NODES, b.node.name))["spec"]
        return any(t["effect"] == "NoExecute" for t in spec.get("taints") or [])

    await b.cluster.wait(f"{b.node.name} to be away", known)


async def handed_on(one: NodeHarness, two: NodeHarness) -> str:
    """The claim of a pod of the first node becomes that of a pod of the second; its UID."""
    cluster = one.cluster
    first = on(one.node.name, "first", "kept")
    # Its alone: a pod for which the node comes back could be evicted before the taint goes.
    first["spec"]["tolerations"] = EVICTED
    await cluster.apply(claim("kept"), first)
    await cluster.wait_running("first")
    uid: str = (await cluster.client.get(CLAIMS, "kept", "default"))["metadata"]["uid"]
    await died(one)
    await cluster.apply(on("", "second", "kept"))

    async def evicted() -> bool:
        found = await cluster.client.get(PODS, "first", "default")
        return bool(found["metadata"].get("deletionTimestamp"))

    await cluster.wait("the eviction", evicted)
    assert set(one.holders().values()) == {uid}  # the hardware knows nothing of all this
    await cluster.client.delete(PODS, "first", "default", grace=0)
    found = await cluster.wait_running("second")
    assert found["spec"]["nodeName"] == two.node.name
    assert set(two.holders().values()) == {uid}
    return uid


async def allocated(cluster: LocalCluster, claim: str) -> str:
    """The device of a claim."""

    async def check() -> str:
        status = (await cluster.client.get(CLAIMS, claim, "default")).get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        return next((str(r["device"]) for r in devices.get("results") or [] if status.get("reservedFor")), "")

    found: str = await cluster.wait(f"claim {claim} to be allocated", check)
    return found


async def deallocated(cluster: LocalCluster, claim: str) -> None:
    async def check() -> bool:
        return not (await cluster.client.get(CLAIMS, claim, "default")).get("status")

    await cluster.wait(f"claim {claim} to be deallocated", check)


async def reconciled(b: NodeHarness, count: int) -> None:
    """Until the plugin has looked so often from now on, or given something back."""
    before, held = b.log.read_text().count("reconciled:"), b.holders()
    await b.until(
        "reconciling", lambda: b.holders() != held or b.log.read_text().count("reconciled:") >= before + count
    )


async def kubelet_then_plugin(b: NodeHarness) -> None:
    await b.node.kubelet.restart()
    await b.start()


async def plugin_then_kubelet(b: NodeHarness) -> None:
    await b.start(ready=False)
    await b.node.kubelet.restart()


async def after_a_reboot(b: NodeHarness) -> None:
    described.reboot(b.sysfs)
    for path in [*b.node.cdi_root.iterdir(), *b.hardware.iterdir()]:
        path.unlink()
    await b.node.kubelet.rebooted()
    await b.start()


async def without_the_kubelet_s_memory(b: NodeHarness) -> None:
    """As after the machine was set up again around the disk that the plugin has."""
    b.node.kubelet.manager.checkpoint.unlink()
    await b.node.runtime.reboot()
    await kubelet_then_plugin(b)


@pytest.mark.full
@pytest.mark.parametrize(
    "back", [kubelet_then_plugin, plugin_then_kubelet, after_a_reboot, without_the_kubelet_s_memory]
)
async def test_a_claim_that_moved_to_another_node_is_undone_on_the_first_and_stays_on_the_second(
    tmp_path: Path, back: Callable[[NodeHarness], Awaitable[None]]
) -> None:
    async with two_nodes(tmp_path) as (one, two):
        uid = await handed_on(one, two)
        # All devices of the first node, for which the one that the claim left behind has to be free.
        await one.cluster.apply(claim("all", count=DEVICES), on(one.node.name, "third", "all"))
        await back(one)
        await one.cluster.wait_running("third")
        everything = (await one.cluster.client.get(CLAIMS, "all", "default"))["metadata"]["uid"]
        assert set(one.holders().values()) == {everything}
        assert len(one.holders()) == DEVICES
        assert set(two.holders().values()) == {uid}
        for b in (one, two):
            b.check_quiet()
        for pod in ("second", "third"):
            await one.cluster.delete_pod(pod)
        assert one.is_empty()
        assert two.is_empty()


@pytest.mark.full
async def test_a_claim_that_comes_back_to_the_node_that_died_is_prepared_there_again(tmp_path: Path) -> None:
    """Kubelet and plugin still know the claim, as prepared for a pod that no longer exists.

    Kubelets before 1.37 have a fault here: if the new pod arrives while the claim is being unprepared for the old one, the new pod
    starts although its claim is not prepared.
    """
    async with two_nodes(tmp_path, release="1.37") as (one, two):
        uid = await handed_on(one, two)
        await one.cluster.delete_pod("second")
        assert two.is_empty()
        await one.cluster.apply(on(one.node.name, "third", "kept"))
        await kubelet_then_plugin(one)
        await one.cluster.wait_running("third")
        assert set(one.holders().values()) == {uid}
        one.check_quiet()
        await one.cluster.delete_pod("third")
        await one.until("all to be given back", one.is_empty)


@pytest.mark.full
async def test_a_device_that_a_restarted_kubelet_still_gives_to_a_claim_is_nobody_else_s(tmp_path: Path) -> None:
    """While the kubelet is away its pod is taken by force, and the claim gets another device of the node, for another pod. The
    kubelet knows the claim as prepared and starts that pod with the first device, without a word to the plugin; and the first
    device is another claim's by now.
    """
    async with two_nodes(tmp_path) as (one, _):
        cluster, here = one.cluster, one.node.name
        await cluster.apply(claim("kept"), on(here, "first", "kept"))
        await cluster.wait_running("first")
        await one.node.kubelet.stop()
        await cluster.client.delete(PODS, "first", "default", grace=0)
        await deallocated(cluster, "kept")
        await cluster.apply(claim("next"), on(here, "second", "next"))
        assert await allocated(cluster, "next") == "c-0"
        await cluster.apply(on(here, "third", "kept"))
        assert await allocated(cluster, "kept") == "c-1"
        uids = {n: (await cluster.client.get(CLAIMS, n, "default"))["metadata"]["uid"] for n in ("kept", "next")}
        await one.kill()  # so that the kubelet can unprepare nothing before it starts the next pod
        await one.node.kubelet.restart()
        third = await cluster.wait_running("third")
        spec = one.node.runtime.spec(third["metadata"]["uid"], "main")
        assert f"CRASH_0={uids['kept']}" in spec["process"]["env"]  # as in a real kubelet
        await one.start()
        await reconciled(one, 5)  # which is longer than its grace
        assert one.holders() == {"c-0": uids["kept"]}
        await cluster.delete_pod("third")
        await cluster.wait_running("second")
        assert one.holders() == {"c-0": uids["next"]}
        one.check_quiet()


async def test_a_plugin_whose_kubelet_is_away_gives_nothing_back_that_containers_may_have(tmp_path: Path) -> None:
    """What a dead kubelet started runs on, though the API server knows neither pod nor claim any more."""
    async with two_nodes(tmp_path) as (one, _):
        cluster = one.cluster
        await cluster.apply(claim("kept"), on(one.node.name, "first", "kept"))
        await cluster.wait_running("first")
        held = one.holders()
        await died(one, plugin=False)
        await cluster.client.delete(PODS, "first", "default", grace=0)
        await cluster.client.delete(CLAIMS, "kept", "default")

        async def gone() -> bool:
            return cluster.claims() == []

        await cluster.wait("the claim to go", gone)
        await reconciled(one, 5)
        assert one.holders() == held
        await one.node.kubelet.restart()
        await one.until("all to be given back", one.is_empty)
