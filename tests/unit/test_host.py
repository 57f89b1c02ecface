"""The PCI tree, on described hosts and on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Host
from dra_kubeletplugin.host import described
from dra_kubeletplugin.host.pci_names import PciNames


def host(tmp_path: Path, *functions: dict[str, Any]) -> Host:
    return Host(described.build(tmp_path / "sys", {"functions": functions}))


BASE = {"vendor": 0x10EE, "device": 0x5000, "class": 0x120000}


def test_attributes_are_standard_ones_and_our_own(tmp_path: Path) -> None:
    (fn,) = host(
        tmp_path, {"address": "0000:17:00.0", **BASE, "driver": "x", "numa": 1, "iommu_group": 7, "root": "pci0000:16"}
    ).pci()
    attributes = fn.attributes()
    assert attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:16"
    assert attributes["resource.kubernetes.io/pciBusID"] == "0000:17:00.0"
    assert attributes["resource.kubernetes.io/numaNode"] == 1
    assert (attributes["vendor"], attributes["class"], attributes["iommuGroup"]) == ("10ee", "120000", 7)
    assert fn.device().name == "pci-0000-17-00-0"


def test_no_numa_affinity_is_no_attribute(tmp_path: Path) -> None:
    (fn,) = host(tmp_path, {"address": "0000:17:00.0", **BASE}).pci()
    assert fn.numa_node is None
    assert "resource.kubernetes.io/numaNode" not in fn.attributes()


def test_a_vmd_domain_of_five_digits_has_no_standard_bus_id(tmp_path: Path) -> None:
    (fn,) = host(tmp_path, {"address": "10000:e1:00.0", **BASE, "root": "pci10000:e0"}).pci()
    assert fn.pci_bus_id is None
    assert fn.pcie_root == "pci10000:e0"
    fn.device()


def test_a_link_that_is_absolute_gives_the_same_root(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE})
    link = machine.sysfs / "bus/pci/devices/0000:17:00.0"
    target = link.resolve()
    link.unlink()
    link.symlink_to(target)
    assert machine.pci()[0].pcie_root == "pci0000:17"


def test_what_hangs_elsewhere_has_no_pcie_root(tmp_path: Path) -> None:
    (fn,) = host(tmp_path, {"address": "0000:17:00.0", **BASE, "root": "LNXSYSTM:00"}).pci()
    assert fn.pcie_root is None


def test_a_function_that_vanishes_while_we_look_is_passed_over(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE}, {"address": "0000:18:00.0", **BASE})
    shutil.rmtree(machine.pci()[0].path)
    assert [f.address for f in machine.pci()] == ["0000:18:00.0"]


def test_virtual_functions_know_their_parent_and_index(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:18:00.0", **BASE, "driver": "x", "vfs": {"total": 4, "device": 0x5001}})
    machine.write("bus/pci/devices/0000:18:00.0/sriov_numvfs", "2")
    vfs = [f for f in machine.pci() if f.is_vf]
    assert [(f.physical_function, f.vf_index) for f in vfs] == [("0000:18:00.0", 0), ("0000:18:00.0", 1)]
    machine.write("bus/pci/devices/0000:18:00.0/sriov_numvfs", "0")
    assert [f for f in machine.pci() if f.is_vf] == []


def test_functions_are_chosen_by_vendor_class_and_driver(tmp_path: Path) -> None:
    machine = host(
        tmp_path,
        {"address": "0000:17:00.0", **BASE, "driver": "x"},
        {"address": "0000:18:00.0", "vendor": 1, "device": 2, "class": 0x020000},
    )
    assert len(machine.pci(vendor=0x10EE)) == len(machine.pci(class_code=0x02)) == len(machine.pci(driver="x")) == 1
    assert machine.pci(class_code=0x0200)[0].address == "0000:18:00.0"


@pytest.mark.skipif(not Path("/sys/bus/pci/devices").is_dir(), reason="needs /sys with a PCI bus")
def test_this_machine_s_own_functions_make_valid_devices() -> None:
    functions = Host().pci()
    assert len({f.device().name for f in functions}) == len(functions)


@pytest.mark.skipif(not Path("/usr/share/misc/pci.ids").is_file(), reason="needs Debian's pci.ids")
def test_names_come_from_the_database() -> None:
    names = PciNames.load()
    assert names.vendor(0x1AF4) == "Red Hat, Inc."
    assert names.device(0x1AF4, 0x1041) == "Virtio 1.0 network device"
    assert names.class_name(0x020000) == "Ethernet controller"
    assert names.vendor(0x0003) is None


def test_without_a_database_there_are_no_names() -> None:
    assert PciNames.load([Path("/nowhere")]).vendor(0x1AF4) is None


def test_a_reboot_changes_the_boot_id_and_binds_native_drivers(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE, "driver": "x"})
    machine.write("bus/pci/devices/0000:17:00.0/driver_override", "vfio-pci")
    machine.write("bus/pci/drivers/x/unbind", "0000:17:00.0")
    machine.write("bus/pci/drivers_probe", "0000:17:00.0")
    assert machine.pci()[0].driver == "vfio-pci"
    before = machine.boot_id()
    described.reboot(machine.sysfs)
    assert machine.boot_id() != before
    assert machine.pci()[0].driver == "x"


def test_writes_fail_as_the_kernel_s_do(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE})
    with pytest.raises(OSError, match="No such device"):
        machine.write("bus/pci/drivers/vfio-pci/bind", "0000:99:00.0")
    with pytest.raises(FileNotFoundError):
        machine.write("bus/pci/drivers/nothing/bind", "0000:17:00.0")
