"""A record contains a machine's files and device nodes, and a host that is built from the record equals the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_devkit.hosts import described, recorded_files, recording, schema
from dra_kubeletplugin import Host
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.host.described_host import MARKER
from packages.devkit.tests.command_runner import Dra

ADDRESS = "0000:17:00.0"
BARS = (
    "0x0000102002000000 0x0000102002ffffff 0x000000000014220c\n0x0000000000000000 0x0000000000000000 0x0000000000000000"
)
CARD = {"address": ADDRESS, "vendor": 0x10EE, "device": 0x5000, "driver": "acme", "link": {"speed": 32, "width": 16}}
IDLE_ATTRIBUTES = {"current_link_speed": "2.5 GT/s PCIe", "resource": BARS, "reset_method": "flr bus"}
NO_BARS = {"address": "0000:18:00.0", "attributes": {"resource": "0x0000 0x0000 0x0000\n0x0000 0x0000 0x0000"}}
INFORMATION = f"driver/acme/cards/{ADDRESS}/information"
MACHINE: dict[str, Any] = {
    "functions": [{**CARD, "attributes": IDLE_ATTRIBUTES}, {**NO_BARS, "vendor": 1, "device": 2}],
    "proc": {
        "devices": "Character devices:\n  1 mem\n240 acme\n\nBlock devices:\n  7 loop\n",
        "driver/acme/version": "Acme  1.2 \nbuilt:\t\ttoday\n",
        INFORMATION: "Model: \t A1\n",
        "driver/other/version": "3",
        "cmdline": "quiet",
    },
    "files": {
        "module/acme/version": "1.2",
        "module/acme/taint": "O",
        "module/bridge/version": "2.3",
        "module/bridge/taint": "",
        "class/dmi/id/product_name": "Box",
    },
}


def build_machine(folder: Path, machine: dict[str, Any]) -> Host:
    """Returns a host that is treated as a real machine: described sysfs and ``/proc``, and this machine's ``/dev``."""
    sysfs = described.build(folder / "sys", machine)
    (sysfs / MARKER).unlink()
    return Host(sysfs, proc=sysfs / "proc")


def test_bars_reset_methods_and_a_slower_link_are_recorded(tmp_path: Path) -> None:
    first, second = recording.record(build_machine(tmp_path, MACHINE)).functions
    assert first.attributes == IDLE_ATTRIBUTES
    assert second.attributes == {}


def test_files_of_bound_drivers_and_chosen_files_are_recorded(tmp_path: Path) -> None:
    host = build_machine(tmp_path, MACHINE)
    machine = recording.record(host)
    assert set(machine.proc) == {"devices", "driver/acme/version"}
    assert dict(machine.functions[0].proc) == {INFORMATION: "Model: \t A1"}
    assert machine.files == {"module/acme/version": "1.2"}
    chosen = [Path("/proc/cmdline"), Path("/proc/driver/other"), Path("/sys/class/dmi/id/product_name")]
    machine = recording.record(host, chosen)
    assert {"cmdline", "driver/other/version"} < set(machine.proc)
    assert machine.files["class/dmi/id/product_name"] == "Box"


def test_only_text_of_a_limited_size_is_recorded(tmp_path: Path) -> None:
    host = build_machine(tmp_path, MACHINE)
    folder = host.proc / "driver/acme"
    (folder / "binary").write_bytes(b"\xff\x00")
    (folder / "zeros").write_bytes(b"\0\0")
    (folder / "large").write_text("x" * 70_000)
    (folder / ".hidden").write_text("x")
    (folder / "link").symlink_to(folder / "version")
    (folder / "above").symlink_to(host.proc / "driver/other")
    assert set(recording.record(host).proc) == {"devices", "driver/acme/version"}


@pytest.mark.parametrize("path", ["/proc", "/proc/none", "/etc/hostname", "/sys/../etc/hostname", "/sys/none"])
def test_a_chosen_file_that_cannot_be_recorded_is_an_error(tmp_path: Path, path: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("outside of sysfs")
    with pytest.raises(
        SettingsError, match=f"cannot record {path}: name an existing file or folder below /proc or /sys"
    ):
        recording.record(build_machine(tmp_path, MACHINE), [Path("/proc/cmdline"), Path(path)])


def test_a_node_is_recorded_if_its_driver_is_loaded_and_sysfs_does_not_contain_it(tmp_path: Path) -> None:
    host = build_machine(tmp_path, MACHINE)  # with /dev/null of this machine, but without its entry in sysfs
    assert recorded_files.device_nodes(host)["null"] == "c 1:3"
    assert {numbers.partition(":")[0] for numbers in recorded_files.device_nodes(host).values()} <= {"c 1", "b 7"}
    (host.sysfs / "dev/char/1:3").mkdir(parents=True)
    assert "null" not in recorded_files.device_nodes(host)
    (host.sysfs / "dev/char/1:3").rmdir()
    (host.proc / "devices").write_text("Character devices:\n  5 /dev/ptmx\n 10 misc\n136 pts\n")
    found = recorded_files.device_nodes(host)
    assert not [name for name, numbers in found.items() if name.startswith("pts/") or numbers.startswith("c 10:")]
    assert "null" not in found


def test_the_nodes_of_a_described_host_are_recorded_without_those_of_classes_and_vfio(tmp_path: Path) -> None:
    card = {
        **CARD,
        "iommu_group": 7,
        "classes": {"acme": {"acme0": {"dev": "240:0"}}},
        "nodes": {"acme-admin": "c 240:1"},
    }
    host = Host(described.build(tmp_path, {"functions": [card], "nodes": {"disk": "b 240:0", "misc": "10:1"}}))
    assert recorded_files.device_nodes(host) == {"acme-admin": "c 240:1", "disk": "b 240:0", "misc": "c 10:1"}


def test_a_host_built_from_a_record_has_the_same_record_and_the_same_inspection(tmp_path: Path, dra: Dra) -> None:
    machine = recording.record(build_machine(tmp_path, MACHINE))
    (tmp_path / "record.yaml").write_text(recording.text(machine))
    loaded = schema.load(tmp_path / "record.yaml")
    assert loaded == machine
    assert recording.record(Host(described.build(tmp_path / "rebuilt", loaded))) == machine
    shown = []
    for where in (["--sysfs-root", str(tmp_path / "sys")], ["--host", str(tmp_path / "record.yaml")]):
        shown.append(dra("inspect", *where).out)
    assert shown[0] == shown[1] and ADDRESS in shown[0]


def test_the_command_records_further_files(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "host.yaml").write_text(recording.text(schema.parse(MACHINE)))
    at = ["inspect", "--host", str(tmp_path / "host.yaml")]
    assert (
        '  "class/dmi/id/product_name": "Box"'
        in dra(*at, "--describe-host", "--describe-file", "/sys/class/dmi/id/product_name").out.splitlines()
    )
    assert "--describe-file needs --describe-host" in dra(*at, "--describe-file", "/proc/cmdline", code=2).err
