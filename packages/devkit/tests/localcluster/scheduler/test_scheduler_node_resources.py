"""Devices that use resources of their node, such as cpu (KEP-5517): the examples of the proposal as stories, in the forms of 1.36 and 1.37."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS, SLICES
from packages.devkit.tests.localcluster.kubelet.harness import TIMERS, KubeletHarness
from packages.devkit.tests.localcluster.scheduler.objects import claim, node, node_of, wait_for_event

GATE = "DRANodeAllocatableResources"
EACH = pytest.mark.parametrize("release", ["1.36", "1.37"])
RESULT = "nodeAllocatableResourceClaimStatuses"


@contextlib.asynccontextmanager
async def cluster_of(release: str, *nodes: JSON, gate: bool = True, **classes: JSON) -> AsyncIterator[LocalCluster]:
    features = Features.of(release, {GATE: gate, "DRAPartitionableDevices": True})
    async with LocalCluster([], features=features) as cluster:
        for name, spec in {"sim": {}, **classes}.items():
            await cluster.apply(
                {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
            )
        await cluster.apply(*(nodes or (node("a"),)))
        yield cluster


def slice_of(*devices: JSON, on: str = "a", driver: str = "sim.example.com", **spec: Any) -> JSON:
    body = {
        "driver": driver,
        "nodeName": on,
        "pool": {"name": on, "generation": 1, "resourceSliceCount": spec.pop("count", 1)},
    }
    body |= {"devices": list(devices)} if devices else {}
    name = f"{driver}-{on}-{'devices' if devices else 'counters'}"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": body | spec,
    }


def cpus(release: str, name: str, amount: str, **fields: Any) -> JSON:
    """Returns a device that is ``amount`` cpus of its node."""
    return {"name": name, **_mapped(release, "cpu", None, amount), **fields}


def _mapped(release: str, resource: str, key: str | None, amount: str) -> JSON:
    if release == "1.36":
        row = {"allocationMultiplier": amount} | ({"capacityKey": key} if key else {})
        return {"nodeAllocatableResourceMappings": {resource: row}}
    row = {"capacityKey": key, "capacityMultiplier": amount} if key else {"deviceMultiplier": amount}
    return {"nodeAllocatableResources": {resource: {"mapping": row}}}


def mapped(release: str, **amounts: str) -> JSON:
    """Returns the part of a pod's status for devices that are resources of the node."""
    if release == "1.36":
        return {"resources": amounts}
    return {"mapping": [{"name": name, "quantity": amount} for name, amount in amounts.items()]}


def pod(name: str, *containers: JSON, claims: tuple[str, ...] = ("c",), **spec: Any) -> JSON:
    """Returns a pod. Without ``containers``, one container uses all claims."""
    spec["containers"] = list(containers) or [container("main", *claims)]
    spec["resourceClaims"] = [{"name": f"my-{c}", "resourceClaimName": c} for c in claims]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def container(name: str, *claims: str, **resources: JSON) -> JSON:
    used = {"claims": [{"name": f"my-{c}"} for c in claims]} if claims else {}
    return {"name": name, "image": "pause", "resources": {**used, **resources}}


def cpu(amount: str) -> JSON:
    return {"requests": {"cpu": amount}}


async def used_by(cluster: LocalCluster, name: str) -> list[JSON]:
    """Waits until a pod has a node. Returns what its claims use of the node, by its status."""
    await node_of(cluster, name)
    found: list[JSON] = (await cluster.client.get(PODS, name, "default"))["status"].get(RESULT) or []
    return found


async def fits_with(cluster: LocalCluster, free: str, too_much: str) -> None:
    """Checks how much cpu is free on the only node."""
    await cluster.apply(pod("more", container("main", **cpu(too_much)), claims=()))
    await wait_for_event(cluster, "more", "Insufficient cpu")
    await cluster.apply(pod("rest", container("main", **cpu(free)), claims=()))
    await node_of(cluster, "rest")


# --- the examples of the proposal -------------------------------------------------------------------


@EACH
async def test_each_device_counts_as_its_cpus(release: str) -> None:
    async with cluster_of(release) as cluster:
        await cluster.apply(slice_of(cpus(release, "cpu0", "1"), cpus(release, "cpu1", "1")), claim("c", 2), pod("p"))
        [entry] = await used_by(cluster, "p")
        assert entry == {"resourceClaimName": "c", "containers": ["main"], **mapped(release, cpu="2")}
        await fits_with(cluster, "6", "6500m")


@EACH
async def test_consumed_capacity_counts_times_the_multiplier(release: str) -> None:
    amounts = {"cores": {"value": "64"}, "memory": {"value": "256Gi"}}
    of_memory = _mapped(release, "memory", "memory", "1")
    [field] = of_memory
    socket = {"name": "socket0", "allowMultipleAllocations": True, "capacity": amounts}
    socket[field] = {**_mapped(release, "cpu", "cores", "2")[field], **of_memory[field]}
    wanted = claim("c")
    wanted["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"cores": "2", "memory": "4Gi"}}
    async with cluster_of(release) as cluster:
        await cluster.apply(slice_of(socket), wanted, pod("p", container("app", "c", **cpu("1"))))
        [entry] = await used_by(cluster, "p")
        assert entry == {"resourceClaimName": "c", "containers": ["app"], **mapped(release, cpu="4", memory="4Gi")}
        await fits_with(cluster, "3", "3500m")


async def test_overhead_counts_for_each_pod_and_each_container_that_uses_the_claim() -> None:
    amounts = {"perPod": "1Gi", "perContainer": "500Mi"}
    xpu = {"name": "xpu", "nodeAllocatableResources": {"memory": {"overhead": amounts}}}
    async with cluster_of("1.37") as cluster:
        await cluster.apply(slice_of(xpu), claim("c"))
        await cluster.apply(pod("p", container("app-c1", "c"), container("app-c2", "c"), container("other")))
        [entry] = await used_by(cluster, "p")
        overhead = [{"name": "memory", **amounts}]
        assert entry == {"resourceClaimName": "c", "containers": ["app-c1", "app-c2"], "overhead": overhead}
        await cluster.apply(pod("more", container("main", requests={"memory": "14361Mi"}), claims=()))
        await wait_for_event(cluster, "more", "Insufficient memory")
        await cluster.apply(pod("rest", container("main", requests={"memory": "14360Mi"}), claims=()))
        await node_of(cluster, "rest")


@EACH
async def test_a_partition_counts_by_its_devices_because_it_consumes_no_capacity(release: str) -> None:
    counters = {"counterSet": "cpus", "counters": {"cpu": {"value": "4"}}}
    parts = [
        cpus(release, "l3-0", "4", consumesCounters=[counters]),
        {
            "name": "l3-1",
            "capacity": {"cpu": {"value": "4"}},
            "consumesCounters": [counters],
            **_mapped(release, "cpu", "cpu", "1"),
        },
    ]
    sets = [{"name": "cpus", "counters": {"cpu": {"value": "8"}}}]
    async with cluster_of(release) as cluster:
        await cluster.apply(slice_of(sharedCounters=sets, count=2), slice_of(*parts, count=2))
        await cluster.apply(claim("c"), pod("p"))
        [entry] = await used_by(cluster, "p")
        assert entry.items() >= mapped(release, cpu="4").items()
        # The proposal's example gives such a partition a capacityKey. Kubernetes ends with an error.
        await cluster.apply(claim("d"), pod("q", claims=("d",)))
        await wait_for_event(
            cluster, "q", "claim default/d, device l3-1: ConsumedCapacity is nil, but Capacity key 'cpu'"
        )


@EACH
async def test_an_alternative_without_cpus_uses_nothing_of_its_node(release: str) -> None:
    sub = [
        {"name": "gpu", "deviceClassName": "gpu"},
        {"name": "cpu", "deviceClassName": "cpu", "capacity": {"requests": {"cpu": "6"}}},
    ]
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu-or-cpu"},
        "spec": {"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": sub}]}}},
    }
    classes = {
        name: {"selectors": [{"cel": {"expression": f'device.driver == "{name}.example.com"'}}]}
        for name in ("gpu", "cpu")
    }
    pool = {"allowMultipleAllocations": True, "capacity": {"cpu": {"value": "8"}}}
    async with cluster_of(release, node("a", cpu="16"), **classes) as cluster:
        await cluster.apply(slice_of({"name": "gpu"}, driver="gpu.example.com"))
        shared = {"name": "all", **pool, **_mapped(release, "cpu", "cpu", "1")}
        await cluster.apply(template, slice_of(shared, driver="cpu.example.com"))
        found = []
        for name in ("first", "second", "third"):
            body = pod(name, container("my-app", "c", **cpu("1")), claims=())
            body["spec"]["resourceClaims"] = [{"name": "my-c", "resourceClaimTemplateName": "gpu-or-cpu"}]
            await cluster.apply(body)
            if name != "third":
                found.append(await used_by(cluster, name))
        assert found[0] == []
        [entry] = found[1]
        assert entry.items() >= {"containers": ["my-app"], **mapped(release, cpu="6")}.items()
        await wait_for_event(cluster, "third", "cannot allocate all claims")


@EACH
async def test_several_claims_of_a_pod_are_added_and_each_counts_once(release: str) -> None:
    async with cluster_of(release, node("a", cpu="10")) as cluster:
        await cluster.apply(slice_of(*(cpus(release, f"cpu{i}", "1") for i in range(6))), claim("a", 4), claim("b", 2))
        containers = container("c1", "a", "b", **cpu("1")), container("c2", "a", **cpu("2"))
        await cluster.apply(pod("p", *containers, claims=("a", "b")))
        first, second = await used_by(cluster, "p")
        assert first == {"resourceClaimName": "a", "containers": ["c1", "c2"], **mapped(release, cpu="4")}
        assert second == {"resourceClaimName": "b", "containers": ["c1"], **mapped(release, cpu="2")}
        await fits_with(cluster, "1", "1500m")


# --- shared and unused claims -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "text"),
    [("1.36", "is already used by another pod"), ("1.37", "has a mapped device and cannot be shared across pods")],
)
async def test_only_one_pod_uses_a_claim_whose_devices_are_cpus(release: str, text: str) -> None:
    async with cluster_of(release) as cluster:
        await cluster.apply(slice_of(cpus(release, "cpu0", "1")), claim("c"), pod("p"))
        await node_of(cluster, "p")
        await cluster.apply(pod("q"))
        await wait_for_event(cluster, "q", f"node allocatable resource claim c {text}")
        await cluster.client.delete(PODS, "p", "default", grace=0)
        assert await used_by(cluster, "q")


async def test_each_pod_of_a_shared_claim_counts_the_overhead() -> None:
    gpu = {"name": "gpu", "nodeAllocatableResources": {"cpu": {"overhead": {"perPod": "3"}}}}
    async with cluster_of("1.37") as cluster:
        await cluster.apply(slice_of(gpu), claim("c"), pod("p"), pod("q"))
        assert await used_by(cluster, "p") == await used_by(cluster, "q")
        await cluster.apply(pod("r"))
        await wait_for_event(cluster, "r", "Insufficient cpu")


async def test_a_claim_that_no_container_uses_counts_since_1_37() -> None:
    async with cluster_of("1.37") as cluster:
        await cluster.apply(slice_of(cpus("1.37", "cpus", "6")), claim("c"), pod("p", container("main")))
        [entry] = await used_by(cluster, "p")
        assert entry == {"resourceClaimName": "c", **mapped("1.37", cpu="6")}
        await fits_with(cluster, "2", "2500m")


async def test_a_claim_that_no_container_uses_is_refused_in_1_36() -> None:
    async with cluster_of("1.36") as cluster:
        await cluster.apply(slice_of(cpus("1.36", "cpus", "6")), claim("c"), pod("p", container("main")))
        await wait_for_event(cluster, "p", "not referenced by any container within the pod")


async def test_the_claim_of_an_extended_resource_is_named_when_it_exists() -> None:
    async with cluster_of("1.37", cpu={"extendedResourceName": "example.com/cpus"}) as cluster:
        await cluster.apply(slice_of(cpus("1.37", "cpus", "6")))
        await cluster.apply(pod("p", container("main", limits={"example.com/cpus": "1"}), claims=()))
        [entry] = await used_by(cluster, "p")
        assert entry["mapping"] == [{"name": "cpu", "quantity": "6"}]
        assert await cluster.client.get(CLAIMS, entry["resourceClaimName"], "default")


# --- nodes that are too small -----------------------------------------------------------------------


@EACH
async def test_a_pod_waits_until_its_node_has_enough_for_pod_and_devices(release: str) -> None:
    async with cluster_of(release) as cluster:
        await cluster.apply(slice_of(cpus(release, "cpus", "6")), claim("c"))
        await cluster.apply(pod("other", container("main", **cpu("1")), claims=()))
        await node_of(cluster, "other")
        await cluster.apply(pod("p", container("main", "c", **cpu("2"))))
        text = await wait_for_event(cluster, "p", "Insufficient cpu")
        assert "0/1 nodes are available: 1 Insufficient cpu." in text
        assert "allocation" not in ((await cluster.client.get(CLAIMS, "c", "default")).get("status") or {})
        await cluster.client.delete(PODS, "other", "default", grace=0)
        assert await used_by(cluster, "p")


async def test_a_node_with_enough_is_selected() -> None:
    async with cluster_of("1.37", node("a"), node("b", cpu="32")) as cluster:
        await cluster.apply(slice_of(cpus("1.37", "cpus", "16")), slice_of(cpus("1.37", "cpus", "16"), on="b"))
        await cluster.apply(claim("c"), pod("p"))
        assert await node_of(cluster, "p") == "b"


async def test_a_more_important_pod_takes_the_place_of_a_pod_whose_devices_use_the_node() -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    async with cluster_of("1.37") as cluster:
        await cluster.apply(slice_of(cpus("1.37", "cpus", "6")), claim("c"), high)
        await cluster.apply(pod("p", terminationGracePeriodSeconds=0))
        await used_by(cluster, "p")
        await cluster.apply(pod("important", container("main", **cpu("7")), claims=(), priorityClassName="high"))
        assert await node_of(cluster, "important") == "a"
        await wait_for_event(cluster, "p", "Preempted")


@pytest.mark.parametrize(
    ("resources", "own", "text"),
    [
        (cpu("6"), {}, ""),
        (
            cpu("5"),
            {},
            "pod level request for cpu is insufficient to cover the aggregated container and node-allocatable",
        ),
        (
            {"limits": {"cpu": "7"}, **cpu("7")},
            {"limits": {"cpu": "4"}},
            "pod level limit for cpu is insufficient to cover the limit and DRA overhead for container main",
        ),
    ],
)
async def test_the_resources_of_a_whole_pod_contain_those_of_its_devices(resources: JSON, own: JSON, text: str) -> None:
    async with cluster_of("1.37") as cluster:
        await cluster.apply(slice_of(cpus("1.37", "cpus", "4")), claim("c"))
        await cluster.apply(pod("p", container("main", "c", **cpu("2"), **own), resources=resources))
        if text:
            await wait_for_event(cluster, "p", text)
        else:
            assert await used_by(cluster, "p")
            await fits_with(cluster, "2", "2500m")


# --- the rest of the cluster ------------------------------------------------------------------------


@pytest.mark.parametrize(("gate", "release"), [(True, "1.36"), (True, "1.37"), (False, "1.36"), (False, "1.37")])
async def test_devices_use_their_node_only_if_the_gate_is_on(gate: bool, release: str) -> None:
    async with cluster_of(release, gate=gate) as cluster:
        await cluster.apply(slice_of(cpus(release, "cpus", "16")), claim("c"), pod("p"))
        [stored] = (await cluster.client.list(SLICES))["items"]
        assert stored["spec"]["devices"] == [cpus(release, "cpus", "16") if gate else {"name": "cpus"}]
        if gate:
            await wait_for_event(cluster, "p", "Insufficient cpu")
        else:
            assert await used_by(cluster, "p") == []


@EACH
async def test_the_kubelet_admits_a_pod_only_if_its_node_has_enough_and_keeps_the_status(release: str) -> None:
    features = Features.of(release, {GATE: True})
    async with LocalCluster(features=features, timers=TIMERS) as cluster:
        harness = KubeletHarness(cluster)
        async with harness.plugin():
            await harness.wait_until_registered()
            allocatable = (await cluster.client.get(NODES, "node-1"))["status"]["allocatable"]
            half = str(int(allocatable["cpu"]) // 2 + 1)
            await cluster.apply(
                {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "sim"}, "spec": {}},
                slice_of(cpus(release, "d0", half), on="node-1", driver="toy.example.com"),
                claim("c"),
                pod("p"),
            )
            await cluster.wait_running("p")
            assert [e["resourceClaimName"] for e in await used_by(cluster, "p")] == ["c"]
            bound = pod("q", container("main", **cpu(half)), claims=(), nodeName="node-1")
            await cluster.apply(bound)

            async def refused() -> bool:
                status = (await cluster.client.get(PODS, "q", "default"))["status"]
                return bool(status.get("reason") == "OutOfcpu")

            await cluster.wait("the kubelet to refuse the pod", refused)
