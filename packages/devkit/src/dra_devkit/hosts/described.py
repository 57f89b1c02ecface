"""Described hosts: a sysfs tree and a folder ``dev`` from a few lines of YAML, in place of those of the machine.

Tests and demonstrations use them without hardware, also for operations that are too dangerous for a developer's machine.
:func:`build` makes the tree. :func:`add_function` and :func:`remove_function` change the hardware. :func:`.kernel.write` has the effects of
a write to a real sysfs, so that code for VFIO runs as on real hardware. :func:`reboot` discards these writes.
``dra dev --host NAME`` uses a description from the package.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dra_kubeletplugin.base.files import read_file
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import SettingsError, printable
from dra_kubeletplugin.host.described_host import BOOT_ID, MARKER

from . import kernel, schema, tree
from .model import Function, HostDescription

_DESCRIPTION = ".description.json"  # the description from which the tree was built
_MACHINES = Path(__file__).parent / "machines"


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


def build(root: Path, description: HostDescription | Mapping[str, Any]) -> Path:
    """Builds the sysfs tree below ``root``, which may exist, and returns ``root``.

    Raises :class:`SettingsError` for an invalid description, and if it describes one path twice.
    """
    validated = description if isinstance(description, HostDescription) else schema.parse(description)
    with _convert_errors(root):
        _build(root, validated)
    return root


def _build(root: Path, description: HostDescription) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).write_text("")
    (root / _DESCRIPTION).write_bytes(msgspec.json.encode(description))
    (root / BOOT_ID).write_text(str(uuid.uuid4()))
    for folder in ("bus/pci/devices", "bus/pci/drivers", "devices", "kernel/iommu_groups", "proc"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "bus/pci/drivers_probe").write_text("")
    for name in [kernel.VFIO, *description.drivers]:
        kernel.create_driver_folder(root, name)
    tree.write_device_node(root, "vfio/vfio", "10:196")
    for name, numbers in description.nodes.items():
        tree.write_device_node(root, name, numbers)
    for name, text in description.proc.items():
        tree.write_file(root / "proc" / name, text)
    for name, text in description.files.items():
        tree.write_file(root / name, text)
    _write_numa_nodes(root, description)
    for function in description.functions:
        kernel.plug(root, root / "devices" / description.folder(function), function, description.local_cpus(function))
    for function in description.functions:
        kernel.create_boot_virtual_functions(root, function)


def _write_numa_nodes(root: Path, description: HostDescription) -> None:
    for number, node in description.numa_nodes.items():
        folder = root / f"devices/system/node/node{number}"
        tree.write_file(folder / "cpulist", str(node.cpus))
        if node.distances:
            tree.write_file(folder / "distance", " ".join(map(str, node.distances)))
        for cpu in node.cpu_numbers():
            home = root / f"devices/system/cpu/cpu{cpu}"
            tree.write_file(home / "topology/physical_package_id", str(node.socket))
            tree.replace_link(home / f"node{number}", os.path.relpath(folder, home))


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


def reboot(root: Path) -> None:
    """Reboots the host: builds sysfs, ``dev`` and ``proc`` again from the description, with the functions that are plugged in now.

    Each write since the last boot is lost, and the boot id changes.
    """
    description = msgspec.structs.replace(_description(root), functions=tuple(_plugged(root)))
    for path in list(root.iterdir()):
        if not path.name.startswith("."):  # the marker, the description and the events are not part of sysfs
            tree.remove(path)
    _build(root, description)


def _description(root: Path) -> HostDescription:
    return msgspec.json.decode(read_file(root / _DESCRIPTION), type=HostDescription)


def _plugged(root: Path) -> Iterator[Function]:
    """Yields the functions that are plugged in, without virtual functions."""
    for link in sorted((root / "bus/pci/devices").iterdir()):
        if not (link / "physfn").is_symlink():
            yield kernel.function_of(link.resolve())


def add_function(root: Path, description: Mapping[str, Any]) -> None:
    """Hot-plugs one function. ``description`` is an item of ``functions`` in a description.

    Raises :class:`SettingsError` if the description is invalid or its addresses are in use.
    """
    present = [function.description() for function in _plugged(root)]
    extended = schema.parse({"functions": [*present, description]})
    extended = msgspec.structs.replace(extended, numa_nodes=_description(root).numa_nodes)
    function = extended.functions[-1]
    with _convert_errors(root):
        kernel.plug(root, root / "devices" / extended.folder(function), function, extended.local_cpus(function))
        kernel.create_boot_virtual_functions(root, function)


def function(root: Path, address: str) -> Mapping[str, Any] | None:
    """Returns the description of an existing function, for :func:`add_function`.

    Returns None for a virtual function, because its parent creates it.
    """
    folder = root / "bus/pci/devices" / address
    return None if (folder / "physfn").is_symlink() else kernel.function_of(folder.resolve()).description()


def remove_function(root: Path, address: str) -> None:
    """Unplugs one function, its virtual functions, and every function below it."""
    folder = (root / "bus/pci/devices" / address).resolve()
    for below in sorted(folder.rglob(kernel.DESCRIPTION), key=lambda p: len(p.parts), reverse=True):
        if below.exists():  # the parent of a virtual function may have removed it already
            kernel.unplug(root, below.parent)
    tree.remove(folder)
