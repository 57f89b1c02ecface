"""Prepares and unprepares claims. Whatever crashes, nothing leaks and nothing is handed out twice.

The order never varies: record, hardware, CDI file, commit; back again in reverse. Work on one claim is one flight: a second
caller joins it, the opposite call waits for it, other claims never do. Flights outlive the calls that began them.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..cdi import ClaimSpecs
from ..driver import Claim, Driver
from ..driver.contract import call
from ..errors import (
    ApiUnavailableError,
    ClaimBusyError,
    ClaimError,
    DeviceHeldError,
    DraError,
    DriverError,
    DriverFailedError,
    RecordsError,
    StillWorkingError,
    StoppingError,
    UndoFailedError,
    clip,
)
from ..observe.log import operation, operation_id
from ..observe.metrics import Metrics
from .answers import PreparedAnswer, answer, complete
from .batch import Batcher, Rendezvous
from .flights import Flights
from .processes import ProcessLock
from .record import Record, State, allocated_json
from .store import HeldByError, Store, read, write
from .undo import RecordUndo, run_undo
from .verify import ClaimRef, Verified, Verifier

log = logging.getLogger(__name__)
Answer = Sequence[PreparedAnswer] | DraError
_POLL = 0.05  # seconds between looks at a claim that another process works on
_ROUNDS = 4  # how often obstacles (stale records, stale holders) are cleared before giving up


class Engine:
    """The claims of one driver on one node, for one process.

    ``call_timeout`` and ``lock_wait`` are seconds: how soon the kubelet is answered, and how long another instance's work on a
    claim is waited for.
    """

    def __init__(
        self,
        driver: Driver,
        store: Store,
        specs: ClaimSpecs,
        verifier: Verifier,
        process: ProcessLock,
        boot_id: str,
        metrics: Metrics,
        *,
        call_timeout: float = 40.0,
        lock_wait: float = 10.0,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.driver = driver
        self.store = store
        self.specs = specs
        self.verifier = verifier
        self.process = process
        self.boot_id = boot_id
        self.metrics = metrics
        self.call_timeout = call_timeout
        self.lock_wait = lock_wait
        self.on_change = on_change
        self.stopping = False
        self._flights = Flights(metrics)
        self._files: Batcher[tuple[str, Any]] = Batcher("cdi", self._write_files)

    # --- calls of the kubelet -------------------------------------------------------------------

    async def prepare(self, refs: Sequence[ClaimRef]) -> dict[str, Answer]:
        """An answer for every claim, by UID, within ``call_timeout``. Never raises."""
        meeting = Rendezvous(len({r.uid for r in refs}))
        return await self._all("prepare", refs, lambda ref: self._prepare(ref, meeting), meeting)

    async def unprepare(self, refs: Sequence[ClaimRef]) -> dict[str, Answer]:
        """An empty answer, or an error, for every claim, by UID. Never asks the API server, never raises."""
        return await self._all("unprepare", refs, self.unprepare_one, None)

    async def _all(
        self,
        kind: str,
        refs: Sequence[ClaimRef],
        work: Callable[[ClaimRef], Awaitable[Any]],
        meeting: Rendezvous | None,
    ) -> dict[str, Answer]:
        with operation():
            if self.stopping:
                return {r.uid: StoppingError("the plugin is shutting down: the kubelet tries again") for r in refs}
            tasks: dict[str, asyncio.Task[Any]] = {}
            for ref in refs:
                if ref.uid in tasks:
                    continue
                task, alone = self._flights.start(ref.uid, kind, lambda ref=ref: work(ref))  # type: ignore[misc]
                tasks[ref.uid] = task
                if meeting and not alone:
                    meeting.leave(ref.uid)  # the rest of the call does not wait for work that began before it
            if tasks:
                with self.metrics.timed("request_seconds", operation=kind):
                    await asyncio.wait(tasks.values(), timeout=self.call_timeout)
            names = {r.uid: str(r) for r in refs}
            out = {uid: self._outcome(kind, names[uid], task) for uid, task in tasks.items()}
            for uid, result in out.items():
                reason = result.reason if isinstance(result, DraError) else "ok"
                self.metrics.inc("requests_total", operation=kind, result=reason)
                if isinstance(result, DraError):
                    log.warning("%s of claim %s (UID %s): %s", kind, names[uid], uid, result.event())
            return out

    def _outcome(self, kind: str, name: str, task: asyncio.Task[Any]) -> Answer:
        if not task.done():
            return StillWorkingError(f"{kind} of claim {name} takes long and goes on: the next try joins it")
        if task.cancelled():
            return StoppingError("the plugin is shutting down: the kubelet tries again")
        error = task.exception()
        if error is None:
            return task.result() or ()
        return error if isinstance(error, DraError) else self._wrap(error)

    async def run(self, kind: str, ref: ClaimRef, work: Callable[[ClaimRef], Awaitable[Any]]) -> Any:
        """Does ``work`` for one claim in the same lanes as the kubelet's calls; for recovery and reconciling."""
        task, _ = self._flights.start(ref.uid, kind, lambda: work(ref))
        return await asyncio.shield(task)

    # --- prepare --------------------------------------------------------------------------------

    async def _prepare(self, ref: ClaimRef, meeting: Rendezvous) -> Sequence[PreparedAnswer]:
        try:
            try:
                verified = await self.verifier.verify(ref)
            except ApiUnavailableError as e:
                return await self._from_record_alone(ref, e)
            if not verified.results:
                return ()  # another driver's claim: nothing of it is ours
            await meeting.meet(ref.uid)
        finally:
            meeting.leave(ref.uid)
        record = self._new_record(ref, verified)
        for _ in range(_ROUNDS):
            kind, found = await self._begin(record, verified)
            match kind:
                case "repeat":
                    return await self._repeat(found)
                case "fresh":
                    return await self._prepare_fresh(record, ref, verified)
                case "undo":
                    log.info("claim %s has a record from before (%s): undoing it first", found.shown, found.state)
                    await self._undo(found)
                case "stale":
                    await self._free_stale(found)
                case "busy":
                    await self._wait_for_other(found)
        raise ClaimBusyError(f"claim {ref} is worked on by others all the time: the kubelet tries again")

    def _new_record(self, ref: ClaimRef, verified: Verified) -> Record:
        doc = {"devices": [allocated_json(d) for d in verified.devices], "operation": operation_id()}
        return Record(ref.uid, ref.namespace, ref.name, State.PREPARING, self.boot_id, self.process.id, doc)

    async def _begin(self, record: Record, verified: Verified) -> tuple[str, Record]:
        """In one transaction: what there is already decides, else the record is written and devices are held."""

        def begin(db: sqlite3.Connection) -> tuple[str, Record]:
            found = read(db, record.uid)
            if found is not None:
                return self._judge(db, found, record)
            if verified.fault:
                raise verified.fault
            try:
                self.store.insert(db, record)
            except HeldByError as e:
                if not self._is_stale(e.holder):
                    raise
                return "stale", e.holder
            return "fresh", record

        return await self.store.do(begin)  # type: ignore[no-any-return]

    def _judge(self, db: sqlite3.Connection, found: Record, wanted: Record) -> tuple[str, Record]:
        if found.state is State.PREPARED and found.boot_id == self.boot_id and found.same_allocation(wanted):
            if not found.name:
                found.complete_from(wanted)
                write(db, found)
            return "repeat", found
        if self.is_others(found):
            return "busy", found
        return "undo", self._claim_for_undo(db, found)

    def _claim_for_undo(self, db: sqlite3.Connection, found: Record) -> Record:
        found.state = State.UNPREPARING
        found.owner = self.process.id
        write(db, found)
        return found

    def is_others(self, record: Record) -> bool:
        """Whether another living process works on the claim now."""
        return record.owner not in {"", self.process.id} and self.process.alive(record.owner)

    def _is_stale(self, holder: Record) -> bool:
        """A hold from before a reboot, or of a dead process's unfinished work: nothing runs with the device."""
        if self.is_others(holder) or holder.uid in self._flights:
            return False
        return holder.boot_id != self.boot_id or (
            holder.state is not State.PREPARED and holder.owner != self.process.id
        )

    async def _free_stale(self, holder: Record) -> None:
        ref = ClaimRef(holder.namespace, holder.name, holder.uid)
        log.info("claim %s holds a device from before a reboot or a crash: undoing it", holder.shown)
        try:
            await self.run("unprepare", ref, self.unprepare_one)
        except DraError as e:
            raise DeviceHeldError(
                f"a device is still held by claim {holder.shown}, which cannot be undone: {e}"
            ) from None

    async def _prepare_fresh(self, record: Record, ref: ClaimRef, verified: Verified) -> Sequence[PreparedAnswer]:
        undo = RecordUndo(self.driver, self.store, record, asyncio.get_running_loop())
        claim = Claim(
            namespace=ref.namespace,
            name=ref.name,
            uid=ref.uid,
            devices=tuple(verified.devices),
            reserved_for=(verified.object.get("status") or {}).get("reservedFor") or (),
            object=verified.object,
            operation=operation_id(),
            _undo=undo,
        )
        try:
            prepared = await call(self.driver.prepare, claim)
            undo.check_awaited()
            complete(record, claim, prepared, self.specs, self.driver.host.dev)
            if record.doc["cdi"]:
                await self._files.submit((record.uid, record.doc["cdi"]))
            record.state, record.owner = State.PREPARED, ""
            await self.store.save(record)
        except Exception as e:
            error = self._wrap(e, ref)
            await self._undo_failed_prepare(record, error)
            raise error from e
        log.info("prepared claim %s: %s", record.shown, ", ".join(d["device"] for d in record.devices))
        self.on_change()
        return answer(record)

    async def _undo_failed_prepare(self, record: Record, error: DraError) -> None:
        record.state, record.owner = State.PREPARING, self.process.id
        try:
            await self._undo(record)
        except DraError as e:
            # The record keeps the devices held, and says why; the next try begins with the undo.
            log.error("claim %s: prepare failed (%s), and undoing it failed too: %s", record.shown, error, e)

    async def _repeat(self, record: Record) -> Sequence[PreparedAnswer]:
        """Answers from the record; a CDI file that was lost since comes back first."""
        spec = record.doc.get("cdi")
        if spec and not self.specs.exists(record.uid):
            log.warning("CDI file of claim %s was missing: written again", record.shown)
            await self._files.submit((record.uid, spec))
        return answer(record)

    async def _from_record_alone(self, ref: ClaimRef, away: ApiUnavailableError) -> Sequence[PreparedAnswer]:
        record = await self.store.get(ref.uid)
        if record and record.state is State.PREPARED and record.boot_id == self.boot_id:
            return await self._repeat(record)
        raise away

    async def _wait_for_other(self, record: Record) -> None:
        """Waits while another living process works on the claim.

        Raises :class:`ClaimBusyError` after ``lock_wait``.
        """
        deadline = time.monotonic() + self.lock_wait
        while time.monotonic() < deadline:
            now = await self.store.get(record.uid)
            if now is None or not self.is_others(now):
                return
            await asyncio.sleep(_POLL)
        raise ClaimBusyError(
            f"claim {record.shown} is {record.state} in another instance of the plugin (process "
            f"{self.process.pid(record.owner)}) for more than {self.lock_wait:g}s: delete its pod if it hangs"
        )

    # --- unprepare and undo ---------------------------------------------------------------------

    async def unprepare_one(self, ref: ClaimRef) -> None:
        """The work of one unprepare; run it with :meth:`run`."""
        for _ in range(_ROUNDS):

            def mark(db: sqlite3.Connection) -> tuple[str, Record | None]:
                found = read(db, ref.uid)
                if found is None:
                    return "none", None
                if self.is_others(found):
                    return "busy", found
                return "undo", self._claim_for_undo(db, found)

            kind, record = await self.store.do(mark)
            if record is None:
                if self.specs.exists(ref.uid):
                    await self._files.submit((ref.uid, None))
                return
            if kind == "busy":
                await self._wait_for_other(record)
                continue
            await self._undo(record)
            log.info("unprepared claim %s", record.shown)
            return
        raise ClaimBusyError(f"claim {ref} is worked on by others all the time: the kubelet tries again")

    async def _undo(self, record: Record) -> None:
        """CDI file, hardware, record. The record is ours to work on.

        Raises :class:`DraError` and keeps the record, with the reason, where anything fails.
        """
        try:
            if self.specs.exists(record.uid):
                await self._files.submit((record.uid, None))
            await run_undo(self.driver, record, record.prepared_claim(self.boot_id))
        except Exception as e:
            self.metrics.inc("undo_failures_total")
            error = self._wrap(e)
            record.state, record.owner = State.UNPREPARING, ""
            record.error, record.attempts = clip(str(error), 500), record.attempts + 1
            await self.store.save(record)
            if isinstance(e, DraError):
                raise
            raise UndoFailedError(
                f"claim {record.shown} cannot be undone ({record.attempts} tries): {type(e).__name__}: {e}"
            ) from e
        await self.store.delete(record.uid)
        self.on_change()

    async def undo_leftover(self, ref: ClaimRef) -> None:
        """Undoes what a dead process left, or an undo that failed; for recovery. Prepared claims are left alone."""

        def mark(db: sqlite3.Connection) -> Record | None:
            found = read(db, ref.uid)
            if found is None or found.state is State.PREPARED or self.is_others(found):
                return None
            return self._claim_for_undo(db, found)

        record = await self.store.do(mark)
        if record is not None:
            await self._undo(record)

    async def forget(self, uid: str) -> Record | None:
        """Drops a record and its CDI file without the driver; for operators. Answers what it was."""
        record = await self.store.get(uid)
        if self.specs.exists(uid):
            await self._files.submit((uid, None))
        await self.store.delete(uid)
        return record

    async def restore_file(self, record: Record) -> None:
        """Writes a lost CDI file again."""
        await self._files.submit((record.uid, record.doc["cdi"]))

    async def remove_file(self, uid: str) -> None:
        await self._files.submit((uid, None))

    # --- the rest -------------------------------------------------------------------------------

    def _write_files(self, items: Sequence[tuple[str, Any]]) -> list[Any]:
        """In the files' thread: one folder sync for all that is written, one for all that is removed."""
        specs = [(uid, spec) for uid, spec in items if spec is not None]
        gone = [uid for uid, spec in items if spec is None]
        results: dict[str, Any] = {}
        jobs: tuple[tuple[list[str], Callable[[], None]], ...] = (
            ([uid for uid, _ in specs], lambda: self.specs.write(specs)),
            (gone, lambda: self.specs.remove(gone)),
        )
        for uids, work in jobs:
            try:
                if uids:
                    work()
            except OSError as e:
                error = RecordsError(f"{self.specs.root} cannot be written ({e.strerror}): see its mount and space")
                results |= dict.fromkeys(uids, error)
        return [results.get(uid) for uid, _ in items]

    def _wrap(self, e: BaseException, ref: ClaimRef | None = None) -> DraError:
        """An author's exception, with its type and message; the traceback goes to the log under the operation id."""
        if isinstance(e, DraError) and not isinstance(e, DriverError):
            return e
        log.error("%s failed", type(self.driver).__name__, exc_info=e)
        where = f"claim {ref}: " if ref else ""
        return DriverFailedError(f"{where}the driver raised {type(e).__name__}: {e}")

    @property
    def busy(self) -> list[str]:
        """UIDs of claims that are being worked on."""
        return self._flights.uids

    async def stop(self, grace: float) -> None:
        """No new work; waits up to ``grace`` seconds for what is under way. The rest is for the next process to undo."""
        self.stopping = True
        await self._flights.end(grace)
        await self._files.close()


__all__ = ["Answer", "ClaimError", "ClaimRef", "Engine"]
