"""The folders of a node that no test and no command under test reads. ``tests/tools/foreign_machine.py`` fills them in CI."""

from __future__ import annotations

import os
import pwd

FOLDERS = (
    "/etc/cdi", "/etc/containerd", "/etc/crio", "/etc/k0s", "/etc/kubernetes", "/etc/rancher", "/run/cdi", "/run/containerd",
    "/run/crio", "/var/run/cdi", "/var/lib/kubelet", "/var/lib/k0s", "/var/lib/rancher", "/var/snap/microk8s",
    f"{pwd.getpwuid(os.getuid()).pw_dir}/.kube",
)  # fmt: skip
used: list[str] = []
"""The files in these folders that this process used, each with the event. The ``conftest.py`` of the tree empties it for each test."""
_EVENTS = frozenset({"open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "socket.connect"})


def record(event: str, arguments: tuple[object, ...]) -> None:
    """Adds a use of a file in one of the folders to :data:`used`. For ``sys.addaudithook``."""
    if event in _EVENTS:
        for path in arguments[:2]:
            if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(FOLDERS):
                used.append(f"{event} {os.fsdecode(path)}")
