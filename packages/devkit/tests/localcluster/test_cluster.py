"""Pods from manifest to devices with controllers, scheduler and two kubelets.

Upstream: the tests of test/e2e/dra for one and for several nodes; reference/kubernetes-tests.md summarizes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, NAMESPACES
from tests.helpers.fake_plugin import FakePlugin
from tests.helpers.objects import DRIVER, claim, claim_spec, device_class, pod, slice_of, template

NODES = ("node-1", "node-2")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", namespaced=True)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """A cluster with two nodes, two devices on each node, and a driver that runs on both nodes."""
    async with contextlib.AsyncExitStack() as stack:
        timers = Timers(plugin_poll_interval=0.02, slice_wipe_delay=60, pod_sync_backoff=0.05)
        local_cluster = await stack.enter_async_context(LocalCluster(NODES, timers=timers))
        for name in NODES:
            await stack.enter_async_context(FakePlugin(local_cluster.nodes[name].kubelet_root, DRIVER))
            kubelet = local_cluster.nodes[name].kubelet

            async def is_registered(kubelet: Any = kubelet) -> bool:
                return bool(kubelet.plugins.is_connected(DRIVER))

            await local_cluster.wait("the driver", is_registered)
        await local_cluster.apply(*(slice_of(name, ["d0", "d1"]) for name in NODES), template())
        yield local_cluster


async def wait_until_running(cluster: LocalCluster, *names: str) -> list[JSON]:
    return [await cluster.wait_running(name) for name in names]


async def wait_for_reason(cluster: LocalCluster, name: str, text: str) -> None:
    """Waits until the condition PodScheduled contains ``text``."""

    async def has_reason() -> bool:
        current = await cluster.pod(name)
        conditions = ((current or {}).get("status") or {}).get("conditions") or []
        return any(c["type"] == "PodScheduled" and text in c.get("message", "") for c in conditions)

    await cluster.wait(f"{text!r} about {name}", has_reason)


async def test_a_pod_is_scheduled_after_its_class_is_corrected(cluster: LocalCluster) -> None:
    await cluster.apply(device_class(driver="other.example.com"), pod("p", templates=["t"]))
    await wait_for_reason(cluster, "p", "cannot allocate all claims")
    await cluster.client.patch(CLASSES, "devices", {"spec": device_class()["spec"]})
    await wait_until_running(cluster, "p")


async def test_a_daemon_set_with_admin_access_gets_devices_in_use_on_each_node(cluster: LocalCluster) -> None:
    await cluster.apply(device_class(), *(claim(f"c{i}") for i in range(4)))
    await cluster.apply(*(pod(f"p{i}", claims=[f"c{i}"]) for i in range(4)))
    await wait_until_running(cluster, *(f"p{i}" for i in range(4)))
    labels = {"resource.kubernetes.io/admin-access": "true"}
    await cluster.client.create(NAMESPACES, {"metadata": {"name": "admin", "labels": labels}})
    monitoring = template("monitor", claim_spec(admin=True, count=2))
    monitoring["metadata"]["namespace"] = "admin"
    inner = pod("x", templates=["monitor"], restartPolicy="Always")["spec"]
    spec = {
        "selector": {"matchLabels": {"app": "m"}},
        "template": {"metadata": {"labels": {"app": "m"}}, "spec": inner},
    }
    meta = {"name": "m", "namespace": "admin"}
    await cluster.apply(monitoring, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": spec})

    async def is_ready() -> bool:
        daemon_set = await cluster.client.get(DAEMON_SETS, "m", "admin")
        return bool((daemon_set.get("status") or {}).get("numberReady") == 2)

    await cluster.wait("the daemon set", is_ready)
    claims = (await cluster.client.list(CLAIMS, "admin"))["items"]
    results = [r for c in claims for r in c["status"]["allocation"]["devices"]["results"]]
    assert sorted((r["pool"], r["device"]) for r in results) == [(n, d) for n in NODES for d in ("d0", "d1")]
    assert all(r["adminAccess"] for r in results)


async def test_only_the_controlling_owner_of_a_claim_uses_it_for_its_template(cluster: LocalCluster) -> None:
    """A claim that only belongs to the pod, for example so that it is deleted with it, was not made for the pod's template."""
    await cluster.apply(device_class())
    [created] = await cluster.apply(pod("p", templates=["late"]))

    async def template_is_missed() -> bool:
        return any("late" in e for e in cluster.events("p"))

    await cluster.wait("the event about the template", template_is_missed)
    other = claim("other")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": created["metadata"]["uid"]}
    other["metadata"] |= {"ownerReferences": [owner], "annotations": {"resource.kubernetes.io/pod-claim-name": "t0"}}
    await cluster.apply(other, template("late"))
    await wait_until_running(cluster, "p")
    [status] = ((await cluster.pod("p")) or {})["status"]["resourceClaimStatuses"]
    assert status["resourceClaimName"].startswith("p-t0-")
