"""``dra supervisor`` serves a plugin until SIGTERM, and replaces the socket of a dead supervisor."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from dra_kubeletplugin.base.processes.client import SupervisedRunner
from dra_kubeletplugin.base.processes.local import ProcessCommand
from dra_kubeletplugin.errors import RetryableError
from tests.helpers.waiting import block_until


def test_the_supervisor_starts_and_stops_processes_and_replaces_a_killed_supervisor(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    runner, command = SupervisedRunner(path), ProcessCommand(("sleep", "600"), str(tmp_path / "log"), f"{tmp_path}/x")

    def is_ready() -> bool:
        try:
            runner.launch(command).abandon()
        except RetryableError:
            return False
        return True

    for end in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen([sys.executable, "-m", "dra_kubeletplugin", "supervisor", str(path)])
        try:
            block_until(is_ready)
            launched = runner.launch(command)
            launched.go()
            assert runner.state(launched.identity).running
            runner.stop(launched.identity, command)
            assert not runner.state(launched.identity).running
            assert path.stat().st_mode & 0o777 == 0o600
        finally:
            process.send_signal(end)
        assert process.wait(60) == (0 if end == signal.SIGTERM else -end)
