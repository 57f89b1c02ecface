"""The process of a driver under ``dra dev``. It is ready when it reports readiness; its last output explains a failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest

from dra_devkit.commands import dev_driver
from dra_devkit.localcluster.dev.drivers import DriverFailed, DriverProcess, DriverProgram, ProcessPhase
from dra_devkit.localcluster.dev.environment import DevEnvironment, EnvironmentCallbacks
from dra_kubeletplugin.plugin.node import Plugin
from tests.tools.tree import ROOT

TIMEOUT = 60  # seconds
READY = 'echo "{\\"waits\\": []}" > $DRA_DEV_READY.new; mv $DRA_DEV_READY.new $DRA_DEV_READY; '


class OutputLines(list[str]):
    """The reported lines. ``wait`` waits for a line that contains a text."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.append(line)
        self._more.set()

    async def wait(self, text: str) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not any(text in line for line in self):
                self._more.clear()
                await self._more.wait()


def process(folder: Path, script: str) -> tuple[DriverProcess, OutputLines]:
    output = OutputLines()
    return DriverProcess(
        DriverProgram("x.example.com", ["sh", "-c", script]), "node-1", {"NODE_NAME": "node-1"}, folder, output
    ), output


async def test_a_driver_is_ready_when_it_reports_readiness_and_has_its_environment(tmp_path: Path) -> None:
    driver, output = process(tmp_path, f"echo on $NODE_NAME as $POD_UID; {READY} exec sleep 100")
    await driver.start(TIMEOUT)
    assert (driver.phase, driver.pid is not None) == (ProcessPhase.READY, True)
    await output.wait("on node-1 as ")
    await driver.close()
    assert driver.pid is None
    assert list(tmp_path.iterdir()) == []


async def test_the_reason_against_readiness_is_reported(tmp_path: Path) -> None:
    script = READY.replace("[]", '[\\"devices() failed: no bus\\"]') + "exec sleep 100"
    timeout, message = 0.5, ""
    while (
        "devices() failed: no bus" not in message
    ):  # the shell may start later than the timeout, and the error then reports that
        driver, _ = process(tmp_path, script)
        with pytest.raises(DriverFailed, match=rf"x.example.com on node-1 is not ready after {timeout:g} s") as error:
            await driver.start(timeout)
        await driver.close()
        timeout, message = 2 * timeout, str(error.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo noise; echo 'dra: no licence'; exit 2", "x.example.com on node-1: no licence"),
        ("echo noise; exit 2", "ended with exit code 2; its last output:\n  noise"),
        ("kill -SEGV $$", "ended with signal SIGSEGV; its last output:\n  (nothing)"),
        ("echo noise; printf 'no end of a line'; exit 1", "its last output:\n  noise\n  no end of a line"),
        (
            "sleep 1000 & echo $! > {child}; echo noise; exit 1",
            "its last output:\n  noise",
        ),  # the child keeps the output open
    ],
)
async def test_a_driver_that_ends_before_readiness_is_reported_with_its_last_output(
    tmp_path: Path, script: str, message: str
) -> None:
    driver, _ = process(tmp_path, script.replace("{child}", str(tmp_path / "child")))
    with pytest.raises(DriverFailed) as error:
        await driver.start(TIMEOUT)
    assert message in str(error.value)
    assert driver.phase is ProcessPhase.FAILED
    if (tmp_path / "child").exists():
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    await driver.close()


async def test_a_killed_driver_restarts_after_the_requested_time(tmp_path: Path) -> None:
    driver, _ = process(tmp_path, f"{READY} exec sleep 100")
    await driver.start(TIMEOUT)
    supervision = asyncio.create_task(driver.keep_running(TIMEOUT))
    first = driver.pid
    await driver.kill(float("inf"))
    assert (driver.pid, driver.phase) == (None, ProcessPhase.DOWN)
    with pytest.raises(DriverFailed, match="does not run"):
        await driver.kill(0)
    await driver.start(TIMEOUT)
    second = driver.pid
    assert second not in {None, first}
    await driver.kill(0)
    async with asyncio.timeout(TIMEOUT):
        while driver.phase is not ProcessPhase.READY or driver.pid in {None, second}:
            await asyncio.sleep(0.01)
    supervision.cancel()
    await asyncio.gather(supervision, return_exceptions=True)
    await driver.close()


@contextlib.asynccontextmanager
async def supervised(driver: DriverProcess) -> AsyncIterator[None]:
    supervision = asyncio.create_task(driver.keep_running(TIMEOUT))
    try:
        yield
    finally:
        supervision.cancel()
        await asyncio.gather(supervision, return_exceptions=True)
        await driver.close()


async def test_a_driver_started_after_a_kill_is_restarted_when_it_ends(tmp_path: Path) -> None:
    driver, output = process(tmp_path, f"{READY} exec sleep 100")
    await driver.start(TIMEOUT)
    async with supervised(driver):
        await driver.kill(float("inf"))
        await driver.start(TIMEOUT)
        assert driver.pid
        os.kill(driver.pid, signal.SIGKILL)
        await output.wait("ended with signal SIGKILL; it will be started again")


async def test_a_driver_that_ends_during_its_upgrade_is_not_restarted(tmp_path: Path) -> None:
    gate, pids = tmp_path / "gate", tmp_path / "pids"
    wait = f"while [ -e {pids} ] && [ ! -e {gate} ]; do sleep 0.02; done"
    driver, output = process(tmp_path, f"{wait}; echo $$ >> {pids}; {READY} exec sleep 100")
    await driver.start(TIMEOUT)
    async with supervised(driver):
        upgrade = asyncio.create_task(driver.upgrade(TIMEOUT))
        assert driver.pid
        os.kill(driver.pid, signal.SIGKILL)
        await output.wait("be started again in")
        gate.touch()
        await upgrade
        await driver.stop()
    assert len(pids.read_text().split()) == 2
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


async def test_a_failed_upgrade_keeps_the_previous_process(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    driver, _ = process(tmp_path, f"[ -e {mark} ] && exit 1; {READY} exec sleep 100")
    await driver.start(TIMEOUT)
    before = driver.pid
    assert before is not None
    mark.touch()
    with pytest.raises(DriverFailed, match="exit code 1"):
        await driver.upgrade(TIMEOUT)
    assert (driver.pid, driver.phase) == (before, ProcessPhase.READY)
    mark.unlink()
    await driver.upgrade(TIMEOUT)
    assert driver.pid != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    await driver.close()


async def test_a_cancelled_upgrade_stops_the_new_process_cleanly(tmp_path: Path) -> None:
    started_file, stopped_file = tmp_path / "begun", tmp_path / "ended"
    never_ready = f"trap 'touch {stopped_file}; exit' TERM; touch {started_file}; while sleep 0.05; do :; done"
    driver, _ = process(tmp_path, f'if [ -n "$FIRST" ]; then {READY} exec sleep 100; else {never_ready}; fi')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIRST", "yes")
        await driver.start(60)
    before = driver.pid
    upgrade = asyncio.create_task(driver.upgrade(60))
    async with asyncio.timeout(60):
        while driver.phase is not ProcessPhase.STARTING or not started_file.exists():
            await asyncio.sleep(0.01)
    upgrade.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upgrade
    assert stopped_file.exists()
    assert (driver.pid, driver.phase) == (before, ProcessPhase.READY)
    await driver.close()


def test_a_driver_that_starts_after_its_cluster_was_killed_only_ends(tmp_path: Path) -> None:
    """The shell ends long before Python runs. The driver has the shell's output, so the test waits until both end."""
    command = [sys.executable, "-m", dev_driver.__name__, dev_driver.NODE, str(ROOT / "drivers/gpu_example")]
    done = subprocess.run(
        ["sh", "-c", 'DRA_DEV_PARENT=$$ "$@" &', "sh", *command], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "DRA_DEV_READY": str(tmp_path / "ready")},
    )  # fmt: skip
    assert done.stderr == ""


class FakePlugin:
    """A plugin that is registered and has published slices. Its records are damaged while ``has_damaged_records`` is true."""

    def __init__(self) -> None:
        self.discovery = SimpleNamespace(fault="")
        self.has_damaged_records = True

    async def ready(self, timeout: float | None = None) -> None:
        return

    async def not_ready(self) -> list[str]:
        return ["records.journal has schema 9"] if self.has_damaged_records else []

    async def notes(self) -> list[str]:
        return ["no device"]


async def test_a_plugin_whose_readiness_probe_fails_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, plugin = tmp_path / "ready", FakePlugin()
    monkeypatch.setenv(dev_driver.READY, str(file))
    reporting = asyncio.create_task(dev_driver.report_readiness(cast("Plugin", plugin)))
    async with asyncio.timeout(30):
        while not file.exists():
            await asyncio.sleep(0.01)
        assert json.loads(file.read_text())["waits"] == ["records.journal has schema 9"]
        for plugin.has_damaged_records in (False, True, False):
            expected = ["records.journal has schema 9"] if plugin.has_damaged_records else []
            while json.loads(file.read_text())["waits"] != expected:
                await asyncio.sleep(0.01)
    reporting.cancel()
    assert json.loads(file.read_text()) == {"waits": [], "failed_for_good": False, "notes": ["no device"]}


async def test_a_driver_whose_discovery_keeps_failing_reports_that_it_failed_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, plugin = tmp_path / "ready", FakePlugin()
    plugin.discovery.fault = "the library is missing"
    monkeypatch.setenv(dev_driver.READY, str(file))
    reporting = asyncio.create_task(dev_driver.report_readiness(cast("Plugin", plugin)))
    async with asyncio.timeout(30):
        while not file.exists() or not json.loads(file.read_text())["failed_for_good"]:
            await asyncio.sleep(0.05)
    reporting.cancel()


def running_pids(pids: Path) -> list[int]:
    return [int(p) for p in pids.read_text().split() if Path(f"/proc/{p}").exists()]


async def test_a_driver_that_is_down_during_a_reboot_runs_once_afterwards(tmp_path: Path) -> None:
    class Cluster:
        nodes: ClassVar = {"node-1": SimpleNamespace(name="node-1")}

        async def reboot(self, name: str, sysfs: Path | None) -> None:
            await asyncio.sleep(1.5)  # the driver would be restarted during this time

    pids = tmp_path / "pids"
    driver, output = process(tmp_path, f"echo $$ >> {pids}; {READY} exec sleep 100")
    hosts = {"node-1": SimpleNamespace(description=None)}
    await driver.start(60)
    async with supervised(driver):
        assert driver.pid
        os.kill(driver.pid, signal.SIGKILL)
        await output.wait("be started again in")
        guard = SimpleNamespace(mark={"DRA_REAPER_ID": "none has it"})
        environment = DevEnvironment(
            Cluster(), hosts, [driver], EnvironmentCallbacks(print, print), 60, tmp_path, guard
        )  # type: ignore[arg-type]
        await environment.reboot("node-1")
        assert running_pids(pids) == [driver.pid]
    assert running_pids(pids) == []
