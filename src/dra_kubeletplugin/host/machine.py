"""One machine: its PCI functions, NUMA nodes, boot id, and writes to sysfs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from ..errors import SettingsError
from . import described
from .pci import PciFunction, read_function
from .pci_names import PciNames


class Host:
    """Reads a machine through its sysfs.

    Args:
        sysfs: the root of sysfs, or of a described host (:mod:`dra_kubeletplugin.host.described`).
        dev: where the host's ``/dev`` is seen from this process; a described host brings its own.
    """

    def __init__(self, sysfs: Path = Path("/sys"), dev: Path = Path("/dev")) -> None:
        self.sysfs = sysfs
        own = sysfs / "dev"
        self.dev = own if dev == Path("/dev") and described.is_described(sysfs) and own.is_dir() else dev
        self._names: PciNames | None = None

    @property
    def is_real(self) -> bool:
        """False for a described host."""
        return not described.is_described(self.sysfs)

    @property
    def names(self) -> PciNames:
        """Names from pci.ids, read when first asked for."""
        if self._names is None:
            self._names = PciNames.load()
        return self._names

    def pci(
        self,
        *,
        vendor: int | None = None,
        device: int | None = None,
        class_code: int | None = None,
        driver: str | None = None,
    ) -> list[PciFunction]:
        """PCI functions in address order, all or those that fit.

        Args:
            vendor, device: 16-bit ids, e.g. ``0x10EE``.
            class_code: 24-bit class, or its upper 8 or 16 bits, e.g. ``0x02`` for all network controllers.
            driver: the kernel driver that is bound.
        """
        out = []
        for fn in self._functions():
            if vendor is not None and fn.vendor != vendor:
                continue
            if device is not None and fn.device_id != device:
                continue
            if class_code is not None and not fn.is_class(class_code):
                continue
            if driver is not None and fn.driver != driver:
                continue
            out.append(fn)
        return out

    def _functions(self) -> Iterator[PciFunction]:
        folder = self.sysfs / "bus/pci/devices"
        if not folder.is_dir():
            return
        for link in sorted(folder.iterdir()):
            try:
                yield read_function(self, link)
            except (FileNotFoundError, ValueError):
                continue  # went away, or is not ready, while we look; an event or the next scan brings it

    def numa_nodes(self) -> list[int]:
        folder = self.sysfs / "devices/system/node"
        if not folder.is_dir():
            return []
        return sorted(int(p.name[4:]) for p in folder.iterdir() if p.name.startswith("node") and p.name[4:].isdigit())

    def boot_id(self) -> str:
        """Another value after each boot. Source: Documentation/admin-guide/sysctl/kernel.rst, random/boot_id."""
        for path in (self.sysfs / described.BOOT_ID, Path("/proc/sys/kernel/random/boot_id")):
            if path.is_file():
                return path.read_text().strip()
        # Not Linux: there is no boot id, and no container runtime either; one id a machine will do.
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, os.uname().nodename))

    def write(self, path: str, text: str) -> None:
        """Writes a sysfs attribute, e.g. ``bus/pci/drivers_probe``; on a described host with the kernel's effect.

        Raises ``OSError`` as the kernel does.
        """
        target = self.sysfs / path
        if not described.is_described(self.sysfs):
            target.write_text(text)
            return
        described.write(self.sysfs, path, text)

    def check(self) -> None:
        """Raises :class:`SettingsError` where this is no sysfs."""
        if not (self.sysfs / "devices").is_dir() and not (self.sysfs / "bus").is_dir():
            raise SettingsError(f"--sysfs-root (SYSFS_ROOT) {self.sysfs} has neither devices/ nor bus/: it is no sysfs")
