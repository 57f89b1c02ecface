"""Prepares and unprepares claims. A crash at any point neither leaks a device nor leaves it prepared for two claims.

A prepare writes the record, calls the driver, writes the claim's files and commits, in this order; a rollback is in `rollback.py`. The
last file is the note, a copy of the committed record (`claim_files.py`). An instance that already runs rolls back a claim that a killed
instance has not committed. Without such an instance, the next start decides:

    killed             on disk                                        the next start
    before the record  nothing                                        does nothing
    before the note    a Preparing record, perhaps undo steps, files  rolls the claim back
    before the commit  the note too                                   completes the commit from the note
    after the commit   a Prepared record and its files                does nothing; a repeated call gets the recorded response

A claim has one operation in flight at a time. A repeated call joins it, the opposite call waits for it, and other claims do not wait.
An operation continues after the call that started it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..base.telemetry.log_once import LogOnce
from ..base.telemetry.logs import Fields, claim_fields, operation, operation_id, set_log_fields
from ..cdi.directory import is_uid
from ..driver import Claim, PreparedDevice
from ..driver.diagnostics.author_errors import reading_result, without_frames
from ..errors import (
    ApiUnavailableError,
    ClaimBusyError,
    ClaimError,
    DraError,
    StillWorkingError,
    StoppingError,
    UndoFailedError,
    printable,
)
from .claim_fields import ClaimIdentity
from .device_status import DeviceStatusReporter
from .inflight import BatchWindow, Work, as_dra_error
from .prepared_devices import PreparedResult, add_prepared, prepared_result
from .record import Record, State
from .rollback import PluginContext, Rollback
from .running_pods import ClaimPods
from .store.records import Records
from .store.store import Mode
from .transitions import AlreadyPrepared, Decision, InProgress, NothingToDo, Prepare, RollBack, StaleHolders
from .undo_steps import UndoRecorder
from .verification import VerifiedClaim, Verifier

log = logging.getLogger(__name__)
ClaimOutcome = Sequence[PreparedResult] | DraError
_POLL = 0.05  # seconds between checks of a claim that another process works on
_ROUNDS = 20  # how often stale records and stale holders are cleared before giving up
_LOG_AGAIN = 600.0  # seconds until an unchanged failure of a claim is logged again


class Engine:
    """Serves the kubelet's calls for the claims of one driver on one node, in one process.

    Args:
        rollback: rolls back claims; the engine uses the same records, files and driver.
        pods: learns which pods wait for a claim.
        reports: writes the device status that drivers report.
    """

    def __init__(
        self,
        rollback: Rollback,
        verifier: Verifier,
        pods: ClaimPods,
        reports: DeviceStatusReporter,
        plugin: PluginContext,
    ) -> None:
        self.rollback = rollback
        self.verifier = verifier
        self.pods = pods
        self.reports = reports
        self.settings, self.waits = plugin.settings, plugin.waits
        self.driver, self.metrics = rollback.driver, rollback.metrics
        self.store, self.files, self.transitions = rollback.store, rollback.files, rollback.transitions
        self.tasks = rollback.tasks
        self._logged = LogOnce(_LOG_AGAIN)

    # --- calls of the kubelet -------------------------------------------------------------------

    async def prepare(self, refs: Sequence[ClaimIdentity]) -> dict[str, ClaimOutcome]:
        """Returns a result or an error for every claim, by UID, within ``call_timeout`` (option CALL_TIMEOUT, 40 s). Never raises."""
        window = BatchWindow([r.uid for r in refs], self.waits.batch)
        return await self._all(Work.PREPARE, refs, lambda ref: self._prepare(ref, window), window)

    async def unprepare(self, refs: Sequence[ClaimIdentity]) -> dict[str, ClaimOutcome]:
        """Returns an empty result or an error for every claim, by UID, within CALL_TIMEOUT. Never calls the API server, never raises."""
        return await self._all(Work.UNPREPARE, refs, self._unprepare)

    async def _all(
        self,
        work: Work,
        refs: Sequence[ClaimIdentity],
        do: Callable[[ClaimIdentity], Awaitable[ClaimOutcome]],
        window: BatchWindow | None = None,
    ) -> dict[str, ClaimOutcome]:
        async def run(ref: ClaimIdentity) -> ClaimOutcome:
            # The failure is logged here, and not for each call that joins the task: this task's log fields contain the pod.
            try:
                result = await do(ref)
            except Exception as e:
                # Without its traceback: the frames would keep the claim in memory until the next garbage collection.
                return self._failed(work, ref, without_frames(as_dra_error(e)))
            self._logged.forget(ref.uid)
            self.pods.set_done(ref.uid)
            return result

        with operation():
            if self.tasks.ending:
                return {r.uid: StoppingError("the plugin is shutting down: the kubelet retries") for r in refs}
            tasks: dict[ClaimIdentity, asyncio.Task[ClaimOutcome]] = {}
            for ref in {r.uid: r for r in refs}.values():
                # The other claims of the call do not wait for work that began before the call.
                if window and ref.uid in self.tasks:
                    window.leave(ref.uid)
                tasks[ref] = self.tasks.start(ref.uid, work, functools.partial(run, ref))
            if tasks:
                with self.metrics.timed("request_duration_seconds", operation=work.value):
                    await asyncio.wait(tasks.values(), timeout=self.settings.call_timeout)
            out = {ref.uid: self._outcome(work, ref, task) for ref, task in tasks.items()}
            results = Counter([o.reason if isinstance(o, DraError) else "ok" for o in out.values()])
            for reason, count in results.items():
                self.metrics.inc("requests_total", count, operation=work.value, result=reason)
            return out

    def _outcome(self, work: Work, ref: ClaimIdentity, task: asyncio.Task[ClaimOutcome]) -> ClaimOutcome:
        if not task.done():
            text = f"{work.value} of claim {ref} takes long and continues: the kubelet's next call joins it"
            return self._failed(work, ref, StillWorkingError(text))
        if task.cancelled():
            return self._failed(work, ref, StoppingError("the plugin is shutting down: the kubelet retries"))
        return task.result()

    def _failed(self, work: Work, ref: ClaimIdentity, error: DraError) -> DraError:
        """Logs a failure. The kubelet retries for ever, so the same failure is logged again only after a pause.

        A failed rollback is logged where it fails.
        """
        if work is Work.PREPARE:
            self.pods.set_failed(ref, error)
        if not isinstance(error, UndoFailedError) and self._logged.is_new(ref.uid, f"{work.value}: {error.event()}"):
            fields = {**claim_fields(ref), "error_code": error.code}
            log.warning("cannot %s claim: %s", work.value, error.event(), extra=fields)
        return error

    # --- prepare --------------------------------------------------------------------------------

    async def _prepare(self, ref: ClaimIdentity, window: BatchWindow) -> Sequence[PreparedResult]:
        set_log_fields(functools.partial(claim_fields, ref))
        began = time.perf_counter()
        try:
            if not is_uid(ref.uid):
                raise ClaimError(f"claim {printable(ref)} has a UID that no API server generates: {printable(ref.uid)}")
            verified = await self._verify(ref)
            if isinstance(verified, Record):
                await self.rollback.restore_files(ref.uid)
                return prepared_result(verified)
            if not verified.devices:
                return ()  # no device of the claim belongs to this driver
            set_log_fields(functools.partial(_fields_with_pod, ref, verified.reserved_for))
            self.pods.set_waiting(ref, verified.reserved_for)
            await window.wait(ref.uid)
        finally:
            window.leave(ref.uid)
        record = Record(
            ref.uid,
            ref.namespace,
            ref.name,
            State.PREPARING,
            self.transitions.boot_id,
            self.transitions.process.id,
            list(verified.entries),
            operation=operation_id(),
        )
        fault, supply = verified.fault, verified.supply
        for _ in range(_ROUNDS):
            decision = await self.rollback.decide(
                lambda records: self.transitions.begin(records, record, fault, supply), Mode.SYNC
            )
            match decision:
                case AlreadyPrepared(found):
                    return prepared_result(found)
                case Prepare():
                    found = await self._prepare_new(record, ref, verified)
                    log.info("prepared claim", extra=_end_fields(found, began))
                    return prepared_result(found)
                case RollBack(found):
                    self.rollback.retries.log(
                        found.uid, "the claim's record cannot be used: rolling it back first", level=logging.INFO
                    )
                    await self.rollback.undo(decision)
                case StaleHolders(holders):
                    await self.rollback.free(holders)
                case InProgress(found):
                    await self._wait_for_other(found)
        raise _busy(ref)

    async def _verify(self, ref: ClaimIdentity) -> VerifiedClaim | Record:
        """Returns the verified claim, or the record of a prepared claim if the API server returns an error or is slow.

        If the API server reports that the claim does not exist, that error is raised.
        """
        verifying = asyncio.create_task(self.verifier.verify(ref))
        try:
            await asyncio.wait({verifying}, timeout=self.waits.answer_from_record)
            if not verifying.done() or isinstance(verifying.exception(), ApiUnavailableError):
                with contextlib.suppress(DraError):
                    row = await self.store.get(ref.uid)
                    if isinstance(row, Record) and self.transitions.is_prepared(row):
                        return row
            return await verifying
        finally:
            verifying.cancel()  # if the task has failed meanwhile, asyncio does not log its exception after this call

    async def _prepare_new(self, record: Record, ref: ClaimIdentity, verified: VerifiedClaim) -> Record:
        """Calls the driver, writes the files and commits. Returns the committed record. If this fails, the claim is rolled back; if the
        plugin stops, the next start does that.

        There is no rollback if another instance owns the claim now, or if the record was committed after all.
        """
        driver, fence = self.driver, record.fence

        async def save(step: dict[str, Any]) -> None:
            record.undo = [*record.undo, step]
            await self.store.do(lambda records: records.update_owned(record, fence), Mode.SYNC)

        def commit(records: Records) -> None:
            # In memory: the store writes the file of the record when this function has returned.
            records.update_owned(record, fence)
            self.files.put(record)
            self.files.note(record)

        share = functools.partial(self.rollback.shared.set_up, record)
        start = functools.partial(self.rollback.processes.start, record.uid)
        undo = UndoRecorder(driver, asyncio.get_running_loop(), save, share, start)
        claim = Claim(
            namespace=ref.namespace,
            name=ref.name,
            uid=ref.uid,
            devices=tuple(verified.devices),
            reserved_for=verified.reserved_for,
            object=verified.object,  # type: ignore[arg-type]  # decoded when it is read
            operation=operation_id(),
            node=verified.node,
            _undo=undo,
            _status=self.reports.of(ref),
        )
        prepared: Sequence[PreparedDevice] = ()
        try:
            try:
                prepared = await self.rollback.calls(driver.prepare, claim)
            except asyncio.CancelledError:
                undo.cancel()
                raise
            finally:
                await undo.settle()
            undo.check()
            with reading_result(driver.prepare):
                metadata = self.files.metadata if driver.metadata else None
                add_prepared(record, claim, prepared, self.files.specs, driver.host, metadata)
            if not driver.metadata and any(p.metadata for p in prepared) and self._logged.is_new("unused metadata"):
                log.warning(
                    "prepare() returned metadata of devices, but containers do not get it: set metadata = True in class %s",
                    type(driver).__name__,
                )
            record.state, record.owner = State.PREPARED, ""
            await self.store.do(commit)
        except Exception as e:
            found = await self.rollback.roll_back_prepare(record, e)
            if found is None:
                raise
            record = found
        self.rollback.changed()
        if statuses := {(p.pool, p.name, p.share_id or ""): p.status for p in prepared if p.status}:
            self.reports.queue(ref, statuses)
        return record

    async def _wait_for_other(self, record: Record) -> None:
        """Waits while another living process works on the claim.

        Raises :class:`ClaimBusyError` after ``lock_timeout``.
        """
        wait = self.settings.lock_timeout
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            now = await self.store.get(record.uid)
            if not isinstance(now, Record) or not self.transitions.has_other_owner(now):
                return
            await asyncio.sleep(_POLL)
        raise ClaimBusyError(
            f"claim {record.shown} has been {record.state} in another instance of the plugin (process "
            f"{self.transitions.process.pid(record.owner)}) for more than {wait:g} s: if that instance hangs, delete its pod"
        )

    # --- unprepare ------------------------------------------------------------------------------

    async def _unprepare(self, ref: ClaimIdentity) -> Sequence[PreparedResult]:
        set_log_fields(functools.partial(claim_fields, ref))
        began = time.perf_counter()

        def end(records: Records) -> Decision:
            decision = self.transitions.end(records, ref.uid, lambda: self.files.read_note(ref.uid))
            if isinstance(decision, NothingToDo):
                self.rollback.clear(records, ref.uid)
                # The driver's recover() may still report this claim. Its end is remembered, so that no record is created for it.
                self.transitions.remember_end(records, ref.uid)
            return decision

        for _ in range(_ROUNDS):
            decision = await self.rollback.decide(end)
            match decision:
                case InProgress(found):
                    await self._wait_for_other(found)
                case RollBack(found):
                    await self.rollback.undo(decision)
                    log.info("unprepared claim", extra=_end_fields(found, began))
                    return ()
                case _:
                    return ()
        raise _busy(ref)


def _busy(ref: ClaimIdentity) -> ClaimBusyError:
    return ClaimBusyError(
        f"claim {ref} is still being processed by another instance of the plugin: the kubelet retries"
    )


def _fields_with_pod(ref: ClaimIdentity, reserved_for: Sequence[Mapping[str, Any]]) -> Fields:
    """Returns the claim's log fields; with its pod, if exactly one pod uses the claim."""
    pods = [str(consumer.get("name")) for consumer in reserved_for if consumer.get("resource") == "pods"]
    return {**claim_fields(ref), **({"pod": f"{ref.namespace}/{pods[0]}"} if len(pods) == 1 else {})}


def _end_fields(record: Record, began: float) -> Fields:
    """Returns the log fields of a finished operation; ``began`` is its start by ``time.perf_counter()``."""
    return {"devices": [d["device"] for d in record.devices], "duration_s": round(time.perf_counter() - began, 6)}
