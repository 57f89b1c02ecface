"""A node stops, its pods are evicted, their claims move to another node, and the node returns. No device leaks or has two claims.

After such an outage, kubelet and plugin use the records and not their memory. They start in any order, also when the kubelet has lost its
checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dra_devkit.hosts import described
from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.node import STATUS_UNKNOWN
from dra_devkit.testing import ClaimSpec, Request, pods
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS
from tests.helpers.crash.harness import DRIVER, NodeHarness

pytestmark = pytest.mark.crash
DEVICES = 4  # on each node
EVICTED = [
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
]


@contextlib.asynccontextmanager
async def two_nodes(folder: Path, release: str = "") -> AsyncIterator[tuple[NodeHarness, NodeHarness]]:
    """Starts two nodes. Each node has its own plugin process and its own hardware."""
    timers = Timers(
        plugin_poll_interval=0.02, pod_sync_backoff=0.1, slice_wipe_delay=30, node_monitor_grace_period=600
    )  # a busy machine must not make a node unknown
    async with LocalCluster(("node-1", "node-2"), timers=timers, features=Features.of(release)) as cluster:
        await cluster.apply(pods.device_class("devices", DRIVER))
        harnesses = []
        for name in cluster.nodes:
            (folder / name).mkdir()
            harnesses.append(NodeHarness(cluster, folder / name, node=name))
        try:
            for harness in harnesses:
                await harness.start()
            yield harnesses[0], harnesses[1]
        finally:
            for harness in harnesses:
                for name in list(harness.plugins):
                    await harness.kill(name)


def claim(name: str, *, count: int = 1) -> JSON:
    return pods.claim(name, ClaimSpec(Request(count=count)))


def pod_on(node: str, name: str, claim: str) -> JSON:
    pod_object = pods.pod(name, claims=[claim], restart_policy="Always")
    pod_object["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": node} if node else {}}
    return pod_object


async def stop_node(harness: NodeHarness, *, plugin: bool = True) -> None:
    """Stops the kubelet, and by default kills the plugin with all calls in flight. Waits until the cluster knows it.

    The test sets the conditions that the node controller would set, so the test does not depend on time.
    """
    await harness.node.kubelet.stop()
    if plugin:
        await harness.kill()
    conditions = (await harness.cluster.client.get(NODES, harness.node.name))["status"]["conditions"]
    unknown = {"status": "Unknown", "reason": STATUS_UNKNOWN}
    status = {"conditions": [c | unknown if c["type"] == "Ready" else c for c in conditions]}
    await harness.cluster.client.patch(NODES, harness.node.name, {"status": status}, sub="status")

    async def has_taint() -> bool:
        spec = (await harness.cluster.client.get(NODES, harness.node.name))["spec"]
        return any(t["effect"] == "NoExecute" for t in spec.get("taints") or [])

    await harness.cluster.wait(f"{harness.node.name} to be unreachable", has_taint)


async def move_claim_to_second(first: NodeHarness, second: NodeHarness) -> str:
    """Moves the claim of a pod on the first node to a pod on the second node. Returns the UID of the claim."""
    cluster = first.cluster
    first_pod = pod_on(first.node.name, "first", "kept")
    # Only this pod has the tolerations. A later pod on the returned node could be evicted before the taint is removed.
    first_pod["spec"]["tolerations"] = EVICTED
    await cluster.apply(claim("kept"), first_pod)
    await cluster.wait_running("first")
    uid: str = (await cluster.client.get(CLAIMS, "kept", "default"))["metadata"]["uid"]
    await stop_node(first)
    await cluster.apply(pod_on("", "second", "kept"))

    async def is_terminating() -> bool:
        current = await cluster.client.get(PODS, "first", "default")
        return bool(current["metadata"].get("deletionTimestamp"))

    await cluster.wait("the eviction", is_terminating)
    assert set(first.holders().values()) == {uid}  # the hardware still has the claim
    await cluster.client.delete(PODS, "first", "default", grace=0)
    current = await cluster.wait_running("second")
    assert current["spec"]["nodeName"] == second.node.name
    assert set(second.holders().values()) == {uid}
    return uid


async def wait_until_allocated(cluster: LocalCluster, claim: str) -> str:
    """Waits until the claim is allocated. Returns its device."""

    async def check() -> str:
        status = (await cluster.client.get(CLAIMS, claim, "default")).get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        return next((str(r["device"]) for r in devices.get("results") or [] if status.get("reservedFor")), "")

    device: str = await cluster.wait(f"claim {claim} to be allocated", check)
    return device


async def wait_until_deallocated(cluster: LocalCluster, claim: str) -> None:
    async def check() -> bool:
        return not (await cluster.client.get(CLAIMS, claim, "default")).get("status")

    await cluster.wait(f"claim {claim} to be deallocated", check)


async def wait_for_reconciliations(harness: NodeHarness, count: int) -> None:
    """Waits until the plugin has reconciled ``count`` times, or has released a device."""
    before, holders = harness.log.read_text().count("reconciled:"), harness.holders()
    await harness.until(
        "reconciling",
        lambda: harness.holders() != holders or harness.log.read_text().count("reconciled:") >= before + count,
    )


async def kubelet_then_plugin(harness: NodeHarness) -> None:
    await harness.node.kubelet.restart()
    await harness.start()


async def plugin_then_kubelet(harness: NodeHarness) -> None:
    await harness.start(ready=False)
    await harness.node.kubelet.restart()


async def reboot_and_start(harness: NodeHarness) -> None:
    described.reboot(harness.sysfs)
    for path in [*harness.node.cdi_root.iterdir(), *harness.hardware.iterdir()]:
        path.unlink()
    await harness.node.kubelet.rebooted()
    await harness.start()


async def kubelet_without_checkpoint(harness: NodeHarness) -> None:
    """Simulates a reinstalled machine that keeps the disk of the plugin."""
    harness.node.kubelet.manager.checkpoint.unlink()
    await harness.node.runtime.reboot()
    await kubelet_then_plugin(harness)


@pytest.mark.full
@pytest.mark.parametrize(
    "restart", [kubelet_then_plugin, plugin_then_kubelet, reboot_and_start, kubelet_without_checkpoint]
)
async def test_a_moved_claim_is_unprepared_on_the_first_node_and_kept_on_the_second(
    tmp_path: Path, restart: Callable[[NodeHarness], Awaitable[None]]
) -> None:
    async with two_nodes(tmp_path) as (first, second):
        uid = await move_claim_to_second(first, second)
        # This claim needs all devices of the first node, so the device of the moved claim must be free.
        await first.cluster.apply(claim("all", count=DEVICES), pod_on(first.node.name, "third", "all"))
        await restart(first)
        await first.cluster.wait_running("third")
        all_devices_uid = (await first.cluster.client.get(CLAIMS, "all", "default"))["metadata"]["uid"]
        assert set(first.holders().values()) == {all_devices_uid}
        assert len(first.holders()) == DEVICES
        assert set(second.holders().values()) == {uid}
        for harness in (first, second):
            harness.check_quiet()
        for pod in ("second", "third"):
            await first.cluster.delete_pod(pod)
        assert first.is_empty()
        assert second.is_empty()


@pytest.mark.full
async def test_a_claim_that_returns_to_its_first_node_is_prepared_again(tmp_path: Path) -> None:
    """Kubelet and plugin still have the claim as prepared for a deleted pod.

    Kubelets before 1.37 have a fault here: if the new pod arrives during the unprepare for the old pod, the new pod starts although its
    claim is not prepared.
    """
    async with two_nodes(tmp_path, release="1.37") as (first, second):
        uid = await move_claim_to_second(first, second)
        await first.cluster.delete_pod("second")
        assert second.is_empty()
        await first.cluster.apply(pod_on(first.node.name, "third", "kept"))
        await kubelet_then_plugin(first)
        await first.cluster.wait_running("third")
        assert set(first.holders().values()) == {uid}
        first.check_quiet()
        await first.cluster.delete_pod("third")
        await first.until("the release of all devices", first.is_empty)


@pytest.mark.full
async def test_a_device_used_after_a_kubelet_restart_is_not_given_to_another_claim(tmp_path: Path) -> None:
    """A restarted kubelet starts a pod with a device of an earlier allocation, which another claim has now.

    While the kubelet is stopped, the pod of the first claim is force-deleted. The claim then gets another device of the node, for another
    pod. The kubelet's checkpoint contains the claim with the first device, so the kubelet starts the new pod with it and does not call the
    plugin.
    """
    async with two_nodes(tmp_path) as (first, _):
        cluster, node_name = first.cluster, first.node.name
        await cluster.apply(claim("kept"), pod_on(node_name, "first", "kept"))
        await cluster.wait_running("first")
        await first.node.kubelet.stop()
        await cluster.client.delete(PODS, "first", "default", grace=0)
        await wait_until_deallocated(cluster, "kept")
        await cluster.apply(claim("next"), pod_on(node_name, "second", "next"))
        assert await wait_until_allocated(cluster, "next") == "c-0"
        await cluster.apply(pod_on(node_name, "third", "kept"))
        assert await wait_until_allocated(cluster, "kept") == "c-1"
        uids = {n: (await cluster.client.get(CLAIMS, n, "default"))["metadata"]["uid"] for n in ("kept", "next")}
        await first.kill()  # the kubelet cannot unprepare anything before it starts the next pod
        await first.node.kubelet.restart()
        third = await cluster.wait_running("third")
        spec = first.node.runtime.spec(third["metadata"]["uid"], "main")
        assert f"CRASH_0={uids['kept']}" in spec["process"]["env"]  # a real kubelet does the same
        await first.start()
        await wait_for_reconciliations(first, 5)  # longer than the grace period
        assert first.holders() == {"c-0": uids["kept"]}
        await cluster.delete_pod("third")
        await cluster.wait_running("second")
        assert first.holders() == {"c-0": uids["next"]}
        first.check_quiet()


async def test_a_plugin_without_its_kubelet_releases_no_device_of_running_containers(tmp_path: Path) -> None:
    """Containers keep running without their kubelet, although the API server has neither the pod nor the claim."""
    async with two_nodes(tmp_path) as (first, _):
        cluster = first.cluster
        await cluster.apply(claim("kept"), pod_on(first.node.name, "first", "kept"))
        await cluster.wait_running("first")
        holders = first.holders()
        await stop_node(first, plugin=False)
        await cluster.client.delete(PODS, "first", "default", grace=0)
        await cluster.client.delete(CLAIMS, "kept", "default")

        async def is_deleted() -> bool:
            return cluster.claims() == []

        await cluster.wait("the deletion of the claim", is_deleted)
        await wait_for_reconciliations(first, 5)
        assert first.holders() == holders
        await first.node.kubelet.restart()
        await first.until("the release of all devices", first.is_empty)
