"""A reboot of a described host discards all writes since the boot, so tests can prove that an effect ends with a reboot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_devkit.hosts import described, kernel
from dra_kubeletplugin.host import Host

ADDRESS, OTHER = "0000:19:00.0", "0000:65:00.0"
CARD: dict[str, Any] = {
    "address": ADDRESS, "vendor": 0x10EE, "device": 0x5000, "driver": "xclmgmt", "numa": 1, "iommu_group": 12,
    "classes": {"fpga": {"fpga0": {"dev": "240:0", "image": "none"}}},
    "vfs": {"total": 4, "enabled": 2, "driver": "xclvf"},
    "attributes": {"firmware": "0", "power/control": "auto"},
}  # fmt: skip
MACHINE: dict[str, Any] = {
    "functions": [CARD, {"address": OTHER, "vendor": 0x10EE, "device": 0x5000}],
    "numa_nodes": {0: {"cpus": "0-3"}, 1: {"cpus": "4-7"}},
    "nodes": {"manager": "c 10:123"},
    "files": {"module/xclmgmt/parameters/mode": "safe"},
    "drivers": ["uio_pci_generic"],
}


def content(root: Path) -> dict[str, str]:
    """Returns the content or link target of each path in sysfs and dev. Hidden files are omitted."""
    out = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if not name.startswith("."):
            out[name] = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else "folder"
    return out


def test_a_reboot_restores_sysfs_and_dev_as_described(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", MACHINE)
    before, boot = content(root), Host(root).boot_id()
    for path, text in {
        f"bus/pci/devices/{ADDRESS}/firmware": "4.2",
        f"bus/pci/devices/{ADDRESS}/power/control": "on",
        "module/xclmgmt/parameters/mode": "fast",
        "class/fpga/fpga0/image": "a.bit",
        f"bus/pci/devices/{ADDRESS}/driver_override": "vfio-pci",
        f"bus/pci/devices/{ADDRESS}/sriov_numvfs": "0",
        "bus/pci/drivers/xclmgmt/unbind": ADDRESS,
        "bus/pci/drivers_probe": ADDRESS,
        "bus/pci/drivers/uio_pci_generic/bind": OTHER,
    }.items():
        kernel.write(root, path, text)
    (root / "dev/manager").unlink()
    (root / "dev/created-by-the-driver").write_text("c 240:9\n")
    (root / "class/net").mkdir()
    assert content(root) != before

    described.reboot(root)

    assert content(root) == before
    assert Host(root).boot_id() != boot


def test_a_reboot_keeps_plugged_and_unplugged_hardware(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", MACHINE)
    described.remove_function(root, OTHER)
    described.add_function(root, {**CARD, "address": "0000:b3:00.0", "classes": {}, "iommu_group": 40})
    before = content(root)
    kernel.write(root, "bus/pci/devices/0000:b3:00.0/firmware", "4.2")

    described.reboot(root)

    after = content(root)
    assert {name: before[name] for name in before.keys() - after.keys()} == {"devices/pci0000:65": "folder"}, (
        "the only difference is an empty root"
    )
    assert {name: before[name] for name in after} == after
    host = Host(root)
    assert (host.function(OTHER), len(host.pci())) == (None, 6)
    assert (root / "bus/pci/devices/0000:b3:00.0/local_cpulist").read_text() == "4-7\n"
