"""Tests the plugin with servers that serve one version of resource.k8s.io, and with a server that changes its versions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.testing import node_with
from dra_kubeletplugin import (
    Capacity,
    Claim,
    CounterSet,
    Device,
    Driver,
    Health,
    Pool,
    PreparedDevice,
    RequestPolicy,
    Taint,
)
from dra_kubeletplugin.plugin.node import Plugin

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

SLICES = "resourceslices.resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")


class Everything(Driver):
    """A driver whose devices have every field, so that the test converts each field."""

    name = "everything.example.com"
    unhealthy: frozenset[str] = frozenset()

    def pools(self) -> list[Pool]:
        policy = RequestPolicy(default="1Gi", min="1Gi", step="1Gi")
        memory = {"memory": Capacity("8Gi", policy=policy)}
        parts = [Device(f"part-{i}", consumes_counters={"gpu": {"c": 1}}) for i in range(2)]
        shared = Device("shared", attributes={"kind": "shared"}, capacity=memory, allow_multiple_allocations=True)
        return [
            Pool(
                self.settings.node_name,
                [Device("plain", attributes={"kind": "plain"}), shared, *parts],
                [CounterSet("gpu", {"c": 2})],
            )
        ]

    def health(self) -> dict[str, Health]:
        return {
            name: Health(False, "hot", taints=[Taint(key="example.com/hot", effect="NoSchedule")])
            for name in self.unhealthy
        }

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]


def published(node: Any) -> dict[str, Any]:
    return {d["name"]: d for s in node.cluster.slices(Everything.name) for d in s["spec"].get("devices") or []}


async def run_lifecycle(node: Any) -> None:
    """Publishes slices, prepares a claim, taints a device, deletes all slices, and unprepares the claim."""
    await node.plugin.published(60)
    assert set(published(node)) == {"plain", "shared", "part-0", "part-1"}
    assert published(node)["shared"]["capacity"]["memory"]["requestPolicy"]["default"] == "1Gi"
    assert published(node)["part-0"]["consumesCounters"][0]["counterSet"] == "gpu"
    await node.run_pod("pod")
    node.driver.unhealthy = frozenset({"part-1"})

    async def tainted() -> bool:
        return "taints" in published(node).get("part-1", {})

    await node.cluster.wait("the taint", tainted)
    generation = {s["spec"]["pool"]["generation"] for s in node.cluster.slices(Everything.name)}
    assert generation == {1}, "slices that may have taints are written once at the start"
    for found in node.cluster.slices(Everything.name):
        node.cluster.api.storage.remove(SLICES, "", found["metadata"]["name"])

    async def are_slices_back() -> bool:
        return len(published(node)) == 4

    await node.cluster.wait("slices after a wipe", are_slices_back)
    node.driver.unhealthy = frozenset()
    await node.delete_pod("pod")

    async def is_ready() -> bool:
        return "taints" not in published(node).get("part-1", {"taints": 1})

    await node.cluster.wait("no taint", is_ready)
    assert (await node.leftovers())["held"] == []


@contextlib.asynccontextmanager
async def plugin_before(*versions: str) -> AsyncIterator[tuple[Any, ApiServer]]:
    """Yields a node whose plugin finds only these versions. Other components of the cluster use all versions."""
    async with node_with(Everything, health_interval=0.2) as node:
        await node.stop()
        for found in node.cluster.slices(Everything.name):
            node.cluster.api.storage.remove(SLICES, "", found["metadata"]["name"])
        front = ApiServer(storage=node.cluster.api.storage, tokens=node.cluster.api.tokens)
        front.injected_faults.served = set(versions)
        await front.start()
        try:
            await node.start_plugin(Plugin(Everything(), node.settings, front.config))
            yield node, front
            await node.stop()
        finally:
            await front.close()


def written_versions(front: ApiServer) -> set[str]:
    """Returns the versions in which the plugin wrote slices."""
    return {
        path.split("/")[3]
        for method, path in front.injected_faults.calls
        if "resourceslices" in path and method != "GET"
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_plugin_works_with_a_server_that_serves_one_version(version: str) -> None:
    async with plugin_before(version) as (node, front):
        await run_lifecycle(node)
        assert written_versions(front) == {version}
        assert node.plugin.publisher.status.gates_off == frozenset()


@pytest.mark.cases(2)
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(VERSIONS, 2)))
async def test_the_plugin_follows_a_server_that_changes_its_versions(before: str, after: str) -> None:
    async with plugin_before(before) as (node, front):
        await node.plugin.published(60)
        front.injected_faults.calls.clear()
        front.injected_faults.served = {after}
        front.drop_connections()
        await run_lifecycle(node)
        assert written_versions(front) == {after}


async def test_components_of_the_local_cluster_work_if_clients_get_only_an_old_version() -> None:
    async with node_with(Everything) as node:
        node.cluster.api.injected_faults.serve(["v1beta1"])
        api = {"apiVersion": "resource.k8s.io/v1beta1"}
        expected = {"devices": {"requests": [{"name": "r", "deviceClassName": Everything.name}]}}
        claims = [{"name": "c", "resourceClaimName": "old"}]
        container = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "c"}]}}
        await node.cluster.apply(
            {**api, "kind": "DeviceClass", "metadata": {"name": Everything.name}, "spec": {}},
            {**api, "kind": "ResourceClaim", "metadata": {"name": "old"}, "spec": expected},
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "old"},
                "spec": {"containers": [container], "resourceClaims": claims},
            },
        )
        await node.cluster.wait_running("old")
