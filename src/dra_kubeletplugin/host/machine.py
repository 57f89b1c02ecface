"""The machine that a driver works on: reads its PCI functions, NUMA nodes and boot id, and writes to sysfs."""

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
from .pci import ADDRESS, PciContext, PciFunction, find_function
from .pci_names import PciNames

_BRIDGE = 0x06


class Host:
    """Reads a machine through its sysfs.

    Args:
        sysfs: the root of sysfs, or of a described host (:mod:`dra_kubeletplugin.host.fake`).
        dev: the path of the host's ``/dev`` in this process. By default, a described host uses its own ``dev`` folder.
        lists: whether attributes may be lists (the cluster's gate DRAListTypeAttributes).
    """

    def __init__(self, sysfs: Path = Path("/sys"), dev: Path = Path("/dev"), *, lists: bool = False) -> None:
        self.sysfs = sysfs
        own = sysfs / "dev"
        self.dev = own if dev == Path("/dev") and is_described(sysfs) and own.is_dir() else dev
        self.lists = lists

    @property
    def is_real(self) -> bool:
        """Whether this is the sysfs of a real machine and not a described host."""
        return not is_described(self.sysfs)

    @cached_property
    def names(self) -> PciNames:
        """Vendor, device and class names from pci.ids."""
        return PciNames.load()

    @cached_property
    def numa(self) -> Numa:
        """The NUMA nodes, also for devices that are not PCI functions."""
        return Numa(self.sysfs)

    def pci(
        self,
        *,
        vendor: int | None = None,
        device: int | None = None,
        class_code: int | None = None,
        driver: str | None = None,
    ) -> list[PciFunction]:
        """Returns the PCI functions that match all arguments, in address order.

        Args:
            vendor, device: 16-bit ids, e.g. ``0x10EE``.
            class_code: the 24-bit class, or its upper 8 or 16 bits, e.g. ``0x02`` for all network controllers.
            driver: the name of the bound kernel driver.

        Raises ``TypeError`` for an id that is not an integer, because text such as ``"10ee"`` would never match.
        """
        for name, number in (("vendor", vendor), ("device", device), ("class_code", class_code)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"pci({name}={number!r}): give an integer such as 0x10EE")
        context = self._pci_context()
        out = []
        for name in self._bound(driver) if driver is not None else sysfs.names(context.links):
            try:
                fn = find_function(context, name, vendor, device)
            except (FileNotFoundError, ValueError):
                continue  # removed or not ready during the scan; if it appears later, an event or the next scan finds it
            if fn is not None and (class_code is None or fn.is_class(class_code)):
                out.append(fn)
        return sorted(out, key=lambda fn: (len(fn.address), fn.address))

    def function(self, address: str) -> PciFunction | None:
        """Returns the current state of one function, or None if it does not exist or no longer exists."""
        if not ADDRESS.fullmatch(address):
            return None
        try:
            return find_function(self._pci_context(), address)
        except (FileNotFoundError, ValueError):
            return None

    def pcie_roots_of_cpus(self) -> dict[int, list[str]]:
        """Returns for each CPU number the sorted root complexes that are local to the CPU.

        The list is the value of the standard attribute ``pcieRoot`` of a CPU, so that a claim can match CPUs with
        devices (KEP-5491).
        """
        roots: dict[int, set[str]] = {}
        for fn in self.pci(class_code=_BRIDGE):
            for cpu in sysfs.cpu_list(fn.read("local_cpulist")):
                if fn.pcie_root:
                    roots.setdefault(cpu, set()).add(fn.pcie_root)
        return {cpu: sorted(found) for cpu, found in sorted(roots.items())}

    def _pci_context(self) -> PciContext:
        return PciContext(self.sysfs, self.names, self.numa, lists=self.lists)

    def _bound(self, driver: str) -> Iterator[str]:
        """Yields the addresses of the functions that are bound to a driver. Only the driver's folder is read."""
        return (n for n in sysfs.names(f"{self.sysfs}/bus/pci/drivers/{driver}") if ADDRESS.fullmatch(n.lower()))

    def boot_id(self) -> str:
        """Returns an id that changes with every boot.

        Source: Documentation/admin-guide/sysctl/kernel.rst, random/boot_id.
        """
        for path in (self.sysfs / BOOT_ID, Path("/proc/sys/kernel/random/boot_id")):
            if path.is_file():
                return path.read_text().strip()
        # Outside Linux there is neither a boot id nor a container runtime, so a constant per machine is enough.
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, os.uname().nodename))

    def write(self, path: str, text: str) -> None:
        """Writes a sysfs attribute, e.g. ``bus/pci/drivers_probe``. A described host imitates the kernel's effect.

        Raises ``OSError`` as the kernel does.
        """
        target = self.sysfs / path
        if not is_described(self.sysfs):
            target.write_text(text)
            return
        from .fake import kernel  # imported here, because a real node never needs it

        kernel.write(self.sysfs, path, text)

    def check(self) -> None:
        """Raises :class:`SettingsError` if the path is not a sysfs."""
        if not (self.sysfs / "devices").is_dir() and not (self.sysfs / "bus").is_dir():
            raise SettingsError(
                f"--sysfs-root (SYSFS_ROOT) {self.sysfs} has neither devices/ nor bus/: it is not a sysfs"
            )
