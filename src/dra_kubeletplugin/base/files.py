"""Paths as somebody writes them, and what is in a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

NOT_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""``errno`` of an ``open`` that says nothing of the file: the process, or the machine, can open none."""


def at_home(path: str) -> Path:
    """``path`` with the home folder for ``~``; as it is where the account has none, as a user id of a cluster's choice in a container."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib's raises then


def named(folder: Path, start: str, end: str = "") -> list[Path]:
    """What is in ``folder`` under names with that start and end, sorted; nothing where there is no folder.

    Raises ``OSError`` where it cannot be read now, as with no file left to open: ``Path.glob`` of Python 3.13 finds nothing then.
    """
    try:
        return sorted(p for p in folder.iterdir() if p.name.startswith(start) and p.name.endswith(end))
    except FileNotFoundError:
        return []
