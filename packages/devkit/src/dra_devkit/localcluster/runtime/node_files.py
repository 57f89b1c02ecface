"""The files of a node that pods may see: the paths of a Kubernetes node, and the folders of this machine that replace them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from dra_kubeletplugin.base.json_types import JSON

from .interface import Mount

_KUBELET, _CDI, _DEV, _SYS = (PurePosixPath(p) for p in ("/var/lib/kubelet", "/var/run/cdi", "/dev", "/sys"))
_SAME = {PurePosixPath("/run/cdi"): _CDI}


class NodeFiles:
    """The kubelet's root, the CDI folder, ``/dev`` and, on a described host, ``/sys`` of one node.

    Args:
        cdi_root: None if the runtime reads no CDI files.
        sysfs: the sysfs of a described host; None if the node uses the sysfs of this machine.
    """

    def __init__(self, kubelet_root: Path, cdi_root: Path | None, dev: Path, sysfs: Path | None = None) -> None:
        self._folders = {_KUBELET: kubelet_root, _DEV: dev} | ({_CDI: cdi_root} if cdi_root else {})
        self.sysfs = sysfs

    def find(self, path: str | Path) -> Path | None:
        """Returns where a path of the node is on this machine; None if pods may not see it."""
        pure = PurePosixPath(path)
        if not pure.is_absolute() or ".." in pure.parts:
            return None
        for node_folder, same in _SAME.items():
            if pure.is_relative_to(node_folder):
                pure = same / pure.relative_to(node_folder)
        for node_folder, folder in self._folders.items():
            if pure.is_relative_to(node_folder):
                return folder / pure.relative_to(node_folder)
        return None

    def replace(self, mounts: Iterable[JSON]) -> None:
        """Replaces the node's paths in the mounts of an OCI spec: a plugin in a pod writes them into CDI files."""
        for mount in mounts:
            if not {"bind", "rbind"} & set(mount.get("options") or ()):
                continue
            if found := self.find(mount["source"]):
                mount["source"] = str(found)
            if mount["source"] == str(_DEV):  # without the writable file systems below it, such as /dev/shm
                mount["options"] = ["bind" if o == "rbind" else o for o in mount["options"]]

    def mounts(self, wanted: Iterable[Mount]) -> list[Mount]:
        """Returns ``wanted`` with the described host's sysfs, if one of the mounts is a folder of the node.

        A plugin's pod reads the node's sysfs at ``/sys`` without a volume. Other pods do not see the described hardware.
        """
        out = list(wanted)
        if self.sysfs is not None and any(m.of_node for m in out):
            out.append(Mount(self.sysfs, str(_SYS), read_only=True))
        return out
