"""``dra cleanup`` removes the files of an uninstalled driver also where it may not, or cannot, delete slices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from tests.helpers.kubeconfigs import config_of, write_config

DRIVER = "d.example.com"
UID = "3f2c9a52-6f55-4a35-9d0e-1c5d3c9fbe01"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The options of a node with the files of a driver, and of an API server that does not respond."""
    (tmp_path / "plugins" / DRIVER).mkdir(parents=True)
    (tmp_path / "plugins_registry").mkdir()
    ClaimSpecs(tmp_path / "cdi", DRIVER).write(UID, {"kind": "k"})
    config = write_config(tmp_path, config_of({}, server="http://127.0.0.1:9"))
    options = ["--driver-name", DRIVER, "--kubeconfig", config, "--api-timeout", "1s"]
    return ["cleanup", *options, "--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path / "cdi")]


@pytest.mark.parametrize("named", [True, False])
def test_files_are_removed_although_the_slices_cannot_be_deleted(
    arguments: list[str], named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = "node-7" if named else os.uname().nodename.lower()
    assert main([*arguments, *(["--node-name", node] if named else [])]) != Exit.SUCCESS
    shown = capsys.readouterr()
    assert (
        f"removed 0 ResourceSlices, 0 sockets, 1 CDI files and {tmp_path}/plugins/{DRIVER} of node {node}" in shown.out
    )
    assert f"the ResourceSlices of node {node} cannot be deleted: " in shown.err
    assert not (tmp_path / "plugins" / DRIVER).exists() and list((tmp_path / "cdi").iterdir()) == []


def test_a_name_of_the_driver_is_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments.remove("--driver-name")
    arguments.remove(DRIVER)
    assert main(arguments) == Exit.USAGE
    assert "--driver-name (DRIVER_NAME) is required" in capsys.readouterr().err
