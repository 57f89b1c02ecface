"""Tests of time slices: set for a claim, and reset afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dra_devkit.testing import DriverNode, PodError, node_with
from dra_kubeletplugin import PermanentError, RetryableError

from nvidia import sharing
from nvidia.driver import Nvidia
from nvidia.root import DriverRoot

H100 = Path(__file__).parents[1] / "hosts/two-h100.yaml"
UUID = "GPU-4f0c2a6e-7b1d-4e93-a5c8-0d9e6b3f2a17"
ON_FIRST = f'device.attributes["{Nvidia.name}"].uuid == "{UUID}"'
HEAD = {"apiVersion": "resource.nvidia.com/v1beta1"}
Server = DriverNode[Nvidia]


@contextlib.asynccontextmanager
async def server(**options: Any) -> AsyncIterator[Server]:
    async with node_with(Nvidia, host=H100, options=options) as node:
        yield node


def commands(node: Server) -> list[str]:
    log = node.settings.sysfs_root / ".nvidia-driver/bin/nvidia-smi.log"
    return log.read_text().splitlines() if log.exists() else []


def sharing_of(interval: str | None = None) -> dict[str, Any]:
    slicing = {"timeSlicingConfig": {"interval": interval}} if interval else {}
    return {**HEAD, "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", **slicing}}


async def test_the_time_slice_of_a_claim_is_set_and_reset() -> None:
    async with server() as node:
        await node.run_pod(selector=ON_FIRST, parameters=sharing_of("Long"))
        # A GPU that refuses the default refuses every value, so the default is set first.
        assert commands(node) == [f"compute-policy -i {UUID} --set-timeslice {n}" for n in (0, 3)]
        await node.restart()
        await node.delete_pod()
        assert commands(node)[2:] == [f"compute-policy -i {UUID} --set-timeslice 0"]
        assert not any((await node.leftovers()).values())


async def test_a_gpu_that_refuses_every_time_slice_can_be_used_by_the_next_claim() -> None:
    async with server() as node:
        program = node.settings.sysfs_root / ".nvidia-driver/bin/nvidia-smi"
        working = program.read_text()
        program.write_text("#!/bin/sh\necho 'Failed to set timeslice policy for GPU 0 : Not Supported' >&2; exit 3\n")
        await node.apply_pod(selector=ON_FIRST, parameters=sharing_of("Long"))
        await node.api.wait_event("pod", "Not Supported")
        await node.delete_pod()
        assert not any((await node.leftovers()).values())
        await node.run_pod(selector=ON_FIRST)
        program.write_text(working)


async def test_without_an_interval_the_time_slice_is_never_touched() -> None:
    async with server() as node:
        await node.run_pod("one", parameters=sharing_of())
        await node.run_pod("two", parameters={**HEAD, "kind": "GpuConfig"})
        await node.delete_pod("one")
        await node.delete_pod("two")
        assert commands(node) == []


MIXED = {**HEAD, "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (sharing_of("Forever"), "interval"),
        pytest.param(MIXED, "needs strategy MPS", marks=pytest.mark.full),
    ],
)
async def test_wrong_parameters_are_named_in_the_event(parameters: dict[str, Any], message: str) -> None:
    async with server() as node:
        with pytest.raises(PodError, match=message):
            await node.run_pod(parameters=parameters)


async def test_parameters_for_another_type_of_device_are_named_in_the_event() -> None:
    parameters = {**HEAD, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}
    async with server() as node:
        with pytest.raises(PodError, match="MigDeviceConfig is for devices with type=mig, and the claim has none"):
            await node.run_pod(parameters=parameters)


def folder(tmp_path: Path, script: str) -> DriverRoot:
    for name, text in {"lib64/libnvidia-ml.so.1": "", "bin/nvidia-smi": f"#!/bin/sh\n{script}\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return DriverRoot(Path("/"), tmp_path, "lib64")


def test_the_last_line_of_nvidia_smi_is_in_the_error(tmp_path: Path) -> None:
    root = folder(tmp_path, "echo Setting; echo 'Not Supported' >&2; exit 3")
    with pytest.raises(RetryableError, match="time slice of GPU-1: Not Supported"):
        sharing.set_time_slice(root, "GPU-1", "Short")


def test_a_hanging_nvidia_smi_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "TIMEOUT", 0.1)
    with pytest.raises(RetryableError, match=r"within 0\.1 s"):
        sharing.set_time_slice(folder(tmp_path, "exec sleep 60"), "GPU-1", "Short")


def test_without_nvidia_smi_the_claim_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="nvidia-smi is not below /opt"):
        sharing.set_time_slice(DriverRoot(Path("/opt"), tmp_path, "lib64"), "GPU-1", "Short")


def test_programs_never_get_the_hosts_c_library(tmp_path: Path) -> None:
    root = folder(tmp_path, "")
    assert sharing.environment(root)["LD_LIBRARY_PATH"] == str(tmp_path / "lib64")
    (tmp_path / "lib64/libc.so.6").touch()
    environment = sharing.environment(root)
    assert "LD_LIBRARY_PATH" not in environment
    assert environment["LD_PRELOAD"] == str(tmp_path / "lib64/libnvidia-ml.so.1")
