"""Pods from manifest to devices: controllers, scheduler and two kubelets together. Upstream: test/e2e/dra, its lines for one
node and several; reference/kubernetes-tests.md has them in short."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, NAMESPACES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import Timers
from tests.helpers.fake_plugin import FakePlugin
from tests.helpers.objects import DRIVER, claim, claim_spec, device_class, pod, slice_of, template

JSON = dict[str, Any]
NODES = ("node-1", "node-2")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", namespaced=True)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """Two nodes with two devices each, and a driver on both that is there throughout."""
    async with contextlib.AsyncExitStack() as stack:
        timers = Timers(plugin_poll_interval=0.02, slice_wipe_delay=60, pod_sync_backoff=0.05)
        made = await stack.enter_async_context(LocalCluster(NODES, timers=timers))
        for name in NODES:
            await stack.enter_async_context(FakePlugin(made.nodes[name].kubelet_root, DRIVER))
            kubelet = made.nodes[name].kubelet

            async def registered(kubelet: Any = kubelet) -> bool:
                return bool(kubelet.plugins.is_connected(DRIVER))

            await made.wait("the driver", registered)
        await made.apply(*(slice_of(name, ["d0", "d1"]) for name in NODES), template())
        yield made


async def runs(cluster: LocalCluster, *names: str) -> list[JSON]:
    return [await cluster.wait_running(name) for name in names]


async def devices_of(cluster: LocalCluster, name: str) -> list[tuple[str, str]]:
    found = await cluster.client.get(CLAIMS, name, "default")
    results = found["status"]["allocation"]["devices"]["results"]
    return [(r["pool"], r["device"]) for r in results]


async def waits(cluster: LocalCluster, name: str, text: str) -> None:
    """Until the scheduler has told ``text`` of a pod."""

    async def told() -> bool:
        found = await cluster.pod(name)
        conditions = ((found or {}).get("status") or {}).get("conditions") or []
        return any(c["type"] == "PodScheduled" and text in c.get("message", "") for c in conditions)

    await cluster.wait(f"{text!r} about {name}", told)


async def test_a_pod_is_scheduled_once_its_missing_class_appears(cluster: LocalCluster) -> None:
    await cluster.apply(pod("p", templates=["t"]))
    await waits(cluster, "p", "device class devices does not exist")
    await cluster.apply(device_class())
    await runs(cluster, "p")


async def test_a_pod_is_scheduled_once_its_class_is_corrected(cluster: LocalCluster) -> None:
    await cluster.apply(device_class(driver="other.example.com"), pod("p", templates=["t"]))
    await waits(cluster, "p", "cannot allocate all claims")
    await cluster.client.patch(CLASSES, "devices", {"spec": device_class()["spec"]})
    await runs(cluster, "p")


async def test_an_error_of_a_selector_keeps_the_pod_pending_and_is_reported(cluster: LocalCluster) -> None:
    wrong = device_class()
    wrong["spec"]["selectors"] = [{"cel": {"expression": 'device.attributes["toy.example.com"].none == 1'}}]
    await cluster.apply(wrong, pod("p", templates=["t"]))
    await waits(cluster, "p", "no such key: none")


async def test_a_pod_runs_without_a_claim_that_somebody_reports_it_does_not_need(cluster: LocalCluster) -> None:
    """The status of another controller: the template's claim has the name null."""
    await cluster.apply(pod("p", templates=["t"], schedulingGates=[{"name": "example.com/wait"}], used=False))

    async def generated() -> JSON | None:
        found = await cluster.pod("p")
        return found if found and found["status"].get("resourceClaimStatuses") else None

    found = await cluster.wait("the claim", generated)
    found["status"]["resourceClaimStatuses"] = [{"name": "t0"}]
    await cluster.client.update(PODS, found, "status")
    await cluster.client.patch(PODS, "p", {"spec": {"schedulingGates": []}}, "default")
    [found] = await runs(cluster, "p")
    assert found["status"]["resourceClaimStatuses"] == [{"name": "t0"}]


@pytest.mark.parametrize("containers", [1, 3])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("external", [False, True])
async def test_claims_of_templates_and_of_their_own_serve_pods_and_containers(
    cluster: LocalCluster, containers: int, count: int, external: bool
) -> None:
    await cluster.apply(device_class(), *([claim("shared")] if external else []))
    names = [f"p{i}" for i in range(count)]
    for name in names:
        made = pod(name, claims=["shared"]) if external else pod(name, templates=["t"])
        [first] = made["spec"]["containers"]
        made["spec"]["containers"] = [{**first, "name": f"c{i}"} for i in range(containers)]
        await cluster.apply(made)
    await runs(cluster, *names)
    found = (await cluster.client.list(CLAIMS, "default"))["items"]
    assert sorted(len(c["status"]["reservedFor"]) for c in found) == ([count] if external else [1] * count)
    for name in names:
        await cluster.delete_pod(name)

    async def freed() -> bool:
        left = (await cluster.client.list(CLAIMS, "default"))["items"]
        return not any((c.get("status") or {}).get("allocation") for c in left) and len(left) == int(external)

    await cluster.wait("the claims to be freed", freed)


async def test_all_devices_of_all_nodes_get_used_and_the_next_pod_gets_one_that_is_free_again(
    cluster: LocalCluster,
) -> None:
    await cluster.apply(device_class(), *(claim(f"c{i}") for i in range(5)))
    await cluster.apply(*(pod(f"p{i}", claims=[f"c{i}"]) for i in range(4)))
    await runs(cluster, *(f"p{i}" for i in range(4)))
    used = [d for i in range(4) for d in await devices_of(cluster, f"c{i}")]
    assert sorted(used) == [(n, d) for n in NODES for d in ("d0", "d1")]
    await cluster.apply(pod("p4", claims=["c4"]))
    await waits(cluster, "p4", "cannot allocate all claims")
    freed = await devices_of(cluster, "c2")
    await cluster.delete_pod("p2")
    await runs(cluster, "p4")
    assert await devices_of(cluster, "c4") == freed


async def test_a_claim_is_shared_by_pods_one_after_the_other(cluster: LocalCluster) -> None:
    await cluster.apply(device_class(), claim("c"))
    for number in range(3):
        await cluster.apply(pod(f"p{number}", claims=["c"]))
        await runs(cluster, f"p{number}")
        await cluster.delete_pod(f"p{number}")

        async def freed() -> bool:
            found = await cluster.client.get(CLAIMS, "c", "default")
            return not (found.get("status") or {}).get("allocation")

        await cluster.wait("the claim to be freed", freed)


async def test_a_daemon_set_with_admin_access_sees_devices_that_are_in_use_on_each_node(cluster: LocalCluster) -> None:
    await cluster.apply(device_class(), *(claim(f"c{i}") for i in range(4)))
    await cluster.apply(*(pod(f"p{i}", claims=[f"c{i}"]) for i in range(4)))
    await runs(cluster, *(f"p{i}" for i in range(4)))
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

    async def ready() -> bool:
        found = await cluster.client.get(DAEMON_SETS, "m", "admin")
        return bool((found.get("status") or {}).get("numberReady") == 2)

    await cluster.wait("the daemon set", ready)
    found = (await cluster.client.list(CLAIMS, "admin"))["items"]
    results = [r for c in found for r in c["status"]["allocation"]["devices"]["results"]]
    assert sorted((r["pool"], r["device"]) for r in results) == [(n, d) for n in NODES for d in ("d0", "d1")]
    assert all(r["adminAccess"] for r in results)
