"""A pod with a device of a pool that no plugin publishes: from the API server's slices to the container."""

from __future__ import annotations

from dra_devkit.testing import node_with
from dra_kubeletplugin import Device
from dra_kubeletplugin.kube.resource import NODES
from tests.helpers.drivers import Toy

RACK = {"key": "rack", "operator": "In", "values": ["r1"]}


async def test_a_pod_gets_a_device_of_the_controller_s_pool_with_a_device_of_this_node() -> None:
    class OneDeviceDriver(Toy):
        async def devices(self) -> list[Device]:
            return [Device("toy-0", attributes={"index": 0})]

    async with node_with(OneDeviceDriver) as node:
        client = node.cluster.client
        await client.patch(NODES, node.cluster.node.name, {"metadata": {"labels": {"rack": "r1"}}})
        fabric = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "fabric"},
            "spec": {
                "driver": OneDeviceDriver.name,
                "pool": {"name": "fabric", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "f-7", "attributes": {"index": {"int": 7}}}],
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [RACK]}]},
            },
        }
        await node.cluster.apply(fabric)
        await node.run_pod(count=2)
        held_devices = await node.plugin.claims.held()
        assert set(held_devices) == {(node.cluster.node.name, "toy-0"), ("fabric", "f-7")}
        assert held_devices["fabric", "f-7"] == {}
        await node.restart()
        assert {s["metadata"]["name"] for s in node.cluster.slices()} > {"fabric"}
        assert not node.plugin.inventory.has_gone
        await node.delete_pod()
        assert (await node.leftovers())["held"] == []
