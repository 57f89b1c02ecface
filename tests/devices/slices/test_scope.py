"""Pools that two would publish: controllers in two namespaces, a node's pool that is named like another node."""

from __future__ import annotations

import asyncio

from dra_kubeletplugin import Device, Nodes, Pool
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices import ClusterScope
from dra_kubeletplugin.driver import Role
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import SLICES
from tests.helpers.publisher import (
    DRIVER,
    ScriptedApiServer,
    make_inventory,
    running_publisher,
    scripted_api_server,
)
from tests.helpers.waiting import wait_until


async def cluster_pools(**pools: str) -> Inventory:
    """A controller's inventory: pool → device."""
    inventory = Inventory("", role=Role.CONTROLLER)
    await inventory.update([Pool(name, [Device(device)], nodes=Nodes.all()) for name, device in pools.items()])
    return inventory


def published(server: ScriptedApiServer) -> dict[str, list[str]]:
    found = server.storage.list("resourceslices.resource.k8s.io")
    out: dict[str, list[str]] = {}
    for slice_ in found:
        out.setdefault(slice_["spec"]["pool"]["name"], []).extend(d["name"] for d in slice_["spec"]["devices"])
    return out


async def test_controllers_of_two_namespaces_leave_each_others_slices_alone() -> None:
    first, second = await cluster_pools(east="a", west="b"), await cluster_pools(north="c")
    async with (
        scripted_api_server() as server,
        running_publisher(server, first, scope=ClusterScope(DRIVER, "one")) as one,
    ):
        await one.current()
        async with running_publisher(server, second, scope=ClusterScope(DRIVER, "two")) as two:
            await two.current()
            await first.update([Pool("east", [Device("a")], nodes=Nodes.all())])
            await one.current()
            await two.current()
            assert published(server) == {"east": ["a"], "north": ["c"]}
            assert not one.fault and not two.fault
            assert [verb for verb, _ in server.written].count("DELETE") == 1


async def test_a_pool_that_a_controller_elsewhere_publishes_is_left_to_it_until_its_slices_are_gone() -> None:
    first, second = await cluster_pools(fabric="a"), await cluster_pools(fabric="b", other="c")
    async with scripted_api_server() as server, KubeClient(server.config) as client:
        async with running_publisher(server, first, scope=ClusterScope(DRIVER, "one")) as one:
            await one.current()
            async with running_publisher(server, second, scope=ClusterScope(DRIVER, "two")) as two:
                await two.current()
                assert published(server) == {"fabric": ["a"], "other": ["c"]}
                assert "namespace 'one'" in second.rejected["pool fabric"]
                assert "-l dra-kubeletplugin.dev/namespace=one" in second.rejected["pool fabric"]
                assert [p.name for p in two.status.pools] == ["other"]
        async with running_publisher(server, second, scope=ClusterScope(DRIVER, "two")) as two:
            await two.current()
            (left,) = (await client.list(SLICES, labels="dra-kubeletplugin.dev/namespace=one"))["items"]
            await client.delete(SLICES, left["metadata"]["name"])
            await wait_until(lambda: published(server) == {"fabric": ["b"], "other": ["c"]})
            assert not second.rejected


async def test_two_controllers_that_publish_one_pool_at_once_end_with_one_of_them() -> None:
    first, second = await cluster_pools(fabric="a"), await cluster_pools(fabric="b")
    async with (
        scripted_api_server() as server,
        running_publisher(server, first, scope=ClusterScope(DRIVER, "one")) as one,
        running_publisher(server, second, scope=ClusterScope(DRIVER, "two")) as two,
    ):
        await wait_until(lambda: len(first.rejected) + len(second.rejected) == 1)
        await one.current()
        await two.current()
        assert published(server) == {"fabric": ["b" if first.rejected else "a"]}


async def test_a_slice_that_is_nobodys_is_taken_over_with_its_pool() -> None:
    inventory = await cluster_pools(fabric="a")
    async with scripted_api_server() as server, KubeClient(server.config) as client:
        async with running_publisher(server, inventory, scope=ClusterScope(DRIVER, "one")) as one:
            await one.current()
            (found,) = (await client.list(SLICES))["items"]
            del found["metadata"]["labels"]
            await client.update(SLICES, found)
            await wait_until(lambda: len(server.written) == 3)
            await one.current()
        assert published(server) == {"fabric": ["a"]}


async def test_a_pool_whose_name_does_not_begin_with_the_nodes_is_not_published() -> None:
    """Whether there is such a node or not: the name may be a node's tomorrow."""
    inventory = await make_inventory()
    names = ("node", "node/1", "node-b", "node-b/1", "node1/a", "serial-77", "No Name")
    await inventory.update([Pool(n, [Device("a")]) for n in names])
    async with scripted_api_server() as server, running_publisher(server, inventory) as publisher:
        await publisher.current()
        assert sorted(published(server)) == ["node", "node/1"]
    refused = "a pool of node node must be named 'node', or begin with 'node/'"
    assert all(refused in inventory.rejected[f"pool {n}"] for n in names[2:-1])
    assert "a lowercase RFC 1123 subdomain must consist of" in inventory.rejected["pool No Name"]


async def test_an_instance_that_has_stepped_back_is_ready_although_a_pool_cannot_be_published() -> None:
    pools = [Pool("node", [Device("a")]), Pool("No Name", [Device("b")])]
    old, new = await make_inventory(), await make_inventory()
    await old.update(pools)
    await new.update(pools)
    async with scripted_api_server() as server, running_publisher(server, new) as newer:
        await newer.current()
        async with running_publisher(server, old, lambda: False) as older, asyncio.timeout(30):
            await older.current()
            assert not older.not_ready()
