"""Starts, watches and ends processes on this machine: in the plugin, or in a process supervisor for the plugin.

A process is started in two steps, so that a crash never leaves a process that no record names: the process exists and has its id, but it
runs its program only after :meth:`Launched.go`. If the starter dies before, it ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from ...errors import RetryableError, clip, describe, printable
from ..files import open_regular
from .identity import (
    ProcessIdentity,
    identify,
    in_session_of,
    is_alive,
    send_signal,
    wait_for_end,
    with_variable,
)

MARKER = "DRA_CLAIM_PROCESS"
"""The environment variable by which descendants of a process are found."""
MAX_LOG = 1024 * 1024
"""Bytes of a log file. At the next check, a larger file is cut to its last 256 KiB, a quarter of this limit."""
_OF_DEVELOPMENT = ("DRA_REAPER_ID", "NODE_NAME")
"""Variables by which `dra dev` ends processes when it ends, or when it reboots a node. They are passed on in `dra dev` only."""
_KILL_WAIT = 5.0  # seconds until a killed process counts as stuck
_ROUNDS = 10  # how often descendants are searched: each may start others before it is killed
_TAIL = 500  # bytes of the log in an error
# Python, because an image may have no shell. It waits for one byte, and ends if the starter dies or gives up.
_LAUNCHER = """
import os, sys
if not os.read(0, 1): sys.exit()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for name in os.environ.keys() - set(sys.argv[1].split()): del os.environ[name]  # Python may set LC_CTYPE
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError as e: sys.exit(f"{sys.argv[2]} cannot be started: {e.strerror}")
"""


class ProcessCommand(msgspec.Struct, frozen=True):
    """A program with its arguments and environment.

    Args:
        argv: the program and its arguments.
        env: the environment, in addition to PATH.
        cwd: the working folder.
        log: the file for standard output and standard error.
        token: the value of :data:`MARKER`, unique for each process.
        stop: a program with arguments that asks the process to end; empty for SIGTERM.
        stop_timeout: seconds from this request until the process is killed.
    """

    argv: tuple[str, ...]
    log: str
    token: str
    env: dict[str, str] = {}
    cwd: str = "/"
    stop: tuple[str, ...] = ()
    stop_timeout: float = 10.0

    def environment(self) -> dict[str, str]:
        given = os.environ
        marks = {n: given[n] for n in _OF_DEVELOPMENT if n in given} if _OF_DEVELOPMENT[0] in given else {}
        return {"PATH": given.get("PATH", os.defpath), **self.env, **marks, MARKER: self.token}


class ProcessState(msgspec.Struct, frozen=True):
    """Whether a process runs; if not, how it ended, as far as that is known."""

    running: bool
    text: str = ""


class Launched:
    """A process that exists and waits to run its program. It ends by itself if ``gate`` is closed before one byte is written to it.

    Args:
        identity: the process.
        gate: the descriptor of a pipe to the process, or of a connection to its supervisor.
    """

    def __init__(self, identity: ProcessIdentity, gate: int) -> None:
        self.identity = identity
        self._gate = gate

    def go(self) -> None:
        """Lets the process run its program. Raises :class:`RetryableError` if it or its supervisor was killed meanwhile."""
        try:
            os.write(self._gate, b"\n")
        except OSError:
            raise RetryableError(f"process {self.identity.pid} was killed before it ran its program") from None
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Ends the process if it does not run its program yet."""
        os.close(self._gate)


class ProcessRunner(Protocol):
    """Starts processes, and returns the state of each process that it started. Its methods block; they may be called in any thread."""

    def launch(self, command: ProcessCommand) -> Launched:
        """Creates a process that waits to run its program. Raises :class:`RetryableError`."""

    def state(self, process: ProcessIdentity) -> ProcessState:
        """Returns the state of a process. Raises :class:`RetryableError` if it is not known now."""

    def stop(self, process: ProcessIdentity, command: ProcessCommand) -> None:
        """Ends the process and all its descendants. Raises :class:`RetryableError` if one of them does not end."""


class LocalRunner:
    """Starts processes as children of this process, each in its own session. They continue when this process ends."""

    def __init__(self) -> None:
        self._exits: dict[int, str] = {}  # how the processes that this object started ended, by process id

    def launch(self, command: ProcessCommand) -> Launched:
        self.reap(list(self._exits))  # an abandoned process has no other call that reaps it
        env = command.environment()
        if not shutil.which(command.argv[0], path=env["PATH"]):
            raise RetryableError(f"the program {printable(command.argv[0])} was not found; PATH is {env['PATH']}")
        stdin, gate = os.pipe()
        try:
            log = open_regular(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                process = subprocess.Popen(  # noqa: S603 - the driver's own program
                    [sys.executable, "-I", "-S", "-c", _LAUNCHER, " ".join(env), *command.argv],
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    env=env,
                    cwd=command.cwd,
                    start_new_session=True,
                )
            finally:
                os.close(log)
        except (OSError, ValueError) as e:
            os.close(gate)
            raise RetryableError(f"{printable(command.argv[0])} cannot be started: {describe(e)}") from None
        finally:
            os.close(stdin)
        # Python would warn that the object of a running process was freed. This class waits for the process itself.
        process.returncode = 0
        self._exits[process.pid] = "ended"
        found = identify(process.pid)
        if found is None:
            os.close(gate)
            raise RetryableError(f"{printable(command.argv[0])} cannot be started: its process ended at once")
        return Launched(found, gate)

    def state(self, process: ProcessIdentity) -> ProcessState:
        if is_alive(process):
            return ProcessState(running=True)
        self.reap([process.pid])
        return ProcessState(running=False, text=self._exits.get(process.pid, "ended"))

    def stop(self, process: ProcessIdentity, command: ProcessCommand) -> None:
        deadline = time.monotonic() + command.stop_timeout
        descendants = {d.pid: d for d in in_session_of(process)}
        if is_alive(process):
            if command.stop:
                self._run_stop(command)
            else:
                send_signal(process, signal.SIGTERM)
            wait_for_end(process, deadline - time.monotonic())
        for number in range(_ROUNDS):
            descendants |= {d.pid: d for d in (*in_session_of(process), *with_variable(MARKER, command.token))}
            left = [d for d in (process, *descendants.values()) if is_alive(d)]
            if not left:
                break
            if number == 0 and deadline > time.monotonic():
                for d in left:  # such as servers that the ended daemon has started
                    send_signal(d, signal.SIGTERM)
                for d in left:
                    wait_for_end(d, deadline - time.monotonic())
            else:
                self._kill(left)
        else:
            raise RetryableError(
                f"process {left[0].pid} does not end after SIGKILL: it waits for the kernel, usually for a device"
            )
        self.reap([process.pid])
        self._exits.pop(process.pid, None)

    def reap(self, pids: Iterable[int]) -> None:
        """Notes how children ended, and removes them from the kernel's process table. Other processes are ignored."""
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                self._note(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG))

    def reap_all(self) -> None:
        """Reaps all children. Only for a process without children of other code, such as the first process of a container."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
                self._note(ended)

    def _note(self, ended: os.waitid_result | None) -> None:
        if ended and ended.si_pid in self._exits:
            self._exits[ended.si_pid] = _exit_text(ended)

    @staticmethod
    def _run_stop(command: ProcessCommand) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # then the process is killed
            subprocess.run(  # noqa: S603 - the driver's own program
                command.stop,
                env=command.environment(),
                cwd=command.cwd,
                timeout=command.stop_timeout,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )

    def _kill(self, processes: Iterable[ProcessIdentity]) -> None:
        for process in processes:
            send_signal(process, signal.SIGKILL)
            wait_for_end(process, _KILL_WAIT / _ROUNDS)
            self.reap([process.pid])


def cut_log(path: Path, limit: int = MAX_LOG) -> bool:
    """Cuts a log file above ``limit`` bytes to its last ``limit / 4`` bytes. Returns whether it did. Raises ``OSError``.

    The process writes at the end of the file, also after the cut. Lines that it writes during the cut may be lost.
    """
    with os.fdopen(open_regular(path, os.O_RDWR), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= limit:
            return False
        file.seek(-limit // 4, os.SEEK_END)
        tail = file.read()
        file.truncate(0)
        file.seek(0)
        file.write(tail.partition(b"\n")[2] or tail)
    return True


def log_tail(path: Path) -> str:
    """Returns the end of a log file on one line; empty if there is none."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return clip(file.read(_TAIL).decode(errors="replace").strip(), _TAIL)
    except OSError:
        return ""


def _exit_text(ended: os.waitid_result) -> str:
    if ended.si_code == os.CLD_EXITED:
        return f"ended with exit code {ended.si_status}"
    try:
        return f"was killed by {signal.Signals(ended.si_status).name}"
    except ValueError:
        return f"was killed by signal {ended.si_status}"
