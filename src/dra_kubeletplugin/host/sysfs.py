"""Small files and links of sysfs, as text. What is missing or cannot be read is None: hardware comes and goes while we look.

Where no file can be read now, ``OSError`` is raised: else all hardware would be gone.
"""

from __future__ import annotations

import os
import re

from ..base.files import NOT_NOW

_LARGEST = 4096  # bytes: the kernel gives an attribute one page
_CPUS = 65_536  # more than the kernel can be built for
CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def text(path: str) -> str | None:
    """What an attribute says, without the line's end; None where there is none, or nothing in it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        if e.errno in NOT_NOW:
            raise
        return None
    try:
        return os.read(fd, _LARGEST).decode(errors="replace").strip() or None
    except OSError:
        return None
    finally:
        os.close(fd)


def integer(path: str, base: int = 10) -> int | None:
    """A number; None also for what is none, such as a width of ``Unknown``."""
    found = text(path)
    try:
        return None if found is None else int(found, base)
    except ValueError:
        return None


def link(path: str) -> str | None:
    """The last component of a link's target."""
    try:
        return os.readlink(path).rstrip("/").rpartition("/")[2]  # noqa: PTH115
    except OSError:
        return None


def names(folder: str) -> list[str]:
    """What a folder holds, sorted; nothing where there is no such folder.

    Raises ``OSError`` where it cannot be read now, ``PermissionError`` where a security policy such as SELinux denies it: folders of
    sysfs are readable for everybody, and an empty list would look as if all devices were gone.
    """
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError as e:
        if e.errno in NOT_NOW or isinstance(e, PermissionError):
            raise
        return []


def cpu_list(found: str | None) -> list[int]:
    """The CPUs of a list such as ``0-3,8-11``; none for what is no such list. Source: cpuset(7), formats."""
    if not found or not CPU_LIST.fullmatch(found):
        return []
    out: list[int] = []
    for part in found.split(","):
        first, _, last = part.partition("-")
        if int(last or first) >= _CPUS:
            return []
        out += range(int(first), int(last or first) + 1)
    return out
