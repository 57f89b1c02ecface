"""Runs containers with the command ``runc``, and starts a guard that deletes them if this process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_devkit.localcluster.child_signals import signal_child

from ..child_reaper import Guard
from .interface import ContainerError

_POLL_INTERVAL = 0.01  # seconds between two checks for the file that runc writes when a process has started
_COMMAND_TIMEOUT = 30.0  # timeout in seconds of a runc call that does not run a command of the user
# A mount namespace contains the container's writable layer in memory, so that the layer disappears however the container ends.
# All paths are relative to the container's directory, so that no path needs escaping.
_ROOTED = (
    "mount -t tmpfs -o mode=0755 tmpfs scratch && mkdir -m 0755 scratch/upper scratch/work && "
    "mount -t overlay overlay -o lowerdir=image,upperdir=scratch/upper,workdir=scratch/work rootfs && "
    'exec "$@"'
)
# When this process dies, runc may still be starting a container. The guard waits for it, because runc lists a container only after its
# hooks ran. A new process may use the same directory during this time, so the guard deletes only the containers of this process.
_GUARD_TIME = 60.0  # seconds for which the guard waits for such a container
_DELETE = (
    'runc --root "$1" list -q | grep "^$2" | '
    'while read -r id; do echo "$id"; runc --root "$1" delete --force "$id" >/dev/null; done'
)
Streams = tuple[int, int, int]  # file descriptors for standard input, output and error


@dataclass(frozen=True)
class Started:
    """The runc process of a running container or command. It ends together with the container or command, with the same exit code."""

    process: asyncio.subprocess.Process


class Runc:
    """Runs containers with their state in ``root``, which no other running process may use. Create it with :meth:`find`."""

    def __init__(self, root: Path, version: tuple[int, ...]) -> None:
        self.root = root
        self.version = version
        self._guard: Guard | None = None
        self._prefix = secrets.token_hex(8)  # prefix of the names of this process's containers
        self._guarding = asyncio.Lock()

    @classmethod
    async def find(cls, root: Path) -> Runc:
        """Returns an instance if containers can run on this machine.

        Raises:
            ContainerError: a program or a permission is missing. The text names it.
        """
        if why := missing():
            raise ContainerError(why)
        code, out, error = await _run("runc", "--version")
        found = re.search(r"runc version (\d+)\.(\d+)\.(\d+)", out)
        if code or not found:
            raise ContainerError(f"runc --version failed: {error or out}")
        return cls(root, tuple(map(int, found.groups())))

    def name(self) -> str:
        """Returns a new container name: 64 hexadecimal digits, as in containerd."""
        return self._prefix + secrets.token_hex(24)

    async def run(self, container: str, bundle: Path, streams: Streams, *, tty: bool = False) -> Started:
        """Creates and starts the container of ``bundle``. Returns when its process runs.

        After the container has ended, its cgroup exists until :meth:`delete`.

        Args:
            tty: whether the streams are a terminal.

        Raises:
            ContainerError: the process did not start; the text is runc's.
        """
        await self._start_guard()
        runc = self._argv(
            bundle / "runc.log", "run", "--keep", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), container
        )
        argv = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _ROOTED, "sh", *runc]
        return await self._start(argv, bundle / "pid", bundle / "runc.log", streams, cwd=bundle, session=tty)

    async def exec(
        self, container: str, scratch: Path, command: Sequence[str], streams: Streams, *, tty: bool
    ) -> Started:
        """Starts a command in a running container.

        Args:
            scratch: a new directory for runc's log.

        Raises:
            ContainerError: the command did not start; the text is runc's.
        """
        options = ["--pid-file", str(scratch / "pid"), *(["--tty"] if tty else [])]
        argv = self._argv(scratch / "runc.log", "exec", *options, container, *command)
        return await self._start(argv, scratch / "pid", scratch / "runc.log", streams, session=tty)

    def _argv(self, log: Path, *words: str) -> list[str]:
        return ["runc", "--root", str(self.root), "--log", str(log), "--log-format", "json", *words]

    async def _start(
        self, argv: list[str], pid: Path, log: Path, streams: Streams, *, cwd: Path | None = None, session: bool = False
    ) -> Started:
        stdin, stdout, stderr = streams
        env = {**os.environ, **(self._guard.mark if self._guard else {})}
        # runc gets its own process group, so that Ctrl-C does not end it. This process stops the containers in order instead.
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=session,
            process_group=None if session else 0,
        )
        waiter = asyncio.ensure_future(_wait_started(process, pid))
        try:
            await asyncio.shield(waiter)
        except (
            asyncio.CancelledError
        ):  # waits for runc, because otherwise a partly created container or its cgroup would remain
            await asyncio.wait({waiter}, timeout=_COMMAND_TIMEOUT)
            with contextlib.suppress(OSError):
                os.kill(int(_read(pid)), signal.SIGKILL)
            raise
        finally:
            waiter.cancel()
        if not _exists(pid):
            raise ContainerError(_last_error(log) or f"runc ended with {process.returncode} before the container ran")
        return Started(process)

    async def signal(self, container: str, name: str) -> bool:
        """Sends a signal to a container. Returns False if the container does not exist or has ended."""
        code, _, _ = await _run("runc", "--root", str(self.root), "kill", container, name)
        return code == 0

    async def delete(self, container: str) -> None:
        """Kills and deletes a container. Does nothing if the container is unknown."""
        await _run("runc", "--root", str(self.root), "delete", "--force", container)

    async def list(self) -> list[str]:
        if not self.root.is_dir():
            return []
        _, out, _ = await _run("runc", "--root", str(self.root), "list", "-q")
        return out.split()

    async def close(self) -> None:
        """Deletes all containers."""
        await asyncio.gather(*(self.delete(container) for container in await self.list()))
        if self._guard:
            await self._guard.close()
            self._guard = None

    async def _start_guard(self) -> None:
        """Starts the guard, which deletes the remaining containers when this process ends for any reason."""
        async with self._guarding:
            if self._guard is None:  # delete containers of a previous run, for example after a power failure
                await asyncio.gather(*(self.delete(container) for container in await self.list()))
            if self._guard is None or not self._guard.alive:
                self._guard = await Guard.start(_GUARD_TIME, _DELETE, str(self.root), self._prefix)


async def _wait_started(process: asyncio.subprocess.Process, pid: Path) -> None:
    """Waits until the process runs or has ended."""
    ended = asyncio.ensure_future(process.wait())
    try:
        while not ended.done() and not _exists(pid):
            await asyncio.wait({ended}, timeout=_POLL_INTERVAL)
    finally:
        ended.cancel()


# Blocking calls are acceptable here: the files are on a local file system.
def _exists(path: Path) -> bool:
    return path.exists()


def _read(path: Path) -> str:
    return path.read_text()


def missing() -> str:
    """Returns the reason why containers cannot run on this machine; empty if they can."""
    tools = [tool for tool in ("runc", "unshare", "mount") if not shutil.which(tool)]
    if tools:
        return f"{', '.join(tools)} not installed (Debian: apt-get install runc util-linux mount)"
    return (
        ""
        if os.geteuid() == 0
        else "containers with devices need root here; without --containers, the local cluster simulates containers"
    )


async def _run(*argv: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        process_group=0,
    )
    try:
        async with asyncio.timeout(_COMMAND_TIMEOUT):
            out, error = await process.communicate()
    except TimeoutError:
        signal_child(process, signal.SIGKILL)
        await process.wait()
        raise ContainerError(f"{' '.join(argv)} did not end within {_COMMAND_TIMEOUT:g} s") from None
    return process.returncode or 0, out.decode(errors="replace"), error.decode(errors="replace").strip()


def _last_error(log: Path) -> str:
    """Returns the last error in runc's log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if entry.get("level") == "error":
                return str(entry["msg"])
    return ""
