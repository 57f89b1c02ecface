"""The command lines of this machine's processes."""

from __future__ import annotations

import contextlib
from pathlib import Path


def command_lines_with(word: str) -> list[str]:
    """Returns the command lines of running processes that contain a word. Their arguments are separated by spaces."""
    lines = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            lines.append((path / "cmdline").read_text().replace("\0", " "))
    return [line for line in lines if word in line]
