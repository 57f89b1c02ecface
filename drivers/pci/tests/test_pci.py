"""Tests of the PCI driver on described hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from dra_devkit.hosts import described
from dra_devkit.testing import DriverNode, PodError, node_with
from dra_kubeletplugin import Host
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.driver import attach, make
from dra_kubeletplugin.errors import SettingsError

from pci.driver import Pci
from pci.essential import essential
from pci.selection import parse_selection

PACKAGE = Path(__file__).parents[1]
Server = DriverNode[Pci]
FPGA = 'device.attributes["pci.dra-kubeletplugin.dev"].vendor == "10ee"'
GPU = 'device.attributes["pci.dra-kubeletplugin.dev"].vendor == "10de"'
WITH_VFIO = {"apiVersion": "pci.dra-kubeletplugin.dev/v1alpha1", "kind": "PciConfig", "mode": "vfio"}


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """A node with two CPU sockets."""
    async with node_with(Pci, host=PACKAGE / "hosts/two-sockets.yaml", local_cluster=False) as node:
        yield node


def bound(node: Server, address: str) -> str | None:
    return next(f.driver for f in node.plugin.host.pci() if f.address == address)


async def test_bridges_and_functions_that_the_host_needs_are_not_published() -> None:
    async with server() as node:
        names = {d.name for d in node.plugin.inventory}
        assert "pci-0000-17-00-0" in names
        assert not names & {"pci-0000-00-00-0", "pci-0000-00-17-0", "pci-0000-03-00-0"}


async def test_a_network_card_of_unknown_state_is_not_published_but_its_virtual_functions_are() -> None:
    async with server() as node:
        assert node.plugin.inventory.get("pci-0000-18-00-0") is None
        node.write_sysfs("bus/pci/devices/0000:18:00.0/sriov_numvfs", "2")
        await node.rescan()
        virtual = [d for d in node.plugin.inventory if d.attributes["virtualFunction"]]
        assert [d.attributes["physicalFunction"] for d in virtual] == ["0000:18:00.0", "0000:18:00.0"]


async def test_a_function_is_bound_to_vfio_and_back() -> None:
    async with server() as node:
        pod = await node.run_pod(selector=FPGA)
        assert bound(node, "0000:17:00.0") == "vfio-pci"
        uid = (await node.claim_of("pod"))["metadata"]["uid"]
        edits = json.loads(node.plugin.claims.files.specs.path(uid).read_bytes())["devices"][0]["containerEdits"]
        assert [n["path"] for n in edits["deviceNodes"]] == ["/dev/vfio/vfio", "/dev/vfio/20"]
        assert "PCI_DEVICE_0000_17_00_0=0000:17:00.0" in edits["env"]
        nodes = node.oci(pod)["linux"]["devices"]
        assert [(n["path"], n["major"], n["minor"]) for n in nodes] == [
            ("/dev/vfio/vfio", 10, 196),
            ("/dev/vfio/20", 240, 20),
        ]
        await node.delete_pod()
        assert bound(node, "0000:17:00.0") == "xclmgmt"
        override = (node.plugin.host.sysfs / "bus/pci/devices/0000:17:00.0/driver_override").read_text()
        assert override.strip() == "(null)"


@contextlib.asynccontextmanager
async def server_with_iommufd(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setenv("PCI_IOMMU", "iommufd")
    two_sockets = yaml.safe_load((PACKAGE / "hosts/two-sockets.yaml").read_text())
    async with node_with(Pci, host={**two_sockets, "nodes": {"iommu": "c 10:127"}}, local_cluster=False) as node:
        yield node


async def test_with_iommufd_each_container_gets_the_node_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_with_iommufd(monkeypatch) as node:
        pods = [await node.run_pod(name, selector=FPGA) for name in ("one", "two")]
        nodes = [[(n["path"], n["major"]) for n in node.oci(pod)["linux"]["devices"]] for pod in pods]
        assert nodes == [[("/dev/iommu", 10), (f"/dev/vfio/devices/vfio{i}", 511)] for i in range(2)]
        for name in ("one", "two"):
            await node.delete_pod(name)
        assert bound(node, "0000:17:00.0") == "xclmgmt"
        assert list((node.plugin.host.dev / "vfio/devices").iterdir()) == []


async def test_without_iommufd_on_the_host_the_error_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCI_IOMMU", "iommufd")
    async with server() as node:
        await node.apply_pod(selector=FPGA, parameters=WITH_VFIO)
        assert "the host has no /dev/iommu" in (await node.api.wait_event("pod", "PERMANENT")).message
        assert bound(node, "0000:17:00.0") == "xclmgmt"


async def test_a_kernel_without_nodes_for_functions_is_an_error_with_iommufd(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_with_iommufd(monkeypatch) as node:
        for address in ("0000:17:00.0", "0000:98:00.0"):
            node.write_sysfs(f"bus/pci/devices/{address}/driver_override", "vfio-pci")
            node.write_sysfs("bus/pci/drivers/xclmgmt/unbind", address)
            node.write_sysfs("bus/pci/drivers_probe", address)
        shutil.rmtree(node.plugin.host.dev / "vfio/devices")
        await node.apply_pod(selector=FPGA, parameters=WITH_VFIO)
        assert "CONFIG_VFIO_DEVICE_CDEV" in (await node.api.wait_event("pod", "PERMANENT")).message


def json_stream(path: Path) -> Iterator[JSON]:
    text = path.read_text()
    while text := text.lstrip():
        value, end = json.JSONDecoder().raw_decode(text)
        text = text[end:]
        yield value


async def test_the_metadata_file_has_the_address_where_kubevirt_reads_it() -> None:
    """KubeVirt reads the first object of a version that it knows, and there the only device of the request."""
    async with server() as node:
        pod = await node.run_pod(selector=FPGA, parameters=WITH_VFIO)
        folder = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/t0/device/"
        (source,) = [m["source"] for m in node.oci(pod)["mounts"] if m["destination"].startswith(folder)]
        objects = json_stream(Path(source))
        known = next(o for o in objects if o["apiVersion"] == "metadata.resource.k8s.io/v1alpha1")
        (request,) = [r for r in known["requests"] if r["name"] == "device"]
        (device,) = request["devices"]
        assert device["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": "0000:17:00.0"}
        assert "mdevUUID" not in device["attributes"], "KubeVirt would use it as a mediated device"


async def test_a_function_whose_group_is_in_use_is_prepared_for_information_only() -> None:
    async with server() as node:
        await node.run_pod(selector=GPU + ' && device.attributes["pci.dra-kubeletplugin.dev"].device == "2230"')
        assert bound(node, "0000:65:00.0") == "nouveau"
        uid = (await node.claim_of("pod"))["metadata"]["uid"]
        edits = json.loads(node.plugin.claims.files.specs.path(uid).read_bytes())["devices"][0]["containerEdits"]
        assert edits["mounts"][0]["containerPath"] == "/run/pci/0000:65:00.0"


async def test_a_claim_with_all_functions_of_a_group_gets_vfio() -> None:
    async with server() as node:
        await node.run_pod(selector=GPU, count=2)
        assert (bound(node, "0000:65:00.0"), bound(node, "0000:65:00.1")) == ("vfio-pci", "vfio-pci")
        await node.delete_pod()
        assert (bound(node, "0000:65:00.0"), bound(node, "0000:65:00.1")) == ("nouveau", "snd_hda_intel")


async def test_functions_of_a_group_without_drivers_go_to_one_claim_at_a_time() -> None:
    group = [
        {"address": f"0000:17:00.{i}", "vendor": 0x10EE, "device": 0x5000, "class": 0x120000, "iommu_group": 20}
        for i in range(3)
    ]
    async with node_with(Pci, host={"functions": group}, local_cluster=False) as node:
        await node.run_pod("two", selector=FPGA, count=2)
        await node.apply_pod("one", selector=FPGA)
        event = await node.api.wait_event("one", "SHARED_STEP")
        assert "group of iommu-group-20 is set up for claim default/two" in event.message
        await node.delete_pod("two")
        await node.api.wait_running("one")
        await node.delete_pod("one")
        assert not any((await node.leftovers()).values())


async def test_the_error_without_vfio_names_the_function_in_use() -> None:
    async with server() as node:
        selector = GPU + ' && device.attributes["pci.dra-kubeletplugin.dev"].device == "2230"'
        await node.apply_pod(selector=selector, parameters=WITH_VFIO)
        event = await node.api.wait_event("pod", "PERMANENT")
        assert "driver snd_hda_intel uses 0000:65:00.1 of the same IOMMU group 30" in event.message
        assert bound(node, "0000:65:00.0") == "nouveau"


async def test_a_function_keeps_its_driver_while_it_has_virtual_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would remove them with the driver, also those in use."""
    monkeypatch.setenv("PCI_UNSAFE", "1")
    physical = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:19:00.0"'
    async with node_with(Pci, host="network-host", local_cluster=False) as node:
        with pytest.raises(PodError, match="it has virtual functions, which the kernel removes"):
            await node.run_pod("forced", selector=physical, parameters=WITH_VFIO)
        await node.delete_pod("forced")
        await node.run_pod(selector=physical)
        assert bound(node, "0000:19:00.0") == "mlx5_core"
        virtual = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:19:01.0"'
        await node.run_pod("virtual", selector=virtual)
        assert bound(node, "0000:19:01.0") == "vfio-pci"


async def published(node: Server) -> list[object]:
    return [(s["metadata"]["resourceVersion"], s["spec"]) for s in await node.api.slices()]


@pytest.mark.parametrize("selection", ["", "driver=xclmgmt"])
async def test_published_attributes_do_not_change_while_a_container_has_the_function(
    monkeypatch: pytest.MonkeyPatch, selection: str
) -> None:
    """With the present driver as attribute, prepare changed the slice, and a selection by driver lost the function."""
    monkeypatch.setenv("PCI_SELECT", selection)
    async with server() as node:
        before = await published(node)
        await node.run_pod(selector=FPGA)
        assert bound(node, "0000:17:00.0") == "vfio-pci"
        await node.rescan()
        assert await published(node) == before
        await node.stop()
        await node.start()
        assert await published(node) == before, "the next process reads the driver from its file"
        assert not node.plugin.inventory.has_gone
        await node.delete_pod()
        await node.rescan()
        assert bound(node, "0000:17:00.0") == "xclmgmt"
        assert await published(node) == before
        assert list((node.plugin.settings.plugin_dir / "native-drivers").iterdir()) == [], "the file is deleted"


async def test_a_function_that_the_host_bound_to_vfio_is_published_with_that_driver() -> None:
    async with server() as node:
        saved = node.plugin.settings.plugin_dir / "native-drivers"
        saved.mkdir()
        (saved / "0000:17:00.0").write_text("another-boot xclmgmt\n")
        node.write_sysfs("bus/pci/devices/0000:17:00.0/driver_override", "vfio-pci")
        node.write_sysfs("bus/pci/drivers/xclmgmt/unbind", "0000:17:00.0")
        node.write_sysfs("bus/pci/drivers_probe", "0000:17:00.0")
        await node.rescan()
        device = node.plugin.inventory.get("pci-0000-17-00-0")
        assert device is not None
        assert device.attributes["driver"] == "vfio-pci", "a file of another boot is ignored"


@pytest.mark.parametrize("name", described.machines())
async def test_the_driver_runs_on_every_described_host_of_the_package(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCI_UNSAFE", "1")
    async with node_with(Pci, host=name, local_cluster=False) as node:
        assert len(node.plugin.inventory) >= 5
        assert not node.plugin.inventory.rejected
        await node.run_pod()
        await node.delete_pod()
        assert not any((await node.leftovers()).values())


async def test_disks_and_networks_that_the_host_needs_are_not_published_on_any_bus() -> None:
    async with node_with(Pci, host="storage-host", local_cluster=False) as node:
        names = {d.name for d in node.plugin.inventory}
        assert "pci-0000-01-00-0" not in names, "the host's own disk"
        assert "pci-0000-31-00-0" not in names, "a network that is up"
        assert "pci-10000-01-00-0" in names, "the host does not use a disk without a block device"


async def test_a_missing_vfio_node_undoes_the_binding() -> None:
    async with server() as node:
        (node.plugin.host.dev / "vfio/20").unlink()
        await node.apply_pod(selector=FPGA + ' && device.attributes["pci.dra-kubeletplugin.dev"].iommuGroup == 20')
        assert "/dev/vfio/20" in (await node.api.wait_event("pod", "HOST_PATH_MISSING")).message
        await node.api.wait("the driver to be back", lambda: _is(node, "0000:17:00.0", "xclmgmt"))


async def _is(node: Server, address: str, driver: str) -> bool:
    return bound(node, address) == driver


async def test_hot_plugged_functions_come_and_go() -> None:
    async with server() as node:
        await node.plug({"address": "0000:19:00.0", "vendor": 0x10EE, "device": 0x5000, "class": 0x120000})
        assert node.plugin.inventory.get("pci-0000-19-00-0")
        await node.unplug("0000:19:00.0")
        assert not node.plugin.inventory.get("pci-0000-19-00-0")


async def test_after_a_reboot_a_function_is_bound_to_vfio_again() -> None:
    async with server() as node:
        await node.run_pod(selector=FPGA, restart_policy="Always")
        await node.reboot()
        await node.api.wait("the binding", lambda: _is(node, "0000:17:00.0", "vfio-pci"))
        await node.delete_pod()
        assert bound(node, "0000:17:00.0") == "xclmgmt"


def test_a_disk_removed_during_the_scan_does_not_hide_other_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = {"vendor": 1, "device": 2, "driver": "nvme"}
    disks = [
        {**function, "address": f"0000:1{i}:00.0", "classes": {"block": {f"nvme{i}n1": {"dev": f"259:{i}"}}}}
        for i in (0, 1)
    ]
    machine = Host(described.build(tmp_path, {"functions": disks}))
    resolve = Path.resolve

    def vanishing(self: Path, strict: bool = False) -> Path:
        if self.name == "nvme0n1":
            raise FileNotFoundError(self)
        return resolve(self, strict)

    monkeypatch.setattr(Path, "resolve", vanishing)
    assert dict(essential(machine.sysfs, machine.pci())) == {"0000:11:00.0": "a disk"}


def test_a_malformed_selection_is_refused() -> None:
    assert parse_selection("vendor=0x10EE,class=12;driver=x") == [
        {"vendor": "10ee", "class": "12"},
        {"driver": "x"},
    ]
    with pytest.raises(SettingsError, match="write it like vendor=10ee"):
        make(Pci, options={"pci_select": "vendor:10ee"})


def test_a_local_cluster_never_changes_a_real_machine(tmp_path: Path) -> None:
    """The function is of a described host, because this machine may have no PCI functions."""
    description = {"address": "0000:17:00.0", "vendor": 0x10EE, "device": 0x5000, "class": 0x120000, "iommu_group": 20}
    (function,) = Host(described.build(tmp_path, {"functions": [description]})).pci()
    driver = Pci()
    attach(driver, Host(), dataclasses.replace(Settings(), local_cluster=True))
    obstacle = driver._vfio_obstacle(type("C", (), {"devices": ()})(), function)
    assert obstacle == "a local cluster does not change the functions of a real machine"
