"""Reads small files and links of sysfs as text.

For a missing or unreadable file, the functions return None, because hardware can be removed during a scan.

If no file can be opened now (too many open files, no memory), they raise ``OSError``. Otherwise it would look as if all hardware was
removed.
"""

from __future__ import annotations

import os
import re

from ..base.files import NOT_NOW

_LARGEST = 4096  # bytes: the kernel limits an attribute to one page
_CPUS = 65_536  # above the kernel's maximum number of CPUs
CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def text(path: str) -> str | None:
    """Returns the text of an attribute without the newline; None if it is missing or empty."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
    """Returns the number in an attribute; None if it is missing or not a number, such as the width ``Unknown``."""
    found = text(path)
    try:
        return None if found is None else int(found, base)
    except ValueError:
        return None


def link(path: str) -> str | None:
    """Returns the last part of a link's target; None if there is no such link."""
    try:
        return os.readlink(path).rstrip("/").rpartition("/")[2]  # noqa: PTH115
    except OSError:
        return None


def names(folder: str) -> list[str]:
    """Returns the sorted names in a folder; empty if the folder does not exist.

    Raises ``OSError`` if the folder cannot be read now, and ``PermissionError`` if a security policy such as SELinux denies it.
    With an empty list instead, it would look as if all devices were removed.
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
