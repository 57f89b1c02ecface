"""Simulates effects of a node's reboot: ends processes and mounts of drivers, and empties folders of file systems in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

_MOUNT_POINT = 4  # index of the mount point in a line of mountinfo; source: proc(5)


def kill_processes(environment: Mapping[str, str]) -> None:
    """Kills each process that was started with all these environment variables, even if it is in another session."""
    wanted = {os.fsencode(f"{name}={value}") for name, value in environment.items()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if wanted <= set((process / "environ").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)


def kill_claim_processes(plugins: Path) -> None:
    """Kills the processes that drivers started for claims. Finds them by their output, which goes to a file in a driver's folder.

    Args:
        plugins: the folder that contains the folders of a node's drivers.
    """
    if not any(plugins.glob("*/process-logs/*")):
        return
    folder = plugins.resolve()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if (process / "fd/1").readlink().is_relative_to(folder):
                os.kill(int(process.name), signal.SIGKILL)


def unmount_below(folder: Path) -> None:
    """Unmounts each file system that a driver mounted in the folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines() if Path("/proc/self/mountinfo").is_file() else []
    points = (Path(line.split()[_MOUNT_POINT].replace("\\040", " ")) for line in lines)
    for point in sorted((p for p in points if p.is_relative_to(folder.resolve())), reverse=True):
        subprocess.run(["umount", "--lazy", str(point)], check=False, capture_output=True)  # noqa: S603, S607


def empty(folder: Path) -> None:
    """Deletes everything in the folder, as a reboot empties a file system in memory."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


__all__ = ["empty", "kill_claim_processes", "kill_processes", "unmount_below"]
