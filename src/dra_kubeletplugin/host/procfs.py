"""Reads the kernel's tables in ``/proc``. Source: Documentation/filesystems/proc.rst of the kernel."""

from __future__ import annotations

from pathlib import Path


def majors(proc: Path, *, block: bool = False) -> list[tuple[str, int]]:
    """Returns the registered names of character or block devices with their major numbers, in the kernel's order.

    One name can have several numbers, and one number several names.
    """
    try:
        table = (proc / "devices").read_text(errors="replace")
    except FileNotFoundError:
        return []
    characters, _, blocks = table.partition("Block devices:")
    lines = (line.split() for line in (blocks if block else characters).splitlines())
    return [(line[1], int(line[0])) for line in lines if len(line) == 2 and line[0].isascii() and line[0].isdigit()]
