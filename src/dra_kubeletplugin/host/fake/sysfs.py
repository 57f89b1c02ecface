"""Builds described hosts: folders with the files and links of a sysfs and a ``dev``, from a few lines of YAML.

Tests and demonstrations use them without hardware, also for operations that are too dangerous for a developer's machine.
:func:`write` has the kernel's effects (binding and unbinding drivers, driver_override, drivers_probe, sriov_numvfs), so that
code for VFIO runs as on real hardware. :mod:`.schema` documents the format. ``dra dev --host NAME`` uses a
description from the package.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...base.text import did_you_mean
from ...errors import SettingsError, printable
from . import schema, uevents
from .marker import BOOT_ID, MARKER, is_described
from .model import Content, Function, Machine

__all__ = [
    "add_device_node", "add_function", "build", "device_numbers", "find", "function", "is_described", "load", "machines", "reboot",
    "remove_function", "write",
]  # fmt: skip

load = schema.load
VFIO = "vfio-pci"
_MACHINES = Path(__file__).parent / "machines"
_DESCRIPTION = ".function.json"  # the function's description, in its folder
_NO_OVERRIDE = "(null)"


def machines() -> dict[str, Path]:
    """Returns the descriptions that the package contains: their files by name."""
    return {p.stem: p for p in sorted(_MACHINES.glob("*.yaml"))}


def find(name: str, option: str = "--host", within: Path = Path()) -> Path:
    """Returns the file of a description: a path relative to ``within``, or a name from :func:`machines`.

    Args:
        option: the command-line option with the name, for error messages.

    Raises :class:`SettingsError` if neither exists.
    """
    known, path = machines(), within / name
    if name in known and not path.is_file():
        return known[name]
    if not path.is_file():
        if path.is_dir():
            raise SettingsError(f"{option} {name} is a folder: give a file, or one of {', '.join(known)}")
        beside = [str(Path(name).parent / p.name) for p in path.parent.glob("*.yaml")]
        near = did_you_mean(name, [*known, *beside])
        raise SettingsError(f"{option} {name}: neither a file nor one of {', '.join(known)}{near}")
    return path


def build(root: Path, description: Machine | Mapping[str, Any]) -> Path:
    """Builds the sysfs tree below ``root``, which may exist, and returns ``root``.

    Raises :class:`SettingsError` for an invalid description, and if it describes one path twice.
    """
    machine = description if isinstance(description, Machine) else schema.parse(description)
    with _convert_errors(root):
        _build(root, machine)
    return root


def _build(root: Path, machine: Machine) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).write_text("")
    _new_boot(root)
    for folder in ("bus/pci/devices", "bus/pci/drivers", "devices", "kernel/iommu_groups"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "bus/pci/drivers_probe").write_text("")
    for name in [VFIO, *machine.drivers]:
        _driver(root, name)
    add_device_node(root, "vfio/vfio", 10, 196)
    for name, node in machine.nodes.items():
        _node(root, name, node)
    for name, text in machine.files.items():
        _file(root / name, text)
    _numa(root, machine)
    for function in machine.functions:
        _plug(root, root / "devices" / machine.folder(function), function, machine)
    for function in machine.functions:
        _enable(root, function)


@contextlib.contextmanager
def _convert_errors(root: Path) -> Iterator[None]:
    """Converts errors of the file system to SettingsError. A valid description can describe one path as a file and as a folder."""
    try:
        yield
    except UnicodeError as e:
        raise SettingsError(f"cannot build the described host in {root}: {e}") from None
    except OSError as e:
        place = os.path.relpath(str(e.filename), root) if e.filename else str(root)
        raise SettingsError(
            f"cannot build the described host in {root}: {printable(place)}: {e.strerror}; is it described twice, as a file and as a "
            "folder, or is its name too long?"
        ) from None


def add_device_node(root: Path, name: str, major: int, minor: int) -> None:
    """Adds a character device to the host's ``dev``: a file with the type and numbers, because mknod needs root."""
    _node(root, name, f"c {major}:{minor}")


def device_numbers(path: Path) -> tuple[str, int, int] | None:
    """Returns type (``b`` or ``c``), major and minor of a described host's device node; None if ``path`` is not such a node."""
    if not path.is_file():
        return None
    kind, _, numbers = path.read_text().partition(" ")
    major, _, minor = numbers.strip().partition(":")
    return (kind, int(major), int(minor)) if kind in {"b", "c"} else None


def reboot(root: Path) -> None:
    """Reboots the host: sets a new boot id, removes driver overrides, and restores the described drivers and virtual functions."""
    _new_boot(root)
    for link in sorted((root / "bus/pci/devices").iterdir()):
        if link.exists() and not (link / "physfn").is_symlink():
            function = _description_of(link.resolve())
            _file(link / "driver_override", _NO_OVERRIDE)
            _remove_virtual(root, link.resolve())
            _bind(root, link.name, function.driver)
            _enable(root, function)


def add_function(root: Path, description: Mapping[str, Any]) -> None:
    """Hot-plugs one function. ``description`` is an item of ``functions`` in a description.

    Raises :class:`SettingsError` if the description is invalid or its addresses are in use.
    """
    links = sorted((root / "bus/pci/devices").iterdir())
    present = [_description_of(link.resolve()).description() for link in links if not (link / "physfn").is_symlink()]
    machine = schema.parse({"functions": [*present, description]})
    function = machine.functions[-1]
    with _convert_errors(root):
        _plug(root, root / "devices" / machine.folder(function), function, machine)
        _enable(root, function)


def function(root: Path, address: str) -> Mapping[str, Any] | None:
    """Returns the description of an existing function, for :func:`add_function`.

    Returns None for a virtual function, because its parent creates it.
    """
    folder = root / "bus/pci/devices" / address
    return None if (folder / "physfn").is_symlink() else _description_of(folder.resolve()).description()


def remove_function(root: Path, address: str) -> None:
    """Unplugs one function, its virtual functions, and every function below it."""
    folder = (root / "bus/pci/devices" / address).resolve()
    for below in sorted(folder.rglob(_DESCRIPTION), key=lambda p: len(p.parts), reverse=True):
        if below.exists():  # the parent of a virtual function may have removed it already
            _unplug(root, below.parent)
    shutil.rmtree(folder)


def write(root: Path, path: str, text: str) -> None:
    """Writes an attribute, with the effect that the kernel's attribute has.

    Raises ``OSError`` as the kernel does: ENOENT for a missing attribute, ENODEV for a wrong address, ERANGE for too
    many virtual functions, EBUSY if their number changes while some exist.
    """
    target = root / path
    if not target.exists():
        raise _error(errno.ENOENT, target)
    value = text.strip()
    match target.name:
        case "driver_override":
            _change(root, target, (value or _NO_OVERRIDE) + "\n")
        case "unbind":
            _need_bound(root, value, target.parent.name)
            _bind(root, value, None)
        case "bind":
            _need_device(root, value)
            _bind(root, value, target.parent.name)
        case "drivers_probe":
            folder = _need_device(root, value)
            override = (folder / "driver_override").read_text().strip()
            if not (folder / "driver").is_symlink():
                _bind(root, value, _description_of(folder).driver if override == _NO_OVERRIDE else override)
        case "sriov_numvfs":
            _set_virtual(root, target.parent.resolve(), value)
        case _:
            _change(root, target, text)


# --- plugging -----------------------------------------------------------------------------------


def _plug(root: Path, folder: Path, function: Function, machine: Machine | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _DESCRIPTION).write_bytes(msgspec.json.encode(function))
    for name, value in _attributes(function, machine).items():
        _file(folder / name, value)
    link = root / "bus/pci/devices" / function.address
    _replace(link, os.path.relpath(folder, link.parent))
    if (group := function.iommu_group) is not None:
        members = root / f"kernel/iommu_groups/{group}/devices"
        members.mkdir(parents=True, exist_ok=True)
        _replace(members / function.address, os.path.relpath(folder, members))
        _replace(folder / "iommu_group", os.path.relpath(members.parent, folder))
        add_device_node(root, f"vfio/{group}", 240, group)
    uevents.write_event(root, "add", "pci", function.address)
    _bind(root, function.address, function.driver)


def _attributes(fn: Function, machine: Machine | None) -> dict[str, Content]:
    out: dict[str, Content] = {
        "vendor": f"0x{fn.vendor:04x}",
        "device": f"0x{fn.device:04x}",
        "class": f"0x{fn.class_code:06x}",
        "subsystem_vendor": f"0x{fn.subsystem_vendor or 0:04x}",
        "subsystem_device": f"0x{fn.subsystem_device:04x}",
        "revision": f"0x{fn.revision:02x}",
        "numa_node": str(-1 if fn.numa is None else fn.numa),
        "driver_override": _NO_OVERRIDE,
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
    if machine and machine.numa_nodes:
        near = [n for number, n in machine.numa_nodes.items() if fn.numa in {None, number}]
        out["local_cpulist"] = ",".join(str(n.cpus) for n in near if n.cpus != "")
    return out | dict(fn.attributes)


def _unplug(root: Path, folder: Path) -> None:
    """Removes a function's links. The caller deletes its folder."""
    _remove_virtual(root, folder)
    _bind(root, folder.name, None)
    _remove_devices(root, folder)
    group = folder / "iommu_group"
    if group.is_symlink():
        members = group.resolve() / "devices"
        (members / folder.name).unlink(missing_ok=True)
        if not any(members.iterdir()):
            (root / "dev/vfio" / members.parent.name).unlink(missing_ok=True)
            shutil.rmtree(members.parent)
    (root / "bus/pci/devices" / folder.name).unlink(missing_ok=True)
    uevents.write_event(root, "remove", "pci", folder.name)


def _description_of(folder: Path) -> Function:
    return msgspec.json.decode((folder / _DESCRIPTION).read_bytes(), type=Function)


# --- virtual functions: drivers/pci/iov.c of the kernel -------------------------------------------


def _enable(root: Path, function: Function) -> None:
    """Creates the virtual functions that exist after a boot."""
    if function.vfs and function.vfs.enabled and function.driver:
        _set_virtual(root, (root / "bus/pci/devices" / function.address).resolve(), str(function.vfs.enabled))


def _set_virtual(root: Path, folder: Path, value: str) -> None:
    control = folder / "sriov_numvfs"
    function = _description_of(folder)
    assert function.vfs
    if not value.isascii() or not value.isdigit():
        raise _error(errno.EINVAL, control)
    count, now = int(value), int(control.read_text())
    if count > function.vfs.total:
        raise _error(errno.ERANGE, control)
    if count == now:
        return
    if not (folder / "driver").is_symlink():
        raise _error(errno.ENOENT, control)
    if count and now:
        raise _error(errno.EBUSY, control)
    if not count:
        _remove_virtual(root, folder)
        return
    for i in range(count):
        virtual = function.virtual(i)
        home = folder.parent / virtual.address
        _plug(root, home, virtual, None)
        if (folder / "local_cpulist").exists():
            shutil.copy(folder / "local_cpulist", home)
        _replace(home / "physfn", os.path.relpath(folder, home))
        _replace(folder / f"virtfn{i}", os.path.relpath(home, folder))
        uevents.write_event(root, "change", "pci", virtual.address)  # at the "add" event, the links did not exist yet
    _change(root, control, value + "\n")


def _remove_virtual(root: Path, folder: Path) -> None:
    for link in sorted(folder.glob("virtfn*")):
        home = link.resolve()
        link.unlink()
        _unplug(root, home)
        shutil.rmtree(home)
    if (folder / "sriov_numvfs").exists():
        _change(root, folder / "sriov_numvfs", "0\n")


# --- drivers ------------------------------------------------------------------------------------


def _driver(root: Path, name: str) -> Path:
    folder = root / "bus/pci/drivers" / name
    folder.mkdir(parents=True, exist_ok=True)
    for control in ("bind", "unbind", "new_id"):
        if not (folder / control).exists():
            (folder / control).write_text("")
    return folder


def _bind(root: Path, address: str, driver: str | None) -> None:
    """Binds a driver; None only unbinds the previous driver. The previous driver's class devices and virtual functions are removed."""
    folder = (root / "bus/pci/devices" / address).resolve()
    function = _description_of(folder)
    link = folder / "driver"
    was_bound = link.is_symlink()
    if was_bound:
        _remove_virtual(root, folder)
        (link.resolve() / address).unlink(missing_ok=True)
        link.unlink()
    if driver:
        home = _driver(root, driver)
        link.symlink_to(os.path.relpath(home, folder))
        _replace(home / address, os.path.relpath(folder, home))
    if driver == function.driver:
        _add_devices(root, folder, function)
    else:
        _remove_devices(root, folder)
    if driver or was_bound:
        uevents.write_event(root, "bind" if driver else "unbind", "pci", address)


def _add_devices(root: Path, folder: Path, function: Function) -> None:
    for kind, devices in function.classes.items():
        (root / "class" / kind).mkdir(parents=True, exist_ok=True)
        for name, described in devices.items():
            attributes = described or {}
            home = folder / kind / name
            home.mkdir(parents=True, exist_ok=True)
            for attribute, text in attributes.items():
                if attribute != "devname":
                    _file(home / attribute, text)
            _replace(root / "class" / kind / name, os.path.relpath(home, root / "class" / kind))
            _replace(home / "device", os.path.relpath(folder, home))
            _replace(home / "subsystem", os.path.relpath(root / "class" / kind, home))
            if numbers := str(attributes.get("dev", "")):
                major, _, minor = numbers.partition(":")
                devname = str(attributes.get("devname", name))
                _file(home / "uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={devname}")
                _node(root, devname, f"{'b' if kind == 'block' else 'c'} {numbers}")
            uevents.write_event(root, "add", kind, name)


def _remove_devices(root: Path, folder: Path) -> None:
    for kind, devices in _description_of(folder).classes.items():
        present = [name for name in devices if (root / "class" / kind / name).is_symlink()]
        for name, attributes in devices.items():
            (root / "class" / kind / name).unlink(missing_ok=True)
            if attributes and "dev" in attributes:
                (root / "dev" / str(attributes.get("devname", name))).unlink(missing_ok=True)
        shutil.rmtree(folder / kind, ignore_errors=True)
        for name in present:
            uevents.write_event(root, "remove", kind, name)


# --- files --------------------------------------------------------------------------------------


def _numa(root: Path, machine: Machine) -> None:
    for number, node in machine.numa_nodes.items():
        folder = root / f"devices/system/node/node{number}"
        _file(folder / "cpulist", str(node.cpus))
        if node.distances:
            _file(folder / "distance", " ".join(map(str, node.distances)))
        for cpu in node.cpu_numbers():
            home = root / f"devices/system/cpu/cpu{cpu}"
            _file(home / "topology/physical_package_id", str(node.socket))
            _replace(home / f"node{number}", os.path.relpath(folder, home))


def _new_boot(root: Path) -> None:
    (root / BOOT_ID).write_text(str(uuid.uuid4()))


def _node(root: Path, name: str, node: str) -> None:
    """Writes a device node as a file with its type and numbers. Numbers alone are those of a character device."""
    _file(root / "dev" / name, node if node[0] in "bc" else f"c {node}")


def _file(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{int(content) if isinstance(content, bool) else content}\n")


def _change(root: Path, path: Path, text: str) -> None:
    """Replaces the file atomically: as with a kernel attribute, a reader sees the old or the new value, never a part of it."""
    temporary = root / f".{uuid.uuid4().hex}"  # a hidden name in the root, which no reader treats as an attribute
    temporary.write_text(text)
    temporary.replace(path.resolve())


def _replace(link: Path, target: str) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _need_device(root: Path, address: str) -> Path:
    link = root / "bus/pci/devices" / address
    if not address or not link.exists():
        raise _error(errno.ENODEV, link)
    return link.resolve()


def _need_bound(root: Path, address: str, driver: str) -> None:
    folder = _need_device(root, address)
    if not (folder / "driver").is_symlink() or (folder / "driver").resolve().name != driver:
        raise _error(errno.ENODEV, folder / "driver")


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
