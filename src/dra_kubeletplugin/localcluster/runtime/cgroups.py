"""What the kernel tells of a container's cgroup. Source: cgroups(7), and the kernel's pages on the memory controllers."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_FILES = ("memory{}/memory.oom_control", "{}/memory.events")  # of version 1 and of version 2


def memory_ran_out(cgroup: str, root: Path = ROOT) -> bool:
    """Whether a process in it was killed because the memory that it may have was used up; False where nobody counts that.

    As a runtime reports it: any of its processes, whatever became of the first one.
    """
    for file in _FILES:
        try:
            lines = (root / file.format(cgroup).lstrip("/")).read_text().splitlines()
        except OSError:
            continue
        return any(key == "oom_kill" and count != "0" for key, _, count in (line.partition(" ") for line in lines))
    return False
