"""Starts, watches and ends the processes of claims.

A process belongs to the record of its claim, and not to the plugin process that started it. The record stores each process as an undo
step with the reserved name ``@process``, with the process id and the start time, before the program runs. So any later plugin process can
end it, and no program runs that no record names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..base.backoff import Backoff
from ..base.files import named
from ..base.processes.identity import ProcessIdentity
from ..base.processes.local import (
    Launched,
    LocalRunner,
    ProcessCommand,
    ProcessRunner,
    ProcessState,
    cut_log,
    log_tail,
)
from ..base.settings import Settings
from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..base.threads import in_own_thread
from ..driver import Driver
from ..driver.calls import Calls
from ..driver.process import ProcessSpec
from ..errors import DraError, DriverError, RecordsError, RetryableError, describe, printable
from ..kube.event_recorder import EventRecorder, claim_subject
from .instance_lock import InstanceLock
from .record import Record, Row, State

log = logging.getLogger(__name__)
STEP = "@process"
"""The name of the undo step of a process; it is no Python name, so no driver has a method for it."""
LOGS = "process-logs"  # name of the folder in the driver's folder
_CHECK_INTERVAL = 1.0  # seconds
_PAUSES = 0.02, 0.5  # seconds between two calls of `ready`: first, longest
RecordUndoStep = Callable[[dict[str, Any]], Awaitable[None]]  # adds an undo step to the claim's record


class RecordedProcess(msgspec.Struct, frozen=True):
    """A process as its undo step describes it.

    Args:
        name: unique in the claim.
        process: its identity.
        command: how it was started and how it is ended.
        instance: the plugin instance that started it.
        supervisor: the socket of the process supervisor that started it; empty if the instance did.
        devices: pool and name of each device that needs it.
    """

    name: str
    process: ProcessIdentity
    command: ProcessCommand
    instance: str
    supervisor: str = ""
    devices: list[tuple[str, str]] = []


class ClaimProcesses:
    """The processes of one driver's claims on one node.

    Args:
        driver: the driver that starts processes.
        calls: runs the driver's ``ready`` functions.
        settings: the options of this process.
        instances: the plugin instances of this node.
    """

    def __init__(self, driver: Driver, calls: Calls, settings: Settings, instances: InstanceLock) -> None:
        self._driver = driver
        self._calls = calls
        socket = settings.process_supervisor
        self._supervisor = str(settings.plugin_dir / socket) if socket else ""
        self._logs = settings.plugin_dir / LOGS
        self._instances = instances
        self._local = LocalRunner()

    async def start(self, uid: str, spec: ProcessSpec, record: RecordUndoStep) -> None:
        """Starts a process of a claim, and waits until it is ready.

        Raises :class:`DriverError` if the driver may not start processes. Raises :class:`RetryableError` if the process cannot be started,
        ends before it is ready, or is not ready in time.
        """
        if not self._driver.processes:
            raise DriverError(f"{spec.call}: set processes = True in class {type(self._driver).__name__}")
        command, runner = self._command(uid, spec), self._runner(self._supervisor)
        launching = asyncio.ensure_future(in_own_thread(runner.launch, command))
        try:
            launched = await asyncio.shield(launching)
            found = RecordedProcess(
                spec.name, launched.identity, command, self._instances.id, self._supervisor, spec.devices
            )
            await record({"step": STEP, "data": msgspec.to_builtins(found)})
        except BaseException:
            # No record names the process, so it must not stay, also if this task is cancelled during the launch.
            launching.add_done_callback(_abandon)
            _remove_log(Path(command.log))
            raise
        # Shielded: a cancellation between the record and this call would leave a process that waits for ever.
        await asyncio.shield(in_own_thread(launched.go))
        deadline, backoff = time.monotonic() + spec.ready_timeout, Backoff(*_PAUSES)
        while spec.ready is not None:
            state = await in_own_thread(runner.state, found.process)
            if not state.running:
                raise _not_ready(found, f"process {found.name} {state.text} before it was ready")
            if await self._calls(spec.ready):
                break
            if time.monotonic() > deadline:
                raise _not_ready(found, f"process {found.name} was not ready after {spec.ready_timeout:g} s")
            await asyncio.sleep(backoff.next())
        log.info("started a process of a claim: %s, process id %d", spec.name, launched.identity.pid)

    async def end(self, data: Mapping[str, Any]) -> None:
        """Ends a recorded process with its descendants, and removes its log.

        Raises :class:`RetryableError` if one of them does not end, or if only another plugin instance can end it.
        """
        found = read_process(data)
        if self._is_in_other_container(found):
            raise RetryableError(
                f"process {found.name} runs in the container of another plugin instance (process "
                f"{InstanceLock.pid(found.instance)}) and ends with that container: the kubelet retries"
            )
        await in_own_thread(self._runner(found.supervisor).stop, found.process, found.command)
        _remove_log(Path(found.command.log))

    def state(self, found: RecordedProcess) -> ProcessState:
        """Returns whether a recorded process runs. It blocks. Raises :class:`RetryableError` if that is not known now."""
        if self._is_in_other_container(found):
            return ProcessState(running=True)  # the other instance watches it
        if found.supervisor or found.process.is_here:
            return self._runner(found.supervisor).state(found.process)
        return ProcessState(running=False, text="ended together with the plugin's container")

    def remove_logs(self, uids: Collection[str]) -> None:
        """Removes the logs of all claims except ``uids``: a plugin that dies before it records a process leaves a log. It blocks."""
        for path in named(self._logs, "", ".log"):
            if path.name.partition(".")[0] not in uids:
                _remove_log(path)

    def _command(self, uid: str, spec: ProcessSpec) -> ProcessCommand:
        path = self._logs / f"{uid}.{spec.name}.log"
        try:
            self._logs.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)
        except OSError as e:
            raise RetryableError(f"{spec.call}: its log cannot be written: {describe(e)}") from None
        return ProcessCommand(
            argv=spec.argv,
            log=str(path),
            token=f"{uid}/{spec.name}/{os.urandom(8).hex()}",
            env=spec.env,
            cwd=spec.cwd,
            stop=spec.stop,
            stop_timeout=spec.stop_timeout,
        )

    def _runner(self, supervisor: str) -> ProcessRunner:
        if not supervisor:
            return self._local
        from ..base.processes.client import SupervisedRunner  # only drivers with a process supervisor need it

        return SupervisedRunner(Path(supervisor))

    def _is_in_other_container(self, found: RecordedProcess) -> bool:
        """Whether the process may run in the container of another living instance, where this instance cannot reach it."""
        is_other = found.instance != self._instances.id
        return is_other and not (found.supervisor or found.process.is_here) and self._instances.alive(found.instance)


class ProcessWatcher:
    """Watches the processes of prepared claims: if one ends by itself, its devices become unhealthy, and its claim gets an event.

    Args:
        processes: the processes of the driver's claims.
        boot_id: the id of this boot.
        rows: returns all records; may raise :class:`RecordsError`.
        events: records the event ``ProcessEnded``.
        changed: called when the health of devices changes.
    """

    def __init__(
        self,
        processes: ClaimProcesses,
        boot_id: str,
        rows: Callable[[], Awaitable[Sequence[Row]]],
        events: EventRecorder,
        metrics: Metrics,
        changed: Callable[[], None],
    ) -> None:
        self._processes = processes
        self._boot_id = boot_id
        self._rows = rows
        self._events = events
        self._metrics = metrics
        self._changed = changed
        self._logs_checked = False
        self._ended: Mapping[str, tuple[Record, RecordedProcess, str]] = {}  # with a text, by token

    @property
    def faults(self) -> Mapping[str, str]:
        """The text for each device whose process has ended, by ``pool/name``."""
        return {f"{pool}/{name}": text for _, found, text in self._ended.values() for pool, name in found.devices}

    @property
    def notes(self) -> Sequence[str]:
        """A sentence for each process that has ended."""
        return [f"claim {record.shown}: {text}" for record, _, text in self._ended.values()]

    async def run(self) -> None:
        """Checks the processes for ever. Never returns, and no external failure ends it."""
        while True:
            with contextlib.suppress(RecordsError):  # readiness reports it
                await self.check()
            await asyncio.sleep(_CHECK_INTERVAL)

    async def check(self) -> None:
        """Checks all processes once, and reports those that have ended. Raises :class:`RecordsError`."""
        rows = await self._rows()
        if not self._logs_checked:
            # A claim is recorded before its prepare begins, so no other instance writes the log of a claim without a record.
            await in_own_thread(self._processes.remove_logs, {row.uid for row in rows})
            self._logs_checked = True
        watched = self._watched(rows)
        ended = await in_own_thread(self._texts, [found for _, found in watched.values()]) if watched else {}
        if ended:
            # If a claim was unprepared during the check, the framework has ended its process, which is no fault.
            still_watched = self._watched(await self._rows())
            ended = {token: text for token, text in ended.items() if token in still_watched}
        known, faults = self._ended, self.faults
        self._ended = {token: (*watched[token], text) for token, text in ended.items()}
        for token in ended.keys() - known.keys():
            record, _, text = self._ended[token]
            self._metrics.inc("claim_process_ends_total")
            log.warning("a process of a claim has ended by itself: %s", text, extra=claim_fields(record))
            self._events.warn_claim(
                claim_subject(record.namespace, record.name, record.uid),
                "ProcessEnded",
                f"{text}: the devices of the claim that need it are unhealthy until the claim's pods are deleted",
            )
        self._metrics.set("claim_processes", len(watched) - len(ended))
        if self.faults != faults:
            self._changed()

    def _watched(self, rows: Iterable[Row]) -> dict[str, tuple[Record, RecordedProcess]]:
        """Returns the processes that must run, by token. A reboot ends all processes, and claims are then prepared again."""
        out = {}
        for row in rows:
            if isinstance(row, Record) and row.state is State.PREPARED and row.boot_id == self._boot_id:
                for step in row.undo:
                    if step["step"] == STEP:
                        with contextlib.suppress(RecordsError):  # a rollback reports it
                            found = read_process(step["data"])
                            out[found.command.token] = row, found
        return out

    def _texts(self, watched: Iterable[RecordedProcess]) -> dict[str, str]:
        """Returns the text for each process that has ended, by token. Cuts the logs of the running processes. It blocks."""
        out = {}
        for found in watched:
            try:
                state = self._processes.state(found)
            except DraError as e:
                log.debug("the state of a process is not known now: %s", e)
                continue
            if not state.running:
                out[found.command.token] = f"process {found.name} {state.text}"
                continue
            with contextlib.suppress(OSError):  # its log may have been removed by hand
                cut_log(Path(found.command.log))
        return out


def read_process(data: Mapping[str, Any]) -> RecordedProcess:
    """Reads the undo step of a process. Raises :class:`RecordsError`."""
    try:
        return msgspec.convert(data, RecordedProcess)
    except (msgspec.ValidationError, TypeError) as e:
        raise RecordsError(f"a recorded process cannot be read: {printable(e)}") from None


def _remove_log(path: Path) -> None:
    with contextlib.suppress(OSError):  # its folder may be gone
        path.unlink()


def _abandon(launching: asyncio.Future[Launched]) -> None:
    if not launching.cancelled() and not launching.exception():
        launching.get_loop().run_in_executor(None, launching.result().abandon)


def _not_ready(found: RecordedProcess, text: str) -> RetryableError:
    # The output is in the log only: with times or ids in its text, each retry would make a new event.
    output = log_tail(Path(found.command.log)) or "empty"
    log.warning("a process of a claim did not start: %s; the end of its output: %s", text, output)
    return RetryableError(f"{text}: the plugin's log has the end of its output")
