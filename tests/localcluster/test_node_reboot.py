"""What a reboot ends beside containers: files in memory, mounts of drivers, and processes of the right node only."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.node_reboot import empty, kill_processes

PATIENCE = 60


def test_a_folder_in_memory_is_empty_with_its_folders_and_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    folder = tmp_path / "cdi"
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "sub/deep/spec.json").touch()
    (folder / ".hidden").touch()
    (folder / "link").symlink_to(kept)
    empty(folder)
    assert (list(folder.iterdir()), list(kept.iterdir())) == ([], [kept / "file"])


def test_only_processes_with_all_variables_end(tmp_path: Path) -> None:
    mark = str(tmp_path)

    def begin(**environment: str) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", "echo; exec sleep 1000"]
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout
        process.stdout.readline()  # its environment is that of the command
        return process

    here, there = begin(MARK=mark, NODE_NAME="node-1"), begin(MARK=mark, NODE_NAME="node-2")
    with here, there:
        try:
            kill_processes({"MARK": mark, "NODE_NAME": "node-1"})
            assert here.wait(PATIENCE) < 0
            assert there.poll() is None
        finally:
            here.kill()
            there.kill()


@pytest.mark.mounts
async def test_a_mount_of_a_driver_ends() -> None:
    async with LocalCluster() as cluster:
        place = cluster.node.kubelet_root / "plugins/card.example.com/a b"
        place.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
        (place / "state").touch()
        await cluster.reboot()
        assert not place.is_mount()
        assert list(place.iterdir()) == []
