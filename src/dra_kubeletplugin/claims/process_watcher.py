"""Watches the processes of prepared claims: if a process ends by itself, its devices become unhealthy, and its claim gets an event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..base.threads import in_own_thread
from ..errors import DraError, RecordsError
from ..kube.event_recorder import EventRecorder, claim_subject
from .processes import STEP, ClaimProcesses, RecordedProcess, read_process
from .record import Record, Row, State

log = logging.getLogger(__name__)
_INTERVAL = 1.0  # seconds between checks while there are processes
_IDLE_INTERVAL = 60.0  # seconds between checks without processes: another instance may have started one
ReadRows = Callable[[], Awaitable[Sequence[Row]]]


class _Process(NamedTuple):
    record: Record
    found: RecordedProcess


class ProcessWatcher:
    """The watch of one plugin instance.

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
        rows: ReadRows,
        events: EventRecorder,
        metrics: Metrics,
        changed: Callable[[], None],
    ) -> None:
        self.faults: Mapping[str, str] = {}
        """The text for each device whose process has ended, by ``pool/name``."""
        self.notes: Sequence[str] = ()
        """A sentence for each process that has ended."""
        self._processes = processes
        self._boot_id = boot_id
        self._rows = rows
        self._events = events
        self._metrics = metrics
        self._changed = changed
        self._logs_checked = False
        self._reported: set[str] = set()  # tokens of processes whose end was reported

    async def run(self) -> None:
        """Checks the processes for ever. Never returns, and no external failure ends it."""
        while True:
            pause = _INTERVAL
            with contextlib.suppress(RecordsError):  # readiness reports it
                pause = _INTERVAL if await self.check() else _IDLE_INTERVAL
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._processes.started.wait()
                    self._processes.started.clear()

    async def check(self) -> int:
        """Checks all processes once, and reports those that have ended. Raises :class:`RecordsError`.

        Returns:
            The number of recorded processes, also of claims in preparation. If it is not 0, the next check is soon.
        """
        rows = await self._rows()
        if not self._logs_checked:
            # A claim is recorded before its prepare begins, so no other instance writes the log of a claim without a record.
            await in_own_thread(self._processes.remove_logs, {row.uid for row in rows})
            self._logs_checked = True
        recorded = list(_recorded(rows))
        watched = [w for w in recorded if self._is_watched(w.record)]
        ended = await in_own_thread(self._ended, watched) if watched else {}
        if ended:
            # If a claim was unprepared during the check, the framework has ended its process, which is no fault.
            still_watched = {w.found.command.token for w in _recorded(await self._rows()) if self._is_watched(w.record)}
            ended = {token: text for token, text in ended.items() if token in still_watched}
        faults: dict[str, str] = {}
        notes: list[str] = []
        for record, found in watched:
            if text := ended.get(found.command.token):
                faults |= {f"{pool}/{name}": text for pool, name in found.devices}
                notes.append(f"claim {record.shown}: {text}")
                if found.command.token not in self._reported:
                    self._report(record, text)
        self._reported = set(ended)
        self._metrics.set("claim_processes", len(watched) - len(ended))
        self.notes = notes
        if faults != self.faults:
            self.faults = faults
            self._changed()
        return len(recorded)

    def _ended(self, watched: Sequence[_Process]) -> dict[str, str]:
        """Returns the text for each process that has ended, by token. Cuts the logs of the running processes. It blocks."""
        out = {}
        for _, found in watched:
            try:
                state = self._processes.state(found)
            except DraError as e:
                log.debug("the state of a process is not known now: %s", e)
                continue
            if state.running:
                self._processes.cut_log(found)
            else:
                out[found.command.token] = f"process {found.name} {state.text}"
        return out

    def _report(self, record: Record, text: str) -> None:
        self._metrics.inc("claim_process_ends_total")
        log.warning("a process of a claim has ended by itself: %s", text, extra=claim_fields(record))
        self._events.warn_claim(
            claim_subject(record.namespace, record.name, record.uid),
            "ProcessEnded",
            f"{text}: the devices of the claim that need it are unhealthy until the claim's pods are deleted",
        )

    def _is_watched(self, record: Record) -> bool:
        """Whether the claim's processes must run. A reboot ends all processes, and claims are then prepared again."""
        return record.state is State.PREPARED and record.boot_id == self._boot_id


def _recorded(rows: Sequence[Row]) -> Iterator[_Process]:
    for row in rows:
        if not isinstance(row, Record):
            continue
        for step in row.undo:
            if step["step"] == STEP:
                with contextlib.suppress(RecordsError):  # a rollback reports it
                    yield _Process(row, read_process(step["data"]))
