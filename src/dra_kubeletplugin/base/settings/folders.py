"""Checks the folders that a plugin shares with kubelet and runtime: they exist, are mounted from the host, and are writable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import read_text_file

if TYPE_CHECKING:
    from .node import Settings


MOUNTINFO = Path("/proc/self/mountinfo")  # proc(5)
_LAYERED = {"overlay", "fuse.fuse-overlayfs", "aufs"}  # file systems that container runtimes use as root


def folder_faults(settings: Settings) -> list[str]:
    """Returns the faults of the folders. Creates only the folders of the driver and of CDI: if another is missing, a mount is missing."""
    out = []
    kubelet, cdi = "--kubelet-root (KUBELET_ROOT)", "--cdi-root (CDI_ROOT)"
    # A user who configures the API server (or uses `dra dev`) has chosen the folders too, so they may be on the container's own file
    # system.
    is_configured = settings.local_cluster or settings.kubeconfig or settings.service_account
    is_inside = not is_configured and in_container()
    plugins = settings.kubelet_root / "plugins"
    missing = [p.name for p in (settings.registry_dir, plugins) if not p.is_dir()]
    if missing:
        out.append(
            f"{kubelet} {settings.kubelet_root} has no folder {' and no folder '.join(missing)}: set it to the kubelet's "
            "--root-dir (k0s, k3s and microk8s do not use /var/lib/kubelet) and mount both folders into the pod"
        )
    elif is_inside and (own := [p for p in (settings.registry_dir, plugins) if on_root(p)]):
        out += [_not_mounted(kubelet, p) for p in own]
    else:
        if not os.access(settings.registry_dir, os.W_OK | os.X_OK):
            out.append(
                f"{settings.registry_dir} cannot be written by uid {os.getuid()}: run the plugin as a user that can write there"
            )
        if not settings.name_faults():  # a name such as ../x must not become a path
            out += _unwritable(settings.plugin_dir, kubelet)
    if is_inside and on_root(settings.cdi_root):
        out.append(_not_mounted(cdi, settings.cdi_root))
    else:
        out += _unwritable(settings.cdi_root, cdi)
    return out


def _unwritable(folder: Path, option: str) -> list[str]:
    """Creates ``folder`` without its parents, and a file in it: the access bits alone do not show that a mount is read-only."""
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / f".probe-{os.urandom(4).hex()}"  # random, because process ids repeat in containers
        probe.touch()
        probe.unlink()
    except OSError as e:
        return [f"{option}: {folder} cannot be written ({e.strerror}): mount it read-write, or use another folder"]
    return []


def _not_mounted(option: str, folder: Path) -> str:
    return (
        f"{option}: {folder} is on this container's own file system, which kubelet and runtime cannot see: mount the host's folder with "
        f"hostPath {folder}"
    )


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
