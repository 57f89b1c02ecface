"""Prepares and unprepares claims. Whatever crashes, nothing leaks and nothing is handed out twice.

The order never varies: record, hardware, CDI file, commit; back again in reverse. Work on one claim is one flight: a second
caller joins it, the opposite call waits for it, other claims never do. Flights outlive the calls that began them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from sqlite3 import Connection
from typing import Any

from ..driver import Claim, Driver
from ..driver.calls import Calls
from ..errors import (
    ApiUnavailableError,
    ClaimBusyError,
    ClaimTakenError,
    DeviceHeldError,
    DraError,
    StillWorkingError,
    StoppingError,
    UndoFailedError,
    clip,
    describe,
)
from ..observe.log import operation, operation_id
from ..observe.metrics import Metrics
from ..reporting import ClaimKey, StatusReports
from ..resources.allocation import node_of
from . import rows
from .answers import PreparedAnswer, answer, complete
from .batch import Rendezvous
from .files import Files
from .flights import Flights, Work
from .judge import Busy, Fresh, Judge, Nothing, Repeat, Stale, Undo, Verdict
from .record import Fence, InFlight, Record, State
from .store import Mode, Store
from .undo import RecordUndo, run_undo
from .verify import ClaimRef, Verified, Verifier

log = logging.getLogger(__name__)
Answer = Sequence[PreparedAnswer] | DraError
_POLL = 0.05  # seconds between looks at a claim that another process works on
_ROUNDS = 20  # how often obstacles (stale records, stale holders) are cleared before giving up
_PATIENCE = 1.2  # seconds that a claim which may be answered from its record waits for the API server


class Engine:
    """The claims of one driver on one node, for one process.

    ``call_timeout`` and ``lock_wait`` are seconds: how soon the kubelet is answered, and how long another instance's work on a
    claim is waited for. ``changed`` is called when a claim's devices were taken or freed; ``reports`` takes what drivers tell
    of devices.
    """

    def __init__(
        self,
        driver: Driver,
        calls: Calls,
        store: Store,
        files: Files,
        verifier: Verifier,
        judge: Judge,
        flights: Flights,
        in_flight: InFlight,
        metrics: Metrics,
        *,
        call_timeout: float,
        lock_wait: float,
        changed: Callable[[], None],
        reports: StatusReports,
    ) -> None:
        self.driver = driver
        self.calls = calls
        self.store = store
        self.files = files
        self.verifier = verifier
        self.judge = judge
        self.flights = flights
        self.in_flight = in_flight
        self.metrics = metrics
        self.call_timeout = call_timeout
        self.lock_wait = lock_wait
        self.changed = changed
        self.reports = reports
        self.stopping = False

    # --- calls of the kubelet -------------------------------------------------------------------

    async def prepare(self, refs: Sequence[ClaimRef]) -> dict[str, Answer]:
        """An answer for every claim, by UID, within ``call_timeout``. Never raises."""
        meeting = Rendezvous(len({r.uid for r in refs}))
        return await self._all(Work.PREPARE, refs, lambda ref: self._prepare(ref, meeting), meeting)

    async def unprepare(self, refs: Sequence[ClaimRef]) -> dict[str, Answer]:
        """An empty answer, or an error, for every claim, by UID. Never asks the API server, never raises."""
        return await self._all(Work.UNPREPARE, refs, self._unprepare, None)

    async def _all(
        self,
        work: Work,
        refs: Sequence[ClaimRef],
        do: Callable[[ClaimRef], Awaitable[Any]],
        meeting: Rendezvous | None,
    ) -> dict[str, Answer]:
        with operation() as op:
            if self.stopping:
                return {r.uid: StoppingError("the plugin is shutting down: the kubelet tries again") for r in refs}
            tasks: dict[str, asyncio.Task[Any]] = {}
            for ref in refs:
                if ref.uid in tasks:
                    continue
                task, alone = self.flights.start(ref.uid, work, lambda ref=ref: do(ref))  # type: ignore[misc]
                tasks[ref.uid] = task
                if meeting and not alone:
                    meeting.leave(ref.uid)  # the rest of the call does not wait for work that began before it
            if tasks:
                with self.metrics.timed("request_seconds", operation=work.value):
                    await asyncio.wait(tasks.values(), timeout=self.call_timeout)
            names = {r.uid: str(r) for r in refs}
            out = {uid: self._outcome(work, names[uid], task) for uid, task in tasks.items()}
            for uid, result in out.items():
                reason = result.reason if isinstance(result, DraError) else "ok"
                self.metrics.inc("requests_total", operation=work.value, result=reason)
                if isinstance(result, DraError):
                    under = result.operation or op
                    log.warning(
                        "%s of claim %s (UID %s) [op %s]: %s", work.value, names[uid], uid, under, result.event()
                    )
            return out

    def _outcome(self, work: Work, name: str, task: asyncio.Task[Any]) -> Answer:
        if not task.done():
            return StillWorkingError(f"{work.value} of claim {name} takes long and goes on: the next try joins it")
        if task.cancelled():
            return StoppingError("the plugin is shutting down: the kubelet tries again")
        error = task.exception()
        if error is None:
            return task.result() or ()
        return self._own(error)

    # --- prepare --------------------------------------------------------------------------------

    async def _prepare(self, ref: ClaimRef, meeting: Rendezvous) -> Sequence[PreparedAnswer]:
        try:
            verified = await self._look_up(ref)
            if isinstance(verified, Record):
                return await self._repeat(verified)
            if not verified.devices:
                return ()  # another driver's claim: nothing of it is ours
            await meeting.meet(ref.uid)
        finally:
            meeting.leave(ref.uid)
        doc = {"devices": list(verified.entries), "operation": operation_id()}
        for _ in range(_ROUNDS):
            record = Record(
                ref.uid, ref.namespace, ref.name, State.PREPARING, self.judge.boot_id, self.judge.process.id, dict(doc)
            )
            match await self._begin(record, verified):
                case Repeat(found):
                    return await self._repeat(found)
                case Fresh():
                    return await self._prepare_fresh(record, ref, verified)
                case Undo(found):
                    log.info("claim %s has a record from before: undoing it first", found.shown)
                    await self._undo(found)
                case Stale(holders):
                    await self._free(holders)
                case Busy(found):
                    await self._wait_for_other(found)
        raise ClaimBusyError(f"claim {ref} is worked on by others all the time: the kubelet tries again")

    async def _look_up(self, ref: ClaimRef) -> Verified | Record:
        """The claim as the API server has it, or the record that answers while the server does not."""
        look = asyncio.create_task(self.verifier.verify(ref))
        look.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved, whoever still waits
        try:
            await asyncio.wait([look], timeout=_PATIENCE)
            if not look.done() and (record := await self._answerable(ref.uid)):
                return record
            return await look
        except ApiUnavailableError:
            if record := await self._answerable(ref.uid):
                return record
            raise
        finally:
            look.cancel()

    async def _answerable(self, uid: str) -> Record | None:
        row = await self.store.get(uid)
        return row if isinstance(row, Record) and self.judge.answers(row) else None

    async def _begin(self, record: Record, verified: Verified) -> Verdict:
        """In one transaction: what there is already decides, else the record is written and devices are held."""

        def begin(db: Connection) -> Verdict:
            verdict = self.judge.begin(db, record, verified.fault, verified.supply)
            if isinstance(verdict, Fresh):
                self.in_flight.put(record)
            return verdict

        try:
            return await self.store.do(begin, Mode.SYNC)
        except DraError:
            self.in_flight.drop(record.uid)
            raise

    async def _prepare_fresh(self, record: Record, ref: ClaimRef, verified: Verified) -> Sequence[PreparedAnswer]:
        async def save(step: dict[str, Any]) -> None:
            record.doc["undo"] = [*record.steps, step]
            if not await self.store.do(lambda db: rows.update(db, record, fence), Mode.SYNC):
                raise ClaimTakenError(
                    f"claim {ref} was taken over by another instance of the plugin: nothing more is done"
                )
            self.in_flight.put(record)

        fence = record.fence
        undo = RecordUndo(self.driver, asyncio.get_running_loop(), save)
        key = ClaimKey(ref.namespace, ref.name, ref.uid)
        claim = Claim(
            namespace=ref.namespace,
            name=ref.name,
            uid=ref.uid,
            devices=tuple(verified.devices),
            reserved_for=verified.reserved_for,
            object=verified.object,
            operation=operation_id(),
            node=node_of(verified.object),
            _undo=undo,
            _status=self.reports.of(key),
        )
        try:
            try:
                prepared = await self.calls(self.driver.prepare, claim)
            finally:
                await undo.settle()
            undo.check()
            complete(record, claim, prepared, self.files.specs, self.driver.host.dev)
            await self.files.put(record)
            record.state, record.owner = State.PREPARED, ""
            if not await self.store.do(lambda db: rows.update(db, record, fence)):
                raise ClaimTakenError(
                    f"claim {ref} was taken over by another instance of the plugin: the kubelet tries again"
                )
        except Exception as e:
            error = self._own(e)
            if found := await self._take_back(record, error):
                return await self._repeat(found)
            raise error from e
        self.files.note(record)
        self.in_flight.drop(record.uid)
        log.info("prepared claim %s: %s", record.shown, ", ".join(d["device"] for d in record.devices))
        self.changed()
        if told := {(p.pool, p.name, p.share_id or ""): p.status for p in prepared if p.status}:
            self.reports.say(key, told)
        return answer(record)

    async def _take_back(self, record: Record, error: DraError) -> Record | None:
        """Undoes a prepare that failed. Answers the record where it turns out to be complete after all."""
        try:
            match await self.store.do(lambda db: self.judge.take_back(db, record)):
                case Undo(found):
                    await self._undo(found)
                case Repeat(found):
                    self.in_flight.drop(record.uid)
                    return found
                case _:
                    self.in_flight.drop(record.uid)
        except DraError as e:
            # The record keeps the devices held, and says why; the next try begins with the undo.
            log.error("claim %s: prepare failed (%s), and undoing it failed too: %s", record.shown, error, e)
        return None

    async def _repeat(self, record: Record) -> Sequence[PreparedAnswer]:
        """Answers from the record; a CDI file that was lost or damaged since comes back first."""
        if await self.files.mend(record):
            log.warning("CDI file of claim %s was missing or damaged: written again", record.shown)
        return answer(record)

    async def _free(self, holders: Sequence[Record]) -> None:
        """Undoes all holds that stand in the way, side by side.

        Raises :class:`DeviceHeldError` for one that cannot be undone.
        """

        async def free(holder: Record) -> None:
            log.info("claim %s holds a device from before a reboot or a crash: undoing it", holder.shown)
            try:
                await self._tidy(holder.uid, lambda db: self.judge.free(db, holder.uid))
            except DraError as e:
                raise DeviceHeldError(
                    f"a device is still held by claim {holder.shown}, which cannot be undone: {e}"
                ) from None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_caught(free(h))) for h in holders]
        for task in tasks:
            if error := task.result():
                raise error

    async def _wait_for_other(self, record: Record) -> None:
        """Waits while another living process works on the claim.

        Raises :class:`ClaimBusyError` after ``lock_wait``.
        """
        deadline = time.monotonic() + self.lock_wait
        while time.monotonic() < deadline:
            now = await self.store.get(record.uid)
            if not isinstance(now, Record) or not self.judge.is_others(now):
                return
            await asyncio.sleep(_POLL)
        raise ClaimBusyError(
            f"claim {record.shown} is {record.state} in another instance of the plugin (process "
            f"{self.judge.process.pid(record.owner)}) for more than {self.lock_wait:g}s: delete its pod if it hangs"
        )

    # --- unprepare and undo ---------------------------------------------------------------------

    async def _unprepare(self, ref: ClaimRef) -> None:
        for _ in range(_ROUNDS):
            match await self.store.do(lambda db: self._end(db, ref.uid)):
                case Busy(found):
                    await self._wait_for_other(found)
                case Undo(found):
                    await self._undo(found)
                    log.info("unprepared claim %s", found.shown)
                    return
                case _:
                    await self.files.remove_all(ref.uid)
                    return
        raise ClaimBusyError(f"claim {ref} is worked on by others all the time: the kubelet tries again")

    def _end(self, db: Connection, uid: str) -> Verdict:
        verdict = self.judge.end(db, uid, lambda: self.files.known(uid))
        if isinstance(verdict, Nothing):
            # Should the driver tell of this claim later, it is known to be over.
            self.judge.remember_end(db, uid)
        return verdict

    def _drop(self, db: Connection, fence: Fence) -> bool:
        """The note goes with the record, and before it: one that outlived it would tell of what is no more."""
        self.files.forget(fence.uid)
        dropped = rows.delete(db, fence)
        if dropped:
            self.judge.remember_end(db, fence.uid)
        return dropped

    async def _undo(self, record: Record) -> None:
        """CDI file, hardware, record. The record is marked as ours.

        Raises :class:`DraError` and keeps the record, with the reason, where anything fails.
        """
        fence = record.fence
        self.in_flight.put(record)
        try:
            await self.files.remove(record.uid)
            await run_undo(
                self.driver, self.calls, record.steps, record.prepared_claim(self.judge.boot_id), record.shown
            )
            await self.store.do(lambda db: self._drop(db, fence))
        except Exception as e:
            self.metrics.inc("undo_failures_total")
            error = self._own(e)
            record.owner, record.error, record.attempts = "", clip(str(error), 500), record.attempts + 1
            await self.store.do(lambda db: rows.update(db, record, fence))
            self.in_flight.drop(record.uid)
            log.warning("claim %s cannot be undone (try %d): %s", record.shown, record.attempts, error)
            raise UndoFailedError(f"claim {record.shown} cannot be undone: {error}") from e
        self.in_flight.drop(record.uid)
        self.changed()

    # --- for recovery and reconciling -----------------------------------------------------------

    async def tidy(self, uid: str) -> bool:
        """Undoes what a dead process left, or an undo that failed; True where there was something."""
        return await self._tidy(uid, lambda db: self.judge.tidy(db, uid))

    async def reclaim(self, seen: Record) -> bool:
        """Unprepares a claim that the API server does not have any more, if it is still as it was seen."""
        return await self._tidy(seen.uid, lambda db: self.judge.reclaim(db, seen))

    async def _tidy(self, uid: str, judge: Callable[[Connection], Verdict]) -> bool:
        async def work() -> bool:
            verdict = await self.store.do(judge)
            if isinstance(verdict, Undo):
                await self._undo(verdict.record)
            return isinstance(verdict, Undo)

        done: bool = await self._run(uid, work)
        return done

    async def mend_file(self, uid: str) -> bool:
        """Writes a prepared claim's CDI file again where it is not as it should be; True where it was not."""

        async def work() -> bool:
            row = await self.store.get(uid)
            return isinstance(row, Record) and self.judge.answers(row) and await self.files.mend(row)

        done: bool = await self._run(uid, work)
        return done

    async def remove_orphan(self, uid: str) -> bool:
        """Removes a CDI file that no record knows; True where it did."""

        async def work() -> bool:
            if await self.store.get(uid) is not None:
                return False
            await self.files.remove_all(uid)
            return True

        done: bool = await self._run(uid, work)
        return done

    async def _run(self, uid: str, work: Callable[[], Awaitable[Any]]) -> Any:
        if self.stopping:
            raise StoppingError("the plugin is shutting down: the next start goes on")
        task, _ = self.flights.start(uid, Work.TIDY, work)
        try:
            return await asyncio.shield(task)
        except Exception as e:  # one claim's fault is not the others'
            raise self._own(e) from e

    # --- the rest -------------------------------------------------------------------------------

    def _own(self, e: BaseException) -> DraError:
        """Errors pass; what is none is a fault of ours, told without its insides and logged with them."""
        if isinstance(e, DraError):
            return e
        log.error("a fault of the framework", exc_info=e)
        return DraError(f"a fault inside the plugin: {describe(e)}")

    async def stop(self, grace: float) -> None:
        """No new work; waits up to ``grace`` seconds for what is under way. The rest is for the next process to undo."""
        self.stopping = True
        await self.flights.end(grace)
        await self.files.close(1.0)


async def _caught(work: Awaitable[None]) -> DraError | None:
    try:
        await work
    except DraError as e:
        return e
    return None


__all__ = ["Answer", "ClaimRef", "Engine"]
