"""Prepares or unprepares a claim with a process, and kills itself at a point between two effects. test_processes_killed.py runs it.

Arguments: the folder, ``prepare`` or ``unprepare``, and the point.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_kubeletplugin import Claim, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.processes import local
from dra_kubeletplugin.base.processes.identity import ProcessIdentity, read_stat
from dra_kubeletplugin.base.processes.local import MARKER
from dra_kubeletplugin.claims.processes import ClaimProcesses
from dra_kubeletplugin.claims.store.store import RecordStore
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.kill_points import kill_at, wrap_method

NAME = "daemons.example.com"
POINTS = {
    "prepare": (
        "before launch", "after launch", "before record", "after record", "before go", "after go", "before ready",
        "after ready", "before commit", "after commit",
    ),
    "unprepare": ("before step", "before request", "after request", "after end", "after step"),
}  # fmt: skip
PROGRAM = """
import pathlib, sys, subprocess, time
subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text("ready")
time.sleep(600)
"""


class Daemons(Driver):
    """Starts one process with a child for each claim. Its undo steps and the process record the order in which they
    end.
    """

    name = NAME
    processes = True
    supervisor = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = PROGRAM
        self.options: dict[str, Any] = {}
        self.undone_steps: list[str] = []

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        ready = self.folder / f"{claim.uid}.ready"
        claim.on_undo("file", path=str(ready))

        def is_ready() -> bool:
            kill_at("before ready")
            return ready.exists()

        claim.start_process(
            "daemon", [sys.executable, "-I", "-S", "-c", self.program, ready],
            **{"ready": is_ready, "stop_timeout": 30, **self.options},
        )  # fmt: skip
        kill_at("after ready")
        claim.on_undo("limits")
        return [d.prepared() for d in claim.devices]

    def undo_file(self, claim: PreparedClaim, path: str) -> None:
        self.undone_steps.append("file" if not running(claim.uid) else "file, and the process runs")
        Path(path).unlink(missing_ok=True)

    def undo_limits(self, claim: PreparedClaim) -> None:
        self.undone_steps.append("limits" if running(claim.uid) else "limits without the process")


def running(uid: str) -> list[int]:
    """Returns the processes of a claim, by the variable that each of them inherits, also if no record names it."""
    pids = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            stat = read_stat(int(path.name))
            if stat and stat.is_alive and any(v.startswith(f"{MARKER}={uid}/".encode()) for v in variables):
                pids.append(int(path.name))
    return pids


def add_points(
    owner: Any, name: str, before: str = "", after: str = "", condition: Callable[..., bool] = lambda *_: True
) -> None:
    """Adds points before and after a method."""
    original = getattr(owner, name)
    if not asyncio.iscoroutinefunction(original):
        wrap_method(owner, name, lambda *_, **__: kill_at(before), lambda *_, **__: kill_at(after))
        return

    @functools.wraps(original)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        if condition(*args):
            kill_at(before)
        result = await original(*args, **kwargs)
        if condition(*args):
            kill_at(after)
        return result

    setattr(owner, name, wrapped)


def instrument() -> None:
    add_points(local.LocalRunner, "launch", "before launch", "after launch")
    add_points(local._LocalLaunch, "go", "before go", "after go")
    add_points(ClaimProcesses, "end", "before step", "after step")
    start = ClaimProcesses.start

    async def start_and_wrap(self: Any, uid: str, spec: Any, record: Any) -> None:
        async def record_step(step: dict[str, Any]) -> None:
            kill_at("before record")
            await record(step)
            kill_at("after record")

        await start(self, uid, spec, record_step)

    ClaimProcesses.start = start_and_wrap  # type: ignore[method-assign]
    send, wait = local.send_signal, local.wait_for_end

    def send_and_kill(process: ProcessIdentity, number: signal.Signals) -> bool:
        kill_at("before request")
        result = send(process, number)
        kill_at("after request")
        return result

    def wait_and_kill(process: ProcessIdentity, timeout: float) -> bool:
        result = wait(process, timeout)
        kill_at("after end")
        return result

    local.send_signal, local.wait_for_end = send_and_kill, wait_and_kill


async def main(folder: Path, verb: str) -> None:
    api = FakeApiServer()
    uid = os.environ["CLAIM_UID"]
    ref = api.allocate("claim", uid, "d-0", NAME)
    supervisor = os.environ.get("SUPERVISOR", "")
    async with running_manager(folder, Daemons(folder), api, process_supervisor=supervisor) as manager:
        if verb == "prepare":
            add_points(
                RecordStore,
                "do",
                "before commit",
                "after commit",
                lambda *a: bool(running(uid)) and _is_commit(a[1]),
            )
            await manager.prepare(ref)
        else:
            await manager.prepare(ref)
            await manager.unprepare(ref)
    raise SystemExit(f"not killed at {os.environ.get('KILL_AT')}")


def _is_commit(operation: Any) -> bool:
    """Whether an operation on the records is the engine's commit of a prepare."""
    name: str = getattr(operation, "__qualname__", "")
    return name.endswith("<locals>.commit") or "_prepare_fresh.<locals>.<lambda>" in name


if __name__ == "__main__":
    instrument()
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
