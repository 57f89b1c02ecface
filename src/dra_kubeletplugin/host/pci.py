"""Reads PCI functions from sysfs. Source: Documentation/ABI/testing/sysfs-bus-pci and PCI/sysfs-pci.rst of the kernel.

Finding a function reads only its ids and class. Other attributes are read at first use, because a node may have
thousands of functions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ..base.files import NOT_NOW
from ..resourceapi.types import Attribute, Device
from ..resourceapi.validation.names import sanitize
from . import device_attributes, sysfs
from .numa import Numa
from .pci_names import PciNames

ADDRESS = re.compile(r"[0-9a-f]{4,5}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"(\d+)(?:\.(\d))? GT/s")
_WIDTHS = {1, 2, 4, 8, 12, 16, 32}  # without a link the kernel reports 0 or 255
_FUNCTION = re.compile(r"[0-9a-f]{4,5}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_UP = "../../../devices/"
K = TypeVar("K")
V = TypeVar("V")


class PciContext:
    """The values that all functions of one scan share, so that each is read only once.

    Args:
        root: the root of sysfs.
        lists: whether attributes may be lists (the cluster's gate DRAListTypeAttributes).
    """

    def __init__(self, root: Path, names: PciNames, numa: Numa, *, lists: bool) -> None:
        self.names = names
        self.numa = numa
        self.lists = lists
        self.devices = os.path.realpath(root / "devices") + "/"
        self.links = f"{os.path.realpath(root)}/bus/pci/devices/"
        self._virtual: dict[str, dict[str, int]] = {}
        self._limits: dict[str, tuple[int | None, int | None]] = {}
        self._models: dict[tuple[int, int, int], Mapping[str, Attribute | None]] = {}

    def resolved(self, link: str) -> str:
        """Resolves a link in :attr:`links`. The kernel's links all have the same prefix, so this usually takes one system call."""
        target = os.readlink(link)  # noqa: PTH115 - creating a Path takes longer than reading the link
        if target.startswith(_UP):
            return self.devices + target[len(_UP) :]
        return os.path.realpath(link)

    def virtual_functions(self, folder: str) -> Mapping[str, int]:
        """Returns the virtual functions of a physical function: their indexes by address."""
        return _cached(self._virtual, folder, _virtual_functions)

    def model(self, fn: PciFunction) -> Mapping[str, Attribute | None]:
        """Returns the attributes that all functions with the same ids share: the ids and their names."""
        ids = (fn.vendor, fn.device_id, fn.class_code)
        if ids not in self._models:
            self._models[ids] = {
                "vendor": f"{fn.vendor:04x}",
                "device": f"{fn.device_id:04x}",
                "class": f"{fn.class_code:06x}",
                "vendorName": _short(fn.vendor_name),
                "deviceName": _short(fn.device_name),
                "className": _short(fn.class_name),
            }
        return self._models[ids]

    def link_of(self, folder: str) -> tuple[int | None, int | None]:
        """Returns the maximum speed (megatransfers per second and lane) and width (lanes) of the link to the port above.

        Each is the lower limit of the two ends.
        """
        return _cached(self._limits, folder, _link_limits)


@dataclass(frozen=True)
class PciFunction:
    """One PCI function.

    Attributes other than the ids, class and folder are read from sysfs at first use and cached. To get the current
    state, look the function up again (:meth:`Host.function`). Ids are integers. ``numa_node``, ``iommu_group`` and the
    values of the link are None if absent.
    """

    address: str  # domain:bus:device.function, lower case
    vendor: int
    device_id: int
    class_code: int  # 24 bits: class, subclass, programming interface
    folder: str = field(repr=False)  # the resolved folder below devices/
    context: PciContext = field(repr=False, compare=False)

    @cached_property
    def path(self) -> Path:
        """The resolved folder below ``devices``."""
        return Path(self.folder)

    def read(self, name: str) -> str | None:
        """Reads any attribute of the function's folder, uncached; None if it is missing or empty."""
        return sysfs.text(f"{self.folder}/{name}")

    @cached_property
    def subsystem_vendor(self) -> int:
        return sysfs.integer(f"{self.folder}/subsystem_vendor", 16) or 0

    @cached_property
    def subsystem_device(self) -> int:
        return sysfs.integer(f"{self.folder}/subsystem_device", 16) or 0

    @cached_property
    def revision(self) -> int:
        return sysfs.integer(f"{self.folder}/revision", 16) or 0

    @cached_property
    def driver(self) -> str | None:
        """The name of the bound kernel driver.

        It is not a published attribute, because it changes while a function is passed through with VFIO.
        """
        return sysfs.link(f"{self.folder}/driver")

    @cached_property
    def numa_node(self) -> int | None:
        found = sysfs.integer(f"{self.folder}/numa_node")
        return found if found is not None and found >= 0 else None

    @cached_property
    def iommu_group(self) -> int | None:
        group = sysfs.link(f"{self.folder}/iommu_group")
        return int(group) if group and group.isascii() and group.isdigit() else None

    @cached_property
    def pcie_root(self) -> str | None:
        """The PCIe root, e.g. ``pci0000:00``: the first part of the path below ``devices``. For a device behind Intel's VMD, it is the
        root of the VMD controller.
        """
        return device_attributes.pcie_root(self._below.partition("/")[0])

    @cached_property
    def upstream(self) -> str | None:
        """The address of the bridge, port or controller directly above the function; None at a root."""
        parts = self._below.split("/")[:-1]
        return next((p for p in reversed(parts) if _FUNCTION.fullmatch(p)), None)

    @property
    def _below(self) -> str:
        return self.folder.removeprefix(self.context.devices) if self.folder.startswith(self.context.devices) else ""

    @cached_property
    def physical_function(self) -> str | None:
        """The parent's address for an SR-IOV virtual function, else None."""
        return sysfs.link(f"{self.folder}/physfn")

    @property
    def is_vf(self) -> bool:
        return self.physical_function is not None

    @cached_property
    def vf_index(self) -> int | None:
        """The index of a virtual function in its physical function; None for a physical function."""
        parent = self._parent
        return None if parent is None else self.context.virtual_functions(parent).get(self.address)

    @property
    def _parent(self) -> str | None:
        return f"{self.folder.rpartition('/')[0]}/{self.physical_function}" if self.is_vf else None

    @cached_property
    def total_vfs(self) -> int:
        """The number of virtual functions that a physical function supports; 0 without SR-IOV."""
        return 0 if self.is_vf else sysfs.integer(f"{self.folder}/sriov_totalvfs") or 0

    @cached_property
    def boot_vga(self) -> bool:
        """Whether the function is the console's graphics device."""
        return sysfs.integer(f"{self.folder}/boot_vga") == 1

    @property
    def max_link_speed(self) -> int | None:
        """The maximum link speed that both the function and the port above it support; a virtual function has the value of its parent."""
        return self._limits[0]

    @property
    def max_link_width(self) -> int | None:
        """The maximum lanes that both the function and the port above it support; a virtual function has the value of its parent."""
        return self._limits[1]

    @cached_property
    def _limits(self) -> tuple[int | None, int | None]:
        return self.context.link_of(self._parent or self.folder)

    @cached_property
    def vendor_name(self) -> str | None:
        return self.context.names.vendor(self.vendor)

    @cached_property
    def device_name(self) -> str | None:
        return self.context.names.device(self.vendor, self.device_id)

    @cached_property
    def class_name(self) -> str | None:
        return self.context.names.class_name(self.class_code)

    def is_class(self, code: int) -> bool:
        """Returns whether the class equals ``code``, which has 8, 16 or 24 bits."""
        if code <= 0xFF:
            return self.class_code >> 16 == code
        return self.class_code >> 8 == code if code <= 0xFFFF else self.class_code == code

    @property
    def pci_bus_id(self) -> str | None:
        """The address, or None if its domain has five digits (Intel VMD), which is not the standard form."""
        return device_attributes.pci_bus_id(self.address)

    def nodes(self, kind: str | None = None) -> list[str]:
        """Returns the device files that the function's driver created, e.g. ``/dev/dri/renderD128``, sorted.

        They exist while the driver is bound. They are the files of this function, also if the kernel numbers the devices in another order.

        Args:
            kind: only files of this class are returned, e.g. ``drm``; None for all classes.
        """
        out = []
        for folder in _subfolders(self.folder):
            if sysfs.text(f"{folder}/dev") and (kind is None or sysfs.link(f"{folder}/subsystem") == kind):
                devname = re.search(r"^DEVNAME=(.+)$", sysfs.text(f"{folder}/uevent") or "", re.MULTILINE)
                out.append(f"/dev/{devname[1] if devname else folder.rpartition('/')[2]}")
        return sorted(out)

    def attributes(self) -> dict[str, Attribute]:
        """Returns the attributes for selectors. Their values do not change while the function is in use.

        Attributes that Kubernetes defines: ``pcieRoot`` and ``pciBusID`` (strings), ``numaNode`` (an integer, or a list if the cluster
        supports lists; absent without affinity).

        Attributes of the driver: ids as lower-case hex strings (``vendor``, ``device``, ``class``), their names from pci.ids,
        ``iommuGroup`` (integer), ``totalVFs``, ``virtualFunction``. Virtual functions have ``physicalFunction`` and ``vfIndex``.
        ``linkSpeed`` (megatransfers per second and lane) and ``linkWidth`` (lanes) are the link's maximum. The kernel driver is not an
        attribute, because VFIO changes it.
        """
        speed, width = self._limits
        values: dict[str, Attribute | None] = {
            device_attributes.PCIE_ROOT: self.pcie_root,
            device_attributes.PCI_BUS_ID: self.pci_bus_id,
            device_attributes.NUMA_NODE: self._numa(),
            **self.context.model(self),
            "iommuGroup": self.iommu_group,
            "virtualFunction": self.is_vf,
            "physicalFunction": self.physical_function,
            "vfIndex": self.vf_index,
            "totalVFs": self.total_vfs or None,
            "linkSpeed": speed,
            "linkWidth": width,
        }
        return {k: v for k, v in values.items() if v is not None}

    def _numa(self) -> Attribute | None:
        node = self.numa_node
        return self.context.numa.near(node) if node is not None and self.context.lists else node

    def device(
        self,
        name: str | None = None,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        **fields: Any,
    ) -> Device:
        """Returns a :class:`Device` for this function.

        Args:
            name: the device's name; by default, ``pci-`` and the address.
            attributes: added to the result of :meth:`attributes`; they override attributes with the same name.
            fields: other fields of :class:`Device`. ``data`` is this function, unless you set it.
        """
        merged = {**self.attributes(), **(attributes or {})}
        return Device(name or sanitize(f"pci-{self.address}"), attributes=merged, **{"data": self, **fields})


def find_function(
    context: PciContext, name: str, vendor: int | None = None, device: int | None = None
) -> PciFunction | None:
    """Reads the function ``bus/pci/devices/<name>``; returns None if it has another vendor or device id.

    Raises ``FileNotFoundError`` if it does not exist, ``ValueError`` if ``name`` is not a PCI address.
    """
    address = name.lower()
    if not ADDRESS.fullmatch(address):
        raise ValueError(f"{name} is not a PCI address")
    folder = context.links + name
    if vendor is not None and vendor != _id(folder, "vendor"):
        return None
    if device is not None and device != _id(folder, "device"):
        return None
    return PciFunction(
        address=address,
        vendor=_id(folder, "vendor") if vendor is None else vendor,
        device_id=_id(folder, "device") if device is None else device,
        class_code=_id(folder, "class"),
        folder=context.resolved(folder),
        context=context,
    )


def _subfolders(folder: str, depth: int = 5) -> Iterator[str]:
    """Yields the folders below a function's folder, without the folders of functions below it."""
    try:
        with os.scandir(folder) as entries:
            found = [e.path for e in entries if e.is_dir(follow_symlinks=False) and not _FUNCTION.fullmatch(e.name)]
    except OSError as e:  # removed during the scan
        if e.errno in NOT_NOW:
            raise
        return
    for path in found:
        yield path
        if depth:
            yield from _subfolders(path, depth - 1)


def _id(folder: str, name: str) -> int:
    path = f"{folder}/{name}"
    found = sysfs.text(path)
    if found is None:
        # File modes allow every user to read the file, so a security policy such as SELinux denies it.
        if os.access(path, os.F_OK) and not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        raise FileNotFoundError(path)
    return int(found, 16)


def _virtual_functions(folder: str) -> dict[str, int]:
    out = {}
    # The function may be removed during the scan.
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            index = entry.name[6:]
            if entry.name.startswith("virtfn") and index.isascii() and index.isdigit():
                out[(sysfs.link(entry.path) or "").lower()] = int(index)
    return out


def _link_limits(folder: str) -> tuple[int | None, int | None]:
    ends = (folder, folder.rpartition("/")[0])
    speeds = [_speed(sysfs.text(f"{end}/max_link_speed")) for end in ends]
    widths = [_width(sysfs.text(f"{end}/max_link_width")) for end in ends]
    return _least(speeds), _least(widths)


def _speed(text: str | None) -> int | None:
    """Parses a speed: ``16.0 GT/s PCIe`` is 16000; ``Unknown`` is None."""
    found = _SPEED.match(text or "")
    return int(found[1]) * 1000 + int(found[2] or 0) * 100 if found else None


def _width(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and int(text) in _WIDTHS else None


def _least(known: Iterable[int | None]) -> int | None:
    return min((n for n in known if n is not None), default=None)


def _cached(cache: dict[K, V], key: K, make: Callable[[K], V]) -> V:
    if key not in cache:
        cache[key] = make(key)
    return cache[key]


def _short(name: str | None) -> str | None:
    """Truncates a name to the 64 bytes of an attribute."""
    return name.encode()[:64].decode(errors="ignore") if name else None
