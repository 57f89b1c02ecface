"""Detects folders that exist only in the container: kubelet and runtime cannot see their files, which are lost with the pod."""

from __future__ import annotations

from pathlib import Path

from .files import read_text_file

MOUNTINFO = Path("/proc/self/mountinfo")  # proc(5)
_LAYERED = {"overlay", "fuse.fuse-overlayfs", "aufs"}  # file systems that container runtimes use as root


def in_container(mountinfo: Path = MOUNTINFO) -> bool:
    """Whether the process runs on the root file system of a container; False if that is unknown, as on systems other than Linux."""
    try:
        lines = read_text_file(mountinfo, errors="replace").splitlines()
    except OSError:
        return False
    for line in reversed(lines):  # the last mount on a path hides the others
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) > 4 and fields[4] == "/":
            return right.split()[:1] != [] and right.split()[0] in _LAYERED
    return False


def on_root(path: Path, root: Path = Path("/")) -> bool:
    """Whether ``path``, or its nearest existing parent, is on the root file system."""
    try:
        device = root.stat().st_dev
        while not path.exists() and path != path.parent:
            path = path.parent
        return path.stat().st_dev == device
    except OSError:
        return False
