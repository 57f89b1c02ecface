"""Reads small files and links of sysfs as text.

A missing or unreadable file is None, because hardware can be removed during a scan.

``OSError`` is raised if no file at all can be opened now (too many open files, no memory): otherwise all hardware
would seem removed.
"""

from __future__ import annotations

import os
import re

from ..base.files import NOT_NOW

_LARGEST = 4096  # bytes: the kernel limits an attribute to one page
_CPUS = 65_536  # above the kernel's maximum number of CPUs
CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def text(path: str) -> str | None:
    """Reads an attribute without the line's end; None if it is missing or empty."""
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
    """Reads a number; None also for other text, such as the width ``Unknown``."""
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
    """The sorted names in a folder; empty if the folder does not exist.

    Raises ``OSError`` if the folder cannot be read now, and ``PermissionError`` if a security policy such as SELinux denies it.
    All users may read the folders of sysfs, so an empty list would look as if all devices were gone.
    """
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError as e:
        if e.errno in NOT_NOW or isinstance(e, PermissionError):
            raise
        return []


def cpu_list(found: str | None) -> list[int]:
    """Parses a list of CPUs such as ``0-3,8-11``; returns an empty list for invalid text. Source: cpuset(7), formats."""
    if not found or not CPU_LIST.fullmatch(found):
        return []
    out: list[int] = []
    for part in found.split(","):
        first, _, last = part.partition("-")
        if int(last or first) >= _CPUS:
            return []
        out += range(int(first), int(last or first) + 1)
    return out
