"""Detached processes are identified by their id and start time. Each test starts real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dra_kubeletplugin.base.processes import identity as identities
from dra_kubeletplugin.base.processes.client import SupervisedRunner
from dra_kubeletplugin.base.processes.identity import (
    identify,
    is_alive,
    read_stat,
    send_signal,
    wait_for_end,
    with_variable,
)
from dra_kubeletplugin.base.processes.local import (
    MARKER,
    LocalRunner,
    ProcessCommand,
    ProcessRunner,
    cut_log,
    log_tail,
)
from dra_kubeletplugin.base.processes.supervisor import Supervisor
from dra_kubeletplugin.errors import RetryableError
from tests.helpers.waiting import block_until

FOREVER = (sys.executable, "-I", "-S", "-c", "import time; print('begun', flush=True); time.sleep(600)")
IGNORES_SIGTERM = (
    sys.executable, "-I", "-S", "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('begun', flush=True); time.sleep(600)",
)  # fmt: skip


class StartedCommands:
    """The commands of one test. The fixture kills all their processes at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens: list[str] = []

    def command(self, *argv: str, **options: object) -> ProcessCommand:
        token = f"{os.urandom(8).hex()}"
        self.tokens.append(token)
        options = {"stop_timeout": 30.0, **options}
        return ProcessCommand(argv, str(self.folder / f"{token}.log"), token, **options)  # type: ignore[arg-type]

    def running(self) -> list[int]:
        return [p.pid for t in self.tokens for p in with_variable(MARKER, t)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[StartedCommands]:
    found = StartedCommands(tmp_path)
    yield found
    for token in found.tokens:
        for process in with_variable(MARKER, token):
            send_signal(process, signal.SIGKILL)


@pytest.fixture(params=["local", "supervised"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessRunner]:
    if request.param == "local":
        yield LocalRunner()
        return
    supervisor = Supervisor(tmp_path / "s.sock")
    supervisor.open()
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    yield SupervisedRunner(supervisor.path)
    supervisor.close()
    thread.join(60)


def begun(command: ProcessCommand) -> Callable[[], bool]:
    return lambda: "begun" in log_tail(Path(command.log))


def test_a_process_starts_its_program_only_after_go_and_is_detached(
    runner: ProcessRunner, started: StartedCommands
) -> None:
    command = started.command(*FOREVER, env={"A": "1"}, cwd=str(started.folder))
    launched = runner.launch(command)
    process = launched.identity
    assert runner.state(process).running
    assert b"begun" not in Path(command.log).read_bytes()
    launched.go()
    block_until(begun(command))
    stat = read_stat(process.pid)
    assert stat and stat.session == process.pid and identify(process.pid) == process, (
        "exec does not change id and start time"
    )
    proc = Path(f"/proc/{process.pid}")
    assert proc.joinpath("cwd").readlink() == started.folder
    assert {f.name: str(f.readlink()) for f in proc.joinpath("fd").iterdir()} == {
        "0": "/dev/null", "1": command.log, "2": command.log
    }  # fmt: skip
    variables = dict(v.split(b"=", 1) for v in proc.joinpath("environ").read_bytes().split(b"\0") if v)
    assert variables.keys() == {b"PATH", b"A", MARKER.encode()}, (
        "the process does not inherit other variables of the plugin"
    )
    runner.stop(process, command)
    assert not runner.state(process).running and not started.running()
    assert read_stat(process.pid) is None, "no zombie remains"
    runner.stop(process, command)


def test_a_process_that_is_abandoned_before_go_does_not_start_its_program(
    runner: ProcessRunner, started: StartedCommands
) -> None:
    command = started.command(*FOREVER)
    launched = runner.launch(command)
    launched.abandon()
    block_until(lambda: not runner.state(launched.identity).running)
    assert Path(command.log).read_bytes() == b""


def test_a_program_that_cannot_run_because_its_process_or_supervisor_was_killed_is_an_error(
    started: StartedCommands,
) -> None:
    """Otherwise a claim would be prepared without its process."""
    launched = LocalRunner().launch(started.command(*FOREVER))
    send_signal(launched.identity, signal.SIGKILL)
    wait_for_end(launched.identity, 60)
    with pytest.raises(RetryableError, match="was killed before it ran its program"):
        launched.go()
    path = started.folder / "own.sock"
    supervisor = subprocess.Popen([sys.executable, "-m", "dra_kubeletplugin.base.processes.supervisor", str(path)])
    block_until(path.exists)
    launched = SupervisedRunner(path).launch(started.command(*FOREVER))
    supervisor.kill()
    supervisor.wait(60)
    with pytest.raises(RetryableError, match="was killed before it ran its program"):
        launched.go()


def test_the_state_reports_the_exit_code_or_signal(runner: ProcessRunner, started: StartedCommands) -> None:
    for program, text in (("raise SystemExit(3)", "ended with exit code 3"), ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL")):  # fmt: skip
        launched = runner.launch(started.command(sys.executable, "-I", "-S", "-c", program))
        launched.go()
        block_until(lambda launched=launched: not runner.state(launched.identity).running)
        assert runner.state(launched.identity).text == text


def test_stop_runs_the_stop_command_then_kills_all_descendants_also_in_other_sessions(
    runner: ProcessRunner, started: StartedCommands
) -> None:
    stop_marker = started.folder / "stop-command-ran"
    script = (
        "import subprocess, sys, time; c = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)']; "
        "subprocess.Popen(c, start_new_session=True); subprocess.Popen(c); print('begun', flush=True); time.sleep(600)"
    )
    command = started.command(
        sys.executable, "-I", "-S", "-c", script, stop=("touch", str(stop_marker)), stop_timeout=2.0
    )  # fmt: skip
    launched = runner.launch(command)
    launched.go()
    block_until(begun(command))
    assert len(started.running()) == 3
    runner.stop(launched.identity, command)
    assert stop_marker.exists() and started.running() == []


def test_a_process_that_ignores_sigterm_is_killed(runner: ProcessRunner, started: StartedCommands) -> None:
    command = started.command(*IGNORES_SIGTERM, stop_timeout=0.2)
    launched = runner.launch(command)
    launched.go()
    block_until(begun(command))
    runner.stop(launched.identity, command)
    assert started.running() == []


def test_launch_raises_an_error_with_the_name_of_a_missing_program(
    runner: ProcessRunner, started: StartedCommands
) -> None:
    with pytest.raises(RetryableError, match="the program nosuch was not found; PATH is"):
        runner.launch(started.command("nosuch"))
    folder = started.folder / "folder"
    with pytest.raises(RetryableError, match="cannot be started"):
        runner.launch(started.command(*FOREVER, cwd=str(folder)))


def test_a_process_with_a_reused_id_is_not_mistaken_for_the_earlier_process(started: StartedCommands) -> None:
    unrelated = subprocess.Popen(FOREVER, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        found = identify(unrelated.pid)
        assert found
        runner, command = LocalRunner(), started.command(*FOREVER, stop_timeout=0.1)
        changes: list[dict[str, object]] = [{"started": found.started - 1}, {"boot": "earlier"}, {"namespace": "other"}]
        for change in changes:
            earlier = msgspec.structs.replace(found, **change)  # type: ignore[arg-type]
            assert not is_alive(earlier) and not send_signal(earlier, signal.SIGKILL) and wait_for_end(earlier, 60)
            assert identities.in_session_of(earlier) == []
            runner.stop(earlier, command)
        assert is_alive(found) and unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def test_a_process_ends_if_its_parent_is_killed_before_go_and_continues_after_go(started: StartedCommands) -> None:
    for go in (False, True):
        command = started.command(*FOREVER)
        program = (
            "import os, sys, msgspec; from dra_kubeletplugin.base.processes.local import *; "
            "c = msgspec.json.decode(sys.argv[1], type=ProcessCommand); l = LocalRunner().launch(c); "
            f"{'l.go(); ' if go else ''}print(l.identity.pid, flush=True); os.kill(os.getpid(), 9)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, msgspec.json.encode(command)], capture_output=True, check=False, text=True
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        if go:
            block_until(begun(command))
            found = identify(int(done.stdout))
            assert found
            LocalRunner().stop(found, command)
        block_until(lambda: not started.running())
        assert begun(command)() is go


def test_without_its_supervisor_a_process_is_reported_as_ended(started: StartedCommands) -> None:
    runner, found = SupervisedRunner(started.folder / "none.sock"), identify(os.getpid())
    assert found
    assert runner.state(found).text == "ended together with its process supervisor"
    runner.stop(found, started.command("x"))
    with pytest.raises(RetryableError, match=r"the process supervisor at .* does not respond: FileNotFoundError"):
        runner.launch(started.command("x"))


def test_cut_log_keeps_the_end_of_a_log_and_its_writer_continues(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(writer, b"".join(b"line %d\n" % i for i in range(1000)))
    assert not cut_log(path, 100_000)
    assert cut_log(path, 1000)
    os.write(writer, b"after\n")
    os.close(writer)
    lines = path.read_text().splitlines()
    assert lines[-2:] == ["line 999", "after"] and len(path.read_bytes()) < 300
    assert log_tail(path).endswith("line 999 after") and not log_tail(tmp_path / "none")
