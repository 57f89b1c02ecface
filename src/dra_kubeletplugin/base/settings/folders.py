"""Whether the folders that a plugin shares with kubelet and runtime are there, are the host's, and can be written."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from ..mounts import in_container, on_root

if TYPE_CHECKING:
    from .node import Settings


def folder_faults(settings: Settings) -> list[str]:
    """Only the driver's own folder is made: a folder that is missing is a mount that is missing."""
    out = []
    kubelet, cdi = "--kubelet-root (KUBELET_ROOT)", "--cdi-root (CDI_ROOT)"
    # A laptop's containers may have no mounts at all, and who says where the API server is knows where things are.
    told = settings.local_cluster or settings.kubeconfig or settings.service_account
    inside = not told and in_container()
    plugins = settings.kubelet_root / "plugins"
    missing = [p.name for p in (settings.registry_dir, plugins) if not p.is_dir()]
    if missing:
        out.append(
            f"{kubelet} {settings.kubelet_root} has no folder {' and no folder '.join(missing)}: give the kubelet's "
            "--root-dir (k0s, k3s and microk8s use others than /var/lib/kubelet) and mount both folders into the pod"
        )
    elif inside and (own := [p for p in (settings.registry_dir, plugins) if on_root(p)]):
        out += [_not_mounted(kubelet, p) for p in own]
    else:
        if not os.access(settings.registry_dir, os.W_OK | os.X_OK):
            out.append(f"{settings.registry_dir} cannot be written by uid {os.getuid()}: run as a user who can")
        if not settings.name_faults():  # a name such as ../x must not become a path
            out += _unwritable(settings.plugin_dir, kubelet)
    if inside and on_root(settings.cdi_root):
        out.append(_not_mounted(cdi, settings.cdi_root))
    else:
        out += _unwritable(settings.cdi_root, cdi)
    return out


_UNNAMED = getattr(
    os, "O_TMPFILE", 0
)  # Linux alone has it; without it a folder cannot be opened to be written, which is EISDIR


def _unwritable(folder: Path, option: str) -> list[str]:
    """Tries to make and write ``folder``, not its parents; access bits alone lie on read-only mounts."""
    try:
        folder.mkdir(exist_ok=True)
        _make_file(folder)
    except OSError as e:
        return [f"{option}: {folder} cannot be written ({e.strerror}): mount it read-write, or name another folder"]
    return []


def _make_file(folder: Path) -> None:
    """One without a name, of which a kill leaves nothing; with one for a moment where the file system has no others.

    Raises ``OSError``. Source: open(2), O_TMPFILE
    """
    try:
        os.close(os.open(folder, _UNNAMED | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as e:
        if e.errno not in {errno.EOPNOTSUPP, errno.EISDIR}:
            raise
        probe = folder / f".probe-{secrets.token_hex(4)}"  # process ids are the same in every container
        probe.write_bytes(b"")
        probe.unlink()


def _not_mounted(option: str, folder: Path) -> str:
    return (
        f"{option}: {folder} is on this container's own file system, where nobody else sees it: mount the host's with "
        f"hostPath {folder}"
    )
