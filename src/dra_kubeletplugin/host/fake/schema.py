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

A class device exists while the function's described driver is bound, and so do the function's ``nodes`` and ``proc``. ``devname``,
next to ``dev``, is the name of the device node if it differs from the device's name (``dri/renderD128``). The first virtual function
has the IOMMU group ``vfs.iommu_group``, the next one the next number. The first virtual function's address is ``offset`` after the
parent's, and each further address is ``stride`` higher. By default, the parser chooses free addresses.

A driver reads ``proc`` with ``Host.proc``, and never this machine's ``/proc``.

A driver writes to the host with ``Host.write``, which imitates the kernel. A reboot builds the host again from the description, so all
writes are lost; functions that were plugged or unplugged stay so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...base.text import did_you_mean
from ...errors import SettingsError, printable, shown
from .model import FORMS, Function, Link, Machine, NumaNode, VirtualFunctions
from .topology import Fault, Place, check_functions, check_numa, with_defaults

if TYPE_CHECKING:
    from ...base.yaml.documents import YamlDocument

T = TypeVar("T")
_STRUCTS = (Machine, Function, Link, VirtualFunctions, NumaNode)
_KEYS = sorted({name for struct in _STRUCTS for name in struct.__struct_encode_fields__})
_PATH = re.compile(r"^(?P<text>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_PART = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING_KEY = re.compile(r"Object missing required field (`.*`)")
_PATTERN = re.compile(r"Expected `str` matching regex '(.*)'", re.DOTALL)


def load(path: Path) -> Machine:
    """Reads a description from a YAML file.

    Raises :class:`SettingsError` with errors and their lines.
    """
    from ...base.yaml import loader, stream

    faults: list[str] = []
    document = stream.read_one(path, faults, loader.PlainBuilder)
    if faults:
        raise SettingsError(*faults)
    return parse(document.value if document else None, str(path), document)


def parse(data: object, source: str = "described host", document: YamlDocument | None = None) -> Machine:
    """Reads a description from an object, as parsed from YAML or JSON.

    Args:
        source: the name of the description in error messages.
        document: the document of the object, if it is from YAML.

    Raises :class:`SettingsError`: the first error of each function and of the other keys. If there is none, all contradictions between
    the functions and NUMA nodes.
    """
    functions, rest = _split(data)
    decoded = [_convert(item, Function, ("functions", i)) for i, item in enumerate(functions)]
    machine = _convert(rest, Machine, ())
    faults = [found for found in (*decoded, machine) if isinstance(found, Fault)]
    if not faults and isinstance(machine, Machine):
        known = [fn for fn in decoded if isinstance(fn, Function)]
        complete, faults = with_defaults(known)
        machine = msgspec.structs.replace(machine, functions=complete)
        faults += [*check_functions(machine), *check_numa(machine)]
    if faults or isinstance(machine, Fault):
        raise SettingsError(*(_message(fault, document.place if document else lambda path: source) for fault in faults))
    return machine


def _split(data: object) -> tuple[Sequence[object], object]:
    """Returns the functions, and the description without them, so that each function is decoded on its own."""
    if isinstance(data, Mapping) and isinstance(functions := data.get("functions"), list | tuple):
        return functions, {**data, "functions": []}
    return [], data


def _convert(data: object, struct: type[T], place: Place) -> T | Fault:
    try:
        return msgspec.convert(data, struct)
    except msgspec.ValidationError as e:
        try:
            return _fault(data, struct, place, str(e))
        except (LookupError, TypeError):  # a key that contains the text of a path, as msgspec writes it
            return Fault(place, str(e))
    except UnicodeError as e:
        return Fault(place, str(e))


def _fault(data: object, struct: type[Any], place: Place, error: str) -> Fault:
    """Translates an error of msgspec, which ends with the path, as in ``- at `$.vfs.total```."""
    found = _PATH.search(error)
    assert found
    path: list[str | int] = [name or (int(i) if i.isdigit() else i) for name, i in _PART.findall(found["path"] or "")]
    if found["key"]:
        path.append("...")
    while "..." in path:
        at = path.index("...")
        path[at] = _culprit(data, struct, path[:at], error)
    text = found["text"]
    value: Any = data
    for part in path[: -1 if found["key"] else None]:
        value = value[part]
    if found["key"]:
        value = path[-1]
    if unknown := _UNKNOWN_KEY.fullmatch(text):
        return Fault((*place, *path, unknown[1]), f"unknown key{did_you_mean(unknown[1], _KEYS)}")
    if missing := _MISSING_KEY.fullmatch(text):
        return Fault((*place, *path), f"{missing[1]} is missing")
    if pattern := _PATTERN.fullmatch(text):
        text = f"{shown(value)} is not {FORMS[pattern[1].encode().decode('unicode_escape')]}"
    elif text.startswith("Expected"):
        text = f"{shown(value)}: {text[0].lower()}{text[1:]}"
    return Fault((*place, *path), text)


def _culprit(data: Any, struct: type[Any], path: list[str | int], error: str) -> Any:
    """Returns the key of the mapping at ``path`` that has the error: msgspec writes ``[...]`` for every key.

    Decodes the object again, with one key of the mapping at a time.
    """
    for key, reduced in _reductions(data, path):
        try:
            msgspec.convert(reduced, struct)
        except msgspec.ValidationError as e:
            if str(e) == error:
                return key
        except UnicodeError:
            continue  # another fault than the one that is searched
    raise LookupError(f"no key of {path} has the error {error}")


def _reductions(data: Any, path: list[str | int]) -> Iterator[tuple[Any, Any]]:
    """Yields each key of the mapping at ``path``, and ``data`` with this key alone in the mapping."""
    if not path:
        yield from ((key, {key: value}) for key, value in data.items())
        return
    for key, reduced in _reductions(data[path[0]], path[1:]):
        copied: Any = dict(data) if isinstance(data, Mapping) else list(data)
        copied[path[0]] = reduced
        yield key, copied


def _message(fault: Fault, place_of: Callable[[str], str]) -> str:
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in fault.place).removeprefix(".")
    return printable(f"{place_of(path)}: {path}{': ' if path else ''}{fault.text}")
