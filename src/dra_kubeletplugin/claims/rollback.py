"""Rolls back claims. The order is always:

1. In one transaction, mark the record and remove the CDI spec and the metadata files. The mark reaches the disk last: a kill before that
   leaves a prepared claim, whose files the next start writes again.
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

import msgspec

from ..base.settings import Settings
from ..base.telemetry.logs import claim_fields, set_log_fields
from ..base.telemetry.metrics import Metrics
from ..devices.inventory import Inventory
from ..driver import Driver
from ..driver.calls import Calls
from ..errors import DeviceHeldError, DraError, StoppingError, UndoFailedError, clip
from ..kube import KubeClient
from ..kube.event_recorder import EventRecorder, claim_subject
from .claim_files import ClaimFiles
from .inflight import ClaimTasks, Work, as_dra_error
from .instance_lock import InstanceLock
from .processes import ClaimProcesses
from .record import Fence, Record
from .rollback_retries import RollbackRetries
from .shared_steps import SharedSteps
from .store.records import Records
from .store.store import Mode, Operation, RecordStore
from .transitions import AlreadyPrepared, Decision, NothingToDo, RollBack, Transitions
from .undo_steps import has_undo, run_undo
from .waits import DEFAULT, Waits

log = logging.getLogger(__name__)


class PluginContext(msgspec.Struct, frozen=True):
    """The objects that a plugin creates before its claim manager."""

    driver: Driver
    calls: Calls
    client: KubeClient
    inventory: Inventory
    settings: Settings
    metrics: Metrics
    waits: Waits = DEFAULT
    clock: Callable[[], float] = time.monotonic


class Rollback:
    """Rolls back the claims of one driver in one process.

    Args:
        process: the lock of this instance.
        events: records an event when a rollback fails.
        changed: called when a claim has taken or freed devices.
    """

    def __init__(
        self,
        plugin: PluginContext,
        process: InstanceLock,
        boot_id: str,
        store: RecordStore,
        files: ClaimFiles,
        events: EventRecorder,
        changed: Callable[[], None],
    ) -> None:
        settings = plugin.settings
        self.driver, self.calls, self.metrics = plugin.driver, plugin.calls, plugin.metrics
        self.store = store
        self.files = files
        self.events = events
        self.changed = changed
        self.tasks = ClaimTasks(self.metrics)
        self.transitions = Transitions(process, boot_id, self.tasks.prepares, settings.node_name)
        self.shared = SharedSteps(self.driver, self.calls, settings, store, boot_id, files.note)
        self.processes = ClaimProcesses(self.driver, self.calls, settings, process)
        self.retries = RollbackRetries(self.metrics, plugin.waits)
        self.holder_timeout = settings.call_timeout / 2
        """Seconds that a prepare waits until the holds of other claims are rolled back."""

    async def decide(self, operation: Operation[Decision], mode: Mode = Mode.WRITE) -> Decision:
        """Runs ``operation`` in a transaction and returns its decision.

        If the claim is already prepared, the transaction restores its files. If the claim must be rolled back, the transaction removes
        its CDI spec; if the driver has nothing to undo, it completes the rollback.

        Raises :class:`DraError`.
        """

        ended: list[Decision] = []

        def decide_and_change_files(records: Records) -> Decision:
            decision = operation(records)
            if isinstance(decision, AlreadyPrepared):
                return AlreadyPrepared(decision.record, self.files.restore(decision.record))
            if isinstance(decision, RollBack):
                try:
                    self.files.remove(decision.record)
                    if not has_undo(self.driver, decision.record):
                        self._delete(records, decision.record.fence)
                        ended.append(RollBack(decision.record, done=True))
                        return ended[-1]
                except DraError as e:
                    return RollBack(decision.record, fault=e)
            if isinstance(decision, NothingToDo) and ended:
                return ended[-1]  # the disk failed after the record was removed, so the operation ran again
            return decision

        decision = await self.store.do(decide_and_change_files, mode)
        if isinstance(decision, AlreadyPrepared) and decision.restored:
            fields = claim_fields(decision.record)
            log.warning("files of the claim were missing or damaged; they were written again", extra=fields)
        return decision

    async def undo(self, marked: RollBack) -> None:
        """Undoes the hardware, then deletes the record. The CDI spec is removed already.

        If anything fails, it keeps the record with the reason and raises :class:`UndoFailedError`.
        """
        record, fence = marked.record, marked.record.fence
        try:
            if marked.fault:
                raise marked.fault
            if not marked.done:
                if not record.superseded and not record.undone:
                    claim = record.prepared_claim(self.transitions.boot_id)
                    await run_undo(self.driver, self.calls, record.undo, claim, self.processes.end)
                if not record.superseded:
                    await self.shared.release(record)
                await self.store.do(lambda records: self._delete(records, fence))
        except Exception as e:
            self.metrics.inc("rollback_failures_total")
            error = as_dra_error(e)
            record.owner, record.error, record.attempts = "", clip(str(error), 500), record.attempts + 1
            record.retry_at = time.time() + self.retries.failed(record.uid, record.attempts)
            self.retries.log(
                record.uid, "cannot roll back claim; its devices stay held: %s", error, level=logging.WARNING
            )
            await self.store.do(lambda records: records.update(record, fence))
            # The kubelet records no event for a failed unprepare, and does not know other rollbacks.
            if not isinstance(error, StoppingError):
                reason, verb = ("UnprepareFailed", "unprepare") if record.complete else ("RollbackFailed", "roll back")
                text = f"cannot {verb} the claim; its devices stay held, and the plugin retries: {error}"
                self.events.warn_claim(claim_subject(record.namespace, record.name, record.uid), reason, text)
            raise UndoFailedError(f"claim {record.shown} cannot be rolled back: {error}") from e
        self.retries.done(record.uid)
        self.changed()

    def clear(self, records: Records, uid: str) -> bool:
        """Removes the files of a claim that has no record. Returns False, and changes nothing, if the claim has a record.

        Call it inside a write transaction, so that no other instance can begin to prepare the claim in between.
        """
        if records.read(uid) is not None:
            return False
        self.files.remove_all(uid)
        return True

    def _delete(self, records: Records, fence: Fence) -> None:
        """Deletes the note, then the record: from a note without a record, the plugin would restore a claim that has ended."""
        self.files.remove_note(fence.uid)
        if records.delete(fence):
            self.transitions.remember_end(records, fence.uid)

    # --- for a prepare --------------------------------------------------------------------------

    async def roll_back_prepare(self, record: Record, error: Exception) -> Record | None:
        """Rolls back a prepare that failed with ``error``. Returns the record if the claim turns out to be prepared after all."""

        def fail_prepare(records: Records) -> Decision:
            decision = self.transitions.fail_prepare(records, record)
            if isinstance(decision, NothingToDo):
                self.clear(records, record.uid)
            return decision

        try:
            match await self.decide(fail_prepare):
                case RollBack() as marked:
                    await self.undo(marked)
                case AlreadyPrepared(found):
                    return found
        except UndoFailedError:
            pass  # it is logged and scheduled already
        except DraError as e:
            # The record keeps the devices held; the next attempt begins with the rollback.
            self.retries.log(record.uid, "cannot roll back a failed prepare: %s; prepare failed with: %s", e, error)
            self.retries.failed(record.uid)
        return None

    async def free(self, holders: Sequence[Record]) -> None:
        """Rolls back all claims whose stale holds block a prepare, concurrently. Prepares that need the same devices join the rollback.

        Raises :class:`DeviceHeldError` for a claim that cannot be rolled back in time; a slow rollback continues.
        """

        async def free_one(holder: Record) -> None:
            self.retries.log(
                holder.uid,
                "rolling back a claim that no longer uses its devices, because another claim needs them",
                level=logging.INFO,
                claim=holder,
            )
            try:
                async with asyncio.timeout(self.holder_timeout):
                    await self._settle(
                        holder.uid, lambda records: self.transitions.free(records, holder.uid), work=Work.FREE
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

        for error in await asyncio.gather(*map(free_one, holders), return_exceptions=True):
            if error:
                raise error

    # --- for recovery and reconciling -----------------------------------------------------------

    async def tidy(self, uid: str) -> bool:
        """Rolls back unfinished work of a dead process, or retries a failed rollback. Returns whether it rolled the claim back."""
        return await self._settle(uid, lambda records: self.transitions.tidy(records, uid))

    async def reclaim(self, seen: Record, is_over: Callable[[], Awaitable[bool]]) -> bool:
        """Unprepares a claim that the API server no longer has, if its record has not changed since ``seen`` was read.

        ``is_over`` checks the API server again once no prepare of this process is in flight: the claim may have got its devices again.
        """
        return await self._settle(seen.uid, lambda records: self.transitions.reclaim(records, seen), is_over)

    async def repair_files(self, uid: str) -> bool:
        """Restores a prepared claim's files if they are missing or changed. Returns whether it wrote them."""
        return await self._settle(uid, lambda records: self._restore(records, uid))

    async def restore_files(self, uid: str) -> None:
        """Does the same as :meth:`repair_files`, within the claim's own task."""
        await self.decide(lambda records: self._restore(records, uid))

    async def remove_orphan(self, uid: str) -> bool:
        """Removes the files of a claim without a record. Returns whether it did."""
        return await self._settle(uid, lambda records: NothingToDo(cleared=self.clear(records, uid)))

    def _restore(self, records: Records, uid: str) -> Decision:
        """Decides for the files of a prepared claim. A claim that another instance has rolled back meanwhile stays without files."""
        row = records.read(uid)
        if isinstance(row, Record) and self.transitions.is_prepared(row):
            return AlreadyPrepared(row)
        self.clear(records, uid)
        return NothingToDo()

    async def _settle(
        self,
        uid: str,
        operation: Operation[Decision],
        is_over: Callable[[], Awaitable[bool]] | None = None,
        work: Work = Work.TIDY,
    ) -> bool:
        """Decides in the claim's task, and rolls the claim back if that is the decision. Returns whether the claim or its files changed."""
        if self.tasks.ending:
            raise StoppingError("the plugin is shutting down: its next start continues")

        async def run() -> bool:
            decision = await self.decide(operation) if is_over is None or await is_over() else NothingToDo()
            if isinstance(decision, RollBack):
                set_log_fields(functools.partial(claim_fields, decision.record))
                await self.undo(decision)
            # Called within the claim's task: a call after the task would cancel a retry that later work on the claim has scheduled.
            self.retries.done(uid)
            match decision:
                case RollBack() | AlreadyPrepared(restored=True) | NothingToDo(cleared=True):
                    return True
            return False

        try:
            return bool(await asyncio.shield(self.tasks.start(uid, work, run)))
        except Exception as e:  # the failure of one claim must not end the work on other claims
            raise as_dra_error(e) from e
