"""The running environment of ``dra dev``: what verbs set outlives a restart with the same state folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dra_kubeletplugin.localcluster.dev.environment import DevEnvironment

PROCESS: Any = SimpleNamespace(place="node-1", program=SimpleNamespace(driver="gpu.example.com"))
SICK = {"healthy": False, "message": "hot", "effect": ""}


def environment(folder: Path) -> DevEnvironment:
    unused: Any = None
    return DevEnvironment(unused, {}, [], unused, 1.0, folder, unused)


def test_health_that_a_verb_set_before_a_restart_stays_until_it_is_reported_again(tmp_path: Path) -> None:
    environment(tmp_path).set_health(PROCESS, "gpu-0", SICK)
    after = environment(tmp_path)
    after.set_health(PROCESS, "gpu-1", SICK)
    assert after.overrides(PROCESS) == {"gpu-0": SICK, "gpu-1": SICK}
    after.set_health(PROCESS, "gpu-0", None)
    assert environment(tmp_path).overrides(PROCESS) == {"gpu-1": SICK}


def test_without_a_verb_no_health_is_set(tmp_path: Path) -> None:
    assert environment(tmp_path).overrides(PROCESS) == {}
