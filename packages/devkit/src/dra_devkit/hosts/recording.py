"""Records a machine's hardware as a description, so that a vendor's tests can use the values of real hardware."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.yaml import is_text
from dra_kubeletplugin.host import sysfs
from dra_kubeletplugin.host.machine import Host
from dra_kubeletplugin.host.pci import PciFunction

from . import recorded_files, schema
from .model import SPEEDS, WIDTHS, Content, HostDescription

_HEX = {"vendor": 4, "device": 4, "class": 6, "subsystem_vendor": 4, "subsystem_device": 4, "revision": 2}
# No driver creates buses, and a described host creates the devices of vfio-pci itself.
_NOT_DESCRIBED = {"pci_bus", "vfio-dev"}
_RECORDED = ("dev", "operstate", "size")  # the recorded attributes of class devices


def record(host: Host, chosen: Sequence[Path] = ()) -> HostDescription:
    """Reads a machine into a description, as far as the format allows.

    The description of a physical function contains its virtual functions. From ``/proc``, it contains ``devices``, and
    ``driver/<name>`` for the driver of each function.

    Args:
        chosen: further files and folders, as the machine names them: below ``/proc`` or ``/sys``.

    Raises :class:`SettingsError` if a chosen file does not exist.
    """
    recorded_files.check_chosen(host, chosen)
    every = host.pci()
    functions, virtual = [fn for fn in every if not fn.is_vf], [fn for fn in every if fn.is_vf]
    class_devices = _devices(host)
    proc = recorded_files.proc_files(host, functions, chosen)
    numa = {n: {"cpus": _ranges(host.numa.cpus(n)), **_numa(host, n)} for n in host.numa.nodes()}
    found: dict[str, Any] = {
        "functions": [
            _function(host, fn, virtual)
            | _without_empty(
                classes=class_devices.get(fn.folder, {}),
                proc={path: text for path, text in proc.items() if _contains_address(path, fn)},
                attributes=recorded_files.attributes(fn, _link(fn)),
            )
            for fn in functions
        ],
        "nodes": recorded_files.device_nodes(host),
        "proc": {path: text for path, text in proc.items() if not any(_contains_address(path, fn) for fn in functions)},
        "files": recorded_files.sysfs_files(host, chosen),
    }
    if numa:
        found["numa_nodes"] = {
            n: {k: v for k, v in numa_fields.items() if v not in ("", None, [])} for n, numa_fields in numa.items()
        }
    return schema.parse(found, "the machine's sysfs")


def text(description: HostDescription, title: str = "") -> str:
    """Formats a description as YAML, with one function per line."""
    out = [f"# {title}"] if title else []
    out += (
        ["functions:", *(f"- {_flow(f.description())}" for f in description.functions)]
        if description.functions
        else ["functions: []"]
    )
    if description.numa_nodes:
        out.append("numa_nodes:")
        for number, node in description.numa_nodes.items():
            numa_fields = {"cpus": node.cpus, "socket": node.socket, "distances": list(node.distances)}
            out.append(f"  {number}: {_flow({k: v for k, v in numa_fields.items() if v not in ('', [])})}")
    if description.drivers:
        out.append(f"drivers: {_flow(list(description.drivers))}")
    for name, files in (("nodes", description.nodes), ("proc", description.proc), ("files", description.files)):
        if files:
            out += [f"{name}:", *(f"  {_key(path)}: {_block(content)}" for path, content in files.items())]
    return "\n".join(out) + "\n"


def _block(content: Content) -> str:
    """Formats a file's content: as a block of lines, or as one line if a block would change it."""
    if isinstance(content, str) and content.endswith("\n") and not content.endswith("\n\n"):
        lines = content.removesuffix("\n").split("\n")
        if not content[0].isspace() and all(c.isprintable() or c == "\t" for line in lines for c in line):
            return "|\n" + "\n".join(f"    {line}" if line else "" for line in lines)
    return _flow(content)


def _function(host: Host, fn: PciFunction, virtual: Sequence[PciFunction]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "address": fn.address,
        "vendor": fn.vendor,
        "device": fn.device_id,
        "class": fn.class_code,
        "subsystem_vendor": fn.subsystem_vendor or None,
        "subsystem_device": fn.subsystem_device,
        "revision": fn.revision,
        "behind": fn.upstream,
        "root": _root(host, fn),
        "driver": fn.driver,
        "numa": fn.numa_node,
        "iommu_group": fn.iommu_group,
        "boot_vga": fn.boot_vga,
        "link": _link(fn),
        "vfs": _virtual(fn, virtual) if fn.total_vfs else None,
    }
    return {k: v for k, v in fields.items() if v is not None}


def _without_empty(**fields: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: found for name, found in fields.items() if found}


def _contains_address(path: str, fn: PciFunction) -> bool:
    """Returns whether a path has the function's address as one of its parts. The function's driver then creates the file."""
    return fn.address in path.split("/")


def _root(host: Host, fn: PciFunction) -> str | None:
    """Returns the folders between the function and the function above it; None if there are none."""
    parts = fn.path.parent.relative_to((host.sysfs / "devices").resolve()).parts
    if fn.upstream in parts:
        parts = parts[parts.index(fn.upstream) + 1 :]
    return "/".join(parts) or None


def _link(fn: PciFunction) -> Mapping[str, float] | None:
    """Returns the function's own link limit, without the limit of the port above."""
    speed = (fn.read("max_link_speed") or "").partition(" ")[0]
    width = sysfs.integer(f"{fn.folder}/max_link_width")
    known = next((s for s in SPEEDS if f"{s:.1f}" == speed), None)
    return {"speed": known, "width": width} if known and width in WIDTHS else None


def _virtual(fn: PciFunction, virtual: Sequence[PciFunction]) -> Mapping[str, Any]:
    own = [vf for vf in virtual if vf.physical_function == fn.address]
    first = next((vf for vf in own if vf.vf_index == 0), None)
    fields: dict[str, Any] = {
        "total": fn.total_vfs,
        "device": sysfs.integer(f"{fn.folder}/sriov_vf_device", 16),
        "enabled": len(own),
        "driver": first.driver if first else None,
        "iommu_group": first.iommu_group if first else None,
        "offset": sysfs.integer(f"{fn.folder}/sriov_offset") or None,
        "stride": sysfs.integer(f"{fn.folder}/sriov_stride") or None,
    }
    return {k: v for k, v in fields.items() if v is not None}


def _devices(host: Host) -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    """Returns the class devices that drivers created in the functions' folders: attributes by folder, class and name."""
    out: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    folders = {fn.folder for fn in host.pci()}
    for kind in sysfs.names(f"{host.sysfs}/class"):
        for link in sorted((host.sysfs / "class" / kind).iterdir()) if kind not in _NOT_DESCRIBED else ():
            folder = link.resolve()
            function = next((str(above) for above in folder.parents if str(above) in folders), None)
            if function is not None:
                out.setdefault(function, {}).setdefault(kind, {})[link.name] = _device(str(folder))
    return out


def _device(folder: str) -> dict[str, str]:
    found = {a: value for a in _RECORDED if (value := sysfs.text(f"{folder}/{a}"))}
    event = dict(line.partition("=")[::2] for line in (sysfs.text(f"{folder}/uevent") or "").splitlines())
    name = folder.rpartition("/")[2]
    return found | ({"devname": event["DEVNAME"]} if "dev" in found and event.get("DEVNAME", name) != name else {})


def _numa(host: Host, node: int) -> Mapping[str, Any]:
    folder = f"{host.sysfs}/devices/system/node/node{node}"
    cpus = host.numa.cpus(node)
    package = f"{host.sysfs}/devices/system/cpu/cpu{cpus[0]}/topology/physical_package_id" if cpus else ""
    distances = [int(d) for d in (sysfs.text(f"{folder}/distance") or "").split()]
    return {"socket": sysfs.integer(package) if cpus else None, "distances": distances}


def _ranges(cpus: Sequence[int]) -> str:
    out: list[list[int]] = []
    for cpu in cpus:
        if out and out[-1][1] == cpu - 1:
            out[-1][1] = cpu
        else:
            out.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def _flow(value: Any, key: str = "") -> str:
    """Formats a value as one line of YAML; ids are hexadecimal."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)}: {_flow(v, str(k))}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(v) for v in value) + "]"
    if key in _HEX and isinstance(value, int):
        return f"0x{value:0{_HEX[key]}x}"
    return _quoted(value)


def _key(key: Any) -> str:
    plain = isinstance(key, int) or (str(key).isidentifier() and is_text(key))
    return str(key) if plain else _quoted(key)


def _quoted(value: Any) -> str:
    """Formats a single value. YAML reads JSON, except for a character that JSON escapes as two surrogates."""
    return re.sub(r"[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", json.dumps(value, ensure_ascii=False))
