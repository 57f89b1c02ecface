"""One machine: its PCI functions, NUMA nodes, boot id, and writes to sysfs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ..errors import SettingsError
from . import sysfs
from .fake.marker import BOOT_ID, is_described
from .numa import Numa
from .pci import ADDRESS, PciFunction, Surroundings, find_function
from .pci_names import PciNames

_BRIDGE = 0x06


class Host:
    """Reads a machine through its sysfs.

    Args:
        sysfs: the root of sysfs, or of a described host (:mod:`dra_kubeletplugin.host.fake.sysfs`).
        dev: where the host's ``/dev`` is seen from this process; a described host brings its own.
        lists: whether attributes may be lists, which the cluster's gate DRAListTypeAttributes says.
    """

    def __init__(self, sysfs: Path = Path("/sys"), dev: Path = Path("/dev"), *, lists: bool = False) -> None:
        self.sysfs = sysfs
        own = sysfs / "dev"
        self.dev = own if dev == Path("/dev") and is_described(sysfs) and own.is_dir() else dev
        self.lists = lists

    @property
    def is_real(self) -> bool:
        """False for a described host."""
        return not is_described(self.sysfs)

    @cached_property
    def names(self) -> PciNames:
        """Names from pci.ids."""
        return PciNames.load()

    @cached_property
    def numa(self) -> Numa:
        """The NUMA nodes, for devices that are no PCI functions too."""
        return Numa(self.sysfs)

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

        Raises ``TypeError`` for an id that is no integer: compared with text, nothing would ever fit.
        """
        for name, number in (("vendor", vendor), ("device", device), ("class_code", class_code)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"pci({name}={number!r}): give an integer such as 0x10EE")
        around = self._surroundings()
        out = []
        for name in self._bound(driver) if driver is not None else sysfs.names(around.links):
            try:
                fn = find_function(around, name, vendor, device)
            except (FileNotFoundError, ValueError):
                continue  # went away, or is not ready, while we look; an event or the next scan brings it
            if fn is not None and (class_code is None or fn.is_class(class_code)):
                out.append(fn)
        return sorted(out, key=lambda fn: (len(fn.address), fn.address))

    def function(self, address: str) -> PciFunction | None:
        """One function as it is now; None where it is not there (any more)."""
        if not ADDRESS.fullmatch(address):
            return None
        try:
            return find_function(self._surroundings(), address)
        except (FileNotFoundError, ValueError):
            return None

    def pcie_roots_of_cpus(self) -> dict[int, list[str]]:
        """The root complexes that are local to each CPU, by number, in order.

        As a list it is the standard attribute ``pcieRoot`` of a CPU, so that CPUs are matched with devices (KEP-5491).
        """
        roots: dict[int, set[str]] = {}
        for fn in self.pci(class_code=_BRIDGE):
            for cpu in sysfs.cpu_list(fn.read("local_cpulist")):
                if fn.pcie_root:
                    roots.setdefault(cpu, set()).add(fn.pcie_root)
        return {cpu: sorted(found) for cpu, found in sorted(roots.items())}

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.sysfs, self.names, self.numa, lists=self.lists)

    def _bound(self, driver: str) -> Iterator[str]:
        """The addresses that a driver has: they are linked in its folder, so the others need not be looked at."""
        return (n for n in sysfs.names(f"{self.sysfs}/bus/pci/drivers/{driver}") if ADDRESS.fullmatch(n.lower()))

    def boot_id(self) -> str:
        """Another value after each boot. Source: Documentation/admin-guide/sysctl/kernel.rst, random/boot_id."""
        for path in (self.sysfs / BOOT_ID, Path("/proc/sys/kernel/random/boot_id")):
            if path.is_file():
                return path.read_text().strip()
        # Not Linux: there is no boot id, and no container runtime either; one id a machine will do.
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, os.uname().nodename))

    def write(self, path: str, text: str) -> None:
        """Writes a sysfs attribute, e.g. ``bus/pci/drivers_probe``; on a described host with the kernel's effect.

        Raises ``OSError`` as the kernel does.
        """
        target = self.sysfs / path
        if not is_described(self.sysfs):
            target.write_text(text)
            return
        from .fake import sysfs as described  # no node has one

        described.write(self.sysfs, path, text)

    def check(self) -> None:
        """Raises :class:`SettingsError` where this is no sysfs."""
        if not (self.sysfs / "devices").is_dir() and not (self.sysfs / "bus").is_dir():
            raise SettingsError(f"--sysfs-root (SYSFS_ROOT) {self.sysfs} has neither devices/ nor bus/: it is no sysfs")
