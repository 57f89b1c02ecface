"""Reads the kernel's tables in ``/proc``. Source: Documentation/filesystems/proc.rst of the kernel."""

from __future__ import annotations

from pathlib import Path

from ..base.files import read_text_file


def majors(proc: Path, *, block: bool = False) -> list[tuple[str, int]]:
    """Returns the registered names of character or block devices with their major numbers, in the kernel's order.

    One name can have several numbers, and one number several names.
    """
    try:
        table = read_text_file(proc / "devices", errors="replace")
    except FileNotFoundError:
        return []
    characters, _, blocks = table.partition("Block devices:")
    lines = (line.split() for line in (blocks if block else characters).splitlines())
    return [(line[1], int(line[0])) for line in lines if len(line) == 2 and line[0].isascii() and line[0].isdigit()]
