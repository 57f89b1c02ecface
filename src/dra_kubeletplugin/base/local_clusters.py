"""Finds clusters of ``dra dev`` on this machine, for commands that were started without an option that selects one."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

CONTROL_SOCKET = "control.sock"
"""The name of the socket at which a ``dra dev`` receives requests, in its state directory."""


def state_root() -> Path:
    """Returns the parent directory of the temporary state directories ``dra-*``: not TMPDIR, because socket paths must be short."""
    return Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())  # noqa: S108 only the parent of folders of mkdtemp


def running(root: Path) -> list[Path]:
    """Returns this user's temporary state directories below ``root`` in which a ``dra dev`` is running."""
    found = []
    for path in sorted(root.glob(f"dra-*/{CONTROL_SOCKET}")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            if path.stat().st_uid == os.getuid():
                connection.connect(str(path))
                found.append(path.parent)
    return found


def kubelet_options(state: Path) -> list[str]:
    """Returns, for each node of the cluster with this state directory, the options that select the folders of its kubelet."""
    nodes = sorted(path.parent for path in state.glob("*/kubelet"))
    return [f"--kubelet-root {node}/kubelet --cdi-root {node}/cdi" for node in nodes]
