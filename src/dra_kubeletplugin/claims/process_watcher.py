"""Watches the processes of prepared claims: if a process ends by itself, its devices become unhealthy, and its claim gets an event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ..base.processes.local import cut_log
from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..base.threads import in_own_thread
from ..errors import DraError, RecordsError
from ..kube.event_recorder import EventRecorder, claim_subject
from .processes import STEP, ClaimProcesses, RecordedProcess, read_process
from .record import Record, Row, State

log = logging.getLogger(__name__)
_INTERVAL = 1.0  # seconds between checks


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
        rows: Callable[[], Awaitable[Sequence[Row]]],
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
            with contextlib.suppress(RecordsError):  # readiness reports it
                await self.check()
            await asyncio.sleep(_INTERVAL)

    async def check(self) -> None:
        """Checks all processes once, and reports those that have ended. Raises :class:`RecordsError`."""
        rows = await self._rows()
        if not self._logs_checked:
            # A claim is recorded before its prepare begins, so no other instance writes the log of a claim without a record.
            await in_own_thread(self._processes.remove_logs, {row.uid for row in rows})
            self._logs_checked = True
        watched = self._watched(rows)
        ended = await in_own_thread(self._ended, [found for _, found in watched.values()]) if watched else {}
        if ended:
            # If a claim was unprepared during the check, the framework has ended its process, which is no fault.
            still_watched = self._watched(await self._rows())
            ended = {token: text for token, text in ended.items() if token in still_watched}
        faults: dict[str, str] = {}
        notes: list[str] = []
        for token, text in ended.items():
            record, found = watched[token]
            faults |= {f"{pool}/{name}": text for pool, name in found.devices}
            notes.append(f"claim {record.shown}: {text}")
            if token not in self._reported:
                self._report(record, text)
        self._reported = set(ended)
        self._metrics.set("claim_processes", len(watched) - len(ended))
        self.notes = notes
        if faults != self.faults:
            self.faults = faults
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

    def _ended(self, watched: Iterable[RecordedProcess]) -> dict[str, str]:
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

    def _report(self, record: Record, text: str) -> None:
        self._metrics.inc("claim_process_ends_total")
        log.warning("a process of a claim has ended by itself: %s", text, extra=claim_fields(record))
        self._events.warn_claim(
            claim_subject(record.namespace, record.name, record.uid),
            "ProcessEnded",
            f"{text}: the devices of the claim that need it are unhealthy until the claim's pods are deleted",
        )
