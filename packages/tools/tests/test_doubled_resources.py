"""A resource from a device plugin and from a driver on one node is named by doctor, top and explain."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_tools import Snapshot, explain
from dra_tools.doctor import Finding, Level, published
from dra_tools.top.overview import overview
from tests.helpers.objects import device_class, slice_of

RESOURCE = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
DRIVER = "gpu.example.com"


def node(name: str, **allocatable: str) -> JSON:
    status = {"allocatable": {"cpu": "8", "pods": "110"} | {k.replace("__", "/"): v for k, v in allocatable.items()}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def doubled_node(name: str = "node-1", resource: str = RESOURCE, amount: str = "8") -> JSON:
    found = node(name)
    found["status"]["allocatable"][resource] = amount
    return found


def gpu_class(expression: str = f'device.driver == "{DRIVER}"', **spec: Any) -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": RESOURCE} | spec,
    }  # fmt: skip


def gpu_slice(node_name: str = "node-1", **more: Any) -> JSON:
    spec: JSON = {
        "driver": DRIVER,
        "nodeName": node_name,
        "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
    }
    spec |= {"devices": [{"name": "gpu-0"}]} | more
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"s-{node_name}"},
        "spec": spec,
    }


def waiting_pod(resource: str = RESOURCE) -> JSON:
    container = {"name": "c", "resources": {"requests": {resource: "9"}, "limits": {resource: "9"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container]},
        "status": {"phase": "Pending"},
    }


@pytest.mark.parametrize("resource", [RESOURCE, IMPLICIT])
@pytest.mark.parametrize(
    "sl",
    [gpu_slice(), gpu_slice(nodeName=None, allNodes=True), gpu_slice(devices=[{"name": "other"}, {"name": "gpu-0"}])],
)
def test_top_and_explain_name_a_resource_that_a_node_has_twice(resource: str, sl: JSON) -> None:
    snapshot = Snapshot.of([doubled_node(resource=resource), gpu_class(), sl, waiting_pod(resource)])
    expected = f"node-1 has {resource} from a device plugin and from {DRIVER} (DeviceClass gpu)"
    assert any(expected in note for note in overview(snapshot).notes)
    assert any(expected in note for note in overview(snapshot, "node-1").notes)
    assert any(expected in note for note in explain(snapshot, "p").notes)


@pytest.mark.parametrize(
    "objects",
    [
        [node("node-1"), gpu_class(), gpu_slice()],
        [doubled_node(amount="0"), gpu_class(), gpu_slice()],
        [doubled_node(), gpu_class(extendedResourceName=None), gpu_slice()],
        [doubled_node(), gpu_class("false"), gpu_slice()],
        [doubled_node(), gpu_class(), gpu_slice("node-2")],
        [doubled_node(), gpu_class(), gpu_slice(devices=[])],
    ],
    ids=["no plugin", "plugin removed", "no class", "class selects none", "other node", "no devices"],
)
def test_a_resource_from_one_source_is_no_problem(objects: list[JSON]) -> None:
    snapshot = Snapshot.of([*objects, node("node-2")])
    assert not [note for note in overview(snapshot).notes if "device plugin" in note]


def test_nodes_with_the_same_problem_share_a_sentence() -> None:
    nodes = [doubled_node(f"n{i}") for i in range(12)]
    snapshot = Snapshot.of([*nodes, gpu_class(), *(gpu_slice(f"n{i}") for i in range(12))])
    (note,) = [note for note in overview(snapshot).notes if "device plugin" in note]
    assert note.startswith("n0, n1, n2 and 9 more have example.com/gpu from a device plugin")


async def test_doctor_warns_about_a_device_plugin_beside_a_driver() -> None:
    async with LocalCluster() as cluster:
        of_class = device_class()
        of_class["spec"]["extendedResourceName"] = RESOURCE
        await cluster.apply(of_class, slice_of("node-1", ["gpu-0"]))
        async with KubeClient(cluster.config) as client:

            async def findings(name: str) -> list[Finding]:
                return [f async for f in published.look(client, name) if "device plugin" in f.text]

            assert await findings("node-1") == []
            patch = {"status": {"capacity": {RESOURCE: "8"}, "allocatable": {RESOURCE: "8"}}}
            path = "/api/v1/nodes/node-1/status"
            await client.call("PATCH", path, patch, content_type="application/merge-patch+json")
            for name in ("", "node-1"):
                (found,) = await findings(name)
                assert found.level is Level.WARNING
                assert f"node-1 has {RESOURCE} from a device plugin and from " in found.text
            assert await findings("node-2") == []


async def test_doctor_names_a_driver_with_devices_and_without_a_plugin() -> None:
    async with LocalCluster() as cluster:
        await cluster.apply(device_class(), slice_of("node-1", ["gpu-0"]))
        (driver,) = {s["spec"]["driver"] for s in [slice_of("node-1", ["gpu-0"])]}
        async with KubeClient(cluster.config) as client:

            async def failures(name: str, registered: list[str] | None) -> list[str]:
                looked = published.look(client, name, registered=registered)
                return [f.text async for f in looked if f.level is Level.FAILURE]

            expected = f"{driver} has devices on node node-1, but no plugin of it registers with the kubelet: pods with these devices do not start"
            assert await failures("node-1", []) == [expected]
            assert await failures("node-1", ["other.example.com"]) == [expected]
            assert await failures("node-1", [driver]) == []
            assert await failures("node-1", None) == []
            assert await failures("", []) == []
