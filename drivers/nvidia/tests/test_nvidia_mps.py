"""Tests of MPS: a daemon for each claim. The imitated daemon logs its commands and its environment."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dra_devkit.testing import ClaimSpec, DriverNode, OpaqueConfig, PodError, Request, node_with
from dra_kubeletplugin import Host, PermanentError, Quantity
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.driver import attach, make

from nvidia import mps
from nvidia.config import MpsConfig
from nvidia.driver import Nvidia

H100 = Path(__file__).parents[1] / "hosts/two-h100.yaml"
UUIDS = ("GPU-4f0c2a6e-7b1d-4e93-a5c8-0d9e6b3f2a17", "GPU-9d2b7c41-1f6a-4c8e-b3d5-7e0a4c9f8b62")
FIRST = "gpu-0000-17-00-0"
ATTRIBUTES = f'device.attributes["{Nvidia.name}"]'
ON_FIRST = f'{ATTRIBUTES}.?uuid.orValue("") == "{UUIDS[0]}"'
HALF = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "4Gi"}
Server = DriverNode[Nvidia]


@contextlib.asynccontextmanager
async def server(**arguments: Any) -> AsyncIterator[Server]:
    async with node_with(Nvidia, host=H100, **arguments) as node:
        yield node


def sharing(config: dict[str, Any] | None = None, kind: str = "GpuConfig") -> dict[str, Any]:
    mps_config = {"mpsConfig": config} if config else {}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": {"strategy": "MPS", **mps_config}}


def test_linux_accepts_the_paths_of_the_daemons_sockets() -> None:
    driver = make(Nvidia)
    assert isinstance(driver, Nvidia)
    attach(driver, Host(), Settings(node_name="node", driver_name=Nvidia.name))
    folder = driver._mps_folder("e9f6a2be-b469-4288-8e21-e91a3ceee234")
    assert folder.is_relative_to("/var/lib/kubelet/plugins")
    assert len(f"{folder}/control_privileged") <= 107


def folders(node: Server) -> list[Path]:
    return sorted((node.settings.plugin_dir / "mps").glob("*"))


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_claim_gets_a_daemon_with_its_limits_which_ends_with_the_claim() -> None:
    async with server() as node:
        pod = await node.run_pod(selector=ON_FIRST, parameters=sharing(HALF))
        (folder,) = folders(node)
        pid = int((folder / "control").read_text())
        assert (folder / "commands").read_text().splitlines()[-2:] == [
            "set_default_active_thread_percentage 50",
            "set_default_device_pinned_mem_limit 0 4096M",
        ]
        assert f"CUDA_VISIBLE_DEVICES={UUIDS[0]}" in (folder / "environment").read_text()
        assert node.env(pod)["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
        (mount,) = [m for m in node.oci(pod)["mounts"] if m["destination"] == "/tmp/nvidia-mps"]
        assert mount["source"] == str(folder)
        await node.restart()
        assert alive(pid)
        await node.delete_pod()
        assert (folders(node), alive(pid)) == ([], False)
        assert not any((await node.leftovers()).values())


async def test_the_folder_of_daemons_is_an_option_that_may_change_while_a_claim_uses_it(tmp_path: Path) -> None:
    """MPS runs a server as the user of the program, and users other than root cannot enter the kubelet's folder."""
    async with server(options={"nvidia_mps_folder": str(tmp_path / "mps")}) as node:
        pod = await node.run_pod(selector=ON_FIRST, parameters=sharing(HALF))
        (folder,) = (tmp_path / "mps").iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) & 0o005 == 0o005
        (mount,) = [m for m in node.oci(pod)["mounts"] if m["destination"] == "/tmp/nvidia-mps"]
        assert mount["source"] == str(folder)
        await node.stop()
        await node.start(options={"nvidia_mps_folder": ""})
        await node.delete_pod()
        assert list((tmp_path / "mps").iterdir()) == []


async def test_all_gpus_of_a_claim_have_one_daemon() -> None:
    limits = {"defaultPinnedDeviceMemoryLimit": "4Gi", "defaultPerDevicePinnedMemoryLimit": {"1": "2Gi"}}
    async with server() as node:
        await node.run_pod(count=2, parameters=sharing(limits))
        (folder,) = folders(node)
        visible = (folder / "environment").read_text().partition("CUDA_VISIBLE_DEVICES=")[2].split("\n")[0]
        assert sorted(visible.split(",")) == sorted(UUIDS)
        assert (folder / "commands").read_text().splitlines()[-2:] == [
            "set_default_device_pinned_mem_limit 0 4096M",
            "set_default_device_pinned_mem_limit 1 2048M",
        ]


async def test_a_mig_instance_is_used_through_mps() -> None:
    selector = f'{ATTRIBUTES}.type == "mig" && {ATTRIBUTES}.profile == "1g.10gb"'
    async with server(options={"nvidia_mig": "dynamic"}) as node:
        await node.run_pod(selector=selector, parameters=sharing(kind="MigDeviceConfig"))
        (folder,) = folders(node)
        assert "CUDA_VISIBLE_DEVICES=MIG-" in (folder / "environment").read_text()


async def test_each_kind_of_parameters_reaches_its_type_of_device() -> None:
    """One claim with a GPU and a MIG instance of the other GPU; none of the entries names a request."""
    parts = [
        f'{ATTRIBUTES}.type == "gpu" && {ON_FIRST}',
        f'{ATTRIBUTES}.type == "mig" && {ATTRIBUTES}.profile == "1g.10gb"',
    ]
    requests = [Request(f"r{i}", selectors=[p]) for i, p in enumerate(parts)]
    slicing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    config = [
        OpaqueConfig(Nvidia.name, sharing(kind="MigDeviceConfig")),
        OpaqueConfig(
            Nvidia.name, {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": slicing}
        ),
    ]
    async with server(options={"nvidia_mig": "dynamic"}) as node:
        await node.run_pod(claim=ClaimSpec(*requests, config=config))
        (folder,) = folders(node)
        assert "CUDA_VISIBLE_DEVICES=MIG-" in (folder / "environment").read_text()
        log = node.settings.sysfs_root / ".nvidia-driver/bin/nvidia-smi.log"
        assert log.read_text().splitlines()[-1:] == [f"compute-policy -i {UUIDS[0]} --set-timeslice 3"]


async def test_a_daemon_that_ends_makes_its_gpu_unhealthy() -> None:
    async with server() as node:
        await node.run_pod(selector=ON_FIRST, parameters=sharing())
        (folder,) = folders(node)
        os.kill(int((folder / "control").read_text()), signal.SIGKILL)
        published = await node.wait_published(lambda p: bool(p[FIRST].taints))
        assert [n for n, d in published.items() if d.taints] == [FIRST]
        await node.delete_pod()
        await node.wait_published(lambda p: not p[FIRST].taints)
        assert folders(node) == []


async def test_different_parameters_in_a_claim_are_refused() -> None:
    requests = [Request("a"), Request("b")]
    config = [
        OpaqueConfig(Nvidia.name, sharing(HALF), requests=["a"]),
        OpaqueConfig(Nvidia.name, sharing(), requests=["b"]),
    ]
    async with server() as node:
        with pytest.raises(PodError, match="a CUDA program reaches one MPS daemon only"):
            await node.run_pod(claim=ClaimSpec(*requests, config=config))
        assert folders(node) == []


def test_a_limit_of_a_device_that_the_claim_does_not_have_is_refused() -> None:
    config = MpsConfig(default_per_device_pinned_memory_limit={"2": Quantity("1Gi")})
    with pytest.raises(PermanentError, match="the claim has no device '2'"):
        mps.limits(config, list(UUIDS))


@pytest.mark.parametrize("key", ["1", UUIDS[1]])
def test_a_limit_names_its_device_by_position_or_uuid(key: str) -> None:
    config = MpsConfig(default_per_device_pinned_memory_limit={key: Quantity("1536Mi")})
    assert mps.limits(config, list(UUIDS)) == ["set_default_device_pinned_mem_limit 1 1536M"]
    assert mps.limits(MpsConfig(), list(UUIDS)) == []


COMMANDS = (
    "get_server_list",
    "set_default_active_thread_percentage 50",
    "set_default_device_pinned_mem_limit 0 4096M",
)


@pytest.mark.full
@pytest.mark.crash
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_kill_at_each_command_to_the_daemon_leaves_no_daemon_behind(command: str) -> None:
    async with server(process=True) as node:
        await node.wait_published(lambda p: len(p) == 2)
        (node.settings.sysfs_root / ".nvidia-driver/kill").write_text(command)
        await node.apply_pod(selector=ON_FIRST, parameters=sharing(HALF))
        await node.api.wait("the kill", lambda: _killed(node))
        await node.stop()
        await node.start()
        await node.api.wait_running("pod")
        (folder,) = folders(node)
        pid = int((folder / "control").read_text())
        await node.delete_pod()
        assert (folders(node), alive(pid)) == ([], False)
        assert not any((await node.leftovers()).values())
        assert not _daemons(node.settings.sysfs_root)


async def _killed(node: Server) -> bool:
    return not (node.settings.sysfs_root / ".nvidia-driver/kill").exists()


def _daemons(folder: Path) -> list[str]:
    """The processes of imitated daemons below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{folder}/.nvidia-driver/bin/{mps.CONTROL}" in (process / "cmdline").read_text():
                found.append(process.name)
    return found
