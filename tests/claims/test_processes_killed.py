"""The plugin is killed with SIGKILL before a step of a start or end of a process: each running process has a record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kubeletplugin.base.processes.supervisor import Supervisor
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.claim_with_process import NAME, Daemons, running
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]
UID = f"uid-{os.getpid()}"  # other workers run these tests, too


def run_plugin(folder: Path, verb: str, step: int, **options: str) -> int:
    """Runs a plugin process that kills itself before the step. Returns how many steps it has taken."""
    folder.mkdir()
    env = {**os.environ, "CLAIM_UID": UID, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", **options}
    program = [sys.executable, "-m", "tests.helpers.crash.claim_with_process", str(folder), verb, str(step)]
    process = subprocess.run(program, env=env, capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.returncode == (0 if step < 0 else -signal.SIGKILL), process.stderr
    return sum(line.startswith("STEP ") for line in process.stderr.splitlines())


async def check_next_process(folder: Path) -> None:
    """Asserts that the next plugin process ends the process or keeps a prepared claim, and then prepares and unprepares
    as usual.
    """
    api = FakeApiServer()
    ref = api.allocate("claim", UID, "d-0", NAME)
    async with running_manager(folder, Daemons(folder), api) as second_manager:
        if await second_manager.records() == {UID: "Prepared"}:
            assert len(running(UID)) == 2
        else:
            await wait_until(lambda: not running(UID), "the processes to end")
            assert await second_manager.records() == {}
        assert second_manager.claims.processes
        await second_manager.claims.processes.check()
        logs = second_manager.settings.plugin_dir / "process-logs"
        assert len(list(logs.glob("*"))) == len(await second_manager.records()), "no log is left"
        assert not isinstance(await second_manager.prepare(ref), Exception)
        assert len(running(UID)) == 2
        assert not isinstance(await second_manager.unprepare(ref), Exception)
        assert running(UID) == [] and not list(logs.iterdir())


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[str]:
    supervisor = Supervisor(tmp_path / "s.sock")
    supervisor.open()
    threading.Thread(target=supervisor.run, daemon=True).start()
    yield str(supervisor.path)
    supervisor.close()
    for pid in running(UID):  # of a test that failed
        os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
@pytest.mark.parametrize("parts", [3, pytest.param(12, marks=pytest.mark.full)])
@pytest.mark.parametrize("supervised", [False, pytest.param(True, marks=pytest.mark.full)])
async def test_after_a_kill_before_a_step_the_next_plugin_ends_the_process_or_keeps_a_prepared_claim(
    tmp_path: Path, supervisor: str, verb: str, parts: int, supervised: bool
) -> None:
    options = {"SUPERVISOR": supervisor} if supervised else {}
    count = run_plugin(tmp_path / "all", verb, -1, **options)
    await check_next_process(tmp_path / "all")
    for step in sorted({count * part // (parts + 1) for part in range(1, parts + 1)}):
        run_plugin(tmp_path / str(step), verb, step, **options)
        await check_next_process(tmp_path / str(step))
