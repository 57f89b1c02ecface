"""Paths from users' input, and listings of folders."""

from __future__ import annotations

import errno
import os
from pathlib import Path

NOT_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Values of ``errno`` when ``open`` fails because the process or the machine lacks resources, and not because of the file."""


def at_home(path: str) -> Path:
    """Expands ``~`` in ``path``. Returns it unchanged for an account without a home folder, as in a container with an arbitrary user id."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for such an account


def named(folder: Path, start: str, end: str = "") -> list[Path]:
    """Returns the sorted paths in ``folder`` whose names begin with ``start`` and end with ``end``; no paths if the folder does not exist.

    Raises ``OSError`` if the folder cannot be read now, for example because no file descriptor is free. ``Path.glob`` of
    Python 3.13 would then return no paths.
    """
    try:
        return sorted(p for p in folder.iterdir() if p.name.startswith(start) and p.name.endswith(end))
    except FileNotFoundError:
        return []
