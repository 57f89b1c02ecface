"""The command ``runc``: containers of one state folder, and a guard that ends them should this process be killed."""

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

from ..child_reaper import Guard
from .interface import ContainerError

_LOOK = 0.01  # seconds between looks for what runc writes once a process has started
_COMMAND = 30.0  # seconds for a call that runs nothing of the user's
# The writable layer lives in memory and in a mount namespace of its own, so it goes with the container, whatever ends it.
# Paths are relative to the container's folder: none needs to be escaped.
_ROOTED = (
    "mount -t tmpfs -o mode=0755 tmpfs scratch && mkdir -m 0755 scratch/upper scratch/work && "
    "mount -t overlay overlay -o lowerdir=image,upperdir=scratch/upper,workdir=scratch/work rootfs && "
    'exec "$@"'
)
# After our death runc may be starting one still, which it lists only once the hooks have run. Whoever has the folder by then has
# containers there too: they are not ours.
_PATIENCE = 60.0  # seconds for that
_DELETE = (
    'runc --root "$1" list -q | grep "^$2" | '
    'while read -r id; do echo "$id"; runc --root "$1" delete --force "$id" >/dev/null; done'
)
Streams = tuple[int, int, int]  # descriptors for standard input, output and error


@dataclass(frozen=True)
class Started:
    """A process of runc that stays in front of the container's, ends with it and has its exit code."""

    process: asyncio.subprocess.Process


class Runc:
    """Containers below ``root``, a folder of this process alone. :meth:`find` says whether they can run here."""

    def __init__(self, root: Path, version: tuple[int, ...]) -> None:
        self.root = root
        self.version = version
        self._guard: Guard | None = None
        self._ours = secrets.token_hex(8)  # what our containers' names begin with
        self._guarding = asyncio.Lock()

    @classmethod
    async def find(cls, root: Path) -> Runc:
        """Raises :class:`ContainerError` with what is missing."""
        if why := missing():
            raise ContainerError(why)
        code, out, error = await _run("runc", "--version")
        found = re.search(r"runc version (\d+)\.(\d+)\.(\d+)", out)
        if code or not found:
            raise ContainerError(f"runc --version failed: {error or out}")
        return cls(root, tuple(map(int, found.groups())))

    def name(self) -> str:
        """A new one for a container, as containerd's look: 64 hexadecimal digits."""
        return self._ours + secrets.token_hex(24)

    async def run(self, container: str, bundle: Path, streams: Streams, *, tty: bool = False) -> Started:
        """Creates and starts the container of ``bundle``; returns once its process runs. ``tty``: the streams are a terminal.

        What is left of it once it has ended (its cgroup) stays until :meth:`delete`.

        Raises :class:`ContainerError` with runc's own words where it does not get there.
        """
        await self._watch_over()
        runc = self._argv(
            bundle / "runc.log", "run", "--keep", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), container
        )
        argv = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _ROOTED, "sh", *runc]
        return await self._start(argv, bundle / "pid", bundle / "runc.log", streams, cwd=bundle, session=tty)

    async def exec(
        self, container: str, scratch: Path, command: Sequence[str], streams: Streams, *, tty: bool
    ) -> Started:
        """Starts a command in a running container; ``scratch`` is a new folder for what runc says. Raises as :meth:`run`."""
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
        # In a process group of its own: Ctrl-C is for us, and we end the containers in order.
        process = await asyncio.create_subprocess_exec(
            *argv, env=env, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, start_new_session=session,
            process_group=None if session else 0,
        )  # fmt: skip
        begun = asyncio.ensure_future(_begun(process, pid))
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:  # what runc had made by half, a cgroup say, nobody would find
            await asyncio.wait({begun}, timeout=_COMMAND)
            with contextlib.suppress(OSError):
                os.kill(int(_read(pid)), signal.SIGKILL)
            raise
        finally:
            begun.cancel()
        if not _exists(pid):
            raise ContainerError(_last_error(log) or f"runc ended with {process.returncode} before the container ran")
        return Started(process)

    async def signal(self, container: str, name: str) -> bool:
        """False where there is no such container, or it has ended."""
        code, _, _ = await _run("runc", "--root", str(self.root), "kill", container, name)
        return code == 0

    async def delete(self, container: str) -> None:
        """Ends it at once; unknown is success."""
        await _run("runc", "--root", str(self.root), "delete", "--force", container)

    async def list(self) -> list[str]:
        if not self.root.is_dir():
            return []
        _, out, _ = await _run("runc", "--root", str(self.root), "list", "-q")
        return out.split()

    async def close(self) -> None:
        """Ends all containers."""
        await asyncio.gather(*(self.delete(container) for container in await self.list()))
        if self._guard:
            await self._guard.close()
            self._guard = None

    async def _watch_over(self) -> None:
        """Ends the containers that are left when we end, by whatever cause."""
        async with self._guarding:
            if self._guard is None:  # what a machine that went down left
                await asyncio.gather(*(self.delete(container) for container in await self.list()))
            if self._guard is None or not self._guard.alive:
                self._guard = await Guard.start(_PATIENCE, _DELETE, str(self.root), self._ours)


async def _begun(process: asyncio.subprocess.Process, pid: Path) -> None:
    """Until its process runs, or it has ended."""
    ended = asyncio.ensure_future(process.wait())
    try:
        while not ended.done() and not _exists(pid):
            await asyncio.wait({ended}, timeout=_LOOK)
    finally:
        ended.cancel()


# On a local file system, which answers at once.
def _exists(path: Path) -> bool:
    return path.exists()


def _read(path: Path) -> str:
    return path.read_text()


def missing() -> str:
    """What keeps containers from running on this machine; empty where nothing does."""
    tools = [tool for tool in ("runc", "unshare", "mount") if not shutil.which(tool)]
    if tools:
        return f"{', '.join(tools)} not installed (Debian: apt-get install runc util-linux mount)"
    return (
        "" if os.geteuid() == 0 else "containers with devices need root here; without --containers they are simulated"
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
        async with asyncio.timeout(_COMMAND):
            out, error = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ContainerError(f"{' '.join(argv)} did not end within {_COMMAND:g} s") from None
    return process.returncode or 0, out.decode(errors="replace"), error.decode(errors="replace").strip()


def _last_error(log: Path) -> str:
    """What runc said last that is an error."""
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


__all__ = ["Runc", "Started", "Streams", "missing"]
