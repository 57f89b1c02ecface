"""The commands other than ``dra dev`` work in a package that ``dra new`` created and in an environment without extras."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from dra_kubeletplugin.cli import main
from tests.helpers.dev_process import run_dev
from tests.tools.tree import SOURCES

COMMANDS = [
    ["explain", "pod/one-card"],
    ["explain"],
    ["doctor", "--no-host"],
    ["simulate", "-f", "examples/pod.yaml"],
    ["top", "--once"],
    ["gather", "found.tar.gz"],
    ["validate", "examples", "--driver", "."],
]


def required(name: str, distributions: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """Returns a distribution and all its requirements, without extras."""
    if name not in distributions:
        distributions[name] = metadata.distribution(name)
        for line in distributions[name].requires or ():
            if "extra ==" not in line and "python_version <" not in line:
                required(re.split(r"[^\w.-]", line)[0], distributions)
    return distributions


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with dra-tools and its requirements.

    The environment links to the packages of this interpreter.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in required("dra-tools", {}).values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            source = Path(str(distribution.locate_file(top)))
            if not (packages / top).exists():
                (packages / top).symlink_to(source)
    (packages / "our_packages.pth").write_text("\n".join(str(source.parent) for source in SOURCES))
    return folder / "bin/python"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The package, and the kubeconfig of a cluster that runs its driver."""
    folder = tmp_path_factory.mktemp("package")
    assert main(["new", "npu", "--kind", "chardev", "-C", str(folder)]) == 0
    package = folder / "npu"
    options = ["--host", package / "hosts/two-cards.yaml", "--apply", package / "deploy/deviceclass.yaml"]
    with run_dev(folder, str(package), *map(str, options), "--apply", str(package / "examples/pod.yaml")) as dev:
        yield package, dev.kubeconfig


def test_the_environment_has_no_extra(python: Path) -> None:
    code = "import importlib.util as u; print([u.find_spec(n) is None for n in ('kubernetes', 'textual', 'pytest')])"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[True, True, True]\n", done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c[:2]))
def test_each_command_reads_the_kubeconfig_of_dra_dev(
    command: list[str], python: Path, package: tuple[Path, str]
) -> None:
    folder, kubeconfig = package
    clean = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-m", "dra_kubeletplugin", *command],
        cwd=folder, env=clean | {"KUBECONFIG": kubeconfig, "HOME": str(folder)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pip install" not in done.stderr
