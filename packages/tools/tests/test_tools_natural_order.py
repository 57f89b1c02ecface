"""The views of explain, top, doctor and inspect sort names by the numbers in them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from dra_devkit.commands.inspect import tree
from dra_devkit.commands.style import Style
from dra_devkit.hosts import described
from dra_kubeletplugin import cli
from dra_kubeletplugin.host import Host
from dra_tools import Snapshot, explain, overview
from dra_tools.doctor import published
from tests.helpers.objects import claim, claim_spec, device_class, pod, slice_of

NODES = [f"nimbus-{i}" for i in range(1, 12)]


@pytest.fixture
def snapshot() -> Snapshot:
    """Returns pods whose claim requests two devices, and nodes with one device each, in random order."""
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {}} for name in NODES]
    slices = [slice_of(name, ["d0"]) for name in NODES]
    objects = [*nodes, *slices]
    random.Random(1).shuffle(objects)
    pods = [pod(f"p-{i}", claims=["c"]) for i in (10, 2, 1)]
    return Snapshot.of([device_class(), claim("c", claim_spec(count=2)), *pods, *objects])


def test_explain_lists_nodes_of_a_group_in_order(snapshot: Snapshot) -> None:
    [group] = explain(snapshot, "pod/p-1").groups
    assert list(group.nodes) == NODES


def test_explain_lists_waiting_pods_in_order(
    snapshot: Snapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all([o for objects in snapshot.objects.values() for o in objects]))
    assert cli.main(["explain", "-f", str(file)]) == 1
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["default/p-1", "default/p-2", "default/p-10"]


def test_top_lists_nodes_in_order(snapshot: Snapshot) -> None:
    assert [n.name for n in overview(snapshot).nodes] == NODES


def test_doctor_lists_pools_and_missing_nodes_in_order(snapshot: Snapshot) -> None:
    incomplete = [
        {**s, "spec": {**s["spec"], "pool": {**s["spec"]["pool"], "resourceSliceCount": 2}}} for s in snapshot.slices
    ]
    *pools, missing = [f.text for f in published.faults(incomplete, set())]
    assert [text.split()[1].rstrip(":").rpartition("/")[2] for text in pools] == NODES
    assert missing.endswith("nimbus-1, nimbus-2, nimbus-3 and 8 more")


def test_inspect_lists_pcie_roots_in_order(tmp_path: Path) -> None:
    addresses = ["10000:00:01.0", "2000:00:01.0"]  # VMD controllers create domains with five digits.
    functions = [{"address": address, "vendor": 0x10EE, "device": 1} for address in addresses]
    root = described.build(tmp_path, {"functions": functions})
    heads = [line for line in tree(Host(root).pci(), {}, Style(coloured=False)) if line.startswith("pci")]
    assert heads == ["pci2000:00", "pci10000:00"]
