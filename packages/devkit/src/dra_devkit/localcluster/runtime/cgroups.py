"""Reads files of a container's cgroup. Source: cgroups(7), and the kernel's documentation of the memory controllers."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_FILES = ("memory{}/memory.oom_control", "{}/memory.events")  # cgroup version 1 and version 2


def memory_ran_out(cgroup: str, root: Path = ROOT) -> bool:
    """Returns whether the kernel killed a process of the cgroup because the cgroup reached its memory limit.

    Like a container runtime, it counts every process of the container. Returns False if the kernel has no such counter.
    """
    for file in _FILES:
        try:
            lines = (root / file.format(cgroup).lstrip("/")).read_text().splitlines()
        except OSError:
            continue
        return any(key == "oom_kill" and count != "0" for key, _, count in (line.partition(" ") for line in lines))
    return False
