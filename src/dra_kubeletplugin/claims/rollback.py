"""Rolls back claims. The order is always:

1. Mark the record, then remove the CDI spec and the metadata files.
2. Call ``unprepare``, then the undo steps and the ends of processes, newest first (`undo_steps.py`). All of them run, also after a failure.
3. End the use of shared steps, newest first. The last user of a step tears its state down (`shared_steps.py`).
4. Delete the note, then the record. The devices are then free.

If one of these fails, the next one does not begin. The record keeps the devices held, and the plugin retries.

It is used for the kubelet's unprepare, for failed prepares, for claims whose stale holds block another claim, and in reconcile passes.
A note is a copy of the claim's record beside its CDI spec (see :mod:`.claim_files`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..base.telemetry.logs import claim_fields, set_log_fields
from ..errors import DeviceHeldError, DraError, StoppingError, UndoFailedError, clip
from ..kube.event_recorder import EventRecorder, claim_subject
from .context import ClaimContext
from .inflight import Work, as_dra_error
from .record import Fence, Record
from .rollback_retries import RollbackRetries
from .store.records import Records
from .store.store import Mode, Operation
from .transitions import AlreadyPrepared, Decision, NothingToDo, RollBack, RolledBack
from .undo_steps import has_undo, run_undo

log = logging.getLogger(__name__)


class Rollback:
    """Rolls back the claims of one driver in one process.

    ``holder_timeout`` is how many seconds a prepare waits until the holds of other claims are rolled back.

    Args:
        context: the objects that every operation on a claim needs.
        events: records an event when a rollback fails.
    """

    def __init__(self, context: ClaimContext, events: EventRecorder) -> None:
        self.context = context
        self.events = events
        self.holder_timeout = context.settings.call_timeout / 2
        self.retries = RollbackRetries(context.metrics)

    async def decide(self, operation: Operation[Decision], mode: Mode = Mode.WRITE) -> Decision:
        """Runs ``operation`` in a transaction and returns its decision.

        If the decision is to roll a claim back, this removes the claim's CDI spec. If the claim is already prepared, this checks its files.
        """
        return await self.context.store.do(lambda records: self._with_files(operation(records)), mode)

    async def unprepare(self, uid: str) -> Decision:
        """Decides the next step for a claim that the kubelet unprepares. It removes the claim's CDI spec, as :meth:`decide` does.

        If the driver has nothing to undo, this method also completes the rollback.

        Raises :class:`DraError`.
        """

        def end(records: Records) -> Decision:
            decision = self.context.transitions.end(records, uid, lambda: self.context.files.read_note(uid))
            if isinstance(decision, NothingToDo):
                self._clear(records, uid)
                # The driver's recover() may still report this claim. Its end is remembered, so that no record is created for it.
                self.context.transitions.remember_end(records, uid)
            decision = self._with_files(decision)
            if (
                isinstance(decision, RollBack)
                and not decision.fault
                and not has_undo(self.context.driver, decision.record)
            ):
                self._drop(records, decision.record.fence)
                return RolledBack(decision.record)
            return decision

        decision = await self.context.store.do(end)
        if isinstance(decision, RolledBack):
            self._undone(decision.record)
        return decision

    def _with_files(self, decision: Decision) -> Decision:
        """Completes a decision in its transaction: checks the claim's files, or removes the CDI spec."""
        if isinstance(decision, AlreadyPrepared):
            return AlreadyPrepared(decision.record, self.context.files.are_intact(decision.record))
        if isinstance(decision, RollBack):
            try:
                self.context.files.remove(decision.record.uid)
            except DraError as e:
                return RollBack(decision.record, e)
        return decision

    async def undo(self, marked: RollBack) -> None:
        """Undoes the hardware, then deletes the record. The CDI spec is removed already.

        If anything fails, it keeps the record with the reason and raises :class:`DraError`.
        """
        record = marked.record
        fence = record.fence
        try:
            if marked.fault:
                raise marked.fault
            if not record.superseded:
                prepared_claim = record.prepared_claim(self.context.transitions.boot_id)
                if not record.undone:
                    await run_undo(
                        self.context.driver,
                        self.context.calls,
                        record.undo,
                        prepared_claim,
                        self.context.processes.end,
                    )
                await self.context.shared.release(record)
            await self.context.store.do(lambda records: self._drop(records, fence))
        except Exception as e:
            self.context.metrics.inc("rollback_failures_total")
            error = as_dra_error(e)
            record.owner, record.error, record.attempts = "", clip(str(error), 500), record.attempts + 1
            pause = self.retries.failed(record.uid, record.attempts)
            record.retry_at = time.time() + pause
            failed = UndoFailedError(f"claim {record.shown} cannot be rolled back: {error}")
            self.retries.log(
                record.uid, "cannot roll back claim; its devices stay held: %s", error, level=logging.WARNING
            )
            await self.context.store.do(lambda records: records.update(record, fence))
            self._record_event(record, error)
            raise failed from e
        self._undone(record)

    def _record_event(self, record: Record, error: DraError) -> None:
        """Records an event for a failed rollback: the kubelet records none for a failed unprepare, and does not know other rollbacks."""
        if not isinstance(error, StoppingError):
            reason, verb = ("UnprepareFailed", "unprepare") if record.complete else ("RollbackFailed", "roll back")
            text = f"cannot {verb} the claim; its devices stay held, and the plugin retries: {error}"
            self.events.warn_claim(claim_subject(record.namespace, record.name, record.uid), reason, text)

    def _undone(self, record: Record) -> None:
        self.retries.done(record.uid)
        self.context.changed()

    def _clear(self, records: Records, uid: str) -> bool:
        """Removes the files of a claim that has no record. Returns False, and changes nothing, if the claim has a record.

        Call it inside a write transaction, so that no other instance can begin to prepare the claim in between.
        """
        if records.read(uid) is not None:
            return False
        self.context.files.remove_all(uid)
        return True

    def _drop(self, records: Records, fence: Fence) -> bool:
        """Deletes the note, then the record: from a note without a record, the plugin would restore a claim that has ended."""
        self.context.files.remove_note(fence.uid)
        dropped = records.delete(fence)
        if dropped:
            self.context.transitions.remember_end(records, fence.uid)
        return dropped

    # --- for a prepare --------------------------------------------------------------------------

    async def roll_back_prepare(self, record: Record, error: DraError) -> Record | None:
        """Rolls back a prepare that failed with ``error``. Returns the record if the claim turns out to be prepared after all."""

        def fail_prepare(records: Records) -> Decision:
            decision = self.context.transitions.fail_prepare(records, record)
            if isinstance(decision, NothingToDo):
                self._clear(records, record.uid)
            return decision

        try:
            match await self.decide(fail_prepare):
                case RollBack() as marked:
                    await self.undo(marked)
                case AlreadyPrepared(found):
                    return found
        except DraError as e:
            # The record keeps the devices held; the next attempt begins with the rollback.
            if not isinstance(e, UndoFailedError):  # it is logged and scheduled already
                self.retries.log(record.uid, "cannot roll back a failed prepare: %s; prepare failed with: %s", e, error)
                self.retries.failed(record.uid)
        return None

    async def free(self, holders: Sequence[Record]) -> None:
        """Rolls back all claims whose stale holds block a prepare, concurrently. Prepares that need the same devices join the rollback.

        Raises :class:`DeviceHeldError` for a claim that cannot be rolled back in time; a slow rollback continues.
        """

        async def one(holder: Record) -> None:
            self.retries.log(
                holder.uid,
                "rolling back a claim that no longer uses its devices, because another claim needs them",
                level=logging.INFO,
                claim=holder,
            )
            try:
                async with asyncio.timeout(self.holder_timeout):
                    await self._tidy(
                        holder.uid, lambda records: self.context.transitions.free(records, holder.uid), work=Work.FREE
                    )
            except TimeoutError:
                raise DeviceHeldError(
                    f"a device is still held by claim {holder.shown}, whose rollback takes longer than {self.holder_timeout:g} "
                    f"s: the kubelet retries"
                ) from None
            except UndoFailedError as e:  # its text names the claim
                raise DeviceHeldError(f"a device is still held: {e}") from None
            except DraError as e:
                raise DeviceHeldError(
                    f"a device is still held by claim {holder.shown}, which cannot be rolled back: {e}"
                ) from None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_caught(one(h))) for h in holders]
        for task in tasks:
            if error := task.result():
                raise error

    # --- for recovery and reconciling -----------------------------------------------------------

    async def tidy(self, uid: str) -> bool:
        """Rolls back unfinished work of a dead process, or retries a failed rollback. Returns whether it rolled the claim back."""
        return await self._tidy(uid, lambda records: self.context.transitions.tidy(records, uid))

    async def reclaim(self, seen: Record, is_over: Callable[[], Awaitable[bool]]) -> bool:
        """Unprepares a claim that the API server no longer has, if its record has not changed since ``seen`` was read.

        ``is_over`` checks the API server again once no prepare of this process is in flight: the claim may have got its devices again.
        """
        return await self._tidy(seen.uid, lambda records: self.context.transitions.reclaim(records, seen), is_over)

    async def _tidy(
        self,
        uid: str,
        operation: Callable[[Records], Decision],
        is_over: Callable[[], Awaitable[bool]] | None = None,
        *,
        work: Work = Work.TIDY,
    ) -> bool:
        async def do() -> bool:
            if is_over and not await is_over():
                return False
            decision = await self.decide(operation)
            if isinstance(decision, RollBack):
                set_log_fields(functools.partial(claim_fields, decision.record))
                await self.undo(decision)
            return isinstance(decision, RollBack)

        done: bool = await self._run(uid, do, work)
        return done

    async def repair_files(self, uid: str) -> bool:
        """Restores a prepared claim's files if they are missing or changed. Returns whether it wrote them."""

        async def work() -> bool:
            row = await self.context.store.get(uid)
            return (
                isinstance(row, Record) and self.context.transitions.is_prepared(row) and await self.restore_files(row)
            )

        done: bool = await self._run(uid, work)
        return done

    async def restore_files(self, record: Record) -> bool:
        """Restores the files, as :meth:`repair_files` does, within the claim's own task.

        A claim that another instance has rolled back meanwhile stays without files.
        """

        def restore(records: Records) -> bool:
            row = records.read(record.uid)
            if isinstance(row, Record) and self.context.transitions.is_prepared(row):
                return self.context.files.restore(row)  # with updates that other instances have committed
            self._clear(records, record.uid)
            return False

        return await self.context.store.do(restore)

    async def remove_orphan(self, uid: str) -> bool:
        """Removes the files of a claim without a record. Returns whether it did."""

        async def work() -> bool:
            return await self.context.store.do(lambda records: self._clear(records, uid))

        done: bool = await self._run(uid, work)
        return done

    async def _run(self, uid: str, do: Callable[[], Awaitable[Any]], work: Work = Work.TIDY) -> Any:
        if self.context.tasks.ending:
            raise StoppingError("the plugin is shutting down: its next start continues")

        async def run() -> Any:
            result = await do()
            # Called within the claim's task: a call after the task would cancel a retry that later work on the claim has scheduled.
            self.retries.done(uid)
            return result

        task, _ = self.context.tasks.start(uid, work, run)
        try:
            return await asyncio.shield(task)
        except Exception as e:  # the failure of one claim must not end the work on other claims
            raise as_dra_error(e) from e


async def _caught(work: Awaitable[None]) -> DraError | None:
    try:
        await work
    except DraError as e:
        return e
    return None
