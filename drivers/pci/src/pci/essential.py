"""Finds the functions that the host needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from dra_kubeletplugin import PciFunction

from .vfio import FREE

NETWORK = 0x02


def essential(sysfs: Path, functions: list[PciFunction]) -> Iterator[tuple[str, str]]:
    """Yields the address of each function that the host needs, and the reason: a disk, the console, a network.

    A pod without hostNetwork does not see the host's interfaces. So a network card that has a kernel driver and no
    visible interface also counts as needed, unless it is a virtual function.
    """
    disks, networks = _devices_by_folder(sysfs, "block"), _devices_by_folder(sysfs, "net")
    for fn in functions:
        interfaces = networks.get(fn.folder, ())
        if fn.folder in disks:
            yield fn.address, "a disk"
        elif fn.boot_vga:
            yield fn.address, "the console"
        elif any(_is_up(sysfs / "class/net" / name) for name in interfaces):
            yield fn.address, "a network that is up"
        elif fn.is_class(NETWORK) and not interfaces and not fn.is_vf and fn.driver not in FREE:
            yield fn.address, "a network whose state cannot be seen from here"


def _devices_by_folder(sysfs: Path, kind: str) -> Mapping[str, list[str]]:
    """Returns the names of a class's devices, by each folder above them.

    One pass serves all functions, because a node can have a thousand devices.
    """
    out: dict[str, list[str]] = {}
    folder = sysfs / "class" / kind
    for device in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # it was removed after the folder was listed
            for above in device.resolve().parents:
                out.setdefault(str(above), []).append(device.name)
    return out


def _is_up(interface: Path) -> bool:
    try:
        return (interface / "operstate").read_text().strip() != "down"
    except OSError:
        return False
