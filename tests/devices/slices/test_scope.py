"""Pools that two publishers claim: controllers in two namespaces, and a node's pool with the name of another node."""

from __future__ import annotations

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
    """Returns a controller's inventory with one device per pool; ``pools`` maps a pool to its device."""
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


async def test_a_controller_does_not_publish_a_pool_while_another_controller_has_slices_of_it() -> None:
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


async def test_one_of_two_controllers_that_publish_one_pool_at_once_prevails() -> None:
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


async def test_a_controller_takes_over_a_slice_without_an_owner_with_its_pool() -> None:
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


async def test_a_pool_is_not_published_if_its_name_does_not_begin_with_the_node_name() -> None:
    """The rule also applies if no node has the name, because a node may get the name later."""
    inventory = await make_inventory()
    names = ("node", "node/1", "node-b", "node-b/1", "node1/a", "serial-77", "No Name")
    await inventory.update([Pool(n, [Device("a")]) for n in names])
    async with scripted_api_server() as server, running_publisher(server, inventory) as publisher:
        await publisher.current()
        assert sorted(published(server)) == ["node", "node/1"]
    refused = "a pool of node node must be named 'node', or begin with 'node/'"
    assert all(refused in inventory.rejected[f"pool {n}"] for n in names[2:-1])
    assert "a lowercase RFC 1123 subdomain must consist of" in inventory.rejected["pool No Name"]
