"""Tests of whole GPUs, on a described host with two H100. The imitated NVML returns what a real H100 returned."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.runtime import runc
from dra_devkit.localcluster.runtime.interface import LogOptions
from dra_devkit.localcluster.runtime.runc_runtime import factory
from dra_devkit.testing import ClaimSpec, DriverNode, Request, node_with, on_node, pod, template
from dra_kubeletplugin import Capacity, Version, metadata
from dra_kubeletplugin.errors import NotReadyError

from nvidia.driver import Nvidia
from nvidia.hardware_state import HardwareState
from nvidia.replacement import NvidiaReplacement

PACKAGE = Path(__file__).parents[1]
H100 = PACKAGE / "hosts/two-h100.yaml"
ADDRESS = "0000:17:00.0"
FIRST, SECOND = "gpu-0000-17-00-0", "gpu-0000-98-00-0"
UUID = "GPU-4f0c2a6e-7b1d-4e93-a5c8-0d9e6b3f2a17"
Server = DriverNode[Nvidia]


@contextlib.asynccontextmanager
async def server(driver: type[Nvidia] = Nvidia, **options: Any) -> AsyncIterator[Server]:
    async with node_with(driver, host=H100, options=options) as node:
        yield node


def hardware(node: Server) -> HardwareState:
    """The state of the imitated GPUs, in which a test injects faults."""
    return HardwareState(node.settings.sysfs_root / ".gpus.json", node.driver.host.boot_id())


async def test_a_gpu_is_published_with_the_attributes_of_nvidias_driver() -> None:
    async with server() as node:
        published = await node.published()
    assert list(published) == [FIRST, SECOND]
    gpu = published[FIRST]
    assert gpu.attributes == {
        "resource.kubernetes.io/pciBusID": ADDRESS,
        "resource.kubernetes.io/pcieRoot": "pci0000:16",
        "resource.kubernetes.io/numaNode": 0,
        "type": "gpu",
        "uuid": UUID,
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": Version("9.0.0"),
        "driverVersion": Version("580.159.4"),
        "cudaDriverVersion": Version("13.0.0"),
        "eccEnabled": True,
        "pcieGeneration": 5,
        "migEnabled": False,
        "linkSpeed": 32000,
        "linkWidth": 16,
    }
    assert gpu.capacity == {"memory": Capacity("81559Mi")}


async def test_a_pod_gets_the_nodes_and_libraries_of_its_gpu_and_no_others() -> None:
    async with server() as node:
        running = await node.run_pod(selector=f'device.attributes["{Nvidia.name}"].uuid == "{UUID}"')
        oci, env = node.oci(running), node.env(running)
        (status,) = (await node.claim_of("pod"))["status"]["devices"]
        await node.delete_pod()
        leftovers = await node.leftovers()
    nodes = [d["path"].removeprefix("/dev/") for d in oci["linux"]["devices"]]
    assert nodes == ["nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools"]
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["LD_LIBRARY_PATH"]) == ("void", "/usr/local/nvidia/lib64")
    mounts = {m["destination"]: m for m in oci["mounts"] if m["destination"].startswith("/usr/local/nvidia")}
    assert list(mounts) == ["/usr/local/nvidia/lib64", "/usr/local/nvidia/bin/nvidia-smi"]
    assert mounts["/usr/local/nvidia/lib64"]["options"] == ["ro", "nosuid", "nodev", "rbind"]
    assert "hooks" not in oci
    assert status["data"]["uuid"] == UUID
    assert not any(leftovers.values())


@pytest.mark.parametrize(("mig", "kind", "begin"), [("static", "gpu", "GPU-"), ("dynamic", "mig", "MIG-")])
async def test_the_metadata_files_of_a_pod_have_the_uuid_of_its_device(mig: str, kind: str, begin: str) -> None:
    async with server(nvidia_mig=mig) as node:
        running = await node.run_pod(selector=f'device.attributes["{Nvidia.name}"].type == "{kind}"')
        mounts = {m["destination"]: m["source"] for m in node.oci(running)["mounts"]}
        (source,) = [s for d, s in mounts.items() if d.startswith(str(metadata.CONTAINER_ROOT))]
        assert f'"uuid": {{ "string": "{begin}' in _text(source)


def _text(path: str) -> str:
    """Returns the text of a file, with one space in place of other spaces and line ends."""
    return " ".join(Path(path).read_text().split())


@pytest.mark.runc
@pytest.mark.skipif(bool(runc.missing()) or os.geteuid() != 0, reason=f"needs root and runc: {runc.missing()}")
async def test_a_real_container_has_the_nodes_and_libraries_and_a_pod_without_a_claim_has_not() -> None:
    """runc gives copies of /dev/null for the device nodes of a described host."""
    look = "ls /dev/nvidia* /usr/local/nvidia/lib64; echo end; exec sleep 60"
    pods = [pod("with", templates=["one-gpu"]), pod("without")]
    for each in pods:
        each["spec"]["containers"][0]["command"] = ["sh", "-c", look]
    async with (
        LocalCluster(runtimes=await factory()) as cluster,
        on_node(cluster, Nvidia, host=PACKAGE / "hosts/h100.yaml") as node,
    ):
        await node.api.apply(template("one-gpu", ClaimSpec(Request())), *pods)
        seen = [await _output(node, name) for name in ("with", "without")]
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "libcuda.so.1"} <= set(seen[0])
    assert not {"/dev/nvidia0", "libcuda.so.1"} & set(seen[1])


async def _output(node: Server, name: str) -> list[str]:
    """Waits until a pod runs. Returns the lines of its output before the line ``end``."""
    uid = (await node.api.wait_running(name))["metadata"]["uid"]
    lines: list[str] = []
    async for part in node.cluster.node.runtime.logs(uid, "main", LogOptions(follow=True)):
        lines += part.decode().splitlines()
        if "end" in lines:
            break
    return lines


async def test_two_gpus_of_a_claim_share_the_libraries() -> None:
    async with server() as node:
        oci = node.oci(await node.run_pod(count=2))
    paths = [d["path"] for d in oci["linux"]["devices"]]
    assert {"/dev/nvidia0", "/dev/nvidia1"} <= set(paths)
    assert len(paths) == len(set(paths))
    destinations = [m["destination"] for m in oci["mounts"]]
    assert len(destinations) == len(set(destinations))


async def test_the_replacement_has_the_name_of_nvidias_driver() -> None:
    async with server(NvidiaReplacement) as node:
        await node.run_pod(selector='device.attributes["gpu.nvidia.com"].productName.contains("H100")')


async def test_a_gpu_keeps_its_name_when_another_gets_its_minor_number() -> None:
    async with server() as node:
        for address, number in ((ADDRESS, 1), ("0000:98:00.0", 0)):
            file = node.host.proc / f"driver/nvidia/gpus/{address}/information"
            file.write_text(re.sub(r"(Device Minor:\s*)\d", rf"\g<1>{number}", file.read_text()))
        await node.rescan()
        running = await node.run_pod(selector=f'device.attributes["{Nvidia.name}"].uuid == "{UUID}"')
        assert await node.allocated("pod") == [FIRST]
        assert "/dev/nvidia1" in [d["path"] for d in node.oci(running)["linux"]["devices"]]


async def test_a_lost_gpu_is_published_with_a_taint_and_not_prepared() -> None:
    async with server() as node:
        hardware(node).set(lost=[ADDRESS])
        await node.wait_published(lambda p: any(t.key.endswith("/gpu-lost") for t in p[FIRST].taints))
        running = await node.run_pod()
        assert await node.allocated("pod") == [SECOND]
        hardware(node).set(lost=[])
        await node.wait_published(lambda p: not p[FIRST].taints)
        assert running["status"]["phase"] == "Running"


async def test_a_gpu_that_an_operator_unbinds_is_no_longer_published() -> None:
    instance = {"address": ADDRESS, "profile": 9, "start": 4, "size": 4, "gi": 1, "uuid": "MIG-1"}
    for state in ({}, {"mig": [ADDRESS], "instances": [instance]}):
        async with server() as node:
            hardware(node).set(**state)
            await node.rescan()
            before = list(await node.published())
            assert len(before) == 2
            node.write_sysfs("bus/pci/drivers/nvidia/unbind", ADDRESS)
            await node.wait_published(lambda p: list(p) == [SECOND])
            node.write_sysfs("bus/pci/drivers_probe", ADDRESS)
            await node.wait_published(lambda p: len(p) == 2)
            assert list(await node.published()) == before


async def test_nvml_is_not_opened_at_each_scan_for_a_lost_gpu() -> None:
    async with server() as node:
        opened: list[str] = []
        machine = node.driver._open()
        original = machine.gpus.closed
        machine.gpus.closed = lambda: opened.append("again") or original()  # type: ignore[method-assign, func-returns-value]
        hardware(node).set(lost=[ADDRESS])
        for _ in range(3):
            await node.rescan()
        assert opened == ["again"]
        hardware(node).set(lost=[])
        await node.rescan()
        hardware(node).set(lost=[ADDRESS])
        await node.rescan()
        assert opened == ["again"] * 2


async def test_the_event_names_a_gpu_that_is_lost_before_prepare() -> None:
    async with server() as node:
        node.driver.health = dict  # type: ignore[method-assign]  # the loss is not known before prepare
        hardware(node).set(lost=[ADDRESS, "0000:98:00.0"])
        await node.apply_pod()
        await node.api.wait_event("pod", f"NVML does not see the GPU {ADDRESS}")
        hardware(node).set(lost=[])
        await node.api.wait_running("pod")


async def test_without_device_nodes_the_scan_fails_with_the_reason_and_nothing_is_published() -> None:
    async with server() as node:
        hardware(node).set(lost=[ADDRESS, "0000:98:00.0"])
        await node.stop()
        with pytest.raises(NotReadyError, match="NVML sees no GPU, and PCI has 0000:17"):
            await node.start()
