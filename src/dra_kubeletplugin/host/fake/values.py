"""Single values of a description: each is read, or refused with a ``ValueError`` that says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from .. import sysfs
from ..pci import ADDRESS

_ROOT = re.compile(r"[\w.:-]+(/[\w.:-]+)*")
_WORD = re.compile(r"[A-Za-z0-9_][\w.:+-]*")
NUMBERS = re.compile(r"\d+:\d+")
_NODE = re.compile(r"[bc] \d+:\d+")
_KEYS = {  # files that other keys, or writes, decide about
    "vendor": "vendor", "device": "device", "class": "class", "driver": "driver", "numa_node": "numa", "iommu_group": "iommu_group",
    "sriov_totalvfs": "vfs.total", "sriov_numvfs": "vfs.enabled", "sriov_vf_device": "vfs.device", "sriov_offset": "vfs.offset",
    "sriov_stride": "vfs.stride", "physfn": "vfs", "driver_override": "driver", "local_cpulist": "numa",
}  # fmt: skip


def address(given: object) -> str:
    if not isinstance(given, str) or not ADDRESS.fullmatch(given.lower()):
        raise ValueError(f"{given!r} is no PCI address: write domain:bus:device.function, such as '0000:17:00.0'")
    if int(given.split(":")[2][:2], 16) > 0x1F:
        raise ValueError(f"{given!r} has device {given.split(':')[2][:2]}: the highest is 1f")
    return given.lower()


def within(least: int, most: int) -> Callable[[object], int]:
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


def one_of(values: Sequence[float]) -> Callable[[object], float]:
    def read(given: object) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float) or given not in values:
            raise ValueError(f"{given!r} is not one of {', '.join(f'{v:g}' for v in values)}")
        return given

    return read


def flag(given: object) -> bool:
    if not isinstance(given, bool):
        raise ValueError(f"{given!r} is neither true nor false")
    return given


def word(given: object) -> str:
    if not isinstance(given, str) or not _WORD.fullmatch(given):
        raise ValueError(f"{given!r} is no name: letters, digits, '-', '_', '.', ':' and '+'")
    return given


def root(given: object) -> str:
    if not isinstance(given, str) or not _ROOT.fullmatch(given) or ".." in given.split("/"):
        raise ValueError(f"{given!r} is no root: write it like pci0000:16")
    return given


def path(given: object) -> str:
    if not isinstance(given, str) or not given or PurePosixPath(given).is_absolute() or not given.isprintable():
        raise ValueError(f"{given!r} is no path within the folder")
    if not all(part not in {"", ".", ".."} and not part.startswith(".") for part in given.split("/")):
        raise ValueError(f"{given!r} is no path within the folder")
    return given


def attribute(given: object) -> str:
    found = path(given)
    if found in _KEYS:
        raise ValueError(f"say {found} with the key `{_KEYS[found]}`")
    return found


def text(given: object) -> str:
    if given is None or isinstance(given, Mapping | list):
        raise ValueError(f"{given!r} is no text or number")
    out = str(int(given) if isinstance(given, bool) else given)
    out.encode()  # raises ValueError for what no file can hold
    return out


def node(given: object) -> str:
    text = f"c {given}" if isinstance(given, str) and NUMBERS.fullmatch(given) else given
    if not isinstance(text, str) or not _NODE.fullmatch(text):
        raise ValueError(f"{given!r} is no device node: write 'c major:minor', or 'b major:minor' for a block device")
    return text


def node_number(given: object) -> int:
    return within(0, 1023)(given)


def cpus(given: object) -> str:
    text = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(text, str) or not sysfs.cpu_list(text):
        raise ValueError(f"{given!r} is no list of CPUs: write it like 0-3,8-11")
    return text


def named(given: object, read: Callable[[object], str]) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{given!r} is no mapping of names")
    return {read(name): value for name, value in given.items()}
