"""Builds and runs images with podman and without a registry, on a base of Debian packages and this machine's CPython."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.release.installation import clean_environment, run

BASE = "localhost/dra-test/python:3.13-slim"
LIBRARIES = "ca-certificates,netbase,tzdata,libbz2-1.0,liblzma5,libssl3,libsqlite3-0,libffi8,libreadline8,libncursesw6,libuuid1,libexpat1"
"""Debian packages that python:3.13-slim contains in addition to the minimal system."""
# The build needs the network for package indexes. It reuses no layers of earlier builds, and leaves only the image.
# The limits of a container cannot exceed the limits of this process.
BUILD = ("--layers=false", "--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={BASE}")
RUN = ("--rm", "--runtime", "runc", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")


def missing() -> str | None:
    """Returns the reason why images cannot be built and tested on this machine, or None."""
    if sys.version_info[:2] != (3, 13):
        return "the image contains Python 3.13, so only that version tests it"
    if sys.base_prefix == "/usr":
        return "needs a CPython 3.13 in a separate folder, for example from pyenv"
    if os.geteuid() != 0:
        return "needs root"
    missing_commands = [command for command in ("podman", "runc", "debootstrap") if not shutil.which(command)]
    return f"needs {', '.join(missing_commands)}" if missing_commands else None


def make_base(folder: Path) -> None:
    """Creates the image ``BASE`` with the same packages and paths as python:3.13-slim. podman keeps it for later runs."""
    if _podman("image", "exists", BASE, check=False).returncode == 0:
        return
    root = folder / "root"
    release = platform.freedesktop_os_release()[
        "VERSION_CODENAME"
    ]  # The interpreter is linked with the libraries of this release.
    run("debootstrap", "--variant=minbase", f"--include={LIBRARIES}", release, str(root), cwd=folder, timeout=400)
    unwanted = shutil.ignore_patterns("__pycache__", "test", "tests", "config-3.13-*", "*.a")
    shutil.copytree(sys.base_prefix, root / "usr/local", symlinks=True, dirs_exist_ok=True, ignore=unwanted)
    for path in (root / "usr/local/lib/python3.13/site-packages").iterdir():
        if not path.name.startswith("pip"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for script in (root / "usr/local/bin").glob("pip*"):
        script.write_text("#!/usr/local/bin/python3.13\n" + script.read_text().partition("\n")[2])
    for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / leftover)
        (root / leftover).mkdir()
    run("chroot", str(root), "/sbin/ldconfig", cwd=folder)
    archive = folder / "base.tar"
    run("tar", "-C", str(root), "-cf", str(archive), ".", cwd=folder)
    path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    _podman("import", "--change", f"ENV {path}", str(archive), BASE)
    archive.unlink()
    shutil.rmtree(root)


def tag(name: str) -> str:
    """Returns an image name that contains the id of this process, because other test processes may run at the same time."""
    return f"localhost/dra-test/{name}:{os.getpid()}"


def build(context: Path, tag: str, *options: str) -> None:
    _podman("build", *BUILD, *options, "-t", tag, str(context))


def size(image: str) -> int:
    """Returns the bytes of all layers of an image."""
    return int(_podman("image", "inspect", "--format", "{{.Size}}", image).stdout)


def inside(image: str, *command: str) -> str:
    """Runs a command in an image instead of its entry point, and returns the output."""
    program, *rest = command
    return _podman("run", *RUN, "--network=none", "--read-only", "--entrypoint", program, image, *rest).stdout


@contextmanager
def mounted(image: str) -> Iterator[Path]:
    """Mounts an image and yields the folder with its files."""
    try:
        yield Path(_podman("image", "mount", image).stdout.strip())
    finally:
        _podman("image", "unmount", image)


def remove(image: str) -> None:
    _podman("rmi", "--force", image, check=False)


def _podman(*args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["podman", *args], env=clean_environment(), capture_output=True, text=True, timeout=500, check=False, stdin=subprocess.DEVNULL
    )  # fmt: skip
    assert not check or done.returncode == 0, f"podman {' '.join(args)}\n{done.stdout}\n{done.stderr}"
    return done
