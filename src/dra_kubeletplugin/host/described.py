"""A described host: a folder with the files and links of a sysfs, and a ``dev``, made from a few lines of YAML.

For tests and demonstrations without hardware, and for what must never be done to the machine one works on. Writes have the
kernel's effect (binding and unbinding drivers, driver_override, drivers_probe, sriov_numvfs), so that code which drives VFIO
runs as it would on iron.

A description::

    functions:
      - address: "0000:17:00.0"
        vendor: 0x10ee
        device: 0x5000
        class: 0x120000
        driver: xclmgmt          # optional
        numa: 0                  # optional
        iommu_group: 12          # optional
        root: pci0000:16         # optional, else from the address
        vfs: {total: 4, device: 0x5001}   # optional
        links: {block: true}     # optional: it carries the boot disk
        boot_vga: true           # optional: it carries the console

``dev`` has the nodes of VFIO; a driver's own are made with :func:`add_device_node`.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARKER = ".described-host"
BOOT_ID = ".boot-id"


def is_described(root: Path) -> bool:
    return (root / MARKER).exists()


def load(path: Path) -> dict[str, Any]:
    """The description in a YAML file.

    Raises ``ValueError`` where it is none.
    """
    import yaml

    found = yaml.safe_load(path.read_text())
    if not isinstance(found, dict) or not isinstance(found.get("functions"), list):
        raise ValueError(f"{path} describes no host: it needs a list `functions`")
    return found


def build(root: Path, description: Mapping[str, Any]) -> Path:
    """Makes the tree below ``root``, which may exist; answers ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).write_text("")
    reboot(root)
    for folder in ("bus/pci/devices", "bus/pci/drivers", "devices", "kernel/iommu_groups"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "bus/pci/drivers_probe").write_text("")
    for name in ["vfio-pci", *description.get("drivers", [])]:
        _driver(root, name)
    add_device_node(root, "vfio/vfio", 10, 196)
    for function in description["functions"]:
        add_function(root, function)
    return root


def add_device_node(root: Path, name: str, major: int, minor: int) -> None:
    """A character device below the host's ``dev``: a file that says its type and numbers, for mknod needs root."""
    path = root / "dev" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"c {major}:{minor}\n")


def device_numbers(path: Path) -> tuple[int, int] | None:
    """Major and minor of a described host's device node; None where it is none."""
    if not path.is_file():
        return None
    kind, _, numbers = path.read_text().partition(" ")
    major, _, minor = numbers.strip().partition(":")
    return (int(major), int(minor)) if kind == "c" else None


def reboot(root: Path) -> None:
    """A new boot id; overrides are forgotten and native drivers bound again, as after a power cycle."""
    (root / BOOT_ID).write_text(str(uuid.uuid4()))
    for link in sorted((root / "bus/pci/devices").glob("*")):
        folder = link.resolve()
        (folder / "driver_override").write_text("(null)\n")
        native = (folder / ".native-driver").read_text()
        _bind(root, link.name, native or None)


def add_function(root: Path, given: Mapping[str, Any]) -> None:
    """Hot-plugs one function."""
    address = str(given["address"]).lower()
    bus_root = given.get("root") or f"pci{address.rpartition(':')[0].rpartition(':')[0]}:{address.split(':')[1]}"
    folder = root / "devices" / bus_root / address
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "vendor": f"0x{given['vendor']:04x}",
        "device": f"0x{given['device']:04x}",
        "class": f"0x{given.get('class', 0):06x}",
        "subsystem_vendor": f"0x{given.get('subsystem_vendor', given['vendor']):04x}",
        "subsystem_device": f"0x{given.get('subsystem_device', 0):04x}",
        "revision": f"0x{given.get('revision', 0):02x}",
        "numa_node": str(given.get("numa", -1)),
        "driver_override": "(null)",
    }
    if given.get("boot_vga"):
        values["boot_vga"] = "1"
    for name, value in values.items():
        (folder / name).write_text(value + "\n")
    (folder / ".native-driver").write_text(given.get("driver") or "")
    for sub in given.get("links") or {}:
        (folder / sub).mkdir(exist_ok=True)
    link = root / "bus/pci/devices" / address
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(folder, link.parent))
    group = given.get("iommu_group")
    if group is not None:
        members = root / f"kernel/iommu_groups/{group}/devices"
        members.mkdir(parents=True, exist_ok=True)
        _replace(members / address, os.path.relpath(folder, members))
        _replace(folder / "iommu_group", os.path.relpath(members.parent, folder))
        add_device_node(root, f"vfio/{group}", 240, int(group))
    if vfs := given.get("vfs"):
        (folder / "sriov_totalvfs").write_text(f"{vfs['total']}\n")
        (folder / "sriov_numvfs").write_text("0\n")
        (folder / ".vf-device").write_text(f"{vfs.get('device', given['device'])}")
    _bind(root, address, given.get("driver"))


def remove_function(root: Path, address: str) -> None:
    """Unplugs one function."""
    link = root / "bus/pci/devices" / address
    folder = link.resolve()
    _bind(root, address, None)
    link.unlink()
    for member in (root / "kernel/iommu_groups").glob(f"*/devices/{address}"):
        member.unlink()
    import shutil  # brings every archive format

    shutil.rmtree(folder)


def write(root: Path, path: str, text: str) -> None:
    """A write to an attribute, with the kernel's effect.

    Raises ``OSError`` as the kernel does: ENOENT for a missing attribute, ENODEV for a wrong address.
    """
    target = root / path
    if not target.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))
    value = text.strip()
    match target.name:
        case "driver_override":
            target.write_text((value or "(null)") + "\n")
        case "unbind":
            _need_bound(root, value, target.parent.name)
            _bind(root, value, None)
        case "bind":
            _need_device(root, value)
            _bind(root, value, target.parent.name)
        case "drivers_probe":
            folder = _need_device(root, value)
            override = (folder / "driver_override").read_text().strip()
            native = (folder / ".native-driver").read_text()
            if not (folder / "driver").is_symlink():
                _bind(root, value, override if override != "(null)" else native or None)
        case "sriov_numvfs":
            _set_vfs(root, target.parent.resolve(), int(value))
            target.write_text(value + "\n")
        case _:
            target.write_text(text)


def _need_device(root: Path, address: str) -> Path:
    link = root / "bus/pci/devices" / address
    if not link.exists():
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(link))
    return link.resolve()


def _need_bound(root: Path, address: str, driver: str) -> None:
    folder = _need_device(root, address)
    if not (folder / "driver").is_symlink() or (folder / "driver").resolve().name != driver:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(folder / "driver"))


def _driver(root: Path, name: str) -> Path:
    folder = root / "bus/pci/drivers" / name
    folder.mkdir(parents=True, exist_ok=True)
    for control in ("bind", "unbind", "new_id"):
        if not (folder / control).exists():
            (folder / control).write_text("")
    return folder


def _bind(root: Path, address: str, driver: str | None) -> None:
    folder = (root / "bus/pci/devices" / address).resolve()
    link = folder / "driver"
    if link.is_symlink():
        (link.resolve() / address).unlink(missing_ok=True)
        link.unlink()
    if driver:
        home = _driver(root, driver)
        link.symlink_to(os.path.relpath(home, folder))
        _replace(home / address, os.path.relpath(folder, home))


def _replace(link: Path, target: str) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _set_vfs(root: Path, folder: Path, count: int) -> None:
    for link in folder.glob("virtfn*"):
        address = link.resolve().name
        link.unlink()
        remove_function(root, address)
    domain, bus, rest = folder.name.split(":")
    del rest
    for i in range(count):
        address = f"{domain}:{bus}:{(i + 8) // 8:02x}.{(i + 8) % 8}"
        vendor = int((folder / "vendor").read_text(), 16)
        device = int((folder / ".vf-device").read_text())
        add_function(
            root,
            {
                "address": address,
                "vendor": vendor,
                "device": device,
                "class": int((folder / "class").read_text(), 16),
                "root": folder.parent.name,
                "numa": int((folder / "numa_node").read_text()),
            },
        )
        vf = folder.parent / address
        _replace(vf / "physfn", os.path.relpath(folder, vf))
        _replace(folder / f"virtfn{i}", os.path.relpath(vf, folder))
