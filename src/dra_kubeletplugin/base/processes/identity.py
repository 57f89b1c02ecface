"""Identifies processes, so that a process is never mistaken for a later one with the same process id.

A process id is unique only within its namespace and until the process ends. Source: proc_pid_stat(5), pidfd_open(2).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..files import read_file, read_text_file

_PROC = Path("/proc")
_POLL_LIMIT = 60.0  # seconds of one poll(2)


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Identifies a process of this machine.

    Args:
        pid: its process id.
        started: its start time in clock ticks since boot.
        namespace: the namespace of the process id. A container usually has its own; all of its processes end with the container.
        boot: the boot in which the process was started.
    """

    pid: int
    started: int
    namespace: str
    boot: str

    @property
    def is_here(self) -> bool:
        """Whether the process id is valid here: in this process's namespace of process ids, and in this boot."""
        return (self.namespace, self.boot) == here()


class ProcessStat(msgspec.Struct, frozen=True):
    """A line of ``/proc/PID/stat``. ``state`` is a letter: Z for a process that has ended and whose parent has not read its exit status."""

    state: str
    session: int
    started: int

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZXx"


def here() -> tuple[str, str]:
    """Returns the namespace of process ids of this process, and the boot."""
    try:
        namespace = str((_PROC / "self/ns/pid").stat().st_ino)
        boot = read_text_file(_PROC / "sys/kernel/random/boot_id").strip()
    except OSError:  # sandboxes such as gVisor have no such files
        return "", ""
    return namespace, boot


def read_stat(pid: int) -> ProcessStat | None:
    """Returns the state of a process; None if there is no such process."""
    try:
        line = read_file(_PROC / str(pid) / "stat")
    except OSError:
        return None
    # The name of the program comes before the last parenthesis, and may contain spaces and parentheses itself.
    fields = line.rpartition(b")")[2].split()
    return ProcessStat(fields[0].decode(), int(fields[3]), int(fields[19]))


def identify(pid: int) -> ProcessIdentity | None:
    """Returns the identity of a process; None if there is no such process."""
    found = read_stat(pid)
    return ProcessIdentity(pid, found.started, *here()) if found else None


def is_alive(process: ProcessIdentity) -> bool:
    """Whether the process runs. Returns False for a process of another namespace or boot."""
    found = read_stat(process.pid)
    return found is not None and found.is_alive and found.started == process.started and process.is_here


def send_signal(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Sends a signal to the process, and never to a later process with the same id. Returns False if the process has ended.

    Raises ``PermissionError``.
    """
    with _opened(process) as fd:
        if fd is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)
            return True
    return False


def wait_for_end(process: ProcessIdentity, timeout: float) -> bool:
    """Waits at most ``timeout`` seconds until the process has ended. Returns whether it has."""
    deadline = time.monotonic() + timeout
    with _opened(process) as fd:
        if fd is None:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while (remaining := deadline - time.monotonic()) > 0:
            if poll.poll(min(remaining, _POLL_LIMIT) * 1000):
                return True
    return not is_alive(process)


def in_session_of(leader: ProcessIdentity) -> list[ProcessIdentity]:
    """Returns the processes of the leader's session, without the leader.

    Returns an empty list if the leader has ended: then another session may have the same number.
    """
    found = [i for i, stat in _all() if stat.session == leader.pid and i.pid != leader.pid and stat.is_alive]
    return found if is_alive(leader) else []


def with_variable(name: str, value: str) -> list[ProcessIdentity]:
    """Returns the processes that were started with this environment variable, as far as this process may read it."""
    wanted, out = f"{name}={value}".encode(), []
    for found, stat in _all():
        if stat.is_alive:
            with contextlib.suppress(OSError):
                if wanted in read_file(_PROC / str(found.pid) / "environ").split(b"\0"):
                    out.append(found)
    return out


def _all() -> Iterator[tuple[ProcessIdentity, ProcessStat]]:
    at = here()
    for path in _PROC.iterdir():
        if path.name.isdecimal() and (stat := read_stat(int(path.name))):
            yield ProcessIdentity(int(path.name), stat.started, *at), stat


@contextlib.contextmanager
def _opened(process: ProcessIdentity) -> Iterator[int | None]:
    """Opens the process, or yields None if it has ended. While it is open, its id is not used again."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        # Only after this check is it certain that the id was not used again before it was opened.
        yield fd if is_alive(process) else None
    finally:
        os.close(fd)
