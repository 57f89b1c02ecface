"""The plugin is killed with SIGKILL between any two effects of a start or end of a process: each running process has a
record.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dra_kubeletplugin.base.processes.supervisor import Supervisor
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.claim_with_process import NAME, POINTS, Daemons, running
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]
UID = f"uid-{os.getpid()}"  # other workers run these tests, too


def kill_plugin(folder: Path, verb: str, point: str, **options: str) -> None:
    """Runs a plugin process that kills itself at the point."""
    env = {**os.environ, "KILL_AT": point, "CLAIM_UID": UID, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", **options}
    program = [sys.executable, "-m", "tests.helpers.crash.claim_with_process", str(folder), verb]
    process = subprocess.run(program, env=env, capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.returncode == -signal.SIGKILL, process.stderr


async def check_next_process(folder: Path, *, prepared: bool) -> None:
    """Asserts that the next plugin process ends the process or keeps a prepared claim, and then prepares and unprepares
    as usual.
    """
    api = FakeApiServer()
    ref = api.allocate("claim", UID, "d-0", NAME)
    async with running_manager(folder, Daemons(folder), api) as second_manager:
        if prepared:
            assert await second_manager.records() == {UID: "Prepared"} and len(running(UID)) == 2
        else:
            await wait_until(lambda: not running(UID), "the processes to end")
            assert await second_manager.records() == {}
        watcher = second_manager.claims._processes
        assert watcher
        await watcher.check()
        logs = second_manager.settings.plugin_dir / "process-logs"
        assert len(list(logs.glob("*"))) == len(await second_manager.records()), "no log is left"
        assert not isinstance(await second_manager.prepare(ref), Exception)
        assert len(running(UID)) == 2
        assert not isinstance(await second_manager.unprepare(ref), Exception)
        assert running(UID) == [] and not list(logs.iterdir())


@pytest.mark.cases(3)
@pytest.mark.parametrize(("verb", "point"), [(v, p) for v, points in POINTS.items() for p in points])
async def test_after_a_kill_at_any_point_the_next_plugin_ends_the_process_or_keeps_a_prepared_claim(
    tmp_path: Path, verb: str, point: str
) -> None:
    kill_plugin(tmp_path, verb, point)
    await check_next_process(tmp_path, prepared=(verb, point) == ("prepare", "after commit"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("verb", "point"),
    [
        *(("prepare", p) for p in ("before record", "after record", "before ready", "after commit")),
        ("unprepare", "before step"),
    ],
)
async def test_after_a_kill_with_a_supervisor_the_next_plugin_finds_the_same_processes(
    tmp_path: Path, verb: str, point: str
) -> None:
    supervisor = Supervisor(tmp_path / "s.sock")
    supervisor.open()
    threading.Thread(target=supervisor.run, daemon=True).start()
    kill_plugin(tmp_path, verb, point, SUPERVISOR=str(supervisor.path))
    await check_next_process(tmp_path, prepared=point == "after commit")
    supervisor.close()
