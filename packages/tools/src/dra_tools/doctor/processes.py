"""Finds processes of a node by name in /proc. Source: proc(5)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    arguments: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """Returns the value of ``--name value`` or ``--name=value``; the last one if the option is repeated."""
        found = None
        for i, argument in enumerate(self.arguments):
            key, equals, value = argument.partition("=")
            if key == name:
                found = value if equals else (self.arguments[i + 1] if i + 1 < len(self.arguments) else None)
        return found


def running(root: Path) -> Iterator[Process]:
    """Yields the processes in ``root/proc``: all processes of the node, or only the processes of a pod's process namespace."""
    proc = root / "proc"
    for folder in proc.iterdir() if proc.is_dir() else []:
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                yield at(root, int(folder.name))


def at(root: Path, pid: int) -> Process:
    """Reads one process.

    Raises:
        OSError: the process has ended.
    """
    folder = root / "proc" / str(pid)
    arguments = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return Process(pid, (folder / "comm").read_text(errors="replace").strip(), tuple(arguments))
