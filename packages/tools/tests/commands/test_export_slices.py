"""``dra simulate --export-slices``: an autoscaler that copies the exported slices expects the same pods to fit as on the node."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from dra_devkit.commands.described_cluster import allocatable, classes_of
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_tools import Snapshot, simulate
from tests.helpers.objects import claim_spec, pod, slice_of, template
from tests.tools.tree import ROOT


def exported(capsys: pytest.CaptureFixture[str]) -> list[JSON]:
    listed = yaml.safe_load(capsys.readouterr().out)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    return list(listed["items"])


def as_cluster_autoscaler_adds_them(slices: list[JSON], node: str) -> list[JSON]:
    """Returns copies for a new node, as ``SanitizedNodeResourceSlices`` of cluster-autoscaler makes them."""
    out = []
    for sl in slices:
        assert sl["apiVersion"] == "resource.k8s.io/v1"
        assert sl["spec"]["nodeName"], "cluster-autoscaler fails for another slice"
        pool = {**sl["spec"]["pool"], "name": f"{sl['spec']['pool']['name']}-1234"}
        spec = {**sl["spec"], "pool": pool, "nodeName": node}
        out.append({**sl, "metadata": {"name": f"{sl['metadata']['name']}-1234"}, "spec": spec})
    return out


@pytest.mark.parametrize(
    ("driver", "device_class"), [("gpu_example", "gpu.example.com"), ("mig_example", "mig.example.com")]
)
def test_as_many_pods_fit_on_a_new_node_of_an_autoscaler_as_on_the_described_host(
    driver: str, device_class: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(ROOT / "drivers" / driver)
    host = ["--host", "nvlink-server", "--driver", folder]
    manifests = [template("t", claim_spec(device_class=device_class)), pod("p", templates=["t"])]
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump_all(manifests))
    assert main(["simulate", "-f", str(tmp_path / "pod.yaml"), *host, "--fill", "-o", "json"]) == 0
    (on_host,) = json.loads(capsys.readouterr().out)["workloads"]
    assert main(["simulate", "--export-slices", *host]) == 0
    slices = as_cluster_autoscaler_adds_them(exported(capsys), "new")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "new"}, "status": {"allocatable": allocatable("")}}
    (on_new,) = simulate(Snapshot.of([node, *slices, *classes_of(folder)]), manifests, fill=True).workloads
    assert (len(on_new.placed), on_new.more) == (1, on_host["more"])
    assert on_host["more"] > 1


async def test_the_slices_of_a_node_are_exported_without_those_of_others_and_of_old_generations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    new, old, other = slice_of("node-1", ["a", "b"]), slice_of("node-1", ["a"], name="old"), slice_of("node-2", ["c"])
    new["spec"]["pool"]["generation"] = 2
    new["spec"]["devices"][0]["attributes"] = {"model": {"string": "x"}}
    async with LocalCluster() as cluster:
        await cluster.apply(new, old, other)
        words = ["simulate", "--export-slices", "--kubeconfig", str(cluster.kubeconfig), "--node", "node-1"]
        assert await asyncio.to_thread(main, words) == 0
    (sl,) = exported(capsys)
    assert sl == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": new["metadata"]["name"]},
        "spec": new["spec"],
    }


async def test_an_incomplete_pool_is_left_out_and_the_exit_code_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = slice_of("node-1", ["a"]), slice_of("node-1", ["b"], driver="other.example.com", name="part")
    part["spec"]["pool"]["resourceSliceCount"] = 2
    async with LocalCluster() as cluster:
        await cluster.apply(whole, part)
        words = ["simulate", "--export-slices", "--kubeconfig", str(cluster.kubeconfig), "--node", "node-1"]
        assert await asyncio.to_thread(main, words) == 3
    printed = capsys.readouterr()
    assert [s["spec"]["driver"] for s in yaml.safe_load(printed.out)["items"]] == [whole["spec"]["driver"]]
    assert "pool node-1 of other.example.com is not exported: it has 1 of 2 slices" in printed.err


async def test_a_pool_of_several_nodes_is_left_out_and_does_not_look_incomplete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Running the command again would not help: the other slices of the pool are those of node-2."""
    whole = slice_of("node-1", ["a"])
    parts = [slice_of(node, ["b"], driver="rack.example.com", name=f"rack-{node}") for node in ("node-1", "node-2")]
    for part in parts:
        part["spec"]["pool"] = {"name": "rack", "generation": 1, "resourceSliceCount": 2}
    async with LocalCluster() as cluster:
        await cluster.apply(whole, *parts)
        words = ["simulate", "--export-slices", "--kubeconfig", str(cluster.kubeconfig), "--node", "node-1"]
        assert await asyncio.to_thread(main, words) == 0
    printed = capsys.readouterr()
    assert [s["spec"]["driver"] for s in yaml.safe_load(printed.out)["items"]] == [whole["spec"]["driver"]]
    assert "pool rack of rack.example.com is not exported: its devices are not only of node node-1" in printed.err
    assert "run the command again" not in printed.err


def test_a_device_with_a_taint_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    driver = tmp_path / "acme.py"
    driver.write_text(
        "from dra_kubeletplugin import Device, Driver, Taint\n\n\nclass Acme(Driver):\n    name = 'acme.example.com'\n\n"
        "    def devices(self):\n        return [Device('a', taints=[Taint(key='acme.example.com/worn', effect='NoSchedule')])]\n\n"
        "    def prepare(self, claim):\n        return []\n"
    )
    assert main(["simulate", "--export-slices", "--host", "virtual-machine", "--driver", str(driver)]) == 0
    assert "device a of acme.example.com has the taint acme.example.com/worn" in capsys.readouterr().err


CLONE = ["--driver", str(ROOT / "drivers/gpu_example")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "virtual-machine=2", *CLONE], "--export-slices exports one node"),
        (["--host", "virtual-machine", "--host", "nvlink-server", *CLONE], "--export-slices exports one node"),
        (["--host", "virtual-machine", *CLONE, "--node", "n"], "--node selects a node of a cluster"),
        (["--host", "virtual-machine", *CLONE, "-f", "pod.yaml"], "-f cannot be used with --export-slices"),
        ([], "add --node with a node of the cluster"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--export-slices", *words]) == 2
    assert message in capsys.readouterr().err


def test_devices_of_no_node_are_not_exported(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--host", "virtual-machine", "--driver", str(ROOT / "drivers/fabric_example")]
    assert main(["simulate", "--export-slices", *words]) == 2
    error = capsys.readouterr().err
    assert "pool fabric of fabric.dra-kubeletplugin.dev is not exported" in error
    assert "has no slices to export" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "-f FILE is missing"), (["-f", "pod.yaml", "--node", "n"], "--node is for --export-slices")],
)
def test_simulate_needs_manifests_and_has_no_node(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words]) == 2
    assert message in capsys.readouterr().err
