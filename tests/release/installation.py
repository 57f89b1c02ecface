"""Building this tree, and installing what comes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(folder: Path, source: Path = ROOT, **environment: str) -> None:
    """Wheel and sdist, as `make dist` makes them."""
    run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=source, **environment)


_OURS = (
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
)


def as_elsewhere() -> dict[str, str]:
    """The environment of somebody who knows nothing of this tree, nor of the `make` that runs its tests."""
    return {k: v for k, v in os.environ.items() if k not in _OURS}


def run(*argv: str, cwd: Path, timeout: float = 300, **environment: str) -> str:
    """What it printed. Nothing of this tree is on its path but what ``environment`` says."""
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=as_elsewhere() | environment, capture_output=True, text=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:  # which does not show what was said so far
        raise AssertionError(f"{' '.join(argv)} has not ended after {timeout:g} s\n{e.stdout}\n{e.stderr}") from None
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment. ``pip`` is that of the tests."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, lent: Path | None = None) -> Environment:
        run(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=ROOT)
        out = cls(folder)
        if lent is not None:
            (out.packages / "lent.pth").write_text(f"{lent}\n")
        return out

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *what: Path) -> None:
        """From files, without what they depend on."""
        options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
        run(
            sys.executable, "-m", "pip", "--python", self.path("python"), "install", *options, *map(str, what), cwd=ROOT
        )

    def install_from_index(self, what: str, url: str) -> None:
        """With what it depends on; what this index does not have comes from the usual one."""
        argv = (sys.executable, "-m", "pip", "--python", self.path("python"), "install", "--quiet", "--no-cache-dir")
        run(*argv, "--extra-index-url", url, *what.split(), cwd=self.folder)

    def path(self, command: str) -> str:
        return str(self.folder / "bin" / command)
