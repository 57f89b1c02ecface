"""The data classes of a described host: PCI functions with their links and virtual functions, and NUMA nodes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

Texts = Mapping[str, str]
Classes = Mapping[str, Mapping[str, Texts]]
_DOMAIN = re.compile(r"(?P<domain>[0-9a-f]+):(?P<bus>..):(?P<slot>..)\.(?P<function>.)")
SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_VFS_DEFAULTS = {("enabled", 0), ("stride", 1)}


@dataclass(frozen=True, kw_only=True)
class Link:
    """The maximum of a PCIe link: gigatransfers per second and lane, and the number of lanes."""

    speed: float
    width: int


@dataclass(frozen=True, kw_only=True)
class VirtualFunctions:
    """The virtual functions of a physical function. The first has the group ``iommu_group``, each further one the next number."""

    total: int
    device: int
    enabled: int = 0
    driver: str | None = None
    iommu_group: int | None = None
    offset: int = 0  # from the parent's address to the address of the first virtual function; the parser replaces 0
    stride: int = 1


@dataclass(frozen=True, kw_only=True)
class Function:
    """One PCI function; :mod:`.fake.schema` explains the fields."""

    address: str
    vendor: int
    device: int
    class_code: int = 0
    subsystem_vendor: int
    subsystem_device: int = 0
    revision: int = 0
    behind: str | None = None
    root: str | None = None
    driver: str | None = None
    numa: int | None = None
    iommu_group: int | None = None
    boot_vga: bool = False
    link: Link | None = None
    vfs: VirtualFunctions | None = None
    classes: Classes = field(default_factory=dict)
    attributes: Texts = field(default_factory=dict)

    def description(self) -> dict[str, Any]:
        """Returns the function in the form of a description, without default values."""
        out: dict[str, Any] = {"address": self.address, "vendor": self.vendor, "device": self.device}
        out |= {"class": self.class_code} if self.class_code else {}
        out |= {"subsystem_vendor": self.subsystem_vendor} if self.subsystem_vendor != self.vendor else {}
        for name in ("subsystem_device", "revision", "boot_vga", "classes", "attributes"):
            out |= {name: getattr(self, name)} if getattr(self, name) else {}
        for name in ("behind", "driver", "numa", "iommu_group"):
            out |= {name: getattr(self, name)} if getattr(self, name) is not None else {}
        out |= {"root": self.root} if self.root and (self.behind or self.root != root_of(self.address)) else {}
        out |= {"link": {"speed": self.link.speed, "width": self.link.width}} if self.link else {}
        if self.vfs:
            vfs_fields = dataclasses.asdict(self.vfs)
            out["vfs"] = {k: v for k, v in vfs_fields.items() if v is not None and (k, v) not in _VFS_DEFAULTS}
        return out

    def virtual(self, index: int) -> Function:
        """Returns a virtual function by index. It has the same parent bridge and root as its physical function."""
        assert self.vfs is not None
        group = self.vfs.iommu_group
        return Function(
            address=shifted(self.address, self.vfs.offset + index * self.vfs.stride),
            vendor=self.vendor,
            device=self.vfs.device,
            class_code=self.class_code,
            subsystem_vendor=self.subsystem_vendor,
            subsystem_device=self.subsystem_device,
            behind=self.behind,
            root=self.root,
            driver=self.vfs.driver,
            numa=self.numa,
            iommu_group=None if group is None else group + index,
        )


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    cpus: str = ""
    socket: int = 0
    distances: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A complete description. Only :func:`.fake.schema.parse` creates it, after validation."""

    functions: Sequence[Function] = ()
    numa_nodes: Mapping[int, NumaNode] = field(default_factory=dict)
    drivers: Sequence[str] = ()
    nodes: Texts = field(default_factory=dict)
    files: Texts = field(default_factory=dict)

    def folder(self, function: Function) -> PurePosixPath:
        """Returns the function's folder, relative to ``devices`` of sysfs."""
        by_address = {f.address: f for f in self.functions}
        parts: list[str] = []
        at: Function | None = function
        while at is not None:
            parts = [*([at.root] if at.root else []), at.address, *parts]
            at = by_address[at.behind] if at.behind else None
        return PurePosixPath(*parts)


def root_of(address: str) -> str:
    """Returns the root complex of a function without a described parent."""
    return f"pci{':'.join(address.split(':')[:2])}"


def shifted(address: str, by: int) -> str:
    """Returns the address whose routing id (bus, device and function) is higher by ``by``."""
    domain, _, _ = address.partition(":")
    number = routing_id(address) + by
    return f"{domain}:{number >> 8:02x}:{number >> 3 & 0x1F:02x}.{number & 7}"


def routing_id(address: str) -> int:
    """Returns bus, device and function as one number."""
    found = _DOMAIN.fullmatch(address)
    assert found
    return int(found["bus"], 16) << 8 | int(found["slot"], 16) << 3 | int(found["function"])
