"""Processes of claims outlive the plugin process. Any later plugin process finds them, and undo ends them."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin import Claim, PreparedDevice
from dra_kubeletplugin.base.processes.supervisor import Supervisor
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, check_success, error_of, running_manager
from tests.helpers.crash.claim_with_process import NAME, Daemons, running
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import RECORDS
from tests.helpers.waiting import wait_until

UID = f"uid-{os.getpid()}"  # other workers run tests with processes, too


class Node:
    """A node with one claim, which several plugin instances prepare and unprepare."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api = FakeApiServer()
        self.ref = self.api.allocate("a", UID, "d-0", NAME)

    def plugin(self, driver: Daemons | None = None, **options: Any) -> AbstractAsyncContextManager[RunningManager]:
        return running_manager(self.folder, driver or Daemons(self.folder), self.api, **options)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield Node(tmp_path)
    for pid in running(UID):
        os.kill(pid, signal.SIGKILL)


async def step_of(manager: RunningManager) -> dict[str, Any]:
    (record,) = await manager.claims.store.all()
    (step,) = (s for s in record.undo if s["step"] == "@process")
    data: dict[str, Any] = step["data"]
    return data


async def check(manager: RunningManager) -> dict[str, str]:
    """Checks all processes of claims. Returns the faults."""
    assert manager.claims.processes
    await manager.claims.processes.check()
    return dict(manager.claims.process_faults())


async def faults_after_exit(manager: RunningManager) -> dict[str, str]:
    """Returns the faults that the watch finds after the process has ended."""

    async def has_faults() -> bool:
        return bool(await check(manager))

    await wait_until(has_faults, "the end of the process")
    return dict(manager.claims.process_faults())


def watched(manager: RunningManager) -> int:
    """Returns the number of processes that run, as the metrics show it."""
    (line,) = (line for line in manager.metrics.text().splitlines() if line.startswith(b"dra_claim_processes "))
    return int(float(line.split()[1]))


def logs(manager: RunningManager) -> list[str]:
    return [p.name for p in (manager.settings.plugin_dir / "process-logs").iterdir()]


async def test_a_process_outlives_the_plugin_and_the_next_plugin_ends_it_between_the_steps_around_it(
    node: Node,
) -> None:
    async with node.plugin() as manager:
        await check_success(manager.prepare(node.ref))
        assert len(running(UID)) == 2 and logs(manager) == [f"{UID}.daemon.log"]
        await check_success(manager.prepare(node.ref))
        assert len(running(UID)) == 2, "a repeated prepare starts nothing"
    driver = Daemons(node.folder)
    async with node.plugin(driver) as second_manager:
        assert not await check(second_manager) and watched(second_manager) == 1
        assert logs(second_manager) == [f"{UID}.daemon.log"]
        await check_success(second_manager.unprepare(node.ref))
        assert running(UID) == [] and driver.undone_steps == ["limits", "file"] and logs(second_manager) == []
        assert not await check(second_manager) and watched(second_manager) == 0


async def test_a_process_that_ends_by_itself_makes_its_devices_unhealthy_until_the_claim_is_unprepared(
    node: Node,
) -> None:
    async with node.plugin() as manager:
        await check_success(manager.prepare(node.ref))
        os.kill((await step_of(manager))["process"]["pid"], signal.SIGKILL)
        text = "process daemon was killed by SIGKILL"
        assert await faults_after_exit(manager) == {"node/d-0": text}
        assert await manager.claims.notes() == [f"claim ns/a (UID {UID}): {text}"]
        assert await faults_after_exit(manager) and b"dra_claim_process_ends_total 1.0" in manager.metrics.text(), (
            "the exit is counted once"
        )
    async with node.plugin() as second_manager:
        assert await faults_after_exit(second_manager) == {"node/d-0": "process daemon ended"}, (
            "also if it ended while no plugin ran"
        )
        assert running(UID), "its child still runs"
        await check_success(second_manager.unprepare(node.ref))
        assert running(UID) == []
        assert not await check(second_manager)


@pytest.mark.usefixtures("no_leak")
async def test_a_process_that_was_not_recorded_does_not_stay(node: Node) -> None:
    async with node.plugin() as manager:
        with failing_calls(errno.ENOSPC, "open", text=f"{RECORDS}/.", when=lambda number: number > 1):
            assert "the disk is full" in await error_of(manager.prepare(node.ref))
        await wait_until(lambda: not running(UID), "the end of the process")
    driver = Daemons(node.folder)
    driver.options = {"ready_timeout": 60}
    driver.program = "import time; time.sleep(600)"
    async with node.plugin(driver) as manager:
        preparing = asyncio.create_task(manager.prepare(node.ref))
        await wait_until(lambda: bool(running(UID)), "the launch")
        await manager.claims.stop(0)
        await preparing
    async with node.plugin() as manager:
        await manager.claims.reconciler.once(ask_server=False)
        await wait_until(lambda: not running(UID), "the end of the process")


@pytest.mark.parametrize(
    ("program", "options", "text"),
    [
        ("raise SystemExit(3)", {}, "process daemon ended with exit code 3 before it was ready"),
        ("print('loading', flush=True); import time; time.sleep(600)", {"ready_timeout": 0.2}, "process daemon was not ready after 0.2 s"),
        ("", {"cwd": "/nonexistent"}, "cannot be started"),
    ],
    ids=["ends", "slow", "folder"],
)  # fmt: skip
async def test_a_process_that_does_not_start_fails_the_prepare_and_leaves_nothing(
    node: Node, caplog: pytest.LogCaptureFixture, program: str, options: dict[str, Any], text: str
) -> None:
    driver = Daemons(node.folder)
    driver.program, driver.options = program, options
    async with node.plugin(driver) as manager:
        error = await error_of(manager.prepare(node.ref))
        assert text in error
        assert running(UID) == [] and await manager.records() == {} and logs(manager) == []
        if "not ready" in text:
            assert "the end of its output: loading" in caplog.text


async def test_invalid_arguments_are_an_error_of_the_driver(node: Node) -> None:
    class Wrong(Daemons):
        call: Any = None

        def prepare(self, claim: Claim) -> list[PreparedDevice]:
            self.call(claim)
            return [d.prepared() for d in claim.devices]

    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    invalid_calls: dict[str, Any] = {
        "Expected `str` matching regex '\\\\A[a-z0-9](": lambda c: c.start_process("Mps!", program),
        "Expected `array`, got `str` - at `$.argv`": lambda c: c.start_process("x", "sleep 9"),
        "Expected `str`, got `int` - at `$.argv[1]`": lambda c: c.start_process("x", ["sleep", 7]),
        "- at `key` in `$.env`": lambda c: c.start_process("x", program, env={"A B": "1"}),
        "env CARD is int: pass text": lambda c: c.start_process("x", program, env={"MODE": "fast", "CARD": 1}),
        "- at `$.cwd`": lambda c: c.start_process("x", program, cwd="here"),
        "Expected `float` > 0.0 - at `$.ready_timeout`": lambda c: c.start_process("x", program, ready_timeout=0),
        "ready is 'file'": lambda c: c.start_process("x", program, ready="file"),
        "the claim has a process of this name": lambda c: [c.start_process("x", program) for _ in range(2)],
    }
    driver = Wrong(node.folder)
    async with node.plugin(driver) as manager:
        for text, driver.call in invalid_calls.items():
            assert text in await error_of(manager.prepare(node.ref))
        type(driver).processes = False
        driver.call = lambda c: c.start_process("x", program)
        assert "set processes = True in class Wrong" in await error_of(manager.prepare(node.ref))
        assert running(UID) == []


async def test_arguments_may_be_paths_and_texts_of_subclasses(node: Node) -> None:
    class Text(str):
        """As the libraries of some data formats return them."""

    class WithSubclasses(Daemons):
        def prepare(self, claim: Claim) -> list[PreparedDevice]:
            argv = [Path(sys.executable), "-c", Text("import time; time.sleep(600)")]
            claim.start_process(Text("x"), argv, env={Text("CARD"): Text("a")}, cwd=Text("/"))
            return [d.prepared() for d in claim.devices]

    async with node.plugin(WithSubclasses(node.folder)) as manager:
        await check_success(manager.prepare(node.ref))
        command = (await step_of(manager))["command"]
        assert (command["argv"][2], command["env"], command["cwd"]) == (
            "import time; time.sleep(600)",
            {"CARD": "a"},
            "/",
        )
        await check_success(manager.unprepare(node.ref))
        assert running(UID) == []


async def test_an_async_driver_awaits_its_process_and_a_missing_await_fails_the_prepare(node: Node) -> None:
    class AsyncDriver(Daemons):
        is_await_missing = True

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:  # type: ignore[override]
            (node.folder / "file").unlink(missing_ok=True)

            async def ready() -> bool:
                return (node.folder / "file").exists()

            started = claim.start_process(
                "daemon", [sys.executable, "-I", "-S", "-c", self.program, node.folder / "file"], ready=ready
            )
            if not self.is_await_missing:
                await started
                assert len(running(UID)) == 2
            return [d.prepared() for d in claim.devices]

    async with node.plugin(AsyncDriver(node.folder)) as manager:
        assert "claim.start_process('daemon') was not awaited" in await error_of(manager.prepare(node.ref))
        assert running(UID) == []
        AsyncDriver.is_await_missing = False
        await check_success(manager.prepare(node.ref))
        await check_success(manager.unprepare(node.ref))
        assert running(UID) == []


async def change(manager: RunningManager, process: dict[str, str], token: str | None = None) -> None:
    """Changes the identity or the token in the record, as if another container or an earlier boot had started the
    process.
    """
    (record,) = await manager.claims.store.all()
    steps = msgspec.json.decode(msgspec.json.encode(record.undo))
    for step in steps:
        if step["step"] == "@process":
            step["data"]["command"] |= {"token": token} if token else {}
            step["data"]["process"] |= process
    record.undo = steps
    await manager.claims.store.do(lambda records: records.update(record, record.fence))


async def test_either_instance_of_an_update_ends_a_process_unless_it_runs_in_the_container_of_the_other_one(
    node: Node,
) -> None:
    async with node.plugin() as new_manager:
        async with node.plugin() as old_manager:
            await check_success(old_manager.prepare(node.ref))
            assert not await check(new_manager) and watched(new_manager) == 1
            await check_success(new_manager.unprepare(node.ref))
            assert running(UID) == []
            await check_success(old_manager.prepare(node.ref))
            await change(old_manager, {"namespace": "of another container"})
            assert not await check(new_manager) and watched(new_manager) == 1
            assert "runs in the container of another plugin instance" in await error_of(new_manager.unprepare(node.ref))
            assert UID in await new_manager.records(), "the devices stay held"
        await check_success(new_manager.unprepare(node.ref))
        assert await new_manager.records() == {}


async def test_after_a_reboot_another_process_with_the_same_id_and_start_time_is_not_killed(node: Node) -> None:
    async with node.plugin() as manager:
        await check_success(manager.prepare(node.ref))
        other_processes = running(UID)
        await change(manager, {"boot": "earlier"}, "of the process before the reboot")
    async with node.plugin(boot="later") as second_manager:
        assert not await check(second_manager), "no fault prevents another prepare of the claim"
        await check_success(second_manager.unprepare(node.ref))
        assert await second_manager.records() == {} and running(UID) == other_processes


async def test_a_process_of_a_supervisor_is_found_and_ended_by_any_instance_and_ends_with_the_supervisor(
    node: Node,
) -> None:
    supervisor = Supervisor(node.folder / "s.sock")
    supervisor.open()
    threading.Thread(target=supervisor.run, daemon=True).start()
    options: dict[str, Any] = {"process_supervisor": str(supervisor.path)}
    async with node.plugin(**options) as manager:
        await check_success(manager.prepare(node.ref))
        assert (await step_of(manager))["supervisor"] == str(supervisor.path)
    async with node.plugin() as second_manager:
        assert not await check(second_manager) and watched(second_manager) == 1
        await check_success(second_manager.unprepare(node.ref))
        assert running(UID) == []
    async with node.plugin(**options) as third_manager:
        await check_success(third_manager.prepare(node.ref))
        supervisor.close()
        assert await faults_after_exit(third_manager) == {
            "node/d-0": "process daemon ended together with its process supervisor"
        }
        await check_success(third_manager.unprepare(node.ref))
