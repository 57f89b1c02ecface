"""The structs of a described host: PCI functions with their links and virtual functions, and NUMA nodes.

msgspec checks types, patterns and ranges while it decodes a description. ``__post_init__`` checks fields of one object together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from dra_kubeletplugin.host import sysfs

SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_ADDRESS = r"^[0-9a-fA-F]{4,5}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]\Z"
_WORD = r"^[A-Za-z0-9_][\w.:+-]*\Z"
_ROOT = r"^(?!.*\.\.)[\w.:-]+(/[\w.:-]+)*\Z"
PATH = r"^(?!\.)[^/\x00-\x1f\x7f]+(/(?!\.)[^/\x00-\x1f\x7f]+)*\Z"
_NUMBERS = r"^\d+:\d+\Z"
_DEVICE_NODE = r"^([bc] )?\d+:\d+\Z"
FORMS: Mapping[str, str] = {
    _ADDRESS: "a PCI address: write domain:bus:device.function, such as '0000:17:00.0'; the highest device is 1f",
    _WORD: "a name: use letters, digits, '-', '_', '.', ':' and '+'",
    _ROOT: "a root: write it like pci0000:16",
    PATH: "a path within the folder",
    _DEVICE_NODE: "a device node: write 'c major:minor', or 'b major:minor' for a block device",
}
"""What a user must write, by the pattern that msgspec names in its error."""

Address = Annotated[str, Meta(pattern=_ADDRESS)]
Word = Annotated[str, Meta(pattern=_WORD)]
Root = Annotated[str, Meta(pattern=_ROOT)]
PathInFolder = Annotated[str, Meta(pattern=PATH)]
DeviceNode = Annotated[str, Meta(pattern=_DEVICE_NODE)]
Content = bool | int | float | str
Bits8 = Annotated[int, Meta(ge=0, le=0xFF)]
Bits16 = Annotated[int, Meta(ge=0, le=0xFFFF)]
Bits24 = Annotated[int, Meta(ge=0, le=0xFFFFFF)]
From1 = Annotated[int, Meta(ge=1, le=0xFFFF)]
NumaNumber = Annotated[int, Meta(ge=0, le=1023)]
_SET_BY_KEY = {  # files of a function's folder that another key, or a write to the host, sets
    "vendor": "vendor",
    "device": "device",
    "class": "class",
    "driver": "driver",
    "numa_node": "numa",
    "iommu_group": "iommu_group",
    "sriov_totalvfs": "vfs.total",
    "sriov_numvfs": "vfs.enabled",
    "sriov_vf_device": "vfs.device",
    "sriov_offset": "vfs.offset",
    "sriov_stride": "vfs.stride",
    "physfn": "vfs",
    "driver_override": "driver",
    "local_cpulist": "numa",
}


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The maximum of a PCIe link: gigatransfers per second and lane, and the number of lanes."""

    speed: float
    width: int

    def __post_init__(self) -> None:
        for name, value, known in (("speed", self.speed, SPEEDS), ("width", self.width, WIDTHS)):
            if value not in known:
                raise ValueError(f"{name} {value:g} is not one of {', '.join(f'{v:g}' for v in known)}")


class VirtualFunctions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The virtual functions of a physical function. The first has the group ``iommu_group``, each further one the next number."""

    total: From1
    device: Bits16 | None = None
    enabled: Bits16 = 0
    driver: Word | None = None
    iommu_group: Bits24 | None = None
    offset: From1 | None = None  # from the parent's address to the address of the first virtual function
    stride: From1 = 1

    def __post_init__(self) -> None:
        if self.enabled > self.total:
            raise ValueError(f"{self.enabled} virtual functions are more than the total of {self.total}")


class Function(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One PCI function; :mod:`.schema` explains the fields. :mod:`.topology` sets the defaults that depend on other fields."""

    address: Address
    vendor: Bits16
    device: Bits16
    class_code: Bits24 = field(default=0, name="class")
    subsystem_vendor: Bits16 | None = None
    subsystem_device: Bits16 = 0
    revision: Bits8 = 0
    behind: Address | None = None
    root: Root | None = None
    driver: Word | None = None
    numa: NumaNumber | None = None
    iommu_group: Bits24 | None = None
    boot_vga: bool = False
    link: Link | None = None
    vfs: VirtualFunctions | None = None
    classes: Mapping[Word, Mapping[Word, Mapping[PathInFolder, Content] | None]] = {}
    nodes: Mapping[PathInFolder, DeviceNode] = {}
    proc: Mapping[PathInFolder, Content] = {}
    attributes: Mapping[PathInFolder, Content] = {}

    def __post_init__(self) -> None:
        if self.vfs and self.vfs.enabled and not self.driver:
            raise ValueError("the kernel enables virtual functions only for a function with a driver: set `driver`")
        for path in self.attributes.keys() & _SET_BY_KEY.keys():
            raise ValueError(f"set {path} with the key `{_SET_BY_KEY[path]}`")
        for devices in self.classes.values():
            for name, attributes in devices.items():
                _check_class_device(name, attributes or {})

    def description(self) -> dict[str, Any]:
        """Returns the function in the form of a description, without default values."""
        out: dict[str, Any] = msgspec.to_builtins(self)
        if self.subsystem_vendor == self.vendor:
            del out["subsystem_vendor"]
        if self.behind is None and self.root == root_of(self.address):
            del out["root"]
        return out

    def virtual(self, index: int) -> Function:
        """Returns a virtual function by index. It has the same parent bridge and root as its physical function."""
        assert self.vfs and self.vfs.offset and self.vfs.device is not None
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


class NumaNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One NUMA node: its list of CPUs, its socket, and its distances to all NUMA nodes."""

    cpus: int | str = ""
    socket: NumaNumber = 0
    distances: tuple[Bits8, ...] = ()

    def __post_init__(self) -> None:
        if self.cpus != "" and not self.cpu_numbers():
            raise ValueError(f"{self.cpus!r} is not a list of CPUs: write it like 0-3,8-11")

    def cpu_numbers(self) -> list[int]:
        return sysfs.cpu_list(str(self.cpus))


class HostDescription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A complete description. Only :func:`.schema.parse` creates it, after validation.

    ``nodes`` are device nodes by path below ``dev``, and ``proc`` files by path below ``proc``.
    """

    functions: tuple[Function, ...]
    numa_nodes: Mapping[NumaNumber, NumaNode] = {}
    drivers: tuple[Word, ...] = ()
    nodes: Mapping[PathInFolder, DeviceNode] = {}
    proc: Mapping[PathInFolder, Content] = {}
    files: Mapping[PathInFolder, Content] = {}

    def folder(self, function: Function) -> PurePosixPath:
        """Returns the function's folder, relative to ``devices`` of sysfs."""
        by_address = {f.address: f for f in self.functions}
        parts: list[str] = []
        at: Function | None = function
        while at is not None:
            parts = [*([at.root] if at.root else []), at.address, *parts]
            at = by_address[at.behind] if at.behind else None
        return PurePosixPath(*parts)

    def local_cpus(self, function: Function) -> str | None:
        """Returns the list of the CPUs nearest to a function; None if no NUMA nodes are described."""
        if not self.numa_nodes:
            return None
        near = [n for number, n in self.numa_nodes.items() if function.numa in {None, number}]
        return ",".join(str(n.cpus) for n in near if n.cpus != "")


def _check_class_device(name: str, attributes: Mapping[str, Content]) -> None:
    for path in attributes:
        if path.partition("/")[0] in {"device", "subsystem"}:
            raise ValueError(f"{name}: {path} is created for every device: remove it")
    dev = attributes.get("dev")
    if dev is not None and not re.search(_NUMBERS, str(dev)):
        raise ValueError(f"{name}: dev {dev!r} is not major:minor, such as 240:0")
    if (devname := attributes.get("devname")) is not None:
        if not re.search(PATH, str(devname)):
            raise ValueError(f"{name}: devname {devname!r} is not {FORMS[PATH]}")
        if dev is None:
            raise ValueError(
                f"{name}: devname is the name of a device node, which needs numbers: set dev, such as 240:0"
            )


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
    _, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    return int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
