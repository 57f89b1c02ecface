"""One PCI function, from sysfs. Source: Documentation/ABI/testing/sysfs-bus-pci and PCI/sysfs-pci.rst of the kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..resources.names import sanitize
from ..resources.types import Attribute, Device

if TYPE_CHECKING:
    from .machine import Host

ADDRESS = re.compile(r"[0-9a-f]{4,5}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")  # what Kubernetes accepts as pciBusID
_ROOT = re.compile(r"pci[0-9a-f]{4,5}:[0-9a-f]{2}")
STANDARD = "resource.kubernetes.io"


@dataclass(frozen=True)
class PciFunction:
    """A PCI function. Ids are integers; ``numa_node``, ``iommu_group`` and links are None where there are none."""

    address: str  # domain:bus:device.function, lower case
    path: Path  # the resolved folder below devices/
    vendor: int
    device_id: int
    subsystem_vendor: int
    subsystem_device: int
    class_code: int  # 24 bits: class, subclass, programming interface
    revision: int
    driver: str | None
    numa_node: int | None
    iommu_group: int | None
    pcie_root: str | None  # e.g. pci0000:00
    physical_function: str | None  # the address of the parent, for an SR-IOV virtual function
    vf_index: int | None
    total_vfs: int  # what a physical function can offer; 0 without SR-IOV
    boot_vga: bool
    link_speed: str | None  # e.g. "16.0 GT/s PCIe"
    link_width: int | None  # lanes
    vendor_name: str | None
    device_name: str | None
    class_name: str | None

    @property
    def is_vf(self) -> bool:
        return self.physical_function is not None

    def is_class(self, code: int) -> bool:
        """Whether the class is ``code``, given with 8, 16 or 24 bits."""
        if code <= 0xFF:
            return self.class_code >> 16 == code
        return self.class_code >> 8 == code if code <= 0xFFFF else self.class_code == code

    @property
    def pci_bus_id(self) -> str | None:
        """The address where it has the standard form; VMD domains of five digits have not."""
        return self.address if _BUS_ID.fullmatch(self.address) else None

    def attributes(self) -> dict[str, Attribute]:
        """What a scheduler may ask for.

        Standard ones by KEP-4381 and KEP-5316: ``pcieRoot`` and ``pciBusID`` (strings), ``numaNode`` (integer, left out without
        affinity). Own ones: ids as lower-case hex strings (``vendor``, ``device``, ``class``), ``driver``, names from pci.ids,
        ``iommuGroup`` (integer), for virtual functions ``physicalFunction`` and ``vfIndex``, ``linkWidth`` in lanes.
        """
        given: dict[str, Attribute | None] = {
            f"{STANDARD}/pcieRoot": self.pcie_root,
            f"{STANDARD}/pciBusID": self.pci_bus_id,
            f"{STANDARD}/numaNode": self.numa_node,
            "vendor": f"{self.vendor:04x}",
            "device": f"{self.device_id:04x}",
            "class": f"{self.class_code:06x}",
            "driver": self.driver,
            "vendorName": _short(self.vendor_name),
            "deviceName": _short(self.device_name),
            "className": _short(self.class_name),
            "iommuGroup": self.iommu_group,
            "virtualFunction": self.is_vf,
            "physicalFunction": self.physical_function,
            "vfIndex": self.vf_index,
            "totalVFs": self.total_vfs or None,
            "linkWidth": self.link_width,
        }
        return {k: v for k, v in given.items() if v is not None}

    def device(
        self,
        name: str | None = None,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        **fields: Any,
    ) -> Device:
        """A :class:`Device` for this function, named after its address unless ``name`` says otherwise.

        ``attributes`` add to and override :meth:`attributes`; other ``fields`` are those of :class:`Device`.
        """
        merged = {**self.attributes(), **(attributes or {})}
        return Device(name or sanitize(f"pci-{self.address}"), merged, data=self, **fields)


def read_function(host: Host, link: Path) -> PciFunction:
    """The function behind ``bus/pci/devices/<address>``.

    Raises ``FileNotFoundError`` where it has gone, ``ValueError`` where it is no PCI address.
    """
    address = link.name.lower()
    if not ADDRESS.fullmatch(address):
        raise ValueError(f"{link.name} is no PCI address")
    path = link.resolve(strict=True)
    physical = _link(path / "physfn")
    vendor, device_id = _hex(path / "vendor"), _hex(path / "device")
    class_code = _hex(path / "class")
    numa = _integer(path / "numa_node")
    group = _link(path / "iommu_group")
    width = _integer(path / "current_link_width")
    return PciFunction(
        address=address,
        path=path,
        vendor=vendor,
        device_id=device_id,
        subsystem_vendor=_hex(path / "subsystem_vendor", 0),
        subsystem_device=_hex(path / "subsystem_device", 0),
        class_code=class_code,
        revision=_hex(path / "revision", 0),
        driver=_link(path / "driver"),
        numa_node=numa if numa is not None and numa >= 0 else None,
        iommu_group=int(group) if group and group.isdigit() else None,
        pcie_root=pcie_root(host.sysfs, path),
        physical_function=physical,
        vf_index=_vf_index(path, address) if physical else None,
        total_vfs=_integer(path / "sriov_totalvfs") or 0,
        boot_vga=_integer(path / "boot_vga") == 1,
        link_speed=_text(path / "current_link_speed"),
        link_width=width if width and width < 255 else None,
        vendor_name=host.names.vendor(vendor),
        device_name=host.names.device(vendor, device_id),
        class_name=host.names.class_name(class_code),
    )


def pcie_root(sysfs: Path, path: Path) -> str | None:
    """``pci<dddd>:<bb>``: the first component below ``devices/``; None for what hangs elsewhere (Hyper-V, ACPI)."""
    try:
        first = path.relative_to((sysfs / "devices").resolve()).parts[0]
    except (ValueError, IndexError):
        return None
    return first if _ROOT.fullmatch(first) else None


def _vf_index(path: Path, address: str) -> int | None:
    for link in (path / "physfn").glob("virtfn*"):
        if link.readlink().name.lower() == address and link.name[6:].isdigit():
            return int(link.name[6:])
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _hex(path: Path, default: int | None = None) -> int:
    text = _text(path)
    if text is None:
        if default is None:
            raise FileNotFoundError(path)
        return default
    return int(text, 16)


def _integer(path: Path) -> int | None:
    text = _text(path)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def _link(path: Path) -> str | None:
    """The last component of a link's target."""
    try:
        return os.readlink(path).rstrip("/").rpartition("/")[2] if path.is_symlink() else None  # noqa: PTH115
    except OSError:
        return None


def _short(name: str | None) -> str | None:
    """Cut to the 64 bytes of an attribute."""
    return name.encode()[:64].decode(errors="ignore") if name else None
