"""What may be said of a described host: the format, checked strictly, with the place of each fault.

In YAML; only ``address``, ``vendor`` and ``device`` of a function are required::

    functions:
      - address: "0000:17:00.0"      # domain:bus:device.function
        vendor: 0x10ee
        device: 0x5000
        class: 0x120000              # 24 bits
        subsystem_vendor: 0x10ee     # the vendor when left out
        subsystem_device: 0x0001
        revision: 0x02
        behind: "0000:16:00.0"       # the bridge, port or controller that it hangs below
        root: pci0000:16             # a root of its own: from the address when left out; below `behind` for VMD
        driver: xclmgmt              # the kernel driver that is bound at boot
        numa: 0
        iommu_group: 12
        boot_vga: true               # it carries the console
        link: {speed: 16.0, width: 8}                     # GT/s and lanes that it can do at most
        vfs: {total: 4, device: 0x5001, enabled: 2, driver: xclvf, iommu_group: 40, offset: 1, stride: 1}
        classes: {fpga: {fpga0: {dev: "240:0"}}}          # what its driver makes: class, name, attributes; `dev` is a device node
        attributes: {label: left, "hwmon/hwmon0/temp1_input": 42000}    # any other files of its folder
    numa_nodes:
      0: {cpus: 0-15, socket: 0, distances: [10, 21]}
    drivers: [vfio-pci]              # loaded and bound to nothing; vfio-pci always is
    nodes: {fpga-manager: "c 10:123"}       # device nodes that belong to no function
    files: {class/dmi/id/product_name: Box}  # any other files of sysfs

A class's device is there while the function has its own driver, as the kernel's are. ``devname`` beside ``dev`` names the node where it
is not the device's (``dri/renderD128``). Virtual functions get IOMMU groups that count up from ``vfs.iommu_group``, and addresses
``offset`` behind their parent and ``stride`` apart; where these are left out, addresses that nothing else has.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from ..errors import SettingsError
from . import sysfs, yaml_lines
from .pci import ADDRESS
from .places import Faults, Keys

T = TypeVar("T")
Texts = Mapping[str, str]
Classes = Mapping[str, Mapping[str, Texts]]
Taken = dict[tuple[str, int], tuple[int, str]]  # domain and routing id: place in the list, and what to call it
_DOMAIN = re.compile(r"(?P<domain>[0-9a-f]+):(?P<bus>..):(?P<slot>..)\.(?P<function>.)")
_ROOT = re.compile(r"[\w.:-]+(/[\w.:-]+)*")
_WORD = re.compile(r"[A-Za-z0-9_][\w.:+-]*")
_NUMBERS = re.compile(r"\d+:\d+")
_NODE = re.compile(r"[bc] \d+:\d+")
SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_VFS_DEFAULTS = {("enabled", 0), ("stride", 1)}
_LAST = 0xFFFF  # routing id of a domain
_KEYS = {  # files that other keys, or writes, decide about
    "vendor": "vendor", "device": "device", "class": "class", "driver": "driver", "numa_node": "numa", "iommu_group": "iommu_group",
    "sriov_totalvfs": "vfs.total", "sriov_numvfs": "vfs.enabled", "sriov_vf_device": "vfs.device", "sriov_offset": "vfs.offset",
    "sriov_stride": "vfs.stride", "physfn": "vfs", "driver_override": "driver", "local_cpulist": "numa",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Link:
    """The most that a link can do: gigatransfers a second a lane, and lanes."""

    speed: float
    width: int


@dataclass(frozen=True, kw_only=True)
class VirtualFunctions:
    """What a physical function offers. ``iommu_group`` is that of the first."""

    total: int
    device: int
    enabled: int = 0
    driver: str | None = None
    iommu_group: int | None = None
    offset: int = 0  # of the first's address from the parent's; given, or found for it
    stride: int = 1


@dataclass(frozen=True, kw_only=True)
class Function:
    """One PCI function; see the module for what the fields mean."""

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

    def given(self) -> dict[str, Any]:
        """As a description has it, without what need not be said."""
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
            told = dataclasses.asdict(self.vfs)
            out["vfs"] = {k: v for k, v in told.items() if v is not None and (k, v) not in _VFS_DEFAULTS}
        return out

    def virtual(self, index: int) -> Function:
        """One of the virtual functions; it hangs where its parent does."""
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
    """A whole description. Made by :func:`parse` only, which checks it."""

    functions: Sequence[Function] = ()
    numa_nodes: Mapping[int, NumaNode] = field(default_factory=dict)
    drivers: Sequence[str] = ()
    nodes: Texts = field(default_factory=dict)
    files: Texts = field(default_factory=dict)

    def folder(self, function: Function) -> PurePosixPath:
        """A function's folder below sysfs' ``devices``."""
        by_address = {f.address: f for f in self.functions}
        parts: list[str] = []
        at: Function | None = function
        while at is not None:
            parts = [*([at.root] if at.root else []), at.address, *parts]
            at = by_address[at.behind] if at.behind else None
        return PurePosixPath(*parts)


def load(path: Path) -> Machine:
    """The description in a YAML file.

    Raises :class:`SettingsError` with every fault, each with its line.
    """
    found, lines = yaml_lines.read(path)
    return parse(found, str(path), lines)


def parse(
    given: object, source: str = "described host", lines: Mapping[yaml_lines.Place, int] | None = None
) -> Machine:
    """The description in an object, as YAML or JSON has it.

    Raises :class:`SettingsError` with every fault, each with its place.
    """
    faults = Faults(source, lines or {})
    keys = Keys(given, (), faults)
    functions = keys.each("functions", _function, required=True)
    machine = Machine(
        functions=_laid_out(functions, faults),
        numa_nodes=keys.mapping("numa_nodes", _node_number, _numa_node),
        drivers=keys.items("drivers", _word),
        nodes=keys.mapping("nodes", _path, _node),
        files=keys.mapping("files", _path, _text),
    )
    keys.end()
    _check_functions(machine, faults)
    _check_numa(machine, faults)
    if faults.found:
        raise SettingsError(faults.found[0], *faults.found[1:])
    return machine


def root_of(address: str) -> str:
    """The root complex of a function that hangs below nothing that is described."""
    return f"pci{':'.join(address.split(':')[:2])}"


def shifted(address: str, by: int) -> str:
    """The address whose routing id (bus, device and function) is ``by`` further."""
    domain, _, _ = address.partition(":")
    number = _number(address) + by
    return f"{domain}:{number >> 8:02x}:{number >> 3 & 0x1F:02x}.{number & 7}"


def _number(address: str) -> int:
    found = _DOMAIN.fullmatch(address)
    assert found
    return int(found["bus"], 16) << 8 | int(found["slot"], 16) << 3 | int(found["function"])


# --- one function -------------------------------------------------------------------------------


def _function(keys: Keys) -> Function | None:
    address = keys.take("address", _address, required=True)
    vendor = keys.take("vendor", _within(0, 0xFFFF), required=True)
    device = keys.take("device", _within(0, 0xFFFF), required=True)
    behind = keys.take("behind", _address)
    root = keys.take("root", _root)
    subsystem_vendor = keys.take("subsystem_vendor", _within(0, 0xFFFF))
    rest: dict[str, Any] = {
        "class_code": keys.take("class", _within(0, 0xFFFFFF)) or 0,
        "subsystem_device": keys.take("subsystem_device", _within(0, 0xFFFF)) or 0,
        "revision": keys.take("revision", _within(0, 0xFF)) or 0,
        "driver": keys.take("driver", _word),
        "numa": keys.take("numa", _within(0, 1023)),
        "iommu_group": keys.take("iommu_group", _within(0, 0xFFFFFF)),
        "boot_vga": keys.take("boot_vga", _flag) or False,
        "link": keys.inner("link", _link),
        "vfs": keys.inner("vfs", lambda inner: _virtual(inner, device or 0)),
        "classes": keys.mapping("classes", _word, _class),
        "attributes": keys.mapping("attributes", _attribute, _text),
    }
    if (virtual := rest["vfs"]) and virtual.enabled and not rest["driver"]:
        keys.fault("vfs", "without a driver for the function the kernel enables no virtual ones: give `driver`")
    keys.end()
    if address is None or vendor is None or device is None:
        return None
    if root is None and behind is None:
        root = root_of(address)
    return Function(
        address=address,
        vendor=vendor,
        device=device,
        behind=behind,
        root=root,
        subsystem_vendor=vendor if subsystem_vendor is None else subsystem_vendor,
        **rest,
    )


def _link(keys: Keys) -> Link | None:
    speed = keys.take("speed", _one_of(SPEEDS), required=True)
    width = keys.take("width", _one_of(WIDTHS), required=True)
    keys.end()
    return None if speed is None or width is None else Link(speed=float(speed), width=int(width))


def _virtual(keys: Keys, device: int) -> VirtualFunctions | None:
    total = keys.take("total", _within(1, _LAST), required=True)
    own = keys.take("device", _within(0, 0xFFFF))
    enabled = keys.take("enabled", _within(0, _LAST)) or 0
    out = VirtualFunctions(
        total=total or 0,
        device=device if own is None else own,
        enabled=enabled,
        driver=keys.take("driver", _word),
        iommu_group=keys.take("iommu_group", _within(0, 0xFFFFFF)),
        offset=keys.take("offset", _within(1, 0xFFFF)) or 0,
        stride=keys.take("stride", _within(1, 0xFFFF)) or 1,
    )
    if total is not None and enabled > total:
        keys.fault("enabled", f"{enabled} virtual functions are more than the total of {total}")
    keys.end()
    return None if total is None else out


def _class(given: object) -> Mapping[str, Texts]:
    return {name: _device(attributes) for name, attributes in _named(given, _word).items()}


def _device(given: object) -> Texts:
    out = {name: _text(value) for name, value in _named({} if given is None else given, _path).items()}
    if "dev" in out and not _NUMBERS.fullmatch(out["dev"]):
        raise ValueError(f"dev {out['dev']!r} is not major:minor, such as 240:0")
    if "devname" in out:
        _path(out["devname"])
        if "dev" not in out:
            raise ValueError("devname names a device node: give its numbers as dev, such as 240:0")
    return out


# --- the whole ----------------------------------------------------------------------------------


def _laid_out(functions: Sequence[Function | None], faults: Faults) -> Sequence[Function]:
    """Gives virtual functions their addresses, and finds two that claim the same."""
    taken: Taken = {}
    for i, fn in enumerate(functions):
        if fn is not None and _claim(taken, fn.address, 0, 1, 1, (i, fn.address)):
            faults.add(("functions", i, "address"), f"{fn.address} is there twice")
    out: list[Function] = []
    for i, fn in enumerate(functions):
        if fn is None:
            continue
        if fn.vfs is not None:
            name = f"the virtual functions of {fn.address}"
            offset = fn.vfs.offset or _free(taken, fn, fn.vfs)
            before = _claim(taken, fn.address, offset, fn.vfs.stride, fn.vfs.total, (i, name))
            if before or _number(fn.address) + offset + fn.vfs.stride * (fn.vfs.total - 1) > _LAST:
                why = f"share addresses with {before}" if before else "reach beyond the last bus"
                faults.add(("functions", i, "vfs"), f"{name} {why}: give another offset, stride or total")
            fn = dataclasses.replace(fn, vfs=dataclasses.replace(fn.vfs, offset=offset))
        out.append(fn)
    return out


def _claim(taken: Taken, address: str, offset: int, stride: int, count: int, owner: tuple[int, str]) -> str:
    """Takes addresses; answers who has one of them already."""
    domain, first = address.partition(":")[0], _number(address) + offset
    for number in range(first, first + stride * count, stride):
        if (before := taken.setdefault((domain, number), owner)) != owner:
            return before[1]
    return ""


def _free(taken: Taken, fn: Function, vfs: VirtualFunctions) -> int:
    """The first offset from the next device number on at which nothing is in the way."""
    domain, own = fn.address.partition(":")[0], _number(fn.address)
    start = (own | 7) + 1
    while start <= _LAST:
        used = [n for n in range(start, start + vfs.stride * vfs.total, vfs.stride) if (domain, n) in taken]
        if not used:
            break
        start = used[-1] + 1
    return start - own


def _check_functions(machine: Machine, faults: Faults) -> None:
    by_address = {f.address: f for f in machine.functions}
    for i, fn in enumerate(machine.functions):
        seen, at = {fn.address}, fn
        while at.behind is not None:
            if at.behind not in by_address:
                if at is fn:
                    faults.add(
                        ("functions", i, "behind"), f"{fn.behind} is not described{faults.near(at.behind, by_address)}"
                    )
                break
            if at.behind in seen:
                faults.add(("functions", i, "behind"), f"{fn.address} hangs below itself")
                break
            seen.add(at.behind)
            at = by_address[at.behind]
        if fn.numa is not None and machine.numa_nodes and fn.numa not in machine.numa_nodes:
            described = ", ".join(map(str, machine.numa_nodes))
            faults.add(("functions", i, "numa"), f"node {fn.numa} is none of numa_nodes, which has {described}")


def _check_numa(machine: Machine, faults: Faults) -> None:
    owner: dict[int, int] = {}
    for number, node in machine.numa_nodes.items():
        if node.distances and len(node.distances) != len(machine.numa_nodes):
            text = (
                f"{len(node.distances)} distances for {len(machine.numa_nodes)} nodes: one for each, its own included"
            )
            faults.add(("numa_nodes", number, "distances"), text)
        for cpu in sysfs.cpu_list(node.cpus):
            if owner.setdefault(cpu, number) != number:
                faults.add(("numa_nodes", number, "cpus"), f"CPU {cpu} belongs to node {owner[cpu]} already")


def _numa_node(given: object) -> NumaNode:
    faults = Faults("", {})
    keys = Keys(given, (), faults)
    out = NumaNode(
        cpus=keys.take("cpus", _cpus) or "",
        socket=keys.take("socket", _within(0, 1023)) or 0,
        distances=keys.items("distances", _within(0, 255)),
    )
    keys.end()
    if faults.found:
        raise ValueError("; ".join(f.lstrip(": ") for f in faults.found))
    return out


# --- values -------------------------------------------------------------------------------------


def _address(given: object) -> str:
    if not isinstance(given, str) or not ADDRESS.fullmatch(given.lower()):
        raise ValueError(f"{given!r} is no PCI address: write domain:bus:device.function, such as '0000:17:00.0'")
    if int(given.split(":")[2][:2], 16) > 0x1F:
        raise ValueError(f"{given!r} has device {given.split(':')[2][:2]}: the highest is 1f")
    return given.lower()


def _within(least: int, most: int) -> Callable[[object], int]:
    def read(given: object) -> int:
        if not isinstance(given, int) or isinstance(given, bool):
            hint = " (without quotes)" if isinstance(given, str) else ""
            raise ValueError(f"{given!r} is no integer{hint}")
        if not least <= given <= most:
            raise ValueError(
                f"{given:#x} is not within {least:#x} and {most:#x}"
                if most > 1023
                else f"{given} is not within {least} and {most}"
            )
        return given

    return read


def _one_of(values: Sequence[float]) -> Callable[[object], float]:
    def read(given: object) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float) or given not in values:
            raise ValueError(f"{given!r} is not one of {', '.join(f'{v:g}' for v in values)}")
        return given

    return read


def _flag(given: object) -> bool:
    if not isinstance(given, bool):
        raise ValueError(f"{given!r} is neither true nor false")
    return given


def _word(given: object) -> str:
    if not isinstance(given, str) or not _WORD.fullmatch(given):
        raise ValueError(f"{given!r} is no name: letters, digits, '-', '_', '.', ':' and '+'")
    return given


def _root(given: object) -> str:
    if not isinstance(given, str) or not _ROOT.fullmatch(given) or ".." in given.split("/"):
        raise ValueError(f"{given!r} is no root: write it like pci0000:16")
    return given


def _path(given: object) -> str:
    if not isinstance(given, str) or not given or PurePosixPath(given).is_absolute() or "\0" in given:
        raise ValueError(f"{given!r} is no path within the folder")
    if not all(part not in {"", ".", ".."} and not part.startswith(".") for part in given.split("/")):
        raise ValueError(f"{given!r} is no path within the folder")
    return given


def _attribute(given: object) -> str:
    path = _path(given)
    if path in _KEYS:
        raise ValueError(f"say {path} with the key `{_KEYS[path]}`")
    return path


def _text(given: object) -> str:
    if given is None or isinstance(given, Mapping | list):
        raise ValueError(f"{given!r} is no text or number")
    return str(int(given) if isinstance(given, bool) else given)


def _node(given: object) -> str:
    text = f"c {given}" if isinstance(given, str) and _NUMBERS.fullmatch(given) else given
    if not isinstance(text, str) or not _NODE.fullmatch(text):
        raise ValueError(f"{given!r} is no device node: write 'c major:minor', or 'b major:minor' for a block device")
    return text


def _node_number(given: object) -> int:
    return _within(0, 1023)(given)


def _cpus(given: object) -> str:
    text = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(text, str) or not sysfs.cpu_list(text):
        raise ValueError(f"{given!r} is no list of CPUs: write it like 0-3,8-11")
    return text


def _named(given: object, read: Callable[[object], str]) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{given!r} is no mapping of names")
    return {read(name): value for name, value in given.items()}
