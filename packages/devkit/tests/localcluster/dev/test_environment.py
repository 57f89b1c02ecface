"""The running environment of ``dra dev``: values set by verbs survive a restart with the same state folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dra_devkit.localcluster.dev.environment import DevEnvironment

PROCESS: Any = SimpleNamespace(place="node-1", program=SimpleNamespace(driver="gpu.example.com"))
UNHEALTHY = {"healthy": False, "message": "hot", "effect": ""}


def environment(folder: Path) -> DevEnvironment:
    unused: Any = None
    return DevEnvironment(unused, {}, [], unused, 1.0, folder, unused)


def test_health_set_by_a_verb_survives_a_restart_until_it_is_reset(tmp_path: Path) -> None:
    environment(tmp_path).set_health(PROCESS, "gpu-0", UNHEALTHY)
    restarted = environment(tmp_path)
    restarted.set_health(PROCESS, "gpu-1", UNHEALTHY)
    assert restarted.overrides(PROCESS) == {"gpu-0": UNHEALTHY, "gpu-1": UNHEALTHY}
    restarted.set_health(PROCESS, "gpu-0", None)
    assert environment(tmp_path).overrides(PROCESS) == {"gpu-1": UNHEALTHY}


def test_without_a_verb_no_health_is_set(tmp_path: Path) -> None:
    assert environment(tmp_path).overrides(PROCESS) == {}
