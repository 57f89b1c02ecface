"""Prepares and unprepares claims. A crash at any point neither leaks a device nor leaves it prepared for two claims.

A prepare always writes the record, prepares the hardware, writes the CDI file and commits, in this order. A rollback does the reverse.
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
    ClaimTakenError,
    DraError,
    StillWorkingError,
    StoppingError,
    UndoFailedError,
    printable,
)
from .batch_window import BatchWindow
from .claim_fields import ClaimIdentity
from .context import ClaimContext
from .device_status import DeviceStatusReporter
from .inflight import TaskLog, Work, as_dra_error
from .prepared_devices import PreparedResult, complete, prepared_result
from .record import Fence, Record, State
from .rollback import Rollback
from .store.records import Records
from .store.store import Mode
from .transitions import AlreadyPrepared, Decision, InProgress, Prepare, RollBack, RolledBack, StaleHolders
from .undo_steps import UndoRecorder
from .verification import VerifiedClaim, Verifier

log = logging.getLogger(__name__)
ClaimOutcome = Sequence[PreparedResult] | DraError
_POLL = 0.05  # seconds between checks of a claim that another process works on
_ROUNDS = 20  # how often stale records and stale holders are cleared before giving up
_LOG_AGAIN = 600.0  # seconds until an unchanged failure of a claim is logged again
_ANSWER_FROM_RECORD_AFTER = 1.2  # seconds without a response of the API server; then a prepared claim's record is used


class Engine:
    """Serves the kubelet's calls for the claims of one driver on one node, in one process.

    Args:
        context: the objects that every operation on a claim needs.
        reports: writes the device status that drivers report.
    """

    def __init__(
        self, context: ClaimContext, verifier: Verifier, rollback: Rollback, reports: DeviceStatusReporter
    ) -> None:
        self.context = context
        self.verifier = verifier
        self.rollback = rollback
        self.reports = reports
        self._logged = LogOnce(_LOG_AGAIN)
        self._unused_metadata_logged = False  # whether unused metadata of the driver was logged

    # --- calls of the kubelet -------------------------------------------------------------------

    async def prepare(self, refs: Sequence[ClaimIdentity]) -> dict[str, ClaimOutcome]:
        """Returns a result or an error for every claim, by UID, within ``call_timeout`` (option CALL_TIMEOUT, 40 s). Never raises."""
        window = BatchWindow(len({r.uid for r in refs}))
        return await self._all(Work.PREPARE, refs, lambda ref: self._prepare(ref, window), window)

    async def unprepare(self, refs: Sequence[ClaimIdentity]) -> dict[str, ClaimOutcome]:
        """Returns an empty result or an error for every claim, by UID, within CALL_TIMEOUT. Never calls the API server, never raises."""
        return await self._all(Work.UNPREPARE, refs, self._unprepare, None)

    async def _all(
        self,
        work: Work,
        refs: Sequence[ClaimIdentity],
        do: Callable[[ClaimIdentity], Awaitable[Any]],
        window: BatchWindow | None,
    ) -> dict[str, ClaimOutcome]:
        with operation() as op:
            if self.context.tasks.ending:
                return {r.uid: StoppingError("the plugin is shutting down: the kubelet retries") for r in refs}
            by_uid = {r.uid: r for r in refs}
            tasks: dict[str, asyncio.Task[Any]] = {}
            for ref in refs:
                if ref.uid in tasks:
                    continue
                task, was_idle = self.context.tasks.start(ref.uid, work, functools.partial(do, ref))
                tasks[ref.uid] = task
                if window and not was_idle:
                    window.leave(
                        ref.uid
                    )  # the other claims of the call do not wait for work that began before the call
            if tasks:
                with self.context.metrics.timed("request_duration_seconds", operation=work.value):
                    await asyncio.wait(tasks.values(), timeout=self.context.settings.call_timeout)
            out = {uid: self._outcome(work, str(by_uid[uid]), task) for uid, task in tasks.items()}
            results: Counter[str] = Counter()
            for uid, result in out.items():
                if not isinstance(result, DraError):
                    results["ok"] += 1
                    self._logged.forget(uid)
                    self.context.pods.set_done(uid)
                    continue
                results[result.reason] += 1
                task_log = self.context.tasks.log_of(tasks[uid]) or TaskLog(op, {})
                if work is Work.PREPARE:
                    self.context.pods.set_failed(by_uid[uid], result)
                self._log_failure(work, by_uid[uid], result, task_log)
            for reason, count in results.items():
                self.context.metrics.inc("requests_total", count, operation=work.value, result=reason)
            return out

    def _log_failure(self, work: Work, ref: ClaimIdentity, error: DraError, task: TaskLog) -> None:
        """Logs a failure. The kubelet retries for ever, so the same failure is logged again only after a pause.

        A failed rollback is logged where it fails.
        """
        if isinstance(error, UndoFailedError) or not self._logged.is_new(ref.uid, f"{work.value}: {error.event()}"):
            return
        fields = {**claim_fields(ref), **task.fields, "error_code": error.code}
        with operation(task.operation):
            if work is Work.PREPARE:
                log.warning("cannot prepare claim: %s", error.event(), extra=fields)
            else:
                log.warning("cannot unprepare claim: %s", error.event(), extra=fields)

    def _outcome(self, work: Work, name: str, task: asyncio.Task[Any]) -> ClaimOutcome:
        if not task.done():
            return StillWorkingError(
                f"{work.value} of claim {name} takes long and continues: the kubelet's next call joins it"
            )
        if task.cancelled():
            return StoppingError("the plugin is shutting down: the kubelet retries")
        error = task.exception()
        # Without its traceback: the frames would keep the claim in memory until the next garbage collection.
        return without_frames(as_dra_error(error)) if error else task.result() or ()

    # --- prepare --------------------------------------------------------------------------------

    async def _prepare(self, ref: ClaimIdentity, window: BatchWindow) -> Sequence[PreparedResult]:
        set_log_fields(functools.partial(claim_fields, ref))
        began = time.perf_counter()
        try:
            if not is_uid(ref.uid):
                raise ClaimError(f"claim {printable(ref)} has a UID that no API server generates: {printable(ref.uid)}")
            verified = await self._look_up(ref)
            if isinstance(verified, Record):
                return await self._repeat(verified)
            if not verified.devices:
                return ()  # no device of the claim belongs to this driver
            set_log_fields(functools.partial(_fields_with_pod, ref, verified.reserved_for))
            self.context.pods.set_waiting(ref, verified.reserved_for)
            await window.wait(ref.uid)
        finally:
            window.leave(ref.uid)
        for _ in range(_ROUNDS):
            record = Record(
                ref.uid,
                ref.namespace,
                ref.name,
                State.PREPARING,
                self.context.transitions.boot_id,
                self.context.transitions.process.id,
                list(verified.entries),
                operation=operation_id(),
            )
            match await self.rollback.decide(functools.partial(self._begin, record, verified), Mode.SYNC):
                case AlreadyPrepared(found, intact):
                    return prepared_result(found) if intact else await self._repeat(found)
                case Prepare():
                    prepared = await self._prepare_fresh(record, ref, verified)
                    fields = {"devices": [p.device for p in prepared], "duration_s": _seconds_since(began)}
                    log.info("prepared claim", extra=fields)
                    return prepared
                case RollBack(found) as marked:
                    self.rollback.retries.log(
                        found.uid, "the claim has an unfinished record: rolling it back first", level=logging.INFO
                    )
                    await self.rollback.undo(marked)
                case StaleHolders(holders):
                    await self.rollback.free(holders)
                case InProgress(found):
                    await self._wait_for_other(found)
        raise ClaimBusyError(
            f"claim {ref} is still being processed by another instance of the plugin: the kubelet retries"
        )

    async def _look_up(self, ref: ClaimIdentity) -> VerifiedClaim | Record:
        """Returns the verified claim, or the record of a prepared claim if the API server returns an error or is slow.

        If the API server reports that the claim does not exist, that error is raised.
        """
        verifying = asyncio.create_task(self.verifier.verify(ref))
        try:
            await asyncio.wait({verifying}, timeout=_ANSWER_FROM_RECORD_AFTER)
            if not verifying.done():
                with contextlib.suppress(DraError):  # the API server may still respond
                    if record := await self._prepared_record(ref.uid):
                        return record
            return await verifying
        except ApiUnavailableError:
            if record := await self._prepared_record(ref.uid):
                return record
            raise
        finally:
            verifying.cancel()  # if the task has failed meanwhile, asyncio does not log its exception after this call

    async def _prepared_record(self, uid: str) -> Record | None:
        row = await self.context.store.get(uid)
        return row if isinstance(row, Record) and self.context.transitions.is_prepared(row) else None

    def _begin(self, record: Record, verified: VerifiedClaim, records: Records) -> Decision:
        return self.context.transitions.begin(records, record, verified.fault, verified.supply)

    async def _prepare_fresh(
        self, record: Record, ref: ClaimIdentity, verified: VerifiedClaim
    ) -> Sequence[PreparedResult]:
        """Calls the driver, writes the CDI file and commits. If this fails, the claim is rolled back.

        There is no rollback if another instance owns the claim now, or if the record was committed after all.
        """

        async def save(steps: list[dict[str, Any]]) -> None:
            record.undo = steps
            if not await self.context.store.do(lambda records: records.update(record, fence), Mode.SYNC):
                raise ClaimTakenError(
                    f"claim {ref} was taken over by another instance of the plugin: this instance stops its work on it"
                )

        fence = record.fence
        share = functools.partial(self.context.shared.set_up, record)
        start = functools.partial(self.context.processes.start, record.uid)
        undo = UndoRecorder(self.context.driver, asyncio.get_running_loop(), save, share, start)
        prepared: Sequence[PreparedDevice] = ()
        try:
            prepared = await self._call_driver(record, ref, verified, undo)
            record.state, record.owner = State.PREPARED, ""
            if not await self.context.store.do(lambda records: self._commit(records, record, fence)):
                raise ClaimTakenError(
                    f"claim {ref} was taken over by another instance of the plugin: the kubelet retries"
                )
        except Exception as e:
            error = as_dra_error(e)
            found = await self.rollback.roll_back_prepare(record, error)
            if found is None:
                raise error from e
            await self._repeat(found)
            record = found
        self.context.changed()
        if statuses := {(p.pool, p.name, p.share_id or ""): p.status for p in prepared if p.status}:
            self.reports.queue(ref, statuses)
        return prepared_result(record)

    async def _call_driver(
        self, record: Record, ref: ClaimIdentity, verified: VerifiedClaim, undo: UndoRecorder
    ) -> Sequence[PreparedDevice]:
        """Calls ``Driver.prepare``, checks its result and completes ``record`` with it."""
        driver, files = self.context.driver, self.context.files
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
        try:
            prepared = await self.context.calls(driver.prepare, claim)
        except asyncio.CancelledError:
            undo.cancel()
            raise
        finally:
            await undo.settle()
        with reading_result(driver.prepare):
            undo.check()
            complete(record, claim, prepared, files.specs, driver.host, files.metadata if driver.metadata else None)
        if not driver.metadata and not self._unused_metadata_logged and any(p.metadata for p in prepared):
            self._unused_metadata_logged = True
            log.warning(
                "prepare() returned metadata of devices, but containers do not get it: set metadata = True in class %s",
                type(driver).__name__,
            )
        return prepared

    def _commit(self, records: Records, record: Record, fence: Fence) -> bool:
        if not records.update(record, fence):
            return False
        self.context.files.put(record)
        self.context.files.note(record)
        return True

    async def _repeat(self, record: Record) -> Sequence[PreparedResult]:
        """Returns the result from the record, after restoring files of the claim that were lost or damaged."""
        if await self.rollback.restore_files(record):
            log.warning("files of the claim were missing or damaged; they were written again")
        return prepared_result(record)

    async def _wait_for_other(self, record: Record) -> None:
        """Waits while another living process works on the claim.

        Raises :class:`ClaimBusyError` after ``lock_timeout``.
        """
        wait, process = self.context.settings.lock_timeout, self.context.transitions.process
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            now = await self.context.store.get(record.uid)
            if not isinstance(now, Record) or not self.context.transitions.has_other_owner(now):
                return
            await asyncio.sleep(_POLL)
        raise ClaimBusyError(
            f"claim {record.shown} has been {record.state} in another instance of the plugin (process "
            f"{process.pid(record.owner)}) for more than {wait:g} s: if that instance hangs, delete its pod"
        )

    # --- unprepare ------------------------------------------------------------------------------

    async def _unprepare(self, ref: ClaimIdentity) -> None:
        set_log_fields(functools.partial(claim_fields, ref))
        began = time.perf_counter()
        for _ in range(_ROUNDS):
            match await self.rollback.unprepare(ref.uid):
                case InProgress(found):
                    await self._wait_for_other(found)
                    continue
                case RollBack(found) as marked:
                    await self.rollback.undo(marked)
                case RolledBack(found):
                    pass
                case _:
                    return
            devices = [d["device"] for d in found.devices]
            log.info("unprepared claim", extra={"devices": devices, "duration_s": _seconds_since(began)})
            return
        raise ClaimBusyError(
            f"claim {ref} is still being processed by another instance of the plugin: the kubelet retries"
        )


def _fields_with_pod(ref: ClaimIdentity, reserved_for: Sequence[Mapping[str, Any]]) -> Fields:
    """Returns the claim's log fields; with its pod, if exactly one pod uses the claim."""
    pods = [str(consumer.get("name")) for consumer in reserved_for if consumer.get("resource") == "pods"]
    return {**claim_fields(ref), **({"pod": f"{ref.namespace}/{pods[0]}"} if len(pods) == 1 else {})}


def _seconds_since(began: float) -> float:
    return round(time.perf_counter() - began, 6)
