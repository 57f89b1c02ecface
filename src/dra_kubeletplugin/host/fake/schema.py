"""Parses the YAML format of a described host and reports every error with its place.

Only ``address``, ``vendor`` and ``device`` of a function are required::

    functions:
      - {address: "0000:16:00.0", vendor: 0x8086, device: 0x347a, class: 0x060400}   # a port
      - address: "0000:17:00.0"      # domain:bus:device.function
        vendor: 0x10ee
        device: 0x5000
        class: 0x120000              # 24 bits
        subsystem_vendor: 0x10ee     # default: `vendor`
        subsystem_device: 0x0001
        revision: 0x02
        behind: "0000:16:00.0"       # the bridge, port or controller above this function
        root: pci0000:16             # default: from the address; with `behind`: the root that this controller (VMD) creates
        driver: xclmgmt              # the kernel driver that is bound at boot
        numa: 0
        iommu_group: 12
        boot_vga: true               # this function is the console's graphics device
        link: {speed: 16.0, width: 8}                     # maximum GT/s and lanes
        vfs: {total: 4, device: 0x5001, enabled: 2, driver: xclvf, iommu_group: 40, offset: 1, stride: 1}
        classes: {fpga: {fpga0: {dev: "240:0"}}}          # class devices of the driver; `dev` makes a device node
        attributes: {label: left, "hwmon/hwmon0/temp1_input": 42000}    # any other files in the function's folder
    numa_nodes:
      0: {cpus: 0-15, socket: 0, distances: [10, 21]}
      1: {cpus: 16-31, socket: 1, distances: [21, 10]}
    drivers: [vfio-pci]              # drivers that are loaded but not bound; vfio-pci is always loaded
    nodes: {fpga-manager: "c 10:123"}       # device nodes that belong to no function
    files: {class/dmi/id/product_name: Box}  # any other files of sysfs

A class device exists while the function's described driver is bound. ``devname``, next to ``dev``, is the name of the
device node if it differs from the device's name (``dri/renderD128``). The first virtual function has the IOMMU group
``vfs.iommu_group``, the next one the next number. The first virtual function's address is ``offset`` after the parent's, and each
further address is ``stride`` higher. By default, the parser chooses free addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...base.yaml import line_numbers
from ...errors import SettingsError
from ..model import SPEEDS, WIDTHS, Function, Link, Machine, NumaNode, Texts, VirtualFunctions, root_of
from ..topology import LAST, build_topology, check_functions, check_numa
from ..validation import Faults, KeyReader
from . import values


def load(path: Path) -> Machine:
    """Reads a description from a YAML file.

    Raises :class:`SettingsError` with every error and its line.
    """
    found, lines = line_numbers.read(path)
    return parse(found, str(path), lines)


def parse(
    data: object, source: str = "described host", lines: Mapping[line_numbers.Place, int] | None = None
) -> Machine:
    """Reads a description from an object, as parsed from YAML or JSON.

    Args:
        source: the name of the description in error messages.
        lines: line numbers by place in the object, if known.

    Raises :class:`SettingsError` with every error and its place.
    """
    faults = Faults(source, lines or {})
    keys = KeyReader(data, (), faults)
    functions = keys.each("functions", _function, required=True)
    machine = Machine(
        functions=build_topology(functions, faults),
        numa_nodes=keys.mapping("numa_nodes", values.node_number, _numa_node),
        drivers=keys.items("drivers", values.word),
        nodes=keys.mapping("nodes", values.path, values.node),
        files=keys.mapping("files", values.path, values.text),
    )
    keys.end()
    check_functions(machine, faults)
    check_numa(machine, faults)
    if faults.found:
        raise SettingsError(faults.found[0], *faults.found[1:])
    return machine


def _function(keys: KeyReader) -> Function | None:
    address = keys.take("address", values.address, required=True)
    vendor = keys.take("vendor", values.within(0, 0xFFFF), required=True)
    device = keys.take("device", values.within(0, 0xFFFF), required=True)
    behind = keys.take("behind", values.address)
    root = keys.take("root", values.root)
    subsystem_vendor = keys.take("subsystem_vendor", values.within(0, 0xFFFF))
    rest: dict[str, Any] = {
        "class_code": keys.take("class", values.within(0, 0xFFFFFF)) or 0,
        "subsystem_device": keys.take("subsystem_device", values.within(0, 0xFFFF)) or 0,
        "revision": keys.take("revision", values.within(0, 0xFF)) or 0,
        "driver": keys.take("driver", values.word),
        "numa": keys.take("numa", values.within(0, 1023)),
        "iommu_group": keys.take("iommu_group", values.within(0, 0xFFFFFF)),
        "boot_vga": keys.take("boot_vga", values.flag) or False,
        "link": keys.inner("link", _link),
        "vfs": keys.inner("vfs", lambda inner: _virtual(inner, device or 0)),
        "classes": keys.mapping("classes", values.word, _class),
        "attributes": keys.mapping("attributes", values.attribute, values.text),
    }
    if (virtual := rest["vfs"]) and virtual.enabled and not rest["driver"]:
        keys.fault("vfs", "the kernel enables virtual functions only for a function with a driver: set `driver`")
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


def _link(keys: KeyReader) -> Link | None:
    speed = keys.take("speed", values.one_of(SPEEDS), required=True)
    width = keys.take("width", values.one_of(WIDTHS), required=True)
    keys.end()
    return None if speed is None or width is None else Link(speed=float(speed), width=int(width))


def _virtual(keys: KeyReader, device: int) -> VirtualFunctions | None:
    total = keys.take("total", values.within(1, LAST), required=True)
    own = keys.take("device", values.within(0, 0xFFFF))
    enabled = keys.take("enabled", values.within(0, LAST)) or 0
    out = VirtualFunctions(
        total=total or 0,
        device=device if own is None else own,
        enabled=enabled,
        driver=keys.take("driver", values.word),
        iommu_group=keys.take("iommu_group", values.within(0, 0xFFFFFF)),
        offset=keys.take("offset", values.within(1, 0xFFFF)) or 0,
        stride=keys.take("stride", values.within(1, 0xFFFF)) or 1,
    )
    if total is not None and enabled > total:
        keys.fault("enabled", f"{enabled} virtual functions are more than the total of {total}")
    keys.end()
    return None if total is None else out


def _class(data: object) -> Mapping[str, Texts]:
    return {name: _device(attributes) for name, attributes in values.named(data, values.word).items()}


def _device(data: object) -> Texts:
    out = {name: values.text(value) for name, value in values.named({} if data is None else data, values.path).items()}
    if links := sorted(name for name in out if name.partition("/")[0] in {"device", "subsystem"}):
        raise ValueError(f"{links[0]} is created for every device: remove it")
    if "dev" in out and not values.NUMBERS.fullmatch(out["dev"]):
        raise ValueError(f"dev {out['dev']!r} is not major:minor, such as 240:0")
    if "devname" in out:
        values.path(out["devname"])
        if "dev" not in out:
            raise ValueError("devname is the name of a device node, which needs numbers: set dev, such as 240:0")
    return out


def _numa_node(data: object) -> NumaNode:
    faults = Faults("", {})
    keys = KeyReader(data, (), faults)
    out = NumaNode(
        cpus=keys.take("cpus", values.cpus) or "",
        socket=keys.take("socket", values.within(0, 1023)) or 0,
        distances=keys.items("distances", values.within(0, 255)),
    )
    keys.end()
    if faults.found:
        raise ValueError("; ".join(f.lstrip(": ") for f in faults.found))
    return out
