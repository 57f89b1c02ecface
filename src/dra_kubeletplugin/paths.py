"""Paths as somebody writes them."""

from __future__ import annotations

import os
from pathlib import Path


def at_home(path: str) -> Path:
    """``path`` with the home folder for ``~``; as it is where the account has none, as a user id of a cluster's choice in a container."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib's raises then
