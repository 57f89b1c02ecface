"""Whether a folder is the container's own: what a plugin writes there reaches neither kubelet nor runtime, and dies with the pod."""

from __future__ import annotations

from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")  # proc(5)
_LAYERED = {"overlay", "fuse.fuse-overlayfs", "aufs"}  # what container runtimes give as root


def in_container(mountinfo: Path = MOUNTINFO) -> bool:
    """Whether the root file system is one of a container; False where that cannot be told, as off Linux."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in reversed(lines):  # the last mount on a path is the one that is seen
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) > 4 and fields[4] == "/":
            return right.split()[:1] != [] and right.split()[0] in _LAYERED
    return False


def on_root(path: Path, root: Path = Path("/")) -> bool:
    """Whether ``path``, or where it would be made, is on the root file system."""
    try:
        device = root.stat().st_dev
        while not path.exists() and path != path.parent:
            path = path.parent
        return path.stat().st_dev == device
    except OSError:
        return False
