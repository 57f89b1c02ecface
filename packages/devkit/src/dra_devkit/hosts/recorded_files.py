"""Reads the parts of a machine's description beside its PCI functions: files of ``/proc`` and sysfs, and device nodes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.host import procfs, sysfs
from dra_kubeletplugin.host.machine import Host
from dra_kubeletplugin.host.pci import PciFunction

from . import tree
from .model import PATH

_LARGEST = 65_536  # bytes of one recorded file
_MISC = 10  # major number; the kernel creates a class device for each loaded driver of this number
_ATTRIBUTES = ("resource", "reset_method")
_NO_BARS = re.compile(r"[0x\s]*")
_SYS, _PROC = Path("/sys"), Path("/proc")


def attributes(fn: PciFunction, link: Mapping[str, float] | None) -> dict[str, str]:
    """Returns attributes of a function that no other key describes: its BARs, reset methods, and the current link.

    The current link is left out if it equals the maximum ``link``: a described function uses the maximum by default.
    """
    out = {name: found for name in _ATTRIBUTES if (found := fn.read(name)) and not _NO_BARS.fullmatch(found)}
    described = {"speed": f"{float(link['speed'])} GT/s PCIe", "width": str(link["width"])} if link else {}
    for name in ("speed", "width"):
        current = fn.read(f"current_link_{name}")
        if current and current != described.get(name):
            out[f"current_link_{name}"] = current
    return out


def proc_files(host: Host, functions: Sequence[PciFunction], chosen: Sequence[Path]) -> dict[str, str]:
    """Returns the text of files below ``/proc`` by path.

    These are ``devices``, ``driver/<name>`` of the functions' drivers, and the ``chosen`` files and folders. For a described host, these
    are all files of its folder ``proc``, because a description contains no other files.
    """
    if not host.is_real:
        return dict(_read(host.proc, host.proc))
    drivers = {f"driver/{fn.driver}" for fn in functions if fn.driver}
    paths = [*(host.proc / name for name in ("devices", *sorted(drivers))), *_within(host.proc, _PROC, chosen)]
    return {name: text for path in paths for name, text in _read(path, host.proc)}


def sysfs_files(host: Host, chosen: Sequence[Path]) -> dict[str, str]:
    """Returns the text of files of sysfs by path: the versions of modules, and the ``chosen`` files and folders.

    For a real machine, only the versions of modules that are not part of the kernel's source are included.
    """
    out = {}
    for module in sysfs.names(f"{host.sysfs}/module"):
        version = sysfs.text(f"{host.sysfs}/module/{module}/version")
        if version and (not host.is_real or sysfs.text(f"{host.sysfs}/module/{module}/taint")):
            out[f"module/{module}/version"] = version
    root = host.sysfs.resolve()
    return out | {name: text for path in _within(root, _SYS, chosen) for name, text in _read(path.resolve(), root)}


def check_chosen(host: Host, chosen: Sequence[Path]) -> None:
    """Raises :class:`SettingsError` for each path that is not a file or folder below ``/proc`` or ``/sys``."""
    places = ((path, [*_within(host.proc, _PROC, [path]), *_within(host.sysfs, _SYS, [path])]) for path in chosen)
    wrong = [path for path, found in places if ".." in path.parts or not any(p.exists() for p in found)]
    if wrong:
        raise SettingsError(*(f"cannot record {p}: name an existing file or folder below /proc or /sys" for p in wrong))


def device_nodes(host: Host) -> dict[str, str]:
    """Returns the device nodes that belong to no class of sysfs, by path below ``/dev``: type and numbers.

    It leaves out nodes of VFIO, because every described host has these. For a real machine, it also leaves out nodes whose kernel driver
    is not loaded.
    """
    of_classes = set(_class_devices(host))
    loaded = (
        {kind: {number for _, number in procfs.majors(host.proc, block=kind == "b")} for kind in "bc"}
        if host.is_real
        else None
    )
    out = {}
    for path in _walk(host.dev):
        found = _numbers(path, host)
        if found is None or found in of_classes:
            continue
        kind, numbers = found
        major = int(numbers.partition(":")[0])
        has_entry = (host.sysfs / "dev" / ("block" if kind == "b" else "char") / numbers).exists()
        if loaded is not None and (has_entry or major == _MISC or major not in loaded[kind]):
            continue
        out[path.relative_to(host.dev).as_posix()] = f"{kind} {numbers}"
    return {name: text for name, text in sorted(out.items()) if not name.startswith("vfio/") and re.search(PATH, name)}


def _within(root: Path, mount: Path, chosen: Sequence[Path]) -> Iterator[Path]:
    """Yields the paths below ``mount`` as paths below ``root``, where this process sees the file system."""
    return (root / path.relative_to(mount) for path in chosen if path.is_relative_to(mount) and path != mount)


def _class_devices(host: Host) -> Iterator[tuple[str, str | None]]:
    """Yields type and numbers of each device of a class; the numbers are None for a class device without a device node."""
    for kind in sysfs.names(f"{host.sysfs}/class"):
        for name in sysfs.names(f"{host.sysfs}/class/{kind}"):
            yield "b" if kind == "block" else "c", sysfs.text(f"{host.sysfs}/class/{kind}/{name}/dev")


def _numbers(path: Path, host: Host) -> tuple[str, str] | None:
    """Returns the type, ``b`` or ``c``, and the numbers of a device node; None for another file."""
    if not host.is_real:
        found = tree.device_numbers(path)
        return (found[0], f"{found[1]}:{found[2]}") if found else None
    try:
        status = path.lstat()
    except OSError:  # removed during the scan
        return None
    kind = "b" if stat.S_ISBLK(status.st_mode) else "c" if stat.S_ISCHR(status.st_mode) else ""
    return (kind, f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}") if kind else None


def _read(path: Path, root: Path) -> Iterator[tuple[str, str]]:
    """Yields path and text of a file, or of all files in a folder. Files that are not text, or cannot be read, are left out."""
    for file in _walk(path) if path.is_dir() else (path,):
        name = file.relative_to(root).as_posix()
        text = _text(file)
        if text is not None and re.search(PATH, name):
            yield name, text


def _walk(folder: Path) -> Iterator[Path]:
    """Yields the files below a folder, sorted, without links and without the folders of other file systems."""
    try:
        found, device = sorted(folder.iterdir()), folder.stat().st_dev
        folders = {p for p in found if p.is_dir() and not p.is_symlink() and p.stat().st_dev == device}
    except OSError:  # removed during the scan, or not readable by this user
        return
    for path in found:
        if path in folders:
            yield from _walk(path)
        elif not path.is_symlink() and not path.is_dir():
            yield path


def _text(path: Path) -> str | None:
    """Returns the text of a file; None if it is not text. A text of one line has no newline at its end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a file that waits for events must not block
        with os.fdopen(fd, "rb") as file:
            content = file.read(_LARGEST + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError):
        return None
    if len(content) > _LARGEST or "\0" in text:
        return None
    return text.removesuffix("\n") if text.count("\n") <= 1 else text
