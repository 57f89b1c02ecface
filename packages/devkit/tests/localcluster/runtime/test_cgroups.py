from __future__ import annotations

from pathlib import Path

import pytest

from dra_devkit.localcluster.runtime.cgroups import memory_ran_out


@pytest.mark.parametrize(
    ("file", "text", "ran_out"),
    [
        ("memory/c/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", True),
        ("memory/c/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", False),
        ("c/memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\noom_group_kill 0\n", True),
        ("c/memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 2\n", False),
        ("elsewhere", "oom_kill 1\n", False),
    ],
)
def test_both_versions_of_cgroups_count_processes_killed_for_memory(
    tmp_path: Path, file: str, text: str, *, ran_out: bool
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert memory_ran_out("/c", tmp_path) is ran_out
