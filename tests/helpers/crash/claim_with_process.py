"""Prepares or unprepares a claim with a process, and kills itself at a point between two effects. test_processes_killed.py runs it.

Arguments: the folder, ``prepare`` or ``unprepare``, and the point.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import time
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
    """Starts one process with a child for each claim. Its undo steps and the process note the order in which they end."""

    name = NAME
    processes = True
    supervisor = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = PROGRAM
        self.options: dict[str, Any] = {}
        self.undone: list[str] = []

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        ready = self.folder / f"{claim.uid}.ready"
        claim.on_undo("file", path=str(ready))
        claim.start_process(
            "daemon", [sys.executable, "-I", "-S", "-c", self.program, ready],
            **{"ready": ready.exists, "stop_timeout": 30, **self.options},
        )  # fmt: skip
        kill_at("after ready")
        claim.on_undo("limits")
        return [d.prepared() for d in claim.devices]

    def undo_file(self, claim: PreparedClaim, path: str) -> None:
        self.undone.append("file" if not running(claim.uid) else "file, and the process runs")
        Path(path).unlink(missing_ok=True)

    def undo_limits(self, claim: PreparedClaim) -> None:
        self.undone.append("limits" if running(claim.uid) else "limits without the process")


def running(uid: str) -> list[int]:
    """Returns the processes of a claim, by the variable that each of them inherits, also if no record names it."""
    out = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            stat = read_stat(int(path.name))
            if stat and stat.is_alive and any(v.startswith(f"{MARKER}={uid}/".encode()) for v in variables):
                out.append(int(path.name))
    return out


def kill_at(point: str) -> None:
    if point == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def around(
    owner: Any, name: str, before: str = "", after: str = "", when: Callable[..., bool] = lambda *_: True
) -> None:
    """Adds points before and after a method."""
    original = getattr(owner, name)
    if asyncio.iscoroutinefunction(original):

        @functools.wraps(original)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when(*args):
                kill_at(before)
            result = await original(*args, **kwargs)
            if when(*args):
                kill_at(after)
            return result

    else:

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            kill_at(before)
            result = original(*args, **kwargs)
            kill_at(after)
            return result

    setattr(owner, name, wrapped)


def instrument() -> None:
    around(local.LocalRunner, "launch", "before launch", "after launch")
    around(local._LocalLaunch, "go", "before go", "after go")
    around(ClaimProcesses, "_wait_until_ready", "before ready")
    around(ClaimProcesses, "end", "before step", "after step")
    start = ClaimProcesses.start

    async def started(self: Any, uid: str, spec: Any, record: Any) -> None:
        async def recording(step: dict[str, Any]) -> None:
            kill_at("before record")
            await record(step)
            kill_at("after record")

        await start(self, uid, spec, recording)

    ClaimProcesses.start = started  # type: ignore[method-assign]
    send, wait = local.send_signal, local.wait_for_end

    def sent(process: ProcessIdentity, number: signal.Signals) -> bool:
        kill_at("before request")
        found = send(process, number)
        kill_at("after request")
        return found

    def waited(process: ProcessIdentity, timeout: float) -> bool:
        found = wait(process, timeout)
        kill_at("after end")
        return found

    local.send_signal, local.wait_for_end = sent, waited


async def main(folder: Path, verb: str) -> None:
    api = FakeApiServer()
    uid = os.environ["CLAIM_UID"]
    ref = api.allocate("claim", uid, "d-0", NAME)
    supervisor = os.environ.get("SUPERVISOR", "")
    async with running_manager(folder, Daemons(folder), api, process_supervisor=supervisor) as one:
        if verb == "prepare":
            around(
                RecordStore,
                "do",
                "before commit",
                "after commit",
                lambda *a: running(uid) and "commit" in _name(a[1]),
            )
            await one.prepare(ref)
        else:
            await one.prepare(ref)
            await one.unprepare(ref)
    raise SystemExit(f"not killed at {os.environ.get('KILL_AT')}")


def _name(operation: Any) -> str:
    return "commit" if "_prepare_fresh.<locals>.<lambda>" in getattr(operation, "__qualname__", "") else ""


if __name__ == "__main__":
    instrument()
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
