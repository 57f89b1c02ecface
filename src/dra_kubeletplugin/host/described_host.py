"""Described hosts, which a driver uses in place of a real machine: how it recognizes their sysfs, and how it writes to it.

dra-devkit creates the described hosts, and imitates the effects that writes have in the kernel. This module imports dra-devkit by name,
and only when a driver writes to a described host.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from ..errors import DriverError

MARKER = ".described-host"
BOOT_ID = ".boot-id"
_KERNEL = "dra_devkit.hosts.kernel"


def is_described(root: Path) -> bool:
    return (root / MARKER).exists()


def write_described(root: Path, path: str, text: str) -> None:
    """Writes a file below ``root`` with the effect that the kernel's file has.

    Raises ``OSError`` as the kernel does, and :class:`DriverError` if dra-devkit is not installed.
    """
    try:
        kernel = importlib.import_module(_KERNEL)
    except ModuleNotFoundError as e:
        raise DriverError(
            f"{root} is a described host, and writing to it needs dra-devkit: pip install dra-devkit ({e})"
        ) from None
    kernel.write(root, path, text)
