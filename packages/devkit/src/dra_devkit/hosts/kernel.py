"""Imitates the kernel in a described host: PCI functions are plugged and unplugged, drivers are bound, virtual functions are created.

:func:`plug` adds a PCI function: when the host is built, at a hot-plug, and when a virtual function is created. It calls :func:`bind`,
which creates class devices, device nodes and files of ``proc``. :func:`write` has the effects of a driver's later writes to sysfs.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dra_kubeletplugin.base.files import read_file
from dra_kubeletplugin.host import described_events as uevents

from . import tree
from .model import Content, Function

DESCRIPTION = ".function.json"  # the function's description, in its folder
NO_OVERRIDE = "(null)"
VFIO = "vfio-pci"
_VFIO_CLASS = "vfio-dev"
_VFIO_NODES = "vfio/devices"  # below /dev
_VFIO_MAJOR = 511


def plug(root: Path, folder: Path, function: Function, local_cpus: str | None) -> None:
    """Adds a function with its folder, attributes, IOMMU group and event, and binds the described driver.

    Args:
        folder: its folder in the tree of devices.
        local_cpus: the list of the nearest CPUs; None if no NUMA nodes are described.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).write_bytes(msgspec.json.encode(function))
    for name, value in _attributes(function, local_cpus).items():
        tree.write_file(folder / name, value)
    link = root / "bus/pci/devices" / function.address
    tree.replace_link(link, os.path.relpath(folder, link.parent))
    if (group := function.iommu_group) is not None:
        members = root / f"kernel/iommu_groups/{group}/devices"
        members.mkdir(parents=True, exist_ok=True)
        tree.replace_link(members / function.address, os.path.relpath(folder, members))
        tree.replace_link(folder / "iommu_group", os.path.relpath(members.parent, folder))
        tree.write_device_node(root, f"vfio/{group}", f"240:{group}")
    uevents.write_event(root, "add", "pci", function.address)
    bind(root, function.address, function.driver)


def _attributes(fn: Function, local_cpus: str | None) -> dict[str, Content]:
    out: dict[str, Content] = {
        "vendor": f"0x{fn.vendor:04x}",
        "device": f"0x{fn.device:04x}",
        "class": f"0x{fn.class_code:06x}",
        "subsystem_vendor": f"0x{fn.subsystem_vendor or 0:04x}",
        "subsystem_device": f"0x{fn.subsystem_device:04x}",
        "revision": f"0x{fn.revision:02x}",
        "numa_node": str(-1 if fn.numa is None else fn.numa),
        "driver_override": NO_OVERRIDE,
    }
    if fn.boot_vga:
        out["boot_vga"] = "1"
    if fn.link:
        out |= {f"{which}_link_speed": f"{float(fn.link.speed)} GT/s PCIe" for which in ("current", "max")}
        out |= {f"{which}_link_width": str(fn.link.width) for which in ("current", "max")}
    if fn.vfs:
        out |= {
            "sriov_totalvfs": str(fn.vfs.total),
            "sriov_numvfs": "0",
            "sriov_offset": str(fn.vfs.offset),
            "sriov_stride": str(fn.vfs.stride),
            "sriov_vf_device": f"{fn.vfs.device or 0:04x}",
        }
    if local_cpus is not None:
        out["local_cpulist"] = local_cpus
    return out | dict(fn.attributes)


def unplug(root: Path, folder: Path) -> None:
    """Removes a function, except its folder, which the caller deletes. Its virtual functions are removed too."""
    remove_virtual_functions(root, folder)
    was_bound = _unlink_driver(root, folder)
    _remove_files_of_driver(root, folder)
    if was_bound:
        uevents.write_event(root, "unbind", "pci", folder.name)
    group = folder / "iommu_group"
    if group.is_symlink():
        members = group.resolve() / "devices"
        (members / folder.name).unlink(missing_ok=True)
        if not any(members.iterdir()):
            (root / "dev/vfio" / members.parent.name).unlink(missing_ok=True)
            shutil.rmtree(members.parent)
    (root / "bus/pci/devices" / folder.name).unlink(missing_ok=True)
    uevents.write_event(root, "remove", "pci", folder.name)


def function_of(folder: Path) -> Function:
    """Reads the description of the function in a folder."""
    return msgspec.json.decode(read_file(folder / DESCRIPTION), type=Function)


# --- drivers ------------------------------------------------------------------------------------


def create_driver_folder(root: Path, name: str) -> Path:
    """Creates the folder of a loaded driver, if it does not exist."""
    folder = root / "bus/pci/drivers" / name
    folder.mkdir(parents=True, exist_ok=True)
    for control in ("bind", "unbind", "new_id"):
        if not (folder / control).exists():
            (folder / control).write_text("")
    return folder


def bind(root: Path, address: str, driver: str | None) -> None:
    """Binds a driver; None only unbinds the previous driver. The previous driver's virtual functions are removed.

    The described class devices, device nodes and files of ``proc`` exist while the described driver is bound. If the description
    names no driver, they exist while no driver is bound.
    """
    folder = (root / "bus/pci/devices" / address).resolve()
    function = function_of(folder)
    was_bound = _unlink_driver(root, folder)
    if driver:
        home = create_driver_folder(root, driver)
        (folder / "driver").symlink_to(os.path.relpath(home, folder))
        tree.replace_link(home / address, os.path.relpath(folder, home))
    if driver == VFIO:
        _add_vfio_device(root, folder)
    if driver == function.driver:
        _add_files_of_driver(root, folder, function)
    else:
        _remove_files_of_driver(root, folder)
    if driver or was_bound:
        uevents.write_event(root, "bind" if driver else "unbind", "pci", address)


def _unlink_driver(root: Path, folder: Path) -> bool:
    """Removes the links between a function and its driver, and its virtual functions. Returns whether it had a driver."""
    link = folder / "driver"
    if not link.is_symlink():
        return False
    remove_virtual_functions(root, folder)
    for device in sorted((folder / _VFIO_CLASS).glob("*")):
        _remove_class_device(root, folder, _VFIO_CLASS, device.name, f"{_VFIO_NODES}/{device.name}")
    (link.resolve() / folder.name).unlink(missing_ok=True)
    link.unlink()
    return True


def _add_files_of_driver(root: Path, folder: Path, function: Function) -> None:
    """Creates the device nodes and files that the driver of a function creates, and then its class devices with their events."""
    for name, numbers in function.nodes.items():
        tree.write_device_node(root, name, numbers)
    for name, text in function.proc.items():
        tree.write_file(root / "proc" / name, text)
    for kind, devices in function.classes.items():
        for name, attributes in devices.items():
            _add_class_device(root, folder, kind, name, attributes or {})


def _remove_files_of_driver(root: Path, folder: Path) -> None:
    function = function_of(folder)
    for name in function.nodes:
        tree.remove_file(root / "dev", name)
    for name in function.proc:
        tree.remove_file(root / "proc", name)
    for kind, devices in function.classes.items():
        for name, attributes in devices.items():
            devname = str(attributes.get("devname", name)) if attributes and "dev" in attributes else None
            _remove_class_device(root, folder, kind, name, devname)


def _add_class_device(root: Path, folder: Path, kind: str, name: str, attributes: Mapping[str, Content]) -> None:
    home = folder / kind / name
    home.mkdir(parents=True, exist_ok=True)
    (root / "class" / kind).mkdir(parents=True, exist_ok=True)
    for attribute, text in attributes.items():
        if attribute != "devname":
            tree.write_file(home / attribute, text)
    tree.replace_link(root / "class" / kind / name, os.path.relpath(home, root / "class" / kind))
    tree.replace_link(home / "device", os.path.relpath(folder, home))
    tree.replace_link(home / "subsystem", os.path.relpath(root / "class" / kind, home))
    if numbers := str(attributes.get("dev", "")):
        major, _, minor = numbers.partition(":")
        devname = str(attributes.get("devname", name))
        tree.write_file(home / "uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={devname}")
        tree.write_device_node(root, devname, f"{'b' if kind == 'block' else 'c'} {numbers}")
    uevents.write_event(root, "add", kind, name)


def _remove_class_device(root: Path, folder: Path, kind: str, name: str, devname: str | None) -> None:
    """Removes a class device, its device node ``devname`` and, after the last device of the class, the function's folder of the class."""
    link = root / "class" / kind / name
    was_present = link.is_symlink()
    link.unlink(missing_ok=True)
    shutil.rmtree(folder / kind / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # it contains a further device, or does not exist
        (folder / kind).rmdir()
    if devname:
        (root / "dev" / devname).unlink(missing_ok=True)
    if was_present:
        uevents.write_event(root, "remove", kind, name)


def _add_vfio_device(root: Path, folder: Path) -> None:
    """Creates the device ``vfioN`` with the lowest free number, as drivers/vfio/vfio_main.c of the kernel does for each bound function."""
    nodes = root / "dev" / _VFIO_NODES
    nodes.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        name = f"vfio{number}"
        with contextlib.suppress(FileExistsError):
            (nodes / name).touch(exist_ok=False)  # reserves the number, because drivers bind several functions at once
            attributes = {"dev": f"{_VFIO_MAJOR}:{number}", "devname": f"{_VFIO_NODES}/{name}"}
            _add_class_device(root, folder, _VFIO_CLASS, name, attributes)
            return


# --- virtual functions: drivers/pci/iov.c of the kernel -------------------------------------------


def create_boot_virtual_functions(root: Path, function: Function) -> None:
    """Creates the virtual functions that exist after a boot."""
    if function.vfs and function.vfs.enabled and function.driver:
        set_virtual_functions(root, (root / "bus/pci/devices" / function.address).resolve(), str(function.vfs.enabled))


def set_virtual_functions(root: Path, folder: Path, value: str) -> None:
    """Creates or removes the virtual functions of a function, as a write of ``value`` to ``sriov_numvfs`` does."""
    control = folder / "sriov_numvfs"
    function = function_of(folder)
    assert function.vfs
    if not value.isascii() or not value.isdigit():
        raise _os_error(errno.EINVAL, control)
    count, now = int(value), int(control.read_text())
    if count > function.vfs.total:
        raise _os_error(errno.ERANGE, control)
    if count == now:
        return
    if not (folder / "driver").is_symlink():
        raise _os_error(errno.ENOENT, control)
    if count and now:
        raise _os_error(errno.EBUSY, control)
    if not count:
        remove_virtual_functions(root, folder)
        return
    cpus = folder / "local_cpulist"
    local_cpus = cpus.read_text().strip() if cpus.exists() else None
    for i in range(count):
        virtual = function.virtual(i)
        home = folder.parent / virtual.address
        plug(root, home, virtual, local_cpus)
        tree.replace_link(home / "physfn", os.path.relpath(folder, home))
        tree.replace_link(folder / f"virtfn{i}", os.path.relpath(home, folder))
        uevents.write_event(root, "change", "pci", virtual.address)  # at the "add" event, the links did not exist yet
    tree.replace_file(root, control, value + "\n")


def remove_virtual_functions(root: Path, folder: Path) -> None:
    """Removes the virtual functions of a function, if it has any."""
    for link in sorted(folder.glob("virtfn*")):
        home = link.resolve()
        link.unlink()
        unplug(root, home)
        shutil.rmtree(home)
    if (folder / "sriov_numvfs").exists():
        tree.replace_file(root, folder / "sriov_numvfs", "0\n")


# --- writes --------------------------------------------------------------------------------------


def write(root: Path, path: str, text: str) -> None:
    """Writes an attribute of sysfs, with the effect that the kernel's attribute has.

    Raises ``OSError`` as the kernel does: ENOENT for a missing attribute, ENODEV for a wrong address. For the number of virtual
    functions: EINVAL if it is no number, ERANGE if it is too high, ENOENT without a driver, EBUSY if it changes while some exist.
    """
    target = root / path
    if not target.exists():
        raise _os_error(errno.ENOENT, target)
    value = text.strip()
    match target.name:
        case "driver_override":
            tree.replace_file(root, target, (value or NO_OVERRIDE) + "\n")
        case "unbind":
            _need_bound(root, value, target.parent.name)
            bind(root, value, None)
        case "bind":
            _need_device(root, value)
            bind(root, value, target.parent.name)
        case "drivers_probe":
            folder = _need_device(root, value)
            override = (folder / "driver_override").read_text().strip()
            if not (folder / "driver").is_symlink():
                bind(root, value, function_of(folder).driver if override == NO_OVERRIDE else override)
        case "sriov_numvfs":
            set_virtual_functions(root, target.parent.resolve(), value)
        case _:
            tree.replace_file(root, target, text)


def _need_device(root: Path, address: str) -> Path:
    """Returns the folder of a function. Raises ``OSError`` if there is no such function."""
    link = root / "bus/pci/devices" / address
    if not address or not link.exists():
        raise _os_error(errno.ENODEV, link)
    return link.resolve()


def _need_bound(root: Path, address: str, driver: str) -> None:
    folder = _need_device(root, address)
    if not (folder / "driver").is_symlink() or (folder / "driver").resolve().name != driver:
        raise _os_error(errno.ENODEV, folder / "driver")


def _os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
