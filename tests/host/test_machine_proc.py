"""``Host.proc`` is the machine's ``/proc``, a mounted folder in a pod, or the described files of a described host."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_devkit.hosts import described
from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, Host, PreparedDevice
from dra_kubeletplugin.base.settings import Settings

INFORMATION = "driver/acme/cards/0000:17:00.0/information"
CARD = {
    "address": "0000:17:00.0",
    "vendor": 0x10EE,
    "device": 0x5000,
    "driver": "acme",
    "nodes": {"acme0": "c 240:0", "acme-caps/cap1": "241:1"},
    "proc": {INFORMATION: "Model: A1\nMinor: 0\n"},
}
HOST = {"functions": [CARD], "nodes": {"acmectl": "c 240:255"}, "proc": {"driver/acme/version": "1.2"}}


def test_a_described_host_never_reads_the_proc_of_this_machine(tmp_path: Path) -> None:
    host = Host(described.build(tmp_path, {"functions": []}), proc=Path("/proc"))
    assert host.proc == tmp_path / "proc"
    assert list(host.proc.iterdir()) == []


def test_in_a_pod_proc_is_the_folder_of_the_setting(tmp_path: Path) -> None:
    assert Host.of(Settings.load({}, {"PROC_ROOT": str(tmp_path)})).proc == tmp_path
    assert Host.of(Settings.load({}, {})).proc == Path("/proc")


def test_a_missing_proc_folder_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    missing = tmp_path / "no-proc"
    roots = {"kubelet_root": tmp_path, "cdi_root": tmp_path, "proc_root": missing}
    faults = Settings(driver_name="x.example.com", node_name="n", **roots).faults()
    assert f"--proc-root (PROC_ROOT) {missing} is not a folder: mount the host's /proc there" in faults


def test_nodes_and_files_of_a_function_exist_only_while_its_driver_is_bound(tmp_path: Path) -> None:
    host = Host(described.build(tmp_path, HOST))
    of_function = [host.dev / "acme0", host.dev / "acme-caps/cap1", host.proc / INFORMATION]
    of_machine = [host.dev / "acmectl", host.proc / "driver/acme/version"]

    def present() -> tuple[set[bool], set[bool]]:
        return {path.is_file() for path in of_function}, {path.is_file() for path in of_machine}

    assert present() == ({True}, {True})
    assert (host.proc / INFORMATION).read_text() == "Model: A1\nMinor: 0\n"
    host.write("bus/pci/drivers/acme/unbind", CARD["address"])  # type: ignore[arg-type]
    assert present() == ({False}, {True})
    assert not (host.dev / "acme-caps").exists() and not (host.proc / "driver/acme/cards").exists()
    function = f"bus/pci/devices/{CARD['address']}"
    host.write(f"{function}/driver_override", "vfio-pci")
    host.write("bus/pci/drivers_probe", CARD["address"])  # type: ignore[arg-type]
    assert present() == ({False}, {True})
    host.write("bus/pci/drivers/vfio-pci/unbind", CARD["address"])  # type: ignore[arg-type]
    host.write(f"{function}/driver_override", "\n")
    host.write("bus/pci/drivers_probe", CARD["address"])  # type: ignore[arg-type]
    assert present() == ({True}, {True})
    removed = described.function(tmp_path, "0000:17:00.0")
    described.remove_function(tmp_path, "0000:17:00.0")
    assert present() == ({False}, {True})
    assert removed is not None
    described.add_function(tmp_path, removed)
    assert present() == ({True}, {True})
    host.write("bus/pci/drivers/acme/unbind", CARD["address"])  # type: ignore[arg-type]
    described.reboot(tmp_path)
    assert present() == ({True}, {True})


class Cards(Driver):
    """Publishes the cards that the kernel driver lists below ``/proc``."""

    name = "cards.example.com"

    def devices(self) -> list[Device]:
        cards = self.host.proc / "driver/acme/cards"
        return [Device(f"card-{path.name.replace(':', '-').replace('.', '-')}") for path in cards.glob("*")]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(device_nodes=["/dev/acme0"])) for d in claim.devices]


@pytest.mark.parametrize("process", [False, True])
async def test_a_driver_reads_the_described_proc_in_the_test_and_in_a_child_process(process: bool) -> None:
    async with node_with(Cards, host=HOST, process=process) as node:
        await node.wait_published(["card-0000-17-00-0"])
        pod = await node.run_pod()
        assert [(d["path"], d["major"]) for d in node.oci(pod)["linux"]["devices"]] == [("/dev/acme0", 240)]
