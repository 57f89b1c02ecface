"""Which functions the host itself cannot spare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from dra_kubeletplugin import PciFunction

from .vfio import FREE

NETWORK = 0x02


def essential(sysfs: Path, functions: list[PciFunction]) -> Iterator[tuple[str, str]]:
    """Addresses of functions that the host cannot spare, with what they carry: a disk, the console, a network.

    A pod without hostNetwork does not see the host's interfaces, so a network card in use by the kernel whose
    interfaces are not seen is kept as well. Virtual functions are made to be given away.
    """
    disks, networks = _carried(sysfs, "block"), _carried(sysfs, "net")
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


def _carried(sysfs: Path, kind: str) -> Mapping[str, list[str]]:
    """The devices of a class by each folder that they hang below: a node may have a thousand of them."""
    out: dict[str, list[str]] = {}
    folder = sysfs / "class" / kind
    for device in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # it went away while we look
            for above in device.resolve().parents:
                out.setdefault(str(above), []).append(device.name)
    return out


def _is_up(interface: Path) -> bool:
    try:
        return (interface / "operstate").read_text().strip() != "down"
    except OSError:
        return False
