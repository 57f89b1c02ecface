"""A reboot removes files in memory and mounts of drivers, and ends processes of its own node only."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.node_reboot import empty, kill_processes

TIMEOUT = 60


def test_emptying_a_folder_removes_its_folders_and_links(tmp_path: Path) -> None:
    outside = tmp_path / "kept"
    outside.mkdir()
    (outside / "file").touch()
    folder = tmp_path / "cdi"
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "sub/deep/spec.json").touch()
    (folder / ".hidden").touch()
    (folder / "link").symlink_to(outside)
    empty(folder)
    assert (list(folder.iterdir()), list(outside.iterdir())) == ([], [outside / "file"])


def test_only_processes_with_all_environment_variables_end(tmp_path: Path) -> None:
    mark = str(tmp_path)

    def start_process(**environment: str) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", "echo; exec sleep 1000"]
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout
        process.stdout.readline()  # the process has the environment of the command after this line
        return process

    first, second = start_process(MARK=mark, NODE_NAME="node-1"), start_process(MARK=mark, NODE_NAME="node-2")
    with first, second:
        try:
            kill_processes({"MARK": mark, "NODE_NAME": "node-1"})
            assert first.wait(TIMEOUT) < 0
            assert second.poll() is None
        finally:
            first.kill()
            second.kill()


@pytest.mark.mounts
async def test_a_reboot_removes_the_mount_of_a_driver() -> None:
    async with LocalCluster() as cluster:
        folder = cluster.node.kubelet_root / "plugins/card.example.com/a b"
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
        (folder / "state").touch()
        await cluster.reboot()
        assert not folder.is_mount()
        assert list(folder.iterdir()) == []
