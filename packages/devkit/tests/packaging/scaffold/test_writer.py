"""The drivers of this tree have the layout of packages that `dra new` writes, so documentation of one applies to both."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_devkit.packaging.scaffold.names import Names, module_of
from dra_devkit.packaging.scaffold.writer import write_package
from dra_kubeletplugin.driver import load_driver
from tests.tools.drivers import PACKAGES, ROOT, WORKFLOWS, expected_files

LEFT_OUT = {
    str(WORKFLOWS): "nobody would run it: this tree's is .ci/run",
    "tests/parameters": "only the template with a vendor's library has parameters",
    "deploy/kustomize": "the drivers share deploy/kustomize of this tree: DEPLOY in their Makefiles",
}
NO_HOST = {"gpu_example", "fabric_example"}
"""Drivers with simulated devices. They need no description of a host."""
ADDITIONAL = {
    "pci/demo.py",
    "nvidia/image/requirements.txt",
    "nvidia/recordings/h100.json",
    *(f"nvidia/deploy/monitoring/{name}" for name in ("alerts.yaml", "dashboard.json")),
    *(f"nvidia/tests/gpu/{name}.py" for name in ("conftest", "cuda_program", "python_image", "test_nvidia_gpu")),
}
"""Additional files: `make demo` of this tree, the pin of NVIDIA's bindings for the tree's Dockerfile, the recorded NVML of a described host, and tests on a real GPU."""
PLUGIN = "dra_devkit.pytest_plugin"
_CACHES = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
_TABLES = ("build-system", "dependency-groups", "tool.hatch.build.targets.wheel", "tool.mypy", "tool.ruff")

every_driver = pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.name))


def paths(package: Path) -> set[str]:
    found = (p.relative_to(package) for p in package.rglob("*") if p.is_file())
    return {str(p) for p in found if not _CACHES & set(p.parts) and not p.parts[0].startswith(".venv")}


def module_in(package: Path) -> str:
    return package.name.replace("-", "_")


def role_path(path: str, module: str) -> str:
    """Returns a path that is equal for files with the same role, because each driver has its own names of modules and manifests."""
    folder, _, name = path.rpartition("/")
    if folder in {"hosts", "examples"} and name.endswith(".yaml"):
        return f"{folder}/*.yaml"
    if folder == f"src/{module}" and name.endswith(".py") and name not in {"__init__.py", "driver.py"}:
        return f"src/{module}/*.py"
    if folder == "tests" and name.startswith(f"test_{module}_") and name.endswith(".py"):
        return f"tests/test_{module}.py"
    return path


def table(package: Path, name: str) -> Any:
    out: Any = tomllib.loads((package / "pyproject.toml").read_text())
    for part in name.split("."):
        out = out[part]
    return out


@pytest.fixture
def fresh(package: Path, tmp_path: Path) -> Path:
    """Returns a package of the same name that `dra new` has just written."""
    return write_package(Names("sdk", package.name.replace("_", "-"), load_driver(str(package)).name), tmp_path)


def test_each_folder_of_drivers_is_a_package() -> None:
    assert [p.name for p in PACKAGES] == sorted(p.name for p in (ROOT / "drivers").iterdir() if p.is_dir())
    assert len(PACKAGES) == 5


@every_driver
def test_a_driver_has_the_files_of_a_new_package_and_no_others(package: Path, fresh: Path) -> None:
    module = module_in(package)
    expected = {role_path(p, module) for p in paths(fresh) if not p.startswith(tuple(LEFT_OUT))}
    actual = {role_path(p, module) for p in paths(package) if f"{package.name}/{p}" not in ADDITIONAL}
    modules = f"src/{module}/*.py"  # A driver may have one module or several.
    assert actual - {modules} == expected - {modules} - ({"hosts/*.yaml"} if package.name in NO_HOST else set())
    assert module_of(fresh.name) == module


@every_driver
def test_files_shared_by_all_drivers_equal_the_template(package: Path) -> None:
    assert {str(p.relative_to(ROOT)) for p, text in expected_files(package) if p.read_text() != text} == set(), (
        "make drivers"
    )


@every_driver
def test_a_driver_has_the_build_and_test_settings_of_a_new_package(package: Path, fresh: Path) -> None:
    for name in _TABLES:
        assert table(package, name) == table(fresh, name), name
    assert table(package, "project.name") == fresh.name
    assert set(table(fresh, "project.dependencies")) <= set(table(package, "project.dependencies"))
    assert set(table(fresh, "project.optional-dependencies.dev")) <= set(
        table(package, "project.optional-dependencies.dev")
    )
    driver_options, template_options = (table(p, "tool.pytest.ini_options") for p in (package, fresh))
    hosts = {} if package.name in NO_HOST else {"dra_host": driver_options.get("dra_host")}
    assert driver_options.items() >= ({k: v for k, v in template_options.items() if k != "dra_host"} | hosts).items()
    for host in hosts.values():
        assert (package / host).is_file()


@every_driver
def test_the_image_of_a_driver_is_named_once_and_runs_its_module(package: Path) -> None:
    values = yaml.safe_load((package / "deploy/values.yaml").read_text())
    assert values["driverFile"] == f"{module_in(package)}.driver"
    image = f"IMAGE  ?= {values['image']}"
    assert f"{image}\n" in (package / "Makefile").read_text(), f"write `{image}` into the Makefile"
    assert values["driverName"] == load_driver(str(package)).name


@every_driver
def test_the_image_of_a_driver_is_built_from_this_tree_as_its_readme_shows(package: Path) -> None:
    """The framework is on no package index, so the driver's own `make lock` cannot pin it."""
    folder, values = package.relative_to(ROOT), yaml.safe_load((package / "deploy/values.yaml").read_text())
    name = values["image"].rpartition("/")[2]
    shown = f"make -C {folder} image IMAGE=REGISTRY/{name}"
    assert f"    {shown} && docker push REGISTRY/{name}\n" in (package / "README.md").read_text()
    done = subprocess.run([*shown.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    (command,) = (line for line in done.stdout.splitlines() if not re.match(r"make(\[\d+\])?: ", line))  # the directory
    expected = f"docker build -t REGISTRY/{name} --build-arg DRIVER={folder} -f ../../Dockerfile ../.."
    assert command == expected


@pytest.mark.full
@pytest.mark.cases(1)
@every_driver
def test_a_driver_s_tests_are_found_in_its_own_folder_too(package: Path) -> None:
    """Runs the tests as `make test` in the folder does: with the driver's pyproject.toml, and only the framework of this tree."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "-p",
        PLUGIN,
        "--strict-config",
    ]
    done = subprocess.run(
        command, cwd=package, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tests/test_{module_in(package)}.py::" in done.stdout
    assert "rror" not in done.stderr


@every_driver
def test_the_commands_of_a_driver_s_makefile_are_those_of_a_new_package(package: Path) -> None:
    names = ("test", "dev", "lint", "deploy")
    command = ["make", "-n", "-o", ".venv/.installed", *names]
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in {"VENV", "PYTHON", "ARGS"}
    }
    done = subprocess.run(
        command, cwd=package, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (dev,) = [line for line in done.stdout.splitlines() if " dev " in line]
    words = dev.split()
    assert words[2] == f"{module_in(package)}.driver"
    expected_options = [package / words[i + 1] for i, word in enumerate(words) if word in {"--host", "--apply"}]
    assert expected_options
    assert [p for p in expected_options if not p.is_file()] == []
