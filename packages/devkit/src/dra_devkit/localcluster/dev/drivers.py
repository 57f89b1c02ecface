"""Runs a driver as a separate process on one node, or as the cluster's controller. Starts, restarts, kills and upgrades the process.

The process gets all input in environment variables, as in a pod, so that a driver can be written in any language.
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

from dra_devkit.localcluster.child_signals import signal_child

_KEPT_LINES = 20  # lines at the end of a process's output that an error contains
# Seconds before a dead process is started again: _MIN_PAUSE if it ran longer than _STEADY. Otherwise, the pause doubles; the first is 2 s.
_MIN_PAUSE, _MAX_PAUSE = 1.0, 30.0
_STEADY = 60.0
_POLL_INTERVAL = 0.05  # seconds between two checks for readiness
# The error code at the end of a driver's message. It is removed, because ``dra dev`` appends its own error code.
_CODE = re.compile(r" \[DRA-E\d+\]$")
# Exit code of a driver after errors that the user must correct. It prints them in lines that begin with "dra: ".
_USER_ERROR = 2
_OUTPUT_TIMEOUT = 1.0  # seconds to wait for the rest of an ended process's output
STOP = 30.0  # seconds from SIGTERM to SIGKILL


class DriverFailed(Exception):
    """A driver's process ended or was not ready in time. The text contains the last output of the process.

    Args:
        faults: one text for each driver that failed.
    """

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


class DriverState(msgspec.Struct, frozen=True):
    """The state that a driver process reports about itself.

    Args:
        waits: what the process waits for; empty when it is ready.
        failed_for_good: whether the driver failed and will not become ready.
        notes: remarks on a driver that is ready.
    """

    waits: Sequence[str]
    failed_for_good: bool = False
    notes: Sequence[str] = ()


class ProcessPhase(Enum):
    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"  # was ready before
    DOWN = "down"  # stopped by a request, or waiting for its next start
    FAILED = "failed"  # did not become ready


@dataclass(frozen=True)
class DriverProgram:
    """The command of a driver.

    Args:
        files: a change of one of these files restarts the driver.
        health: whether the driver reports the health of devices.
    """

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
    output: deque[str]

    @property
    def alive(self) -> bool:
        return self.process.returncode is None


class DriverProcess:
    """Runs one program on one node, or as the controller.

    The program writes its readiness, a :class:`DriverState` in JSON, to the file named by ``DRA_DEV_READY`` when it changes. The
    variable ``DRA_DEV_PARENT`` has the process id of ``dra dev``. If the program's parent has another id, ``dra dev``
    has ended, and the program exits.

    Args:
        place: the node or ``controller``, for messages.
        env: environment variables for this node or the controller.
        folder: the directory for readiness files.
        report: called with each line of output, and with a message when the process ended or cannot be restarted.
    """

    def __init__(
        self, program: DriverProgram, place: str, env: Mapping[str, str], folder: Path, report: Callable[[str], None]
    ) -> None:
        self.program = program
        self.place = place
        self.phase = ProcessPhase.DOWN
        self.restarts = 0
        self.notes: Sequence[str] = ()
        self.failed_upgrade = ""  # the error of the last upgrade, until a process becomes ready
        self._env = env
        self._folder = folder
        self._report = report
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

    def state(self) -> tuple[ProcessPhase, Sequence[str]]:
        """Returns the phase now, and what a running process waits for. A process that was ready may fail later."""
        if self._current is None or not self._current.alive:
            return (ProcessPhase.DOWN if self.phase is ProcessPhase.READY else self.phase), ()
        reported = _read_state(self._current.ready)
        waits = reported.waits if reported else ()
        return (ProcessPhase.NOT_READY if waits and self.phase is ProcessPhase.READY else self.phase), waits

    # --- commands -----------------------------------------------------------------------------------------

    async def start(self, timeout: float) -> None:
        """Starts the process. Returns when it is ready.

        Raises:
            DriverFailed: the process ended or was not ready in time.
        """
        async with self._busy:
            await self._begin(timeout)

    async def stop(self) -> None:
        """Sends SIGTERM. The process is not restarted before :meth:`start`."""
        async with self._busy:
            self._down_until = float("inf")
            await self._end(self._current)
            self.phase = ProcessPhase.DOWN

    async def kill(self, down: float) -> None:
        """Sends SIGKILL. The process is started again after ``down`` seconds.

        Raises:
            DriverFailed: the process is not running.
        """
        async with self._busy:
            current = self._current
            if current is None or not current.alive:
                raise DriverFailed(f"{self.name} does not run")
            self._down_until = asyncio.get_running_loop().time() + down
            self.phase = ProcessPhase.DOWN
            signal_child(current.process, signal.SIGKILL)
            await current.process.wait()
        self._changed.set()

    async def upgrade(self, timeout: float) -> None:
        """Starts a second instance, as in a rolling update. Stops the first instance when the second is ready.

        Raises:
            DriverFailed: the second instance did not become ready; the first continues to run.
        """
        async with self._busy:
            old, phase = self._current, self.phase
            new = await self._spawn()
            try:
                await self._until_ready(new, timeout)
            except BaseException as e:  # also after a cancellation, because no other code would stop the new instance
                await self._end(new)
                self.failed_upgrade = str(e) if isinstance(e, DriverFailed) else ""
                if old is not None and old.alive:
                    self.phase = phase
                raise
            self._current = new
            await self._end(old)
        self._changed.set()

    # --- start and stop -----------------------------------------------------------------------------------

    async def keep_running(self, timeout: float) -> None:
        """Restarts the process each time it dies, after a pause that grows. Never returns."""
        loop = asyncio.get_running_loop()
        pause = _MIN_PAUSE
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
            pause = _MIN_PAUSE if loop.time() - began > _STEADY else min(pause * 2, _MAX_PAUSE)
            if self.phase is ProcessPhase.DOWN:
                wait = self._down_until - loop.time()
            else:
                self._report(f"ended with {_code(current)}; it will be started again in {pause:g} s")
                self.phase, wait = ProcessPhase.DOWN, pause
            await self._wait_for_change(wait)
            await self._restart(current, timeout)

    async def _wait_for_change(self, seconds: float) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == float("inf") else max(seconds, 0)):
                await self._changed.wait()

    async def _restart(self, dead: _Instance, timeout: float) -> None:
        """Restarts a process that ended, unless it has been replaced or must stay down."""
        async with self._busy:
            if self._current is not dead or asyncio.get_running_loop().time() < self._down_until:
                return
            self.restarts += 1
            try:
                await self._begin(timeout)
            except DriverFailed as e:
                self._report(str(e))

    async def _begin(self, timeout: float) -> None:
        self._current = await self._spawn()
        self._changed.set()  # wakes :meth:`keep_running`, which then watches this instance
        await self._until_ready(self._current, timeout)

    async def close(self) -> None:
        await self._end(self._current)

    async def _spawn(self) -> _Instance:
        identity = uuid.uuid4().hex[:8]
        ready = self._folder / f"{identity}.ready"
        own = {"POD_UID": identity, "DRA_DEV_READY": str(ready), "DRA_DEV_PARENT": str(os.getpid())}
        env = {**os.environ, **self.program.env, **self._env, **own}
        process = await asyncio.create_subprocess_exec(
            *self.program.argv,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,  # so that Ctrl-C does not end the driver; this process stops the driver in order instead
        )
        output: deque[str] = deque(maxlen=_KEPT_LINES)
        self.phase = ProcessPhase.STARTING
        self._down_until = 0.0
        return _Instance(process, ready, asyncio.create_task(self._read(process, output)), output)

    async def _read(self, process: asyncio.subprocess.Process, output: deque[str]) -> None:
        assert process.stdout
        rest = b""
        while data := await process.stdout.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            self._add_output(lines, output)
        if rest:  # the last line may have no newline
            self._add_output([rest], output)

    def _add_output(self, lines: Sequence[bytes], output: deque[str]) -> None:
        for line in lines:
            output.append(line.decode(errors="replace"))
            self._report(output[-1])

    async def _until_ready(self, instance: _Instance, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while instance.alive:
            state = _read_state(instance.ready)
            if state and not state.waits:
                self.phase, self.notes, self.failed_upgrade = ProcessPhase.READY, state.notes, ""
                return
            if state and state.failed_for_good:
                self.phase = ProcessPhase.FAILED
                raise DriverFailed(f"{self.name} is not ready: {'; '.join(state.waits)}")
            if loop.time() > deadline:
                self.phase = ProcessPhase.FAILED
                reason = "; ".join(state.waits) if state else f"its last output:\n{_last_output(instance)}"
                raise DriverFailed(f"{self.name} is not ready after {timeout:g} s: {reason}")
            await asyncio.sleep(_POLL_INTERVAL)
        await _drain(instance)
        self.phase = ProcessPhase.FAILED
        if instance.process.returncode == _USER_ERROR and (
            output := [line for line in instance.output if line.startswith("dra: ")]
        ):
            raise DriverFailed(f"{self.name}: {' '.join(_CODE.sub('', line.removeprefix('dra: ')) for line in output)}")
        raise DriverFailed(f"{self.name} ended with {_code(instance)}; its last output:\n{_last_output(instance)}")

    async def _end(self, instance: _Instance | None) -> None:
        if instance is None:
            return
        if instance.alive:
            signal_child(instance.process, signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP):
                    await instance.process.wait()
            except TimeoutError:
                signal_child(instance.process, signal.SIGKILL)
                await instance.process.wait()
        instance.ready.unlink(missing_ok=True)
        await _drain(instance)
        instance.reading.cancel()


async def _drain(instance: _Instance) -> None:
    """Waits until all output is read. The time is limited, because a child of the process may keep the output open."""
    await asyncio.wait({instance.reading}, timeout=_OUTPUT_TIMEOUT)


def _read_state(file: Path) -> DriverState | None:
    """Returns the reported state, or None if there is none yet."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=DriverState)
    except FileNotFoundError:
        return None


def _code(instance: _Instance) -> str:
    code = instance.process.returncode or 0
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last_output(instance: _Instance) -> str:
    return "\n".join(f"  {line}" for line in instance.output) or "  (nothing)"


def changed_since(files: Sequence[Path], before: Mapping[Path, int]) -> dict[Path, int]:
    """Returns the modification times of existing files whose time differs from ``before``."""
    now = {}
    for path in files:
        with contextlib.suppress(OSError):
            now[path] = path.stat().st_mtime_ns
    return {path: time for path, time in now.items() if before.get(path) != time}
