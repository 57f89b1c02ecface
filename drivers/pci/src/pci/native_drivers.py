"""Stores the native kernel driver of each function: the driver that it has while no container uses the function."""

from __future__ import annotations

from pathlib import Path

from dra_kubeletplugin import PciFunction

from .vfio import VFIO


class NativeDrivers:
    """Saves the driver of each function in a file, so that a restart or another instance can read it.

    A file is valid for one boot, and while the function is bound to vfio-pci or to no driver.
    """

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._folder = folder
        self._boot_id = boot_id

    def of(self, fn: PciFunction) -> str | None:
        """Returns the driver that a function has while no container uses the function."""
        if fn.driver not in {None, VFIO}:
            return fn.driver
        try:
            boot_id, _, driver = (self._folder / fn.address).read_text().strip().partition(" ")
        except OSError:
            return fn.driver
        return driver or None if boot_id == self._boot_id else fn.driver

    def save(self, address: str, driver: str | None) -> None:
        """Saves a function's driver. Call it before you unbind the driver.

        Writes a temporary file and renames it, because a partial file would contain a wrong driver name.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{address}"
        temporary.write_text(f"{self._boot_id} {driver or ''}\n")
        temporary.replace(self._folder / address)

    def delete(self, address: str) -> None:
        (self._folder / address).unlink(missing_ok=True)
