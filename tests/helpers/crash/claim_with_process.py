"""Prepares or unprepares a claim with a process, and kills itself before one of its steps. test_processes_killed.py runs it.

Arguments: the folder, ``prepare`` or ``unprepare``, and the number of the step; -1 for no kill. It prints a line for each step.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from dra_kubeletplugin import Claim, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.processes.identity import read_stat
from dra_kubeletplugin.base.processes.local import MARKER
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.forked_plugins import Steps

NAME = "daemons.example.com"
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
        claim.on_undo(self.file, path=str(ready))

        claim.start_process(
            "daemon", [sys.executable, "-I", "-S", "-c", self.program, ready],
            **{"ready": ready.exists, "stop_timeout": 30, **self.options},
        )  # fmt: skip
        claim.on_undo(self.limits)
        return [d.prepared() for d in claim.devices]

    def file(self, claim: PreparedClaim, path: str) -> None:
        self.undone_steps.append("file" if not running(claim.uid) else "file, and the process runs")
        Path(path).unlink(missing_ok=True)

    def limits(self, claim: PreparedClaim) -> None:
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


async def main(folder: Path, verb: str, last: int) -> None:
    steps = Steps(str(folder), last)
    api = FakeApiServer()
    ref = api.allocate("claim", os.environ["CLAIM_UID"], "d-0", NAME)
    supervisor = os.environ.get("SUPERVISOR", "")
    async with running_manager(folder, Daemons(folder), api, process_supervisor=supervisor) as manager:
        if verb == "prepare":
            steps.arm()
        await manager.prepare(ref)
        steps.arm()
        if verb == "unprepare":
            await manager.unprepare(ref)
        os._exit(0)  # as a kill: the steps of a stop are not part of this


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
