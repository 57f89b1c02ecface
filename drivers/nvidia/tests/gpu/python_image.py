"""Makes a root folder for containers from the Python that runs the tests, because nothing is pulled in these tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "site-packages", "__pycache__", "idlelib", "tkinter", "ensurepip", "*.a"
)


def make(folder: Path, *programs: Path) -> str:
    """Copies Python, its shared libraries and ``programs`` (into ``/``). Returns Python's path in the container."""
    python = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, folder / stdlib.relative_to("/"), ignore=LEFT_OUT, symlinks=True)
    extensions = [
        p for p in (stdlib / "lib-dynload").glob("*.so") if re.match("_ctypes|_struct|math|_posix|select|fcntl", p.name)
    ]
    for file in {python, *(lib for binary in (python, *extensions) for lib in libraries(binary))}:
        target = folder / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    for program in programs:
        shutil.copy(program, folder / program.name)
    for name in ("dev", "proc", "sys", "tmp", "etc"):
        (folder / name).mkdir(exist_ok=True)
    return str(python)


def libraries(binary: Path) -> list[Path]:
    """Returns the shared libraries that a binary needs, with the linker."""
    done = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)]
