"""Described hosts equal their description, faults of a description have a line, and writes have the effects of the kernel."""

from __future__ import annotations

import contextlib
import errno
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dra_devkit.hosts import described, recording, schema, tree
from dra_devkit.hosts.model import SPEEDS, WIDTHS, Function, HostDescription
from dra_devkit.localcluster.dev.hosts import HostError, NodeHost
from dra_kubeletplugin import Host
from dra_kubeletplugin.errors import SettingsError
from packages.devkit.tests.command_runner import Dra

CARD = {"vendor": 0x10EE, "device": 0x5000, "class": 0x120000}


@contextlib.contextmanager
def built(machine: HostDescription | Mapping[str, Any]) -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as folder:
        yield Host(described.build(Path(folder) / "sys", machine))


def functions(*fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"functions": [{**CARD, **f} for f in fields]}


# --- round trips --------------------------------------------------------------------------------

word = st.sampled_from(["mlx5_core", "nvme", "vfio-pci", "xclmgmt"])
id16 = st.integers(0, 0xFFFF)
line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), max_size=12)
content = line | st.lists(line, min_size=2, max_size=4).map(lambda lines: "\n".join(lines) + "\n")


@st.composite
def descriptions(draw: st.DrawFn) -> dict[str, Any]:
    """Draws machines with a few functions: bridges, five-digit domains, virtual functions, NUMA nodes, groups and device classes."""
    nodes = draw(st.integers(0, 3))
    out: list[dict[str, Any]] = []
    for bus in range(draw(st.integers(0, 5))):
        domain = draw(st.sampled_from(["0000", "10000", "0001"]))
        address = f"{domain}:{bus * 16:02x}:{draw(st.integers(0, 31)):02x}.{draw(st.integers(0, 7))}"
        fn: dict[str, Any] = {"address": address, "vendor": draw(id16), "device": draw(id16)}
        fn |= {"class": draw(st.integers(0, 0xFFFFFF)), "revision": draw(st.integers(0, 255))}
        fn |= {"subsystem_vendor": draw(st.integers(1, 0xFFFF)), "subsystem_device": draw(id16)}
        if out and draw(st.booleans()):
            fn["behind"] = draw(st.sampled_from(out))["address"]
            fn |= {"root": f"pci{domain}:{bus * 16:02x}"} if draw(st.booleans()) else {}
        elif draw(st.booleans()):
            fn["root"] = f"pci{domain}:{draw(st.integers(0, 255)):02x}"
        fn |= {"driver": draw(word)} if draw(st.booleans()) else {}
        fn |= {"iommu_group": draw(st.integers(0, 9))} if draw(st.booleans()) else {}
        fn |= {"numa": draw(st.integers(0, nodes - 1))} if nodes and draw(st.booleans()) else {}
        fn |= {"boot_vga": draw(st.booleans())}
        if draw(st.booleans()):
            fn["link"] = {
                "speed": draw(st.sampled_from(SPEEDS)),
                "width": draw(st.sampled_from(WIDTHS)),
            }
        if draw(st.booleans()):
            total = draw(st.integers(1, 20))
            fn["vfs"] = {"total": total, "device": draw(id16), "stride": draw(st.integers(1, 3))}
            if fn.get("driver") and (enabled := draw(st.integers(0, total))):
                fn["vfs"] |= {"enabled": enabled, "driver": draw(st.none() | word)}
                fn["vfs"] |= {"iommu_group": draw(st.none() | st.integers(100, 200))}
        if draw(st.booleans()):
            fn["classes"] = {
                "net": {f"eth{bus}": {"operstate": draw(st.sampled_from(["up", "down"]))}},
                "drm": {f"card{bus}": {"dev": f"226:{bus}", "devname": f"dri/card{bus}"}},
                "fpga": {f"fpga{bus}": {"dev": f"240:{bus}"}},
            }
        if draw(st.booleans()):
            fn["attributes"] = {"resource": "0x1000 0x1fff 0x40200\n0x0 0x0 0x0", "reset_method": "flr"}
            fn["proc"] = {f"driver/x/{address}/information": draw(content)}
        out.append(fn)
    numa = {n: {"cpus": f"{n * 4}-{n * 4 + 3}", "socket": n % 2, "distances": [10] * nodes} for n in range(nodes)}
    nodes_of_machine = {f"acme{i}": f"{draw(st.sampled_from('bc'))} 241:{i}" for i in range(draw(st.integers(0, 2)))}
    files = {"devices": draw(content), "driver/x/version": draw(content)} if draw(st.booleans()) else {}
    versions = {"module/x/version": "1.2"} if draw(st.booleans()) else {}
    out = draw(st.permutations(out))
    return {"functions": out, "numa_nodes": numa, "nodes": nodes_of_machine, "proc": files, "files": versions}


def by_address(machine: HostDescription) -> list[Function]:
    return sorted(machine.functions, key=lambda fn: fn.address)


@settings(max_examples=60, deadline=None)
@given(descriptions())
def test_the_record_of_a_described_host_equals_its_description(description: dict[str, Any]) -> None:
    machine = schema.parse(description)
    with built(machine) as host:
        found = recording.record(host)
    assert by_address(found) == by_address(machine)
    assert found.numa_nodes == machine.numa_nodes
    assert (found.nodes, found.proc, found.files) == (machine.nodes, machine.proc, machine.files)


@settings(max_examples=60, deadline=None)
@given(descriptions())
def test_a_description_is_equal_after_writing_and_reading_yaml(description: dict[str, Any]) -> None:
    machine = schema.parse(description)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "host.yaml"
        file.write_text(recording.text(machine))
        assert schema.load(file) == machine


@settings(max_examples=60, deadline=None)
@given(descriptions())
def test_each_function_has_a_unique_address(description: dict[str, Any]) -> None:
    machine = schema.parse(description)
    addresses = [fn.address for fn in machine.functions]
    addresses += [fn.virtual(i).address for fn in machine.functions if fn.vfs for i in range(fn.vfs.total)]
    assert len(addresses) == len(set(addresses))


def without_unrecorded_fields(fn: Function) -> Function:
    """Returns ``fn`` without the fields that a record omits: other files, and the settings of disabled virtual functions."""
    vfs = fn.vfs
    if vfs and not vfs.enabled:
        vfs = structs.replace(vfs, driver=None, iommu_group=None)
    recorded = {"dev", "devname", "operstate", "size"}
    classes = {
        kind: {name: {a: text for a, text in files.items() if a in recorded} for name, files in devices.items()}
        for kind, devices in fn.classes.items()
    }
    return structs.replace(fn, attributes={}, classes=classes, vfs=vfs)


@pytest.mark.parametrize("name", described.machines())
def test_the_records_of_the_packaged_machines_equal_their_descriptions(name: str) -> None:
    machine = schema.load(described.find(name))
    with built(machine) as host:
        found = recording.record(host)
        names = [fn.device().name for fn in host.pci()]
    for described_function, recorded_function in zip(by_address(machine), by_address(found), strict=True):
        assert without_unrecorded_fields(described_function) == recorded_function
    assert found.numa_nodes == machine.numa_nodes
    assert len(names) == len(set(names)) >= 6


def test_the_record_of_this_machine_can_be_built_and_recorded_again(tmp_path: Path) -> None:
    machine = recording.record(Host())
    again = recording.record(Host(described.build(tmp_path / "sys", machine)))
    assert by_address(again) == by_address(machine)


def test_inspect_records_a_host_and_accepts_the_record_as_a_host(dra: Dra, tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_text(dra("inspect", "--host", "storage-host", "--describe-host").out)
    shown = dra("inspect", "--host", tmp_path / "again.yaml").out
    assert "10000:01:00.0" in shown
    assert "driver vmd" in shown


@pytest.mark.parametrize("command", ["inspect", "dev"])
def test_the_commands_report_each_fault_of_a_description(command: str, dra: Dra, tmp_path: Path) -> None:
    file = tmp_path / "host.yaml"
    file.write_text("functions:\n- address: 0000:17:00.0\n  vendr: 0x10ee\n  device: 1\n")
    driver = [] if command == "inspect" else ["tests.helpers.drivers:Toy"]
    lines = [
        line for line in dra(command, *driver, "--host", file, code=2).err.splitlines() if line.startswith("dra: ")
    ]
    assert lines[0].startswith(f"dra: {file}:3: functions[0].vendr: unknown key, did you mean 'vendor'?")


# --- faults -------------------------------------------------------------------------------------

HEAD = 'functions:\n- address: "0000:17:00.0"\n  vendor: 0x10ee\n  device: 0x5000\n'
ALIAS_BOMB = "- &a [1, 2]\n" + "".join(
    f"- &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
WRONG = {
    "a misspelled key": (HEAD + "  vendr: 1\n", ":5: functions[0].vendr: unknown key, did you mean 'vendor'?"),
    "a misspelled top-level key": (HEAD + "function: []\n", ":5: function: unknown key, did you mean 'functions'?"),
    "a misspelled nested key": (HEAD + "  vfs: {totl: 4, total: 4}\n", ":5: functions[0].vfs.totl: unknown key, did you mean 'total'?"),
    "an address without a function": ("functions:\n- {address: 0000:17:00, vendor: 1, device: 2}\n", ":2: functions[0].address: '0000:17:00' is not a PCI address: write domain:bus:device.function, such as '0000:17:00.0'; the highest device is 1f"),
    "an invalid device number": ("functions:\n- {address: 0000:17:20.0, vendor: 1, device: 2}\n", ":2: functions[0].address: '0000:17:20.0' is not a PCI address: write domain:bus:device.function, such as '0000:17:00.0'; the highest device is 1f"),
    "an address that is a number": ("functions:\n- {address: 17, vendor: 1, device: 2}\n", ":2: functions[0].address: 17: expected `str`, got `int`"),
    "no vendor": ("functions:\n- address: 0000:17:00.0\n  device: 1\n", ":2: functions[0]: `vendor` is missing"),
    "a vendor in quotes": ('functions:\n- {address: 0000:17:00.0, vendor: "0x10ee", device: 1}\n', ":2: functions[0].vendor: '0x10ee': expected `int`, got `str`"),
    "a vendor beyond 16 bits": ("functions:\n- {address: 0000:17:00.0, vendor: 0x10ee0, device: 1}\n", ":2: functions[0].vendor: 69344: expected `int` <= 65535"),
    "a flag that is a word": (HEAD + "  boot_vga: maybe\n", ":5: functions[0].boot_vga: 'maybe': expected `bool`, got `str`"),
    "an invalid link speed": (HEAD + "  link: {speed: 12, width: 8}\n", ":5: functions[0].link: speed 12 is not one of 2.5, 5, 8, 16, 32, 64"),
    "too many enabled virtual functions": (HEAD + "  driver: x\n  vfs: {total: 4, enabled: 5}\n", ":6: functions[0].vfs: 5 virtual functions are more than the total of 4"),
    "virtual functions without a driver": (HEAD + "  vfs: {total: 4, enabled: 4}\n", ":2: functions[0]: the kernel enables virtual functions only for a function with a driver: set `driver`"),
    "a duplicate address": (HEAD + "- {address: 0000:17:00.0, vendor: 1, device: 2}\n", ":5: functions[1].address: 0000:17:00.0 occurs twice"),
    "shared addresses of virtual functions": (HEAD + "  vfs: {total: 8, offset: 8}\n- {address: 0000:17:00.1, vendor: 1, device: 2, vfs: {total: 2, offset: 14}}\n", ":6: functions[1].vfs: the virtual functions of 0000:17:00.1 share addresses with the virtual functions of 0000:17:00.0: set another offset, stride or total"),
    "virtual functions beyond the last bus": ("functions:\n- {address: 0000:ff:1f.0, vendor: 1, device: 2, vfs: {total: 64}}\n", ":2: functions[0].vfs: the virtual functions of 0000:ff:1f.0 reach beyond the last bus: set another offset, stride or total"),
    "a missing bridge": (HEAD + "  behind: 0000:16:01.0\n- {address: 0000:16:00.0, vendor: 1, device: 2}\n", ":5: functions[0].behind: 0000:16:01.0 is not described, did you mean '0000:16:00.0'?"),
    "a bridge below itself": (HEAD + "  behind: 0000:17:00.0\n", ":5: functions[0].behind: 0000:17:00.0 is above itself: correct `behind`"),
    "a NUMA node that is not described": (HEAD + "  numa: 2\nnuma_nodes: {0: {cpus: 0-3}}\n", ":5: functions[0].numa: node 2 is not in numa_nodes, which has 0"),
    "a wrong number of distances": (HEAD + "numa_nodes: {0: {cpus: 0-3, distances: [10, 20]}}\n", ":5: numa_nodes[0].distances: 2 distances for 1 node: list the distance to each node, also to the node itself"),
    "a CPU of two nodes": (HEAD + "numa_nodes:\n  0: {cpus: 0-3}\n  1: {cpus: 3-4}\n", ":7: numa_nodes[1].cpus: CPU 3 already belongs to node 0"),
    "a file that a key describes": (HEAD + "  attributes: {numa_node: 1}\n", ":2: functions[0]: set numa_node with the key `numa`"),
    "a file outside of the folder": (HEAD + "  attributes: {../../x: 1}\n", ":5: functions[0].attributes.../../x: '../../x' is not a path within the folder"),
    "a node without numbers": (HEAD + "nodes: {fpga0: 240}\n", ":5: nodes.fpga0: 240: expected `str`, got `int`"),
    "a class's node without numbers": (HEAD + "  classes: {fpga: {fpga0: {dev: 240}}}\n", ":2: functions[0]: fpga0: dev 240 is not major:minor, such as 240:0"),
    "a link that exists for every device": (HEAD + "  classes: {fpga: {fpga0: {device: x}}}\n", ":2: functions[0]: fpga0: device is created for every device: remove it"),
    "a path that cannot be printed": (HEAD + '  attributes: {"a\\tb": 1}\n', ":5: functions[0].attributes.a\tb: 'a\\tb' is not a path within the folder"),
    "an invalid node": (HEAD + "nodes:\n  fpga0: c 1:2\n  fpga1: d 1:2\n", ":7: nodes.fpga1: 'd 1:2' is not a device node: write 'c major:minor', or 'b major:minor' for a block device"),
    "a file that is a list": (HEAD + "  classes:\n    fpga:\n      fpga0: {size: 1}\n      fpga1: {dev: [1]}\n", ":8: functions[0].classes.fpga.fpga1.dev: [1]: expected `bool | int | float | str`, got `array`"),
    "CPUs that are no list": (HEAD + "numa_nodes:\n  0: {cpus: 0-3}\n  1: {cpus: 4-x}\n", ":7: numa_nodes[1]: '4-x' is not a list of CPUs: write it like 0-3,8-11"),
    "a duplicate key": (HEAD + "  vendor: 1\n", ":5: the key 'vendor' was already used in line 3: one of the values is lost"),
    "no list": ("functions: {}\n", ":1: functions: {}: expected `array`, got `object`"),
    "nothing": ("", ": None: expected `object`, got `null`"),
    "no YAML": ("functions: [\n", ":2:1: not valid YAML: a value is missing"),
    "no YAML at all": ("\t", ":1:1: not valid YAML: a tab: YAML is indented with spaces"),
    "two documents": ("functions: []\n---\na: 1\n", ":3: a second document: put everything into one document"),
    "an alias bomb": (ALIAS_BOMB, ":6:3: not valid YAML: aliases repeat more than 1000000 characters: write the values out"),
    "an alias of itself": ("a: &a [*a]\n", ":1:4: not valid YAML: an alias is inside its own anchor"),
}  # fmt: skip


B = {"address": "0000:17:00.0", "vendor": 1, "device": 2, "driver": "x"}
UNBUILDABLE: dict[str, dict[str, Any]] = {
    "a file and a folder": {"functions": [{**B, "attributes": {"x": 1, "x/y": 2}}]},
    "a file where a folder must be": {"functions": [B], "files": {"bus/pci": 1}},
    "a node where a folder must be": {"functions": [B], "nodes": {"vfio": "c 1:2"}},
    "nodes within each other": {"functions": [B], "nodes": {"x": "c 1:2", "x/y": "c 1:2"}},
    "a class with the name of a file": {"functions": [{**B, "classes": {"vendor": {"x0": {"dev": "240:0"}}}}]},
    "a name that is too long": {"functions": [{**B, "attributes": {"x" * 300: 1}}]},
    "text that cannot be encoded": {"functions": [{**B, "attributes": {"x": "\ud800"}}]},
}


@pytest.mark.parametrize("which", UNBUILDABLE)
def test_a_description_that_cannot_be_built_is_an_error_with_the_folder(tmp_path: Path, which: str) -> None:
    with pytest.raises(SettingsError, match=r"cannot build the described host in|surrogates not allowed"):
        described.build(tmp_path, UNBUILDABLE[which])
    described.build(tmp_path / "good", {"functions": [{**B, "address": "0000:18:00.0"}]})
    if "files" not in UNBUILDABLE[which] and "nodes" not in UNBUILDABLE[which]:
        with pytest.raises(SettingsError):
            described.add_function(tmp_path / "good", UNBUILDABLE[which]["functions"][0])


@pytest.mark.parametrize("which", WRONG)
def test_a_fault_is_reported_with_the_file_and_its_line(tmp_path: Path, which: str) -> None:
    content, fault = WRONG[which]
    file = tmp_path / "host.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=re.escape(f"{file}{fault}")):
        schema.load(file)


def test_plug_accepts_the_description_of_a_function(tmp_path: Path) -> None:
    host = NodeHost.build(tmp_path, "virtual-machine")
    assert host.plug("address: 0000:19:00.0\nvendor: 0x10ee\ndevice: 1\n") == "0000:19:00.0"
    assert "0000:19:00.0" in host.addresses
    with pytest.raises(HostError, match="the function's description:2: the key 'vendor' was already used in line 1"):
        host.plug("vendor: 1\nvendor: 2\n")


def test_every_error_of_each_function_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "host.yaml"
    file.write_text("functions:\n- {address: 1, vendor: x, device: 2}\n- {vendor: 1, device: 70000}\n")
    with pytest.raises(SettingsError) as raised:
        schema.load(file)
    assert [fault.partition(": ")[2] for fault in raised.value.faults] == [
        "functions[0].address: 1: expected `str`, got `int`",
        "functions[0].vendor: 'x': expected `int`, got `str`",
        "functions[1].device: 70000: expected `int` <= 65535",
        "functions[1]: `address` is missing",
    ]


def test_a_binary_or_missing_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="binary:1: byte 0x00 is not UTF-16: save the file as UTF-8"):
        schema.load(tmp_path / "binary")
    with pytest.raises(SettingsError, match="nowhere: No such file"):
        schema.load(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="did you mean 'virtual-machine'"):
        described.find("virtual-machin")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["functions", "address", "vfs", "vendor", "classes", "numa_nodes", "nodes"]), inner, max_size=4), max_leaves=12))  # fmt: skip
def test_any_object_is_a_description_or_rejected(description: Any) -> None:
    with contextlib.suppress(SettingsError):
        schema.parse(description)


# --- the kernel's effects -----------------------------------------------------------------------

PORT, UP, DOWN = "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"
SWITCHED = [
    {"address": PORT, "root": "pci0000:16"},
    {"address": UP, "behind": PORT},
    {"address": DOWN, "behind": UP, "link": {"speed": 8, "width": 8}},
    {
        "address": "0000:19:00.0",
        "behind": DOWN,
        "driver": "mlx5_core",
        "numa": 1,
        "link": {"speed": 16, "width": 16},
        "vfs": {"total": 4, "device": 0x5001, "driver": "mlx5_vf", "iommu_group": 40},
    },
    {"address": "0000:19:00.1", "behind": DOWN, "driver": "mlx5_core", "vfs": {"total": 4}},
]


@pytest.mark.parametrize(
    "wrong",
    [
        {"x - at `$.y`": 1},
        {"x - at `$.functions`": 1},
        {"nodes": {"x - at `key` in `$.nodes[...]`": 5}},
        {"functions": ["\ud800"]},
        {"numa_nodes": {float("inf"): "x", 1: {"socket": "\ud800"}}},
    ],
)
def test_keys_that_look_like_paths_and_invalid_unicode_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        schema.parse({"functions": [], **wrong})


def test_virtual_functions_behind_a_switch_have_its_root_separate_groups_and_a_driver() -> None:
    with built(functions(*SWITCHED)) as host:
        host.write("bus/pci/devices/0000:19:00.0/sriov_numvfs", "4")
        host.write("bus/pci/devices/0000:19:00.1/sriov_numvfs", "3")
        virtual = [fn for fn in host.pci() if fn.is_vf]
        assert len({fn.address for fn in virtual}) == 7
        first = [fn for fn in virtual if fn.physical_function == "0000:19:00.0"]
        assert [fn.vf_index for fn in first] == [0, 1, 2, 3]
        assert [fn.iommu_group for fn in first] == [40, 41, 42, 43]
        assert {(fn.pcie_root, fn.upstream, fn.driver, fn.numa_node) for fn in first} == {
            ("pci0000:16", DOWN, "mlx5_vf", 1)
        }
        assert {(fn.max_link_speed, fn.max_link_width) for fn in first} == {(8000, 8)}, "the values of the slower port"
        assert (host.dev / "vfio/43").is_file()


def test_an_invalid_number_of_virtual_functions_is_rejected_as_by_the_kernel() -> None:
    with built(functions(*SWITCHED, {"address": "0000:20:00.0", "vfs": {"total": 1}})) as host:
        control = "bus/pci/devices/0000:19:00.0/sriov_numvfs"

        def errno_of_write(path: str, text: str) -> int | None:
            with pytest.raises(OSError) as raised:
                host.write(path, text)
            return raised.value.errno

        assert errno_of_write(control, "5") == errno.ERANGE
        assert errno_of_write(control, "-1") == errno_of_write(control, "many") == errno.EINVAL
        host.write(control, "2")
        assert errno_of_write(control, "3") == errno.EBUSY
        assert len([fn for fn in host.pci() if fn.is_vf]) == 2
        host.write(control, "0")
        assert errno_of_write("bus/pci/devices/0000:20:00.0/sriov_numvfs", "1") == errno.ENOENT, "no driver"


def test_unbinding_a_driver_removes_its_nodes_and_virtual_functions() -> None:
    card = {"address": "0000:19:00.0", "driver": "mlx5_core", "vfs": {"total": 2, "enabled": 2}}
    card |= {"classes": {"infiniband_verbs": {"uverbs0": {"dev": "231:192", "devname": "infiniband/uverbs0"}}}}
    with built(functions(card)) as host:
        fn = host.function("0000:19:00.0")
        assert fn is not None
        assert fn.nodes() == fn.nodes("infiniband_verbs") == ["/dev/infiniband/uverbs0"]
        assert (host.dev / "infiniband/uverbs0").read_text() == "c 231:192\n"
        host.write("bus/pci/drivers/mlx5_core/unbind", fn.address)
        assert (fn.nodes(), (host.dev / "infiniband/uverbs0").exists(), len(host.pci())) == ([], False, 1)
        host.write("bus/pci/drivers_probe", fn.address)
        assert fn.nodes() == ["/dev/infiniband/uverbs0"]
        described.reboot(host.sysfs)
        assert len(host.pci()) == 3, "virtual functions exist again after a reboot"


def test_device_nodes_are_found_at_any_depth_without_those_of_lower_functions() -> None:
    bridge = {"address": "0000:18:00.0", "driver": "pcieport", "classes": {"misc": {"port": {"dev": "10:1"}}}}
    disk = {"address": "0000:19:00.0", "behind": "0000:18:00.0", "classes": {"nvme": {"nvme0": {"dev": "239:0"}}}}
    with built(functions(bridge, disk)) as host:
        fn = host.function("0000:19:00.0")
        assert fn is not None
        namespace = fn.path / "nvme/nvme0/nvme0n1"
        namespace.mkdir()
        (namespace / "dev").write_text("259:0\n")
        (namespace / "subsystem").symlink_to("../../../../../../../class/block")
        assert fn.nodes() == ["/dev/nvme0", "/dev/nvme0n1"]
        assert (fn.nodes("block"), fn.nodes("nvme"), fn.nodes("net")) == (["/dev/nvme0n1"], ["/dev/nvme0"], [])
        port = host.function("0000:18:00.0")
        assert port is not None
        assert port.nodes() == ["/dev/port"]


def test_a_plugged_function_is_validated_and_unplugging_a_bridge_removes_lower_functions() -> None:
    with built(functions(*SWITCHED)) as host:
        with pytest.raises(SettingsError, match="occurs twice"):
            described.add_function(host.sysfs, {**CARD, "address": "0000:19:00.0"})
        described.add_function(host.sysfs, {**CARD, "address": "0000:1a:00.0", "behind": DOWN, "iommu_group": 7})
        host.write("bus/pci/devices/0000:19:00.0/sriov_numvfs", "4")
        assert len(host.pci()) == 10
        described.remove_function(host.sysfs, DOWN)
        assert [fn.address for fn in host.pci()] == [PORT, UP]
        assert list((host.sysfs / "kernel/iommu_groups").iterdir()) == []


def test_a_function_below_vmd_has_the_root_of_the_controller_and_no_standard_bus_id() -> None:
    vmd = [
        {"address": "0000:64:00.5", "driver": "vmd"},
        {"address": "10000:00:02.0", "behind": "0000:64:00.5", "root": "pci10000:00"},
        {"address": "10000:01:00.0", "behind": "10000:00:02.0", "driver": "nvme"},
    ]
    with built(functions(*vmd)) as host:
        disk = host.function("10000:01:00.0")
        assert disk is not None
        assert disk.path.relative_to(host.sysfs / "devices").parts == (
            "pci0000:64", "0000:64:00.5", "pci10000:00", "10000:00:02.0", "10000:01:00.0",
        )  # fmt: skip
        assert (disk.pcie_root, disk.pci_bus_id, disk.upstream) == ("pci0000:64", None, "10000:00:02.0")
        assert "resource.kubernetes.io/pciBusID" not in disk.device().attributes


def test_any_file_can_be_described() -> None:
    description = functions(
        {"address": "0000:19:00.0", "attributes": {"label": "left", "hwmon/hwmon0/temp1_input": 42000}}
    )
    with built({**description, "files": {"class/dmi/id/product_name": "Box"}, "nodes": {"fpga0": "240:0"}}) as host:
        fn = host.function("0000:19:00.0")
        assert fn is not None
        assert (fn.read("label"), fn.read("hwmon/hwmon0/temp1_input"), fn.read("nothing")) == ("left", "42000", None)
        assert (host.sysfs / "class/dmi/id/product_name").read_text() == "Box\n"
        assert tree.device_numbers(host.dev / "fpga0") == ("c", 240, 0)


def test_an_attribute_is_never_empty_while_it_is_written() -> None:
    address = "0000:17:00.0"
    names, seen, ended = ("temp", "driver_override"), set[str](), threading.Event()
    with (
        built(functions({"address": address, "attributes": {"temp": "41"}})) as host,
        ThreadPoolExecutor(1) as executor,
    ):
        folder = f"bus/pci/devices/{address}"

        def read_repeatedly() -> None:
            while not ended.is_set():
                seen.update((host.sysfs / folder / name).read_text() for name in names)

        reading = executor.submit(read_repeatedly)
        for number in range(600):
            for name in names:
                host.write(f"{folder}/{name}", str(number % 2))
        ended.set()
        reading.result()
    assert seen <= {"41\n", "(null)\n", "0", "1", "0\n", "1\n"}
