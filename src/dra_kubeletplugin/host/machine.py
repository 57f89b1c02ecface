"""The machine that a driver works on: reads its PCI functions, NUMA nodes and boot id, and writes to sysfs."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ..base.files import read_text_file
from ..base.settings import Settings
from ..errors import DriverError, SettingsError
from . import procfs, sysfs
from .described_host import BOOT_ID, is_described, write_described
from .numa import Numa
from .pci import ADDRESS, PciContext, PciFunction, find_function
from .pci_names import PciNames

_BRIDGE = 0x06


def file_system_root() -> Path:
    """Returns the folder where the machine's root file system is mounted: the variable HOST_ROOT, by default ``/``."""
    return Path(os.environ.get("HOST_ROOT") or "/")


class Host:
    """Reads a machine through its sysfs.

    Args:
        sysfs: the root of sysfs, or of a described host (:mod:`dra_devkit.hosts`).
        dev: the path of the host's ``/dev`` in this process. By default, a described host uses its own ``dev`` folder.
        proc: the path of the host's ``/proc`` in this process. A described host uses its own ``proc`` folder, never this machine's.
        lists: whether attributes may be lists (the cluster's gate DRAListTypeAttributes).
    """

    def __init__(
        self,
        sysfs: Path = Path("/sys"),
        dev: Path = Path("/dev"),
        proc: Path = Path("/proc"),
        *,
        lists: bool = False,
    ) -> None:
        self.sysfs = sysfs
        own = sysfs / "dev"
        self.dev = own if dev == Path("/dev") and is_described(sysfs) and own.is_dir() else dev
        self.proc = sysfs / "proc" if is_described(sysfs) else proc
        self.lists = lists
        self._read_only_for = ""  # the driver's class whose writes are refused

    @classmethod
    def of(cls, settings: Settings) -> Host:
        """Returns the host that a process works on. For the framework."""
        return cls(settings.sysfs_root, settings.dev_root, settings.proc_root, lists=settings.list_attributes)

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
            vendor: 16-bit id of the vendor, e.g. ``0x10EE``.
            device: 16-bit id of the device.
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

    def major(self, name: str, *, block: bool = False) -> int | None:
        """Returns the major number of a kernel driver's device nodes, from ``/proc/devices``; None if the driver has no number.

        Use it for device nodes that the driver must describe with their numbers, because nothing creates them on the host.

        Args:
            name: the name that the kernel driver registered, such as ``ttyS``.
            block: whether block devices are searched; by default character devices.
        """
        return next((number for found, number in procfs.majors(self.proc, block=block) if found == name), None)

    def boot_id(self) -> str:
        """Returns an id that changes with every boot.

        Source: Documentation/admin-guide/sysctl/kernel.rst, random/boot_id.
        """
        for path in (self.sysfs / BOOT_ID, Path("/proc/sys/kernel/random/boot_id")):
            if path.is_file():
                return read_text_file(path).strip()
        # Outside Linux there is neither a boot id nor a container runtime, so a constant per machine is enough.
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, os.uname().nodename))

    def forbid_writes(self, driver: str) -> None:
        """Makes :meth:`write` raise, because the class ``driver`` is not ``privileged``. For the framework."""
        self._read_only_for = driver

    def write(self, path: str, text: str) -> None:
        """Writes a sysfs attribute, e.g. ``bus/pci/drivers_probe``. A described host imitates the kernel's effect.

        Set ``privileged = True`` in the driver's class, because sysfs is read-only in a container that is not privileged.

        Raises:
            DriverError: the driver's class does not set ``privileged = True``.
            OSError: as the kernel raises it.
        """
        target = self.sysfs / path
        if self._read_only_for:
            raise DriverError(
                f"Host.write() to {path}: set `privileged = True` in class {self._read_only_for}, because sysfs is read-only in a "
                "container that is not privileged"
            )
        if is_described(self.sysfs):
            write_described(self.sysfs, path, text)
            return
        try:
            target.write_text(text)
        except OSError as e:
            if e.errno != errno.EROFS:
                raise
            why = (
                f"{e.strerror}; is the plugin's container privileged (`features: {{privileged: true}}` in values.yaml)?"
            )
            raise OSError(e.errno, why, str(target)) from None

    def check(self) -> None:
        """Raises :class:`SettingsError` if the path is not a sysfs. For the framework."""
        if not (self.sysfs / "devices").is_dir() and not (self.sysfs / "bus").is_dir():
            raise SettingsError(
                f"--sysfs-root (SYSFS_ROOT) {self.sysfs} has neither devices/ nor bus/: it is not a sysfs"
            )
