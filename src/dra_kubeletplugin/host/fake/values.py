"""Parsers for the single values of a description.

Each parser returns the value, or raises ``ValueError`` with the expected form.
"""

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
_KEYS = {  # files that other keys, or writes to the host, control
    "vendor": "vendor", "device": "device", "class": "class", "driver": "driver", "numa_node": "numa", "iommu_group": "iommu_group",
    "sriov_totalvfs": "vfs.total", "sriov_numvfs": "vfs.enabled", "sriov_vf_device": "vfs.device", "sriov_offset": "vfs.offset",
    "sriov_stride": "vfs.stride", "physfn": "vfs", "driver_override": "driver", "local_cpulist": "numa",
}  # fmt: skip


def address(raw: object) -> str:
    if not isinstance(raw, str) or not ADDRESS.fullmatch(raw.lower()):
        raise ValueError(f"{raw!r} is not a PCI address: write domain:bus:device.function, such as '0000:17:00.0'")
    if int(raw.split(":")[2][:2], 16) > 0x1F:
        raise ValueError(f"{raw!r} has device {raw.split(':')[2][:2]}: the highest is 1f")
    return raw.lower()


def within(least: int, most: int) -> Callable[[object], int]:
    def read(raw: object) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool):
            hint = " (without quotes)" if isinstance(raw, str) else ""
            raise ValueError(f"{raw!r} is not an integer{hint}")
        if not least <= raw <= most:
            raise ValueError(
                f"{raw:#x} is not within {least:#x} and {most:#x}"
                if most > 1023
                else f"{raw} is not within {least} and {most}"
            )
        return raw

    return read


def one_of(values: Sequence[float]) -> Callable[[object], float]:
    def read(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or raw not in values:
            raise ValueError(f"{raw!r} is not one of {', '.join(f'{v:g}' for v in values)}")
        return raw

    return read


def flag(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise ValueError(f"{raw!r} is neither true nor false")
    return raw


def word(raw: object) -> str:
    if not isinstance(raw, str) or not _WORD.fullmatch(raw):
        raise ValueError(f"{raw!r} is not a name: use letters, digits, '-', '_', '.', ':' and '+'")
    return raw


def root(raw: object) -> str:
    if not isinstance(raw, str) or not _ROOT.fullmatch(raw) or ".." in raw.split("/"):
        raise ValueError(f"{raw!r} is not a root: write it like pci0000:16")
    return raw


def path(raw: object) -> str:
    if not isinstance(raw, str) or not raw or PurePosixPath(raw).is_absolute() or not raw.isprintable():
        raise ValueError(f"{raw!r} is not a path within the folder")
    if not all(part not in {"", ".", ".."} and not part.startswith(".") for part in raw.split("/")):
        raise ValueError(f"{raw!r} is not a path within the folder")
    return raw


def attribute(raw: object) -> str:
    found = path(raw)
    if found in _KEYS:
        raise ValueError(f"set {found} with the key `{_KEYS[found]}`")
    return found


def text(raw: object) -> str:
    if raw is None or isinstance(raw, Mapping | list):
        raise ValueError(f"{raw!r} is neither text nor a number")
    out = str(int(raw) if isinstance(raw, bool) else raw)
    out.encode()  # raises ValueError for text that a file cannot contain
    return out


def node(raw: object) -> str:
    text = f"c {raw}" if isinstance(raw, str) and NUMBERS.fullmatch(raw) else raw
    if not isinstance(text, str) or not _NODE.fullmatch(text):
        raise ValueError(f"{raw!r} is not a device node: write 'c major:minor', or 'b major:minor' for a block device")
    return text


def node_number(raw: object) -> int:
    return within(0, 1023)(raw)


def cpus(raw: object) -> str:
    text = str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw
    if not isinstance(text, str) or not sysfs.cpu_list(text):
        raise ValueError(f"{raw!r} is not a list of CPUs: write it like 0-3,8-11")
    return text


def named(raw: object, read: Callable[[object], str]) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        raise ValueError(f"{raw!r} is not a mapping of names")
    return {read(name): value for name, value in raw.items()}
