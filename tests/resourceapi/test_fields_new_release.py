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
from dra_tools.unevaluated.fields import unknown_fields

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
