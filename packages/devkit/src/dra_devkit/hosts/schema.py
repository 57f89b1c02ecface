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
        nodes: {fpga0-admin: "c 240:64"}                  # device nodes of the driver that belong to no class
        proc: {driver/xclmgmt/cards/0: "Model: U50"}      # files of the driver below /proc
        attributes: {label: left, "hwmon/hwmon0/temp1_input": 42000}    # any other files in the function's folder
    numa_nodes:
      0: {cpus: 0-15, socket: 0, distances: [10, 21]}
      1: {cpus: 16-31, socket: 1, distances: [21, 10]}
    drivers: [vfio-pci]              # drivers that are loaded but not bound; vfio-pci is always loaded
    nodes: {fpga-manager: "c 10:123"}       # device nodes that belong to no function
    proc:                            # files below /proc that belong to no function
      devices: |
        Character devices:
        240 fpga
    files: {class/dmi/id/product_name: Box}  # any other files of sysfs

A class device, and the function's ``nodes`` and ``proc``, exist while the function's described driver is bound. ``devname``,
next to ``dev``, is the name of the device node if it differs from the device's name (``dri/renderD128``). A device of the class
``block`` has a block device (``block: {nvme0n1: {dev: "259:0"}}``), and any other class device a character device. The first virtual
function has the IOMMU group ``vfs.iommu_group``, the next one the next number. The first virtual function's address is ``offset`` after the
parent's, and each further address is ``stride`` higher. By default, the parser chooses free addresses.

A function that is bound to vfio-pci has a device ``vfio-dev/vfioN`` and its node ``/dev/vfio/devices/vfioN``. A host with iommufd also has
``nodes: {iommu: "c 10:127"}``.

A driver reads ``proc`` with ``Host.proc``, and never this machine's ``/proc``.

A driver writes to the host with ``Host.write``, which imitates the kernel. A reboot builds the host again from the description, so all
writes are lost; functions that were plugged or unplugged stay so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec

from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import SettingsError, printable, shown

from .model import FORMS, Function, HostDescription, Link, NumaNode, VirtualFunctions
from .topology import Fault, Place, check_functions, check_numa, with_defaults

if TYPE_CHECKING:
    from dra_devkit.yaml.documents import YamlDocument

_STRUCTS = (HostDescription, Function, Link, VirtualFunctions, NumaNode)
_KEYS = sorted({name for struct in _STRUCTS for name in struct.__struct_encode_fields__})
_PATTERN = re.compile(r"Expected `str` matching regex '(.*)'", re.DOTALL)


def load(path: Path) -> HostDescription:
    """Reads a description from a YAML file.

    Raises :class:`SettingsError` with errors and their lines.
    """
    from dra_devkit.yaml import loader

    from ..yaml import stream

    faults: list[str] = []
    document = stream.read_one(path, faults, loader.PlainBuilder)
    if faults:
        raise SettingsError(*faults)
    return parse(document.value if document else None, str(path), document)


def parse(data: object, source: str = "described host", document: YamlDocument | None = None) -> HostDescription:
    """Reads a description from an object, as parsed from YAML or JSON.

    Args:
        source: the name of the description in error messages.
        document: the document of the object, if it is from YAML.

    Raises :class:`SettingsError` with all errors of values. If there is none, with all contradictions between the functions and NUMA
    nodes.
    """

    def check(faults: Iterable[Fault]) -> None:
        if messages := [_message(fault, document.place if document else lambda path: source) for fault in faults]:
            raise SettingsError(*messages)

    check(_faults(data, HostDescription, ()))
    description = msgspec.convert(data, HostDescription)
    functions, faults = with_defaults(description.functions)
    description = msgspec.structs.replace(description, functions=functions)
    check([*faults, *check_functions(description), *check_numa(description)])
    return description


def _faults(data: object, kind: Any, place: Place) -> Iterator[Fault]:
    """Yields the faults of the value's parts; if they have none, the fault of the value as a whole.

    msgspec reports only the first fault, and its paths have no keys of mappings. So each part of a faulty value is decoded alone.
    """
    try:
        msgspec.convert(data, kind)
        return
    except (msgspec.ValidationError, UnicodeError) as e:
        whole: Fault | None = Fault(place, _text(data, str(e)))
    for fault in _faults_within(data, kind, place):
        yield fault
        whole = None
    if whole:
        yield whole


def _faults_within(data: object, kind: Any, place: Place) -> Iterator[Fault]:
    kind = get_args(kind)[0] if type(None) in get_args(kind) else kind
    arguments = get_args(kind)
    if isinstance(data, Mapping) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for key, value in data.items():
            if key in fields:
                yield from _faults(value, fields[key].type, (*place, key))
            else:
                yield Fault((*place, key), f"unknown key{did_you_mean(str(key), _KEYS)}")
        missing = [name for name, field in fields.items() if field.required and name not in data]
        yield from (Fault(place, f"`{name}` is missing") for name in missing)
    elif isinstance(data, Mapping) and get_origin(kind) is Mapping:
        for key, value in data.items():
            yield from _faults(key, arguments[0], (*place, key))
            yield from _faults(value, arguments[1], (*place, key))
    elif isinstance(data, list | tuple) and get_origin(kind) is tuple:
        for i, item in enumerate(data):
            yield from _faults(item, arguments[0], (*place, i))


def _text(value: object, error: str) -> str:
    """Words an error of msgspec for the author of a description."""
    if pattern := _PATTERN.fullmatch(error):
        return f"{shown(value)} is not {FORMS[pattern[1].encode().decode('unicode_escape')]}"
    return f"{shown(value)}: {error[0].lower()}{error[1:]}" if error.startswith("Expected") else error


def _message(fault: Fault, place_of: Callable[[str], str]) -> str:
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in fault.place).removeprefix(".")
    return printable(f"{place_of(path)}: {path}{': ' if path else ''}{fault.text}")
