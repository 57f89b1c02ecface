"""A driver with device nodes runs in `dra dev --host`. The described nodes belong to their function."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra_devkit.hosts import described
from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice
from packages.devkit.tests.command_runner import Dra

DRIVER = """
from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice

class Fpga(Driver):
    name = "fpga.example.com"

    async def devices(self) -> list[Device]:
        return [fn.device() for fn in self.host.pci(vendor=0x10EE)]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(device_nodes=d.data.nodes("fpga"))) for d in claim.devices]
"""
HOST = """
functions:
- {address: 0000:17:00.0, vendor: 0x10ee, device: 0x5000, driver: xclmgmt, classes: {fpga: {fpga0: {dev: "240:0"}}}}
- {address: 0000:18:00.0, vendor: 0x10ee, device: 0x5000, driver: xclmgmt, classes: {fpga: {fpga1: {dev: "240:1"}}}}
"""
MANIFESTS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: fpga}
spec: {selectors: [{cel: {expression: 'device.driver == "fpga.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one, namespace: default}
spec: {devices: {requests: [{name: fpga, exactly: {deviceClassName: fpga}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: pod, namespace: default}
spec:
  resourceClaims: [{name: fpga, resourceClaimName: one}]
  containers: [{name: main, image: busybox, resources: {claims: [{name: fpga}]}}]
"""


class Fpga(Driver):
    """Names devices and nodes after their function, not after its position in a list."""

    name = "fpga.example.com"

    async def devices(self) -> list[Device]:
        return [fn.device() for fn in self.host.pci(vendor=0x10EE)]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(device_nodes=d.data.nodes("fpga"))) for d in claim.devices]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in (("driver.py", DRIVER), ("host.yaml", HOST), ("all.yaml", MANIFESTS)):
        (tmp_path / name).write_text(text)
    return tmp_path


async def test_a_device_keeps_its_node_when_another_device_is_unplugged(files: Path) -> None:
    """If devices were numbered by position, the second device would become the first and have the first one's node."""
    async with node_with(Fpga, host=files / "host.yaml") as node:
        described.remove_function(node.plugin.host.sysfs, "0000:17:00.0")
        assert not (node.plugin.host.dev / "fpga0").exists()
        await node.rescan()
        await node.plugin.published(60)
        pod = await node.run_pod()
        assert [(d["path"], d["minor"]) for d in node.oci(pod)["linux"]["devices"]] == [("/dev/fpga1", 1)]
        await node.delete_pod()


async def test_dev_runs_the_driver_and_prints_the_folder_of_the_described_host(files: Path) -> None:
    command = [sys.executable, "-m", "dra_kubeletplugin.cli", "dev", str(files / "driver.py")]
    command += ["--host", str(files / "host.yaml"), "--apply", str(files / "all.yaml")]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        async with asyncio.timeout(60):
            assert process.stdout
            output = ""
            while "Ctrl-C stops the cluster" not in output:
                line = await process.stdout.readline()
                assert line, output
                output += line.decode()
            folder = Path(output.partition(" is at ")[2].partition(";")[0])
            assert (folder / "dev/fpga0").read_text() == "c 240:0\n", output
            state = Path(output.partition("KUBECONFIG=")[2].split()[0]).parent
            while not any("/dev/fpga0" in p.read_text() for p in state.rglob("*-claim_*.json")):
                await asyncio.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await process.wait()
    assert not folder.exists(), "the command deletes its described host"


def test_dev_with_an_invalid_host_leaves_no_state_folder(
    tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch, dra: Dra
) -> None:
    """The state folder contains private keys."""
    states = tmp_path / "states"
    states.mkdir()
    monkeypatch.setattr("dra_devkit.localcluster.cluster.state_root", lambda: states)
    for host in ("nowhere.yaml", "all.yaml"):
        assert host in dra("dev", files / "driver.py", "--host", files / host, code=2).err
    assert list(states.iterdir()) == []
