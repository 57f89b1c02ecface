"""Tests on a real GPU with real containers (runc). ``make gpu`` runs them; without a GPU they are skipped."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.runtime.interface import LogOptions
from dra_devkit.localcluster.runtime.runc_runtime import factory
from dra_devkit.testing import DriverNode, on_node
from dra_devkit.testing.claims import CLASS

from nvidia.driver import Nvidia

HERE = Path(__file__).parent
sys.path.append(str(HERE))
import python_image  # noqa: E402 - beside this file

ATTRIBUTES = f'device.attributes["{Nvidia.name}"]'
Server = DriverNode[Nvidia]

pytestmark = [
    pytest.mark.skipif(not Path("/proc/driver/nvidia/version").exists(), reason="needs a GPU with NVIDIA's driver"),
    pytest.mark.skipif(not shutil.which("runc") or os.geteuid() != 0, reason="needs runc and root"),
]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("image")
    return folder, python_image.make(folder, HERE / "cuda_program.py")


@contextlib.asynccontextmanager
async def server(image: tuple[Path, str], **options: Any) -> AsyncIterator[Server]:
    runtimes = await factory({"cuda": image[0]})
    async with LocalCluster(runtimes=runtimes) as cluster, on_node(cluster, Nvidia, options=options) as node:
        yield node


def pod(name: str, python: str, *, claim: str = "", fault: bool = False) -> dict[str, Any]:
    command = [python, "/cuda_program.py", *(["fault"] if fault else [])]
    container: dict[str, Any] = {"name": "main", "image": "cuda", "command": command}
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if claim:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
        container["resources"] = {"claims": [{"name": "gpu"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def claim(name: str, expression: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    exactly = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": expression}}]}
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if parameters:
        devices["config"] = [{"opaque": {"driver": Nvidia.name, "parameters": parameters}}]
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": {"devices": devices}}


async def ended(node: Server, name: str) -> tuple[int, list[str]]:
    """Waits for the end of a pod. Returns its exit code and its log."""

    async def status() -> Any:
        found = await node.api.get("Pod", name) or {}
        (state,) = [s["state"] for s in found.get("status", {}).get("containerStatuses") or []] or [{}]
        return state.get("terminated")

    code = (await node.api.wait(f"the end of pod {name}", status, timeout=120))["exitCode"]
    uid = (await node.api.get("Pod", name) or {})["metadata"]["uid"]
    parts = [part async for part in node.cluster.node.runtime.logs(uid, "main", LogOptions())]
    return code, b"".join(parts).decode().splitlines()


async def test_a_pod_with_a_claim_runs_a_kernel_and_a_pod_without_finds_no_gpu(image: Any, report: Any) -> None:
    async with server(image) as node:
        published = await node.published()
        report["devices"] = {n: {**d.attributes} for n, d in published.items()}
        assert published
        await node.api.apply(
            claim("gpu", f'{ATTRIBUTES}.type == "gpu"'), pod("with", image[1], claim="gpu"), pod("without", image[1])
        )
        code, log = await ended(node, "with")
        report["with a claim"] = log
        assert (code, any("kernel right" in line for line in log)) == (0, True), log
        code, log = await ended(node, "without")
        report["without a claim"] = log
        assert code != 0, log


async def test_two_pods_share_a_gpu_and_nothing_is_left(image: Any, report: Any) -> None:
    async with server(image) as node:
        await node.api.apply(claim("gpu", f'{ATTRIBUTES}.type == "gpu"'))
        await node.api.apply(pod("one", image[1], claim="gpu"), pod("two", image[1], claim="gpu"))
        assert [(await ended(node, name))[0] for name in ("one", "two")] == [0, 0]
        for name in ("one", "two"):
            await node.delete_pod(name)
        report["left"] = await node.leftovers()
        assert not any(report["left"].values())


async def test_an_xid_of_a_program_becomes_an_informational_taint(image: Any, report: Any) -> None:
    async with server(image) as node:
        begun = time.monotonic()
        await node.api.apply(
            claim("gpu", f'{ATTRIBUTES}.type == "gpu"'), pod("fault", image[1], claim="gpu", fault=True)
        )
        code, log = await ended(node, "fault")
        assert code == 200, log
        published = await node.wait_published(lambda p: any(d.taints for d in p.values()))
        report["taint after a fault"] = [t for d in published.values() for t in d.taints]
        report["fault to taint, s"] = round(time.monotonic() - begun, 2)
        assert {t.effect for t in report["taint after a fault"]} == {"None"}


async def test_cel_on_the_attributes_of_the_gpu(image: Any) -> None:
    expression = (
        f'{ATTRIBUTES}.type == "gpu" && {ATTRIBUTES}.cudaComputeCapability.compareTo(semver("5.0.0")) > 0 && '
        f'device.capacity["{Nvidia.name}"].memory.compareTo(quantity("1Gi")) > 0'
    )
    async with server(image) as node:
        await node.api.apply(claim("gpu", expression), pod("with", image[1], claim="gpu"))
        assert (await ended(node, "with"))[0] == 0


@pytest.mark.usefixtures("change_settings")
async def test_a_kernel_runs_on_a_mig_instance_which_is_destroyed_afterwards(image: Any, report: Any) -> None:
    async with server(image, nvidia_mig="dynamic") as node:
        published = await node.published()
        parts = [n for n, d in published.items() if d.attributes["type"] == "mig"]
        if not parts:
            pytest.skip("the GPU has no MIG, or cannot change the mode without a reset")
        begun = time.monotonic()
        await node.api.apply(claim("mig", f'{ATTRIBUTES}.type == "mig"'), pod("mig", image[1], claim="mig"))
        code, log = await ended(node, "mig")
        report["mig"], report["mig, s"] = log, round(time.monotonic() - begun, 2)
        assert code == 0, log
        await node.delete_pod("mig")
        assert not any((await node.leftovers()).values())
        assert list(node.driver.recover()) == []


@pytest.mark.usefixtures("change_settings")
async def test_a_time_slice_is_set_and_reset(image: Any) -> None:
    slicing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": slicing}
    async with server(image) as node:
        await node.api.apply(claim("gpu", f'{ATTRIBUTES}.type == "gpu"', parameters), pod("pod", image[1], claim="gpu"))
        assert (await ended(node, "pod"))[0] == 0
        await node.delete_pod("pod")
