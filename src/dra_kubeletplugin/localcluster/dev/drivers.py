"""A driver as a process of its own on one node, or as the cluster's controller: started, watched, killed, replaced.

What it is told stands in the environment, in the variables of a DaemonSet's pod, so it may be written in any language.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgspec

_KEPT = 20  # lines of a process that are shown where it fails
_PAUSE, _LONGEST = 1.0, 30.0  # seconds before a process that died is started again, doubled each time
_STEADY = 60.0  # seconds after which a process that dies is taken for a first one
_LOOK = 0.05  # seconds between looks for readiness
_CODE = re.compile(r" \[DRA-E\d+\]$")  # of its own; ours follows
_CORRECT = 2  # exit code for what the user has to correct, which is said in lines that begin with "dra: "
_LAST_WORDS = 1.0  # seconds for what a process wrote that has ended
STOP = 30.0  # seconds from SIGTERM to SIGKILL


class DriverFailed(Exception):
    """A driver's process ended, or is not ready in time; the text has its own last words. ``faults``: those of each, of several."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


class DriverState(msgspec.Struct, frozen=True):
    """What a process says of itself: what it waits for, nothing once it is ready.

    ``hopeless``: its driver fails, and waiting is of no use. ``notes``: what is odd of one that is ready.
    """

    waits: Sequence[str]
    hopeless: bool = False
    notes: Sequence[str] = ()


class ProcessPhase(Enum):
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"  # on purpose, or until its pause is over
    FAILED = "failed"  # until its file changes


@dataclass(frozen=True)
class DriverProgram:
    """What is run. ``files`` are those whose change makes it run anew; ``health`` that it reports devices' health."""

    driver: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[Path] = ()
    health: bool = False


@dataclass(eq=False)
class _Instance:
    process: asyncio.subprocess.Process
    ready: Path
    reading: asyncio.Task[None]
    said: deque[str]

    @property
    def alive(self) -> bool:
        return self.process.returncode is None


class DriverProcess:
    """One program at one place. ``place`` is shown (``node-1``), ``env`` is what the place says; ``tell`` gets its output, a line
    at a time, and what happens to it.

    A process says in the file of its variable ``DRA_DEV_READY``, below ``folder``, whether it is ready: :class:`DriverState`, in JSON.
    ``DRA_DEV_PARENT`` is our process id: whose parent is another when it starts has outlived us, and ends.
    """

    def __init__(
        self, program: DriverProgram, place: str, env: Mapping[str, str], folder: Path, tell: Callable[[str], None]
    ) -> None:
        self.program = program
        self.place = place
        self.phase = ProcessPhase.DOWN
        self.restarts = 0
        self.notes: Sequence[str] = ()
        self._env = env
        self._folder = folder
        self._tell = tell
        self._current: _Instance | None = None
        self._busy = asyncio.Lock()
        self._down_until = 0.0
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        return f"{self.program.driver} on {self.place}"

    @property
    def pid(self) -> int | None:
        return self._current.process.pid if self._current and self._current.alive else None

    # --- verbs --------------------------------------------------------------------------------------------

    async def start(self, timeout: float) -> None:
        """Returns once it is ready. Raises :class:`DriverFailed`."""
        async with self._busy:
            await self._begin(timeout)

    async def stop(self) -> None:
        """SIGTERM, and no restart until :meth:`start`."""
        async with self._busy:
            self._down_until = float("inf")
            await self._end(self._current)
            self.phase = ProcessPhase.DOWN

    async def kill(self, down: float) -> None:
        """SIGKILL; it is started again after ``down`` seconds. Raises :class:`DriverFailed` where nothing runs."""
        async with self._busy:
            current = self._current
            if current is None or not current.alive:
                raise DriverFailed(f"{self.name} does not run")
            self._down_until = asyncio.get_running_loop().time() + down
            self.phase = ProcessPhase.DOWN
            current.process.kill()
            await current.process.wait()
        self._changed.set()

    async def upgrade(self, timeout: float) -> None:
        """A second instance beside the first, as in a rolling update; the first ends once the second is ready.

        Raises :class:`DriverFailed` where it does not get ready; the first goes on then.
        """
        async with self._busy:
            old, phase = self._current, self.phase
            new = await self._spawn()
            try:
                await self._until_ready(new, timeout)
            except BaseException:  # cancelled too: nobody else knows of it yet
                await self._end(new)
                if old is not None and old.alive:
                    self.phase = phase
                raise
            self._current = new
            await self._end(old)
        self._changed.set()

    # --- life ---------------------------------------------------------------------------------------------

    async def keep(self, timeout: float) -> None:
        """Starts it again whenever it dies, with growing pauses. Never returns."""
        loop = asyncio.get_running_loop()
        pause = _PAUSE
        while True:
            current, began = self._current, loop.time()
            self._changed.clear()
            ended = asyncio.ensure_future(current.process.wait() if current else self._changed.wait())
            changed = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait({ended, changed}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            changed.cancel()
            if current is not self._current or current is None or current.alive:
                continue
            pause = _PAUSE if loop.time() - began > _STEADY else min(pause * 2, _LONGEST)
            if self.phase is ProcessPhase.DOWN:
                wait = self._down_until - loop.time()
            else:
                self._tell(f"ended with {_code(current)}; started again in {pause:g} s")
                self.phase, wait = ProcessPhase.DOWN, pause
            await self._wait_for_change(wait)
            await self._again(current, timeout)

    async def _wait_for_change(self, seconds: float) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == float("inf") else max(seconds, 0)):
                await self._changed.wait()

    async def _again(self, dead: _Instance, timeout: float) -> None:
        """Unless a verb has put another in its place meanwhile, or wants it down."""
        async with self._busy:
            if self._current is not dead or asyncio.get_running_loop().time() < self._down_until:
                return
            self.restarts += 1
            try:
                await self._begin(timeout)
            except DriverFailed as e:
                self._tell(str(e))

    async def _begin(self, timeout: float) -> None:
        self._current = await self._spawn()
        self._changed.set()  # this one is to be kept from now on
        await self._until_ready(self._current, timeout)

    async def close(self) -> None:
        await self._end(self._current)

    async def _spawn(self) -> _Instance:
        identity = uuid.uuid4().hex[:8]
        ready = self._folder / f"{identity}.ready"
        ours = {"POD_UID": identity, "DRA_DEV_READY": str(ready), "DRA_DEV_PARENT": str(os.getpid())}
        env = {**os.environ, **self.program.env, **self._env, **ours}
        process = await asyncio.create_subprocess_exec(
            *self.program.argv,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,  # Ctrl-C is for us, and we end it in order
        )
        said: deque[str] = deque(maxlen=_KEPT)
        self.phase = ProcessPhase.STARTING
        self._down_until = 0.0
        return _Instance(process, ready, asyncio.create_task(self._read(process, said)), said)

    async def _read(self, process: asyncio.subprocess.Process, said: deque[str]) -> None:
        assert process.stdout
        rest = b""
        while data := await process.stdout.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            self._hear(lines, said)
        if rest:  # its last line may have no end
            self._hear([rest], said)

    def _hear(self, lines: Sequence[bytes], said: deque[str]) -> None:
        for line in lines:
            said.append(line.decode(errors="replace"))
            self._tell(said[-1])

    async def _until_ready(self, instance: _Instance, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while instance.alive:
            said_now = _said(instance.ready)
            if said_now and not said_now.waits:
                self.phase, self.notes = ProcessPhase.READY, said_now.notes
                return
            if said_now and said_now.hopeless:
                self.phase = ProcessPhase.FAILED
                raise DriverFailed(f"{self.name} is not ready: {'; '.join(said_now.waits)}")
            if loop.time() > deadline:
                self.phase = ProcessPhase.FAILED
                reason = "; ".join(said_now.waits) if said_now else f"it said last:\n{_last(instance)}"
                raise DriverFailed(f"{self.name} is not ready after {timeout:g} s: {reason}")
            await asyncio.sleep(_LOOK)
        await _heard(instance)
        self.phase = ProcessPhase.FAILED
        if instance.process.returncode == _CORRECT and (
            said := [line for line in instance.said if line.startswith("dra: ")]
        ):
            raise DriverFailed(f"{self.name}: {' '.join(_CODE.sub('', line.removeprefix('dra: ')) for line in said)}")
        raise DriverFailed(f"{self.name} ended with {_code(instance)}; it said last:\n{_last(instance)}")

    async def _end(self, instance: _Instance | None) -> None:
        if instance is None:
            return
        if instance.alive:
            with contextlib.suppress(ProcessLookupError):
                instance.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP):
                    await instance.process.wait()
            except TimeoutError:
                instance.process.kill()
                await instance.process.wait()
        instance.ready.unlink(missing_ok=True)
        await _heard(instance)
        instance.reading.cancel()


async def _heard(instance: _Instance) -> None:
    """Until its last words are read: a child of its own that outlives it may hold its output open."""
    await asyncio.wait({instance.reading}, timeout=_LAST_WORDS)


def _said(file: Path) -> DriverState | None:
    """None while it has not said anything."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=DriverState)
    except FileNotFoundError:
        return None


def _code(instance: _Instance) -> str:
    code = instance.process.returncode or 0
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last(instance: _Instance) -> str:
    return "\n".join(f"  {line}" for line in instance.said) or "  (nothing)"


def changed_since(files: Sequence[Path], before: Mapping[Path, int]) -> dict[Path, int]:
    """Modification times of those files that are there now and have another one than ``before``."""
    now = {}
    for path in files:
        with contextlib.suppress(OSError):
            now[path] = path.stat().st_mtime_ns
    return {path: time for path, time in now.items() if before.get(path) != time}


__all__ = ["STOP", "DriverFailed", "DriverProcess", "DriverProgram", "ProcessPhase", "changed_since"]
