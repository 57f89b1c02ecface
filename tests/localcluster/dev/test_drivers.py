"""A driver's process under ``dra dev``: ready when it says so, told with its own words where it does not get there."""

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

from dra_kubeletplugin.cli import dev_driver
from dra_kubeletplugin.localcluster.dev import drivers
from dra_kubeletplugin.localcluster.dev.drivers import DriverFailed, DriverProcess, DriverProgram, ProcessPhase
from dra_kubeletplugin.localcluster.dev.environment import DevEnvironment, EnvironmentOptions
from dra_kubeletplugin.plugin.node import Plugin

PATIENCE = 60  # seconds
ROOT = Path(__file__).parents[3]
READY = 'echo "{\\"waits\\": []}" > $DRA_DEV_READY.new; mv $DRA_DEV_READY.new $DRA_DEV_READY; '


class Told(list[str]):
    """What was said; ``wait`` for a line with some words."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.append(line)
        self._more.set()

    async def wait(self, words: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(words in line for line in self):
                self._more.clear()
                await self._more.wait()


def process(folder: Path, script: str) -> tuple[DriverProcess, Told]:
    told = Told()
    return DriverProcess(
        DriverProgram("x.example.com", ["sh", "-c", script]), "node-1", {"NODE_NAME": "node-1"}, folder, told
    ), told


async def test_it_is_ready_when_it_reports_it_and_knows_where_it_is(tmp_path: Path) -> None:
    driver, told = process(tmp_path, f"echo on $NODE_NAME as $POD_UID; {READY} exec sleep 100")
    await driver.start(PATIENCE)
    assert (driver.phase, driver.pid is not None) == (ProcessPhase.READY, True)
    await told.wait("on node-1 as ")
    await driver.close()
    assert driver.pid is None
    assert list(tmp_path.iterdir()) == []


async def test_what_keeps_it_from_being_ready_is_reported(tmp_path: Path) -> None:
    script = READY.replace("[]", '[\\"devices() failed: no bus\\"]') + "exec sleep 100"
    seconds, said = 0.5, ""
    while "devices() failed: no bus" not in said:  # the shell itself may take longer, and then that is what is told
        driver, _ = process(tmp_path, script)
        with pytest.raises(DriverFailed, match=rf"x.example.com on node-1 is not ready after {seconds:g} s") as told:
            await driver.start(seconds)
        await driver.close()
        seconds, said = 2 * seconds, str(told.value)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo noise; echo 'dra: no licence'; exit 2", "x.example.com on node-1: no licence"),
        ("echo noise; exit 2", "ended with exit code 2; its last output:\n  noise"),
        ("kill -SEGV $$", "ended with signal SIGSEGV; its last output:\n  (nothing)"),
        ("echo noise; printf 'no end of a line'; exit 1", "its last output:\n  noise\n  no end of a line"),
        (
            "sleep 1000 & echo $! > {child}; echo noise; exit 1",
            "its last output:\n  noise",
        ),  # which holds its output open
    ],
)
async def test_an_end_before_it_is_ready_is_reported_with_its_last_words(
    tmp_path: Path, script: str, says: str
) -> None:
    driver, _ = process(tmp_path, script.replace("{child}", str(tmp_path / "child")))
    with pytest.raises(DriverFailed) as told:
        await driver.start(PATIENCE)
    assert says in str(told.value)
    assert driver.phase is ProcessPhase.FAILED
    if (tmp_path / "child").exists():
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    await driver.close()


async def test_it_is_started_again_after_a_kill_and_stays_down_for_as_long_as_asked(tmp_path: Path) -> None:
    driver, _ = process(tmp_path, f"{READY} exec sleep 100")
    await driver.start(PATIENCE)
    keeping = asyncio.create_task(driver.keep_running(PATIENCE))
    first = driver.pid
    await driver.kill(float("inf"))
    assert (driver.pid, driver.phase) == (None, ProcessPhase.DOWN)
    with pytest.raises(DriverFailed, match="does not run"):
        await driver.kill(0)
    await driver.start(PATIENCE)
    second = driver.pid
    assert second not in {None, first}
    await driver.kill(0)
    async with asyncio.timeout(PATIENCE):
        while driver.phase is not ProcessPhase.READY or driver.pid in {None, second}:
            await asyncio.sleep(0.01)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await driver.close()


@contextlib.asynccontextmanager
async def kept(driver: DriverProcess) -> AsyncIterator[None]:
    keeping = asyncio.create_task(driver.keep_running(PATIENCE))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await driver.close()


async def test_one_that_was_started_after_it_was_down_is_kept_as_the_first_was(tmp_path: Path) -> None:
    driver, told = process(tmp_path, f"{READY} exec sleep 100")
    await driver.start(PATIENCE)
    async with kept(driver):
        await driver.kill(float("inf"))
        await driver.start(PATIENCE)
        assert driver.pid
        os.kill(driver.pid, signal.SIGKILL)
        await told.wait("ended with signal SIGKILL; it will be started again")


async def test_one_that_dies_while_it_is_upgraded_is_not_started_beside_the_new_one(tmp_path: Path) -> None:
    gate, pids = tmp_path / "gate", tmp_path / "pids"
    wait = f"while [ -e {pids} ] && [ ! -e {gate} ]; do sleep 0.02; done"
    driver, told = process(tmp_path, f"{wait}; echo $$ >> {pids}; {READY} exec sleep 100")
    await driver.start(PATIENCE)
    async with kept(driver):
        upgrade = asyncio.create_task(driver.upgrade(PATIENCE))
        assert driver.pid
        os.kill(driver.pid, signal.SIGKILL)
        await told.wait("be started again in")
        async with asyncio.timeout(PATIENCE):
            while not driver._busy._waiters:  # to start it again, once the upgrade is over
                await asyncio.sleep(0.01)
        gate.touch()
        await upgrade
        await driver.stop()
    assert len(pids.read_text().split()) == 2
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


async def test_an_upgrade_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    driver, _ = process(tmp_path, f"[ -e {mark} ] && exit 1; {READY} exec sleep 100")
    await driver.start(PATIENCE)
    before = driver.pid
    assert before is not None
    mark.touch()
    with pytest.raises(DriverFailed, match="exit code 1"):
        await driver.upgrade(PATIENCE)
    assert (driver.pid, driver.phase) == (before, ProcessPhase.READY)
    mark.unlink()
    await driver.upgrade(PATIENCE)
    assert driver.pid != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    await driver.close()


async def test_an_upgrade_that_is_cancelled_ends_the_new_one_in_order(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    never_ready = f"trap 'touch {ended}; exit' TERM; touch {begun}; while sleep 0.05; do :; done"
    driver, _ = process(tmp_path, f'if [ -n "$FIRST" ]; then {READY} exec sleep 100; else {never_ready}; fi')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIRST", "yes")
        await driver.start(60)
    before = driver.pid
    upgrade = asyncio.create_task(driver.upgrade(60))
    async with asyncio.timeout(60):
        while driver.phase is not ProcessPhase.STARTING or not begun.exists():
            await asyncio.sleep(0.01)
    upgrade.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upgrade
    assert ended.exists()
    assert (driver.pid, driver.phase) == (before, ProcessPhase.READY)
    await driver.close()


def test_a_driver_that_starts_while_its_cluster_is_killed_does_nothing_but_end(tmp_path: Path) -> None:
    """The shell is gone long before Python runs; what it started has its output, so this waits for the end of both."""
    starts = [sys.executable, "-m", dev_driver.__name__, dev_driver.NODE, str(ROOT / "drivers/gpu_example")]
    done = subprocess.run(
        ["sh", "-c", 'DRA_DEV_PARENT=$$ "$@" &', "sh", *starts], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "DRA_DEV_READY": str(tmp_path / "ready")},
    )  # fmt: skip
    assert done.stderr == ""


class Servant:
    """A plugin that is registered and has published, and whose records are ``faulty``."""

    def __init__(self) -> None:
        self.discovery = SimpleNamespace(fault="")
        self.faulty = True

    async def ready(self, timeout: float | None = None) -> None:
        return

    async def not_ready(self) -> list[str]:
        return ["records.journal has schema 9"] if self.faulty else []

    async def notes(self) -> list[str]:
        return ["no device"]


async def test_a_plugin_whose_readiness_probe_fails_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, servant = tmp_path / "ready", Servant()
    monkeypatch.setenv(dev_driver.READY, str(file))
    telling = asyncio.create_task(dev_driver._report_readiness(cast("Plugin", servant)))
    async with asyncio.timeout(30):
        while not file.exists():
            await asyncio.sleep(0.01)
        assert json.loads(file.read_text())["waits"] == ["records.journal has schema 9"]
        servant.faulty = False
        await telling
    assert json.loads(file.read_text()) == {"waits": [], "hopeless": False, "notes": ["no device"]}


def running(pids: Path) -> list[int]:
    return [int(p) for p in pids.read_text().split() if Path(f"/proc/{p}").exists()]


async def test_one_that_is_down_when_its_node_reboots_runs_once_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cluster:
        nodes: ClassVar = {"node-1": SimpleNamespace(name="node-1")}

        async def reboot(self, name: str, sysfs: Path | None) -> None:
            await asyncio.sleep(0.5)  # in which it was started again

    monkeypatch.setattr(drivers, "_MIN_PAUSE", 0.05)
    pids = tmp_path / "pids"
    driver, told = process(tmp_path, f"echo $$ >> {pids}; {READY} exec sleep 100")
    hosts = {"node-1": SimpleNamespace(description=None)}
    await driver.start(60)
    async with kept(driver):
        assert driver.pid
        os.kill(driver.pid, signal.SIGKILL)
        await told.wait("be started again in")
        guard = SimpleNamespace(mark={"DRA_REAPER_ID": "none has it"})
        environment = DevEnvironment(Cluster(), hosts, [driver], EnvironmentOptions(print, print), 60, tmp_path, guard)  # type: ignore[arg-type]
        await environment.reboot("node-1")
        assert running(pids) == [driver.pid]
    assert running(pids) == []
