"""Kills `dra dev` before each step with an external effect; test_dev_process_lifetimes.py runs it.

``python -m packages.devkit.tests.localcluster.dev.killed_dev FOLDER EVENTS ARGUMENTS...`` starts `dra dev` repeatedly with the same state folder.
For each start it prints a line with the step, the exit code and the leftovers. The last start reaches readiness and stops after SIGINT.
The last line lists the temporary files in the state folder; there must be none. EVENTS is a comma-separated list of Python audit events.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_devkit.commands import dev
from dra_kubeletplugin.cli import main

_STEP_TIMEOUT = 90.0  # seconds for one step
_MARK = "KILLED_DEV"
assert dev  # imported once, for all starts


def kill_at(step: int, state: Path, events: frozenset[str]) -> None:
    """Installs an audit hook that kills this process before the given step. The hook cannot be removed."""
    steps_left = step

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps_left
        if event not in events or not (event == "subprocess.Popen" or str(state) in str(arguments)):
            return
        if steps_left == 0:
            print(f"at {event} {arguments[0] if event != 'socket.bind' else ''}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        steps_left -= 1

    sys.addaudithook(hook)


def leftovers(state: Path, mark: str) -> list[str]:
    """Returns the processes that a start left running, processes in its mounts, and the cgroups of its containers."""
    remaining = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            started_here = mark.encode() in (folder / "environ").read_bytes().split(b"\0")
            if int(folder.name) != os.getpid() and (started_here or str(state) in (folder / "mountinfo").read_text()):
                remaining.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # the process has ended since the folder was listed
    specs = [json.loads(p.read_bytes()) for p in state.glob("*/containers/*/*/config.json")]
    container_cgroups = {spec["linux"]["cgroupsPath"].lstrip("/") for spec in specs}
    # Only these two levels: a recursive search fails when another container removes its folder meanwhile.
    cgroups = (p for pattern in ("dra-dev-*", "*/dra-dev-*") for p in Path("/sys/fs/cgroup").glob(pattern))
    return remaining + [str(p) for p in cgroups if p.name in container_cgroups]


def wait_until(check: Callable[[], Any]) -> Any:
    end = time.monotonic() + _STEP_TIMEOUT
    while not (remaining := check()) and time.monotonic() < end:
        time.sleep(0.02)
    return remaining


def pods_run(state: Path) -> bool:
    """Returns whether all pods in the persisted objects have the phase Running."""
    pods = {}
    for line in (state / "objects.jsonl").read_bytes().split(b"\n")[:-1]:
        _version, kind, namespace, name, obj = json.loads(line)
        if kind == "pods":
            pods[namespace, name] = obj
    return all((pod.get("status") or {}).get("phase") == "Running" for pod in pods.values() if pod)


def sweep(state: Path, events: frozenset[str], arguments: list[str]) -> None:
    mark = f"{_MARK}={os.environ[_MARK]}"
    step, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        log = state.with_name("log")
        log.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            kill_at(step, state, events)
            os._exit(main(["dev", *arguments, "--state-dir", str(state)]))
        exit_codes: list[int] = []

        def has_ended(child: int = child, exit_codes: list[int] = exit_codes) -> bool:
            pid, status = os.waitpid(child, os.WNOHANG)
            exit_codes.extend([os.waitstatus_to_exitcode(status)] if pid else [])
            return bool(exit_codes)

        def is_ready(log: Path = log) -> bool:
            return log.exists() and "Ctrl-C stops the cluster" in log.read_text() and pods_run(state)

        wait_until(lambda has_ended=has_ended, is_ready=is_ready: has_ended() or is_ready())
        if not exit_codes:
            os.kill(child, signal.SIGINT)
            wait_until(has_ended)
        if not exit_codes:
            os.kill(child, signal.SIGKILL)
            raise RuntimeError(f"step {step}: neither up nor ended:\n{log.read_text()}")
        code = exit_codes[0]
        wait_until(lambda: not leftovers(state, mark))
        last_line = log.read_text().strip().rpartition("\n")[2] if code else ""
        print(
            json.dumps({"step": step, "code": code, "at": last_line, "leftovers": leftovers(state, mark)}), flush=True
        )
        if code not in {0, -signal.SIGKILL}:
            print(log.read_text(), file=sys.stderr)
        step += 1
    print(json.dumps([str(p) for p in [*state.glob(".*"), *state.glob("*/.*")]]))


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    sweep(Path(sys.argv[1]), frozenset(sys.argv[2].split(",")), sys.argv[3:])
