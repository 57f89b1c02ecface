"""Described hosts, as far as a driver meets them: the marker file that distinguishes one from a real sysfs, and writes to it.

dra-devkit creates them, and imitates the kernel's effects of writes. It is imported by name, only when a driver writes to one.
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

    Raises ``OSError`` as the kernel does; and :class:`DriverError` without dra-devkit.
    """
    try:
        kernel = importlib.import_module(_KERNEL)
    except ModuleNotFoundError as e:
        raise DriverError(
            f"{root} is a described host, and writing to it needs dra-devkit: pip install dra-devkit ({e})"
        ) from None
    kernel.write(root, path, text)
