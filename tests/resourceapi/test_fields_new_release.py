"""A new release is one line of the table, and a new field of devices changes three files, as the page for maintainers describes."""

from __future__ import annotations

from pathlib import Path

from tests.resourceapi.new_release import TABLE, ChangedTree, blocks

EMPTY_RELEASE = """
import asyncio
from dra_devkit.kubernetes_releases import RELEASES, Features, Stage, stage
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.kube.resource import NODES

async def main():
    newest, before = Features.of("1.38"), Features.of("1.37")
    assert RELEASES[-1] == "1.38" and (newest.gates, newest.taint_rules) == (before.gates, before.taint_rules)
    assert (newest.kubelet, newest.allocator) == (before.kubelet, before.allocator)
    async with LocalCluster(features=newest) as cluster:
        node = await cluster.client.get(NODES, "node-1")
        assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.38.0"), node

asyncio.run(main())
"""
CHANGED_GATE = """
from dra_devkit.kubernetes_releases import Stage, stage

assert [stage("DRAPartitionableDevices", r) for r in ("1.37", "1.38")] == [Stage.BETA, Stage.STABLE]
"""
NEW_FIELD = """
import asyncio
from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver.manifest_validation import object_errors
from dra_devkit.schemas import shapes
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing.node import on_node
from dra_kubeletplugin import ContainerEdits, Device, Driver, Gate
from dra_kubeletplugin.resourceapi.decoding import read_device
from dra_kubeletplugin.kube.resource import SLICES
from dra_tools.unevaluated.objects import unknown_fields

class Quiet(Driver):
    name = "quiet.example.com"
    def devices(self):
        return [Device("d", quiet=True)]
    def prepare(self, claim):
        return [d.prepared(ContainerEdits()) for d in claim.devices]
    def unprepare(self, claim):
        pass

async def main():
    assert read_device(Device("d", quiet=True).json()) == Device("d", quiet=True)
    assert shapes.named("resource.v1beta1.BasicDevice").fields["quiet"].wire == (15,)
    for gates in ({"DRADeviceColors": True}, {}):
        async with LocalCluster(features=Features.of("1.38", gates)) as cluster, on_node(cluster, Quiet) as node:
            await node.published()
            [stored] = (await cluster.client.list(SLICES))["items"]
            assert stored["spec"]["devices"] == [{"name": "d"} | ({"quiet": True} if gates else {})], stored
            assert node.driver.gates_off == (set() if gates else {Gate.COLORS})
    slice_ = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {**stored["spec"], "devices": [{"name": "d", "quiet": True}]}}
    assert list(unknown_fields(slice_)) == []
    warnings = []
    assert object_errors(slice_, Features.of("1.38"), warnings=warnings) == []
    assert "it needs the feature gate DRADeviceColors, which is off by default in 1.38" in str(warnings)
    assert "Kubernetes 1.38 adds it" in str(object_errors(slice_, Features.of("1.37")))

asyncio.run(main())
"""

OTHER_FIELDS = """
[gates]
DRADeviceColors = { stages = { "1.38" = "alpha" }, source = "KEP-9999" }

[types.ExactDeviceRequest]
color = { type = "string", since = "1.38", gate = "DRADeviceColors", unevaluated = "colors (KEP-9999)", wire = 12 }

[types.DeviceRequestAllocationResult]
colors = { type = "[]string", since = "1.38", gate = "DRADeviceColors", wire = 12 }

[types.DeviceClassSpec]
color = { type = "string", since = "1.38", gate = "DRADeviceColors", unevaluated = "colors (KEP-9999)", wire = 12 }
"""
NEW_FIELDS_OF_CLAIMS = """
import asyncio
from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.schemas import protobuf
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES
from dra_kubeletplugin.resourceapi.conversion import convert
from dra_tools.unevaluated.objects import unevaluated_features, unknown_fields

head = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "x", "namespace": "default"}}
request = {"name": "r", "exactly": {"deviceClassName": "x", "color": "red"}}
claim = {**head, "kind": "ResourceClaim", "spec": {"devices": {"requests": [request]}}}
result = {"request": "r", "driver": "d.example.com", "pool": "p", "device": "d", "colors": ["red"]}
device_class = {**head, "kind": "DeviceClass", "spec": {"color": "red"}}

async def main():
    for is_on in (True, False):
        api = ApiServer(features=Features.of("1.38", {"DRADeviceColors": True} if is_on else {}))
        await api.start()
        async with KubeClient(api.config) as client:
            created = await client.create(CLAIMS, claim)
            status = {"allocation": {"devices": {"results": [result]}}}
            stored = await client.update(CLAIMS, {**created, "status": status}, "status")
            of_class = await client.create(CLASSES, device_class)
        await api.close()
        kept = [stored["spec"]["devices"]["requests"][0]["exactly"], stored["status"]["allocation"]["devices"]["results"][0], of_class["spec"]]
        assert all(("color" in k or "colors" in k) == is_on for k in kept), kept
        assert convert(convert(stored, "v1beta1"), "v1") == protobuf.decode(protobuf.encode(stored)) == stored
    for obj in (claim, device_class):
        assert (list(unevaluated_features(obj)), list(unknown_fields(obj))) == (["colors (KEP-9999)"], []), obj

asyncio.run(main())
"""
NO_V1BETA1 = """
[kinds]
ResourceSlice = { "1.34" = ["v1", "v1beta2", "v1beta1"], "1.38" = ["v1", "v1beta2"] }
ResourceClaim = { "1.34" = ["v1", "v1beta2", "v1beta1"], "1.38" = ["v1", "v1beta2"] }
ResourceClaimTemplate = { "1.34" = ["v1", "v1beta2", "v1beta1"], "1.38" = ["v1", "v1beta2"] }
DeviceClass = { "1.34" = ["v1", "v1beta2", "v1beta1"], "1.38" = ["v1", "v1beta2"] }
"""
SERVED = """
import asyncio
from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.kube import KubeClient

async def main():
    for release, versions in (("1.37", ["v1", "v1beta2", "v1beta1", "v1alpha3"]), ("1.38", ["v1", "v1beta2", "v1alpha3"])):
        api = ApiServer(features=Features.of(release, None, {"api/all": True}))
        await api.start()
        async with KubeClient(api.config) as client:
            group = await client.call("GET", "/apis/resource.k8s.io", None)
        await api.close()
        assert [v["version"] for v in group["versions"]] == versions, group

asyncio.run(main())
"""


def test_an_empty_release_is_one_line_of_the_table(tmp_path: Path) -> None:
    tree = ChangedTree(tmp_path)
    release, gate, _ = blocks()
    tree.add_rows(release)
    assert tree.changed == {TABLE}
    tree.run(EMPTY_RELEASE)
    tree.add_rows(gate)
    tree.run(CHANGED_GATE)


def test_a_new_field_of_devices_changes_three_files(tmp_path: Path) -> None:
    tree = ChangedTree(tmp_path)
    release, _, field = blocks()
    tree.add_rows(release)
    tree.add_rows(field)
    tree.replace(
        "src/dra_kubeletplugin/resourceapi/gated_fields.py",
        "    PARTITIONS = ",
        '    COLORS = "DRADeviceColors"\n    PARTITIONS = ',
    )
    tree.replace(
        "src/dra_kubeletplugin/resourceapi/types.py",
        "    nodes: Nodes | None = None\n",
        "    nodes: Nodes | None = None\n    quiet: bool = False\n",
    )
    assert len(tree.changed) == 3
    tree.run(NEW_FIELD)


def test_new_fields_of_requests_allocations_and_classes_change_the_table_only(tmp_path: Path) -> None:
    tree = ChangedTree(tmp_path)
    tree.add_rows(blocks()[0])
    tree.add_rows(OTHER_FIELDS)
    assert tree.changed == {TABLE}
    tree.run(NEW_FIELDS_OF_CLAIMS)


def test_a_version_that_a_release_no_longer_serves_is_removed_in_the_table_only(tmp_path: Path) -> None:
    tree = ChangedTree(tmp_path)
    tree.add_rows(blocks()[0])
    tree.add_rows(NO_V1BETA1)
    tree.run(SERVED)
