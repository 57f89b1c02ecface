"""The PCI functions and NUMA nodes in sysfs, on described hosts and on this machine."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.hosts import described
from dra_kubeletplugin import Host
from dra_kubeletplugin.host import device_attributes, sysfs
from dra_kubeletplugin.host.pci_names import PciNames
from tests.helpers.limits import no_free_descriptor


def host(tmp_path: Path, *functions: dict[str, Any]) -> Host:
    return Host(described.build(tmp_path / "sys", {"functions": functions}))


BASE = {"vendor": 0x10EE, "device": 0x5000, "class": 0x120000}


def test_attributes_have_standard_names_and_names_of_this_package(tmp_path: Path) -> None:
    (fn,) = host(
        tmp_path, {"address": "0000:17:00.0", **BASE, "driver": "x", "numa": 1, "iommu_group": 7, "root": "pci0000:16"}
    ).pci()
    attributes = fn.attributes()
    assert attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:16"
    assert attributes["resource.kubernetes.io/pciBusID"] == "0000:17:00.0"
    assert attributes["resource.kubernetes.io/numaNode"] == 1
    assert (attributes["vendor"], attributes["class"], attributes["iommuGroup"]) == ("10ee", "120000", 7)
    assert fn.device().name == "pci-0000-17-00-0"
    assert fn.device().data is fn
    assert fn.device("card", data="custom").data == "custom"


def test_a_function_without_numa_affinity_has_no_numa_attribute(tmp_path: Path) -> None:
    (fn,) = host(tmp_path, {"address": "0000:17:00.0", **BASE}).pci()
    assert fn.numa_node is None
    assert "resource.kubernetes.io/numaNode" not in fn.attributes()


def test_a_vmd_domain_of_five_digits_has_no_standard_bus_id(tmp_path: Path) -> None:
    (fn,) = host(tmp_path, {"address": "10000:e1:00.0", **BASE, "root": "pci10000:e0"}).pci()
    assert fn.pci_bus_id is None
    assert fn.pcie_root == "pci10000:e0"
    fn.device()


def test_an_absolute_link_leads_to_the_same_root(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE})
    link = machine.sysfs / "bus/pci/devices/0000:17:00.0"
    target = link.resolve()
    link.unlink()
    link.symlink_to(target)
    assert machine.pci()[0].pcie_root == "pci0000:17"


def test_an_address_in_upper_case_is_converted_to_lower_case(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:1a:00.0", **BASE})
    link = machine.sysfs / "bus/pci/devices/0000:1a:00.0"
    link.rename(link.with_name("0000:1A:00.0"))
    (fn,) = machine.pci()
    assert (fn.address, fn.pci_bus_id, fn.pcie_root) == ("0000:1a:00.0", "0000:1a:00.0", "pci0000:1a")


def test_a_function_below_a_non_pci_root_has_no_pcie_root(tmp_path: Path) -> None:
    (fn,) = host(tmp_path, {"address": "0000:17:00.0", **BASE, "root": "LNXSYSTM:00"}).pci()
    assert fn.pcie_root is None


def test_a_function_that_is_removed_during_a_scan_is_skipped(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE}, {"address": "0000:18:00.0", **BASE})
    shutil.rmtree(machine.pci()[0].path)
    assert [f.address for f in machine.pci()] == ["0000:18:00.0"]


def test_if_the_parent_is_removed_during_a_scan_only_its_values_are_missing(tmp_path: Path) -> None:
    virtual = {"total": 4, "device": 0x5001, "enabled": 1}
    machine = host(tmp_path, {"address": "0000:18:00.0", **BASE, "driver": "x", "vfs": virtual})
    (vf,) = (f for f in machine.pci() if f.is_vf)
    shutil.rmtree(vf.path.parent / "0000:18:00.0")
    assert "vfIndex" not in vf.attributes() and vf.vf_index is None


def test_virtual_functions_have_their_parent_and_index(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:18:00.0", **BASE, "driver": "x", "vfs": {"total": 4, "device": 0x5001}})
    machine.write("bus/pci/devices/0000:18:00.0/sriov_numvfs", "2")
    vfs = [f for f in machine.pci() if f.is_vf]
    assert [(f.physical_function, f.vf_index) for f in vfs] == [("0000:18:00.0", 0), ("0000:18:00.0", 1)]
    machine.write("bus/pci/devices/0000:18:00.0/sriov_numvfs", "0")
    assert [f for f in machine.pci() if f.is_vf] == []


def test_functions_are_filtered_by_vendor_class_and_driver(tmp_path: Path) -> None:
    machine = host(
        tmp_path,
        {"address": "0000:17:00.0", **BASE, "driver": "x"},
        {"address": "0000:18:00.0", "vendor": 1, "device": 2, "class": 0x020000},
    )
    assert len(machine.pci(vendor=0x10EE)) == len(machine.pci(class_code=0x02)) == len(machine.pci(driver="x")) == 1
    assert machine.pci(class_code=0x0200)[0].address == "0000:18:00.0"


@pytest.mark.skipif(not Path("/sys/bus/pci/devices").is_dir(), reason="needs /sys with a PCI bus")
def test_the_functions_of_this_machine_are_valid_devices() -> None:
    functions = Host().pci()
    assert len({f.device().name for f in functions}) == len(functions)


@pytest.mark.skipif(not Path("/usr/share/misc/pci.ids").is_file(), reason="needs Debian's pci.ids")
def test_names_are_read_from_the_pci_database() -> None:
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


def test_writes_fail_with_the_errors_of_the_kernel(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE})
    with pytest.raises(OSError, match="No such device"):
        machine.write("bus/pci/drivers/vfio-pci/bind", "0000:99:00.0")
    with pytest.raises(FileNotFoundError):
        machine.write("bus/pci/drivers/nothing/bind", "0000:17:00.0")


# --- NUMA and CPUs ------------------------------------------------------------------------------

NODES = {
    0: {"cpus": "0-3", "socket": 0, "distances": [10, 12, 12, 20]},
    1: {"cpus": "4-7", "socket": 0, "distances": [12, 10, 20, 20]},
    2: {"cpus": "8-11", "socket": 1, "distances": [12, 20, 10, 12]},
    3: {"distances": [20, 20, 12, 10]},
}


def numa_host(tmp_path: Path, *functions: dict[str, Any], lists: bool = False) -> Host:
    return Host(described.build(tmp_path / "sys", {"functions": functions, "numa_nodes": NODES}), lists=lists)


def test_near_returns_the_nearest_nodes_of_the_same_socket(tmp_path: Path) -> None:
    numa = numa_host(tmp_path).numa
    assert numa.nodes() == [0, 1, 2, 3]
    assert numa.near(0) == [0, 1], "node 2 has the same distance but is on the other socket"
    assert numa.near(1) == [1, 0]
    assert numa.near(2) == [2, 3], "the socket of a node without CPUs is unknown, so the node counts as the same socket"
    with pytest.raises(ValueError, match="-1 is not a NUMA node: omit the attribute"):
        numa.near(-1)


def test_a_distance_row_contains_only_online_nodes(tmp_path: Path) -> None:
    """The kernel writes one number for each online node, so the position in the row is not the node's number."""
    nodes = {
        0: {"cpus": "0", "distances": [10, 11, 30]},
        2: {"cpus": "1", "distances": [11, 10, 30]},
        5: {"distances": [30, 30, 10]},
    }
    root = described.build(tmp_path / "sys", {"functions": [], "numa_nodes": nodes})
    assert Host(root).numa.near(0) == [0, 2]
    assert Host(root).numa.near(2) == [2, 0]


@pytest.mark.parametrize("row", ["", "10 12", "10 x 12 20", "\u0661\u0660 12 12 20"])
def test_with_an_invalid_distance_row_a_node_is_near_only_itself(tmp_path: Path, row: str) -> None:
    machine = numa_host(tmp_path)
    (machine.sysfs / "devices/system/node/node0/distance").write_text(row)
    assert machine.numa.near(0) == [0]
    assert machine.numa.near(77) == [77]


def test_cpus_have_their_numa_node_and_their_local_pcie_roots(tmp_path: Path) -> None:
    bridges = [
        {"address": "0000:00:00.0", "vendor": 1, "device": 2, "class": 0x060000, "numa": 0},
        {"address": "0000:40:00.0", "vendor": 1, "device": 2, "class": 0x060400, "numa": 0},
        {"address": "0000:80:00.0", "vendor": 1, "device": 2, "class": 0x060400, "numa": 2},
        {"address": "0000:c0:00.0", **BASE, "numa": 2},
    ]
    machine = numa_host(tmp_path, *bridges)
    assert [machine.numa.of_cpu(n) for n in (0, 7, 8, 99)] == [0, 1, 2, None]
    roots = machine.pcie_roots_of_cpus()
    assert roots[3] == ["pci0000:00", "pci0000:40"]
    assert roots[8] == ["pci0000:80"], "only bridges are considered"
    assert 4 not in roots


def test_the_numa_node_is_a_list_if_the_cluster_accepts_lists(tmp_path: Path) -> None:
    functions = ({"address": "0000:17:00.0", **BASE, "numa": 1}, {"address": "0000:18:00.0", **BASE})
    for lists, expected in ((False, 1), (True, [1, 0])):
        first, second = numa_host(tmp_path / str(lists), *functions, lists=lists).pci()
        assert first.device().json()["attributes"][device_attributes.NUMA_NODE] == {
            "ints" if lists else "int": expected
        }
        assert device_attributes.NUMA_NODE not in second.device().attributes


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=5), st.text(max_size=8))
def test_a_list_of_cpus_is_parsed_and_an_invalid_list_is_empty(ranges: list[tuple[int, int]], invalid: str) -> None:
    text = ",".join(str(first) if not more else f"{first}-{first + more}" for first, more in ranges)
    assert sysfs.cpu_list(text) == [first + n for first, more in ranges for n in range(more + 1)]
    assert sysfs.cpu_list(f"{text},{invalid}x") == sysfs.cpu_list("0-99999999999") == []


# --- read values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "speed"),
    [("16.0 GT/s PCIe", 16000), ("2.5 GT/s PCIe", 2500), ("8 GT/s", 8000), ("Unknown", None), ("", None)],
)
def test_the_speed_of_a_link_is_a_number(tmp_path: Path, text: str, speed: int | None) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE, "link": {"speed": 32, "width": 16}})
    (machine.pci()[0].path / "max_link_speed").write_text(f"{text}\n")
    (fn,) = machine.pci()
    assert (fn.max_link_speed, fn.attributes().get("linkSpeed")) == (speed, speed)
    assert fn.attributes()["linkWidth"] == 16


@pytest.mark.parametrize("width", ["0", "255", "Unknown", "-1", "\u0661"])
def test_an_invalid_link_width_is_omitted(tmp_path: Path, width: str) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE, "link": {"speed": 32, "width": 16}})
    (machine.pci()[0].path / "max_link_width").write_text(width)
    assert "linkWidth" not in machine.pci()[0].attributes()


def test_a_slower_idle_link_does_not_change_published_attributes(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE, "link": {"speed": 32, "width": 16}})
    before = machine.pci()[0].attributes()
    (machine.pci()[0].path / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    (fn,) = machine.pci()
    assert fn.read("current_link_speed") == "2.5 GT/s PCIe"
    assert fn.attributes() == before


def test_functions_of_a_driver_are_found_in_the_driver_s_folder(tmp_path: Path) -> None:
    machine = host(
        tmp_path,
        *({"address": f"0000:{bus:02x}:00.0", **BASE, "driver": "x" if bus == 7 else "y"} for bus in range(16)),
    )
    for link in (machine.sysfs / "bus/pci/devices").iterdir():
        if link.name != "0000:07:00.0":
            link.unlink()  # The search must not need the links of other functions.
    assert [fn.address for fn in machine.pci(driver="x")] == ["0000:07:00.0"]
    assert machine.pci(driver="nothing") == []


def test_only_the_vendor_file_is_read_of_functions_of_other_vendors(tmp_path: Path) -> None:
    machine = host(tmp_path, *({"address": f"0000:{bus:02x}:00.0", **BASE, "vendor": bus} for bus in range(1, 16)))
    for link in (machine.sysfs / "bus/pci/devices").iterdir():
        if link.name != "0000:07:00.0":
            (link / "class").unlink()
    assert [fn.address for fn in machine.pci(vendor=7)] == ["0000:07:00.0"]


def test_a_function_is_a_snapshot_and_a_new_lookup_reads_current_values(tmp_path: Path) -> None:
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE, "driver": "x"})
    fn = machine.function("0000:17:00.0")
    assert fn is not None
    assert fn.driver == "x"
    machine.write("bus/pci/drivers/x/unbind", "0000:17:00.0")
    assert fn.driver == "x", "the value of the first read is kept"
    again = machine.function("0000:17:00.0")
    assert again == fn
    assert again is not None and again.driver is None
    assert [machine.function(a) for a in ("0000:99:00.0", "../../x", "")] == [None, None, None]


@given(content=st.binary(max_size=40), name=st.sampled_from(["vendor", "class", "numa_node", "max_link_width", "max_link_speed", "sriov_totalvfs", "local_cpulist"]))  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_with_any_file_content_a_function_is_a_valid_device_or_skipped(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = host(Path(folder), {"address": "0000:17:00.0", **BASE, "link": {"speed": 8, "width": 8}})
        (machine.sysfs / "bus/pci/devices/0000:17:00.0" / name).write_bytes(content)
        for fn in machine.pci():
            assert fn.device().name == "pci-0000-17-00-0"
        machine.pcie_roots_of_cpus()


def test_without_free_descriptors_a_scan_fails_instead_of_omitting_functions(tmp_path: Path) -> None:
    """The scan then fails, and the devices of the last scan stay published."""
    machine = host(tmp_path, {"address": "0000:17:00.0", **BASE})
    (fn,) = machine.pci()
    for read in (machine.pci, fn.nodes, lambda: fn.read("vendor")):
        with no_free_descriptor(), pytest.raises(OSError, match="Too many open files"):
            read()
    assert len(machine.pci()) == 1


def test_hundreds_of_virtual_functions_are_read_in_linear_time(tmp_path: Path) -> None:
    """Four times as many functions of one parent take less than nine times as long. The bound is generous because machines are shared."""

    def measure(count: int) -> float:
        root = described.build(tmp_path / str(count), {"functions": [{"address": "0000:17:00.0", **BASE, "driver": "x", "vfs": {"total": count, "enabled": count}}]})  # fmt: skip
        machine = Host(root)
        best = 9.0
        for _ in range(3):
            started = time.process_time()
            assert len([fn.attributes() for fn in machine.pci()]) == count + 1
            best = min(best, time.process_time() - started)
        return best

    assert measure(512) < 9 * measure(128)


@pytest.mark.parametrize("wanted", [{"vendor": "10ee"}, {"device": "0x5000"}, {"class_code": 2.0}, {"vendor": True}])
def test_ids_that_are_no_integers_are_rejected(tmp_path: Path, wanted: Any) -> None:
    with pytest.raises(TypeError, match="give an integer such as 0x10EE"):
        host(tmp_path).pci(**wanted)
