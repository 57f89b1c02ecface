"""Builds the four packages of this tree, and installs their wheels into new environments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from dra_kubeletplugin.cli import main

ROOT = Path(__file__).parents[2]


PROJECTS = {"dra-kubeletplugin": ROOT} | {f"dra-{p.name}": p for p in sorted((ROOT / "packages").iterdir())}
"""The source folder of each distribution."""


def build(folder: Path, source: Path, **environment: str) -> None:
    """Builds the wheel and the sdist of a distribution as `make dist` does."""
    run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=source, **environment)


def build_all(folder: Path) -> None:
    for source in PROJECTS.values():
        build(folder, source)


def built(dist: Path, name: str, suffix: str = ".whl") -> Path:
    """Returns the wheel of a distribution in a folder, or the sdist with ``suffix`` ``.tar.gz``."""
    (found,) = dist.glob(f"{name.replace('-', '_')}-*{suffix}")
    return found


_OWN_VARIABLES = (
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "KUBECONFIG",
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "MAKEOVERRIDES",
    "VENV",
    "PYTHON",
    "ARGS",
    "RELEASE",
    "PACKAGE",
    "CHECKOUT",
)


def clean_environment() -> dict[str, str]:
    """Returns the environment variables without those of this tree and of the `make` that runs the tests."""
    return {k: v for k, v in os.environ.items() if k not in _OWN_VARIABLES}


def run(*argv: str, cwd: Path, timeout: float = 300, **environment: str) -> str:
    """Runs a command in a clean environment with ``environment`` added, and returns its output."""
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=clean_environment() | environment, capture_output=True, text=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:  # The exception does not show the output.
        raise AssertionError(f"{' '.join(argv)} has not ended after {timeout:g} s\n{e.stdout}\n{e.stderr}") from None
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


ID_OPTIONS = {"pci": ("--vendor-id", "1d94", "--device-id", "0401"), "chardev": (), "sdk": ()}


def create_package(directory: Path, name: str, kind: str, *more: str) -> Path:
    assert main(["new", name, "--kind", kind, *ID_OPTIONS[kind], "-C", str(directory), *more]) == 0
    return directory / name


@dataclass(frozen=True)
class Environment:
    """A virtual environment. The tests' ``pip`` installs into it."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, shared_packages: Path | None = None) -> Environment:
        run(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=ROOT)
        environment = cls(folder)
        if shared_packages is not None:
            (environment.packages / "shared_packages.pth").write_text(f"{shared_packages}\n")
        return environment

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *files: Path) -> None:
        """Installs files without their dependencies."""
        options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
        run(
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.path("python"),
            "install",
            *options,
            *map(str, files),
            cwd=ROOT,
        )

    def install_from_index(self, requirements: str, url: str) -> None:
        """Installs requirements with their dependencies, from the index at ``url`` and the default index."""
        argv = (sys.executable, "-m", "pip", "--python", self.path("python"), "install", "--quiet", "--no-cache-dir")
        run(*argv, "--extra-index-url", url, *requirements.split(), cwd=self.folder)

    def path(self, command: str) -> str:
        return str(self.folder / "bin" / command)


def dependencies_of(dist: Distribution) -> Iterator[Distribution]:
    """Yields the distributions that are installed with a distribution, without extras and without itself."""
    for text in dist.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = distribution(requirement.name)
            yield found
            yield from dependencies_of(found)
