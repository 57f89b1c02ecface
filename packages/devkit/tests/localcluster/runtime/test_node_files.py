"""Tests which paths of a node pods may see, and where these are on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_devkit.localcluster.runtime.interface import Mount
from dra_devkit.localcluster.runtime.node_files import NodeFiles

FILES = NodeFiles(Path("/n/kubelet"), Path("/n/cdi"), Path("/dev"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/kubelet/plugins/x", "/n/kubelet/plugins/x"),
        ("/var/lib/kubelet", "/n/kubelet"),
        ("/run/cdi", "/n/cdi"),
        ("/var/run/cdi/x.json", "/n/cdi/x.json"),
        ("/dev/vfio", "/dev/vfio"),
    ],
)
def test_a_path_of_the_node_is_found_on_this_machine(path: str, expected: str) -> None:
    assert FILES.find(path) == Path(expected)


@pytest.mark.parametrize(
    "path", ["/etc", "/", "/var/lib/kubelet/../../../etc", "var/lib/kubelet", "/var/lib/kubelet2", "/var/lib"]
)
def test_other_paths_are_not_found(path: str) -> None:
    assert FILES.find(path) is None


def test_the_described_sysfs_is_mounted_only_into_pods_that_see_the_node() -> None:
    files = NodeFiles(Path("/n/kubelet"), Path("/n/cdi"), Path("/n/host/sys/dev"), Path("/n/host/sys"))
    ordinary, of_node = Mount(Path("/a"), "/a"), Mount(Path("/n/cdi"), "/var/run/cdi", of_node=True)
    assert files.mounts([ordinary]) == [ordinary]
    assert files.mounts([of_node]) == [of_node, Mount(Path("/n/host/sys"), "/sys", read_only=True)]


def test_mounts_of_a_cdi_file_with_the_nodes_paths_are_replaced_and_dev_is_mounted_without_what_is_below_it() -> None:
    mounts = [
        {"source": "/var/lib/kubelet/plugins/x/file", "destination": "/x", "options": ["rbind", "ro"]},
        {"source": "/dev", "destination": "/host/dev", "options": ["rbind", "ro"]},
        {"source": "/dev", "destination": "/dev", "type": "tmpfs", "options": ["nosuid"]},
    ]
    FILES.replace(mounts)
    assert [(m["source"], m["options"]) for m in mounts] == [
        ("/n/kubelet/plugins/x/file", ["rbind", "ro"]),
        ("/dev", ["bind", "ro"]),
        ("/dev", ["nosuid"]),
    ]
