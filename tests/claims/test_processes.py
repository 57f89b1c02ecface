"""Processes of claims: they outlive the plugin process, any later one finds them, and undo ends them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin import Claim, PreparedDevice
from dra_kubeletplugin.base.processes.supervisor import Supervisor
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.claims.record import Record
from dra_kubeletplugin.errors import DraError
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.claim_with_process import NAME, Daemons, running
from tests.helpers.waiting import wait_until

UID = f"uid-{os.getpid()}"  # other workers run tests with processes, too


@pytest.fixture
def api() -> FakeApiServer:
    return FakeApiServer()


@pytest.fixture
def ref(api: FakeApiServer) -> Iterator[ClaimIdentity]:
    yield api.allocate("a", UID, "d-0", NAME)
    for pid in running(UID):
        os.kill(pid, signal.SIGKILL)


async def ok(answer: Any) -> None:
    answer = await answer
    assert not isinstance(answer, DraError), answer


async def error_of(answer: Any) -> str:
    answer = await answer
    assert isinstance(answer, DraError), answer
    return str(answer)


async def step_of(manager: RunningManager) -> dict[str, Any]:
    (record,) = await manager.claims.store.all()
    (step,) = (s for s in record.steps if s["step"] == "@process")
    data: dict[str, Any] = step["data"]
    return data


async def ended(manager: RunningManager) -> dict[str, str]:
    """What the watch finds after the process has ended."""
    watcher = manager.claims._processes
    assert watcher

    async def found() -> bool:
        await watcher.check()
        return bool(watcher.faults)

    await wait_until(found, "the end of the process")
    return dict(watcher.faults)


def logs(manager: RunningManager) -> list[str]:
    return [p.name for p in (manager.settings.plugin_dir / "process-logs").iterdir()]


async def test_a_process_outlives_the_plugin_and_the_next_one_ends_it_between_the_steps_around_it(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity
) -> None:
    async with running_manager(tmp_path, Daemons(tmp_path), api) as one:
        await ok(one.prepare(ref))
        assert len(running(UID)) == 2 and logs(one) == [f"{UID}.daemon.log"]
        await ok(one.prepare(ref))
        assert len(running(UID)) == 2, "a repeated prepare starts nothing"
    driver = Daemons(tmp_path)
    async with running_manager(tmp_path, driver, api) as two:
        watcher = two.claims._processes
        assert watcher and await watcher.check() == 1 and not watcher.faults
        assert b"dra_claim_processes 1.0" in two.metrics.text()
        await ok(two.unprepare(ref))
        assert running(UID) == [] and driver.undone == ["limits", "file"] and logs(two) == []
        assert not await watcher.check()


async def test_a_process_that_ends_by_itself_makes_its_devices_unhealthy_until_the_claim_is_unprepared(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity
) -> None:
    async with running_manager(tmp_path, Daemons(tmp_path), api) as one:
        await ok(one.prepare(ref))
        os.kill((await step_of(one))["process"]["pid"], signal.SIGKILL)
        text = "process daemon was killed by SIGKILL"
        assert await ended(one) == {"node/d-0": text}
        assert one.claims.process_faults() == {"node/d-0": text}
        assert await one.claims.notes() == [f"claim ns/a (UID {UID}): {text}"]
        assert await ended(one) and b"dra_claim_process_ends_total 1.0" in one.metrics.text(), "counted once"
    async with running_manager(tmp_path, Daemons(tmp_path), api) as two:
        assert await ended(two) == {"node/d-0": "process daemon ended"}, "also if it ended while no plugin ran"
        assert running(UID), "its child still runs"
        await ok(two.unprepare(ref))
        assert running(UID) == []
        watcher = two.claims._processes
        assert watcher and not await watcher.check() and not watcher.faults


async def test_a_process_is_watched_from_the_start_of_its_claim_s_prepare(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity
) -> None:
    driver = Daemons(tmp_path)
    async with running_manager(tmp_path, driver, api) as one:
        watcher, counts = one.claims._processes, list[int]()
        assert watcher

        async def ready() -> bool:
            counts.append(await watcher.check())
            return True

        driver.options = {"ready": ready}
        await ok(one.prepare(ref))
        assert counts == [1], "the next check comes soon, not after the pause of a node without processes"
        await ok(one.unprepare(ref))


async def test_a_claim_that_is_unprepared_during_a_check_has_no_fault(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_manager(tmp_path, Daemons(tmp_path), api) as one:
        await ok(one.prepare(ref))
        watcher = one.claims._processes
        assert watcher
        rows = await one.claims.store.everything()
        answers = iter([rows])

        async def read() -> Any:
            if found := next(answers, None):
                return found
            return await one.claims.store.everything()

        monkeypatch.setattr(watcher, "_rows", read)
        await ok(one.unprepare(ref))
        await watcher.check()
        assert not watcher.faults


@pytest.mark.parametrize(
    ("program", "options", "text"),
    [
        ("raise SystemExit(3)", {}, "process daemon ended with exit code 3 before it was ready"),
        ("print('loading', flush=True); import time; time.sleep(600)", {"ready_timeout": 0.2}, "process daemon was not ready after 0.2 s"),
        ("", {"cwd": "/nonexistent"}, "cannot be started"),
        ("", {"env": {"PATH": "/nonexistent"}, "argv": "nosuch"}, "the program nosuch was not found; PATH is /nonexistent"),
    ],
    ids=["ends", "slow", "folder", "program"],
)  # fmt: skip
async def test_a_process_that_does_not_start_fails_the_prepare_and_leaves_nothing(
    tmp_path: Path,
    api: FakeApiServer,
    ref: ClaimIdentity,
    caplog: pytest.LogCaptureFixture,
    program: str,
    options: dict[str, Any],
    text: str,
) -> None:
    class Starts(Daemons):
        def prepare(self, claim: Claim) -> list[PreparedDevice]:
            if argv := options.get("argv"):
                claim.start_process("daemon", [argv], env=options["env"])
            return super().prepare(claim)

    driver = Starts(tmp_path)
    driver.program, driver.options = program, {k: v for k, v in options.items() if k != "argv"}
    async with running_manager(tmp_path, driver, api) as one:
        error = await error_of(one.prepare(ref))
        assert text in error
        assert running(UID) == [] and await one.records() == {} and logs(one) == []
        if "not ready" in text:
            assert "the end of its output: loading" in caplog.text


async def test_invalid_arguments_are_the_author_s_error(tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity) -> None:
    class Wrong(Daemons):
        call: Any = None

        def prepare(self, claim: Claim) -> list[PreparedDevice]:
            self.call(claim)
            return [d.prepared() for d in claim.devices]

    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    wrong: dict[str, Any] = {
        "the name must have at most 40": lambda c: c.start_process("Mps!", program),
        "it must be a list: the program": lambda c: c.start_process("x", "sleep 9"),
        "argv contains 7": lambda c: c.start_process("x", ["sleep", 7]),
        "env contains A B='1'": lambda c: c.start_process("x", program, env={"A B": "1"}),
        "it must be an absolute path": lambda c: c.start_process("x", program, cwd="here"),
        "ready_timeout is 0": lambda c: c.start_process("x", program, ready_timeout=0),
        "ready is 'file'": lambda c: c.start_process("x", program, ready="file"),
        "the claim has a process of this name": lambda c: [c.start_process("x", program) for _ in range(2)],
    }
    driver = Wrong(tmp_path)
    async with running_manager(tmp_path, driver, api) as one:
        for text, driver.call in wrong.items():
            assert text in await error_of(one.prepare(ref))
        type(driver).processes = False
        driver.call = lambda c: c.start_process("x", program)
        assert "set processes = True in class Wrong" in await error_of(one.prepare(ref))
        assert running(UID) == []


async def test_an_async_driver_awaits_its_process_and_a_forgotten_await_fails_the_prepare(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity
) -> None:
    class Async(Daemons):
        forget = True

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:  # type: ignore[override]
            (tmp_path / "file").unlink(missing_ok=True)

            async def ready() -> bool:
                return (tmp_path / "file").exists()

            started = claim.start_process(
                "daemon", [sys.executable, "-I", "-S", "-c", self.program, tmp_path / "file"], ready=ready
            )
            if not self.forget:
                await started
                assert len(running(UID)) == 2
            return [d.prepared() for d in claim.devices]

    async with running_manager(tmp_path, Async(tmp_path), api) as one:
        assert "claim.start_process('daemon', ...) was not awaited" in await error_of(one.prepare(ref))
        assert running(UID) == []
        Async.forget = False
        await ok(one.prepare(ref))
        await ok(one.unprepare(ref))
        assert running(UID) == []


async def test_both_instances_of_an_update_watch_the_process_and_either_ends_it(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity
) -> None:
    async with (
        running_manager(tmp_path, Daemons(tmp_path), api) as old,
        running_manager(tmp_path, Daemons(tmp_path), api) as new,
    ):
        await ok(old.prepare(ref))
        watcher = new.claims._processes
        assert watcher and await watcher.check() == 1 and not watcher.faults
        await ok(new.unprepare(ref))
        assert running(UID) == []


async def change(manager: RunningManager, process: dict[str, str], token: str | None = None) -> None:
    """Changes the identity or the token in the record, as if another container or an earlier boot had started the process."""
    (record,) = await manager.claims.store.all()
    steps = msgspec.json.decode(msgspec.json.encode(record.steps))
    for step in steps:
        if step["step"] == "@process":
            step["data"]["command"] |= {"token": token} if token else {}
            step["data"]["process"] |= process
    record.doc = {**record.doc, "undo": steps}
    await manager.claims.store.do(lambda records: records.update(record, record.fence))


async def test_a_process_in_the_container_of_a_living_instance_is_left_to_it_and_of_a_dead_one_has_ended(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity
) -> None:
    async with running_manager(tmp_path, Daemons(tmp_path), api) as new:
        async with running_manager(tmp_path, Daemons(tmp_path), api) as old:
            await ok(old.prepare(ref))
            await change(old, {"namespace": "of another container"})
            watcher = new.claims._processes
            assert watcher and await watcher.check() == 1 and not watcher.faults
            assert "runs in the container of another plugin instance" in await error_of(new.unprepare(ref))
            (row,) = await new.claims.store.everything()
            assert isinstance(row, Record), "the devices stay held"
        await ok(new.unprepare(ref))
        assert await new.records() == {}


async def test_after_a_reboot_a_stranger_with_the_same_id_and_start_time_is_not_killed(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity
) -> None:
    async with running_manager(tmp_path, Daemons(tmp_path), api) as one:
        await ok(one.prepare(ref))
        strangers = running(UID)
        await change(one, {"boot": "earlier"}, "of the process before the reboot")
    async with running_manager(tmp_path, Daemons(tmp_path), api, boot="later") as two:
        watcher = two.claims._processes
        assert watcher and await watcher.check() and not watcher.faults, (
            "no fault would keep the claim from being prepared again"
        )
        await ok(two.unprepare(ref))
        assert await two.records() == {} and running(UID) == strangers


async def test_a_process_of_a_supervisor_is_found_and_ended_by_any_instance_and_ends_with_the_supervisor(
    tmp_path: Path, api: FakeApiServer, ref: ClaimIdentity
) -> None:
    import threading

    supervisor = Supervisor(tmp_path / "s.sock")
    supervisor.open()
    threading.Thread(target=supervisor.run, daemon=True).start()
    options = {"process_supervisor": str(supervisor.path)}
    async with running_manager(tmp_path, Daemons(tmp_path), api, **options) as one:
        await ok(one.prepare(ref))
        assert (await step_of(one))["supervisor"] == str(supervisor.path)
    async with running_manager(tmp_path, Daemons(tmp_path), api) as two:
        watcher = two.claims._processes
        assert watcher and await watcher.check() == 1 and not watcher.faults
        await ok(two.unprepare(ref))
        assert running(UID) == []
    async with running_manager(tmp_path, Daemons(tmp_path), api, **options) as three:
        await ok(three.prepare(ref))
        supervisor.close()
        assert await ended(three) == {"node/d-0": "process daemon ended together with its process supervisor"}
        await ok(three.unprepare(ref))
