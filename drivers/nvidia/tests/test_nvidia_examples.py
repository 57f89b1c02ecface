"""Runs each manifest of ``examples`` that has the form of a demonstration of NVIDIA's own DRA driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_devkit.testing import node_with

from nvidia.driver import Nvidia
from nvidia.replacement import NvidiaReplacement

PACKAGE = Path(__file__).parents[1]
H100 = PACKAGE / "hosts/two-h100.yaml"
GPU0, GPU1 = "/dev/nvidia0", "/dev/nvidia1"
# The GPUs of each container; * is any of them.
WANTED = {
    "one-gpu-each": {"pod1/main": [GPU0], "pod2/main": [GPU1]},
    "shared-by-containers": {"pod/ctr0": [GPU0], "pod/ctr1": [GPU0]},
    "shared-by-pods": {"pod1/main": [GPU0], "pod2/main": [GPU0]},
    "mig": {f"pod/ctr{i}": [GPU0] for i in range(4)},
    "time-slicing": {"pod1/main": [GPU0], "pod2/main": [GPU0]},
    "mps": {"pod1/main": [GPU0], "pod2/main": [GPU0]},
    "selectors": {"pod/main": [GPU0]},
    "extended-resource": {"pod/main": [GPU0]},
}


QUICK = ("mig", "extended-resource")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in WANTED]


@pytest.mark.parametrize("name", EACH)
async def test_an_example_runs_and_each_container_sees_its_gpu_only(name: str) -> None:
    file = PACKAGE / f"examples/{name}.yaml"
    pods = [d["metadata"] for d in yaml.safe_load_all(file.read_text()) if d["kind"] == "Pod"]
    async with node_with(NvidiaReplacement, host=H100, options={"nvidia_mig": "dynamic"}) as node:
        await node.api.apply_file(PACKAGE / "examples/classes.yaml")
        await node.api.apply_file(file)
        seen: dict[str, Any] = {}
        for meta in pods:
            pod = await node.api.wait_running(meta["name"], namespace=meta["namespace"])
            for container in pod["spec"]["containers"]:
                paths = [d["path"] for d in node.oci(pod, container["name"])["linux"]["devices"]]
                seen[f"{meta['name']}/{container['name']}"] = [p for p in paths if p in {GPU0, GPU1}]
                caps = [p for p in paths if p.startswith("/dev/nvidia-caps/")]
                assert len(caps) == (2 if name == "mig" else 0)
    assert {k: len(v) for k, v in seen.items()} == {k: len(v) for k, v in WANTED[name].items()}
    if name == "one-gpu-each":  # either pod may get the first GPU
        assert sorted(v[0] for v in seen.values()) == [GPU0, GPU1]
    else:
        assert seen == WANTED[name]


def test_the_supervisor_of_mps_sees_the_same_folders_as_the_plugin() -> None:
    """The plugin names programs and folders that the supervisor starts and uses."""
    values = yaml.safe_load((PACKAGE / "deploy/values.yaml").read_text())
    plugin, supervisor = (values["pods"][pod] for pod in ("plugin", "supervisor"))
    assert values["features"]["supervisor"] is True and Nvidia.processes
    assert (supervisor["volumes"], supervisor["volumeMounts"]) == (plugin["volumes"], plugin["volumeMounts"])


async def test_the_example_of_the_drivers_own_name() -> None:
    async with node_with(Nvidia, host=PACKAGE / "hosts/h100.yaml") as node:
        await node.api.apply_file(PACKAGE / "deploy/deviceclass.yaml")
        await node.api.apply_file(PACKAGE / "examples/pod.yaml")
        pod = await node.api.wait_running("one-gpu")
        assert GPU0 in [d["path"] for d in node.oci(pod)["linux"]["devices"]]
