"""Calls the driver's ``bind`` and ``unbind``, and writes the binding conditions into claims.

The order is always the same: write the record, call ``bind``, write the conditions. Later: call ``unbind``, delete the record. If the
process dies between two steps, the next leader finds the record and binds again or unbinds; both are idempotent by contract. Each claim
has its own task. Claims never wait for each other, except for a device that an earlier claim still has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import Enum

from ....base.backoff import Backoff
from ....base.telemetry.logs import Fields, claim_fields, operation, set_log_fields
from ....base.telemetry.metrics import Metrics
from ....base.wakeup import is_set_within
from ....claims.claim_fields import ClaimFields, ClaimIdentity, DeviceResult
from ....claims.device_status import DeviceStatusReporter
from ....driver import BoundClaim, Condition, DeviceStatus
from ....errors import ApiError, ConfigError, DraError, PermanentError, clip, describe
from ....kube.errors import ConflictError
from .bind_calls import BindCalls
from .claims import AllocatedClaim, BoundClaimIdentity, ClaimWatch
from .records import BindingRecord, BindingRecords

log = logging.getLogger(__name__)
RETRY_DELAYS = 1.0, 60.0  # seconds between attempts: first, longest
_MESSAGE = 1_024  # bytes of an error in a condition
_CATCH_UP = 5.0  # seconds until a write to a claim must be visible in the watch; after that time, the write is repeated


class NextStep(Enum):
    """What to do after a step for a claim."""

    DONE = "nothing, until something changes"
    AGAIN = "the next step at once"
    WAIT_FOR_DEVICE = "nothing, until a device is free"
    WAIT_FOR_WATCH = "nothing, until the watch shows the written conditions"


class _Work:
    """The work on one claim, until nothing is left to do for it."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.changed = asyncio.Event()
        self.waits_for_device = False
        self.result: tuple[BoundClaimIdentity, DraError | None] | None = None  # of bind, until the claim contains it
        self.written: tuple[BoundClaimIdentity, float] | None = None  # when, until the watch shows it
        self.task: asyncio.Task[None] | None = None


class Binder:
    """Binds and unbinds the claims of one driver. Created on the event loop; only the leader uses it.

    Args:
        conditions: writes the binding conditions, with its own field manager.
        leads: whether this process leads; if not, no step begins.
        delays: seconds between attempts: the first delay, which doubles with each failure, and the longest.
    """

    def __init__(
        self,
        calls: BindCalls,
        records: BindingRecords,
        conditions: DeviceStatusReporter,
        metrics: Metrics,
        leads: Callable[[], bool],
        delays: tuple[float, float] = RETRY_DELAYS,
    ) -> None:
        self.calls = calls
        self.records = records
        self.conditions = conditions
        self.metrics = metrics
        self.leads = leads
        self._delays = delays
        self.faults: dict[str, str] = {}
        """Why claims are not bound or unbound, by claim (namespace/name)."""
        self._watch: ClaimWatch | None = None
        self._bound: dict[str, BindingRecord] = {}
        self._work: dict[str, _Work] = {}  # by claim UID
        self._tasks: asyncio.TaskGroup | None = None
        self.fault = ""
        """Why nothing can be bound now; empty if there is no fault."""
        self._stopping = False
        metrics.measure("bound_claims", lambda: float(len(self._bound)))

    async def stop(self, grace: float) -> None:
        """Begins nothing new, and waits up to ``grace`` seconds for running calls of the driver."""
        self._stopping = True
        for work in self._work.values():
            work.changed.set()
        if running := [work.task for work in self._work.values() if work.task]:
            await asyncio.wait(running, timeout=grace)

    def changed(self, uid: str) -> None:
        """Handles a claim that may have changed."""
        if self._stopping:
            return
        if known := self._work.get(uid):
            known.changed.set()
        elif self._tasks is not None:
            work = self._work[uid] = _Work(uid)
            work.task = self._tasks.create_task(self._work_on(work), name=f"claim {uid}")

    async def run(self, watch: ClaimWatch) -> None:
        """Works on all claims. Never returns; external failures do not stop it. ``watch`` must call :meth:`changed`."""
        self._watch = watch
        await self._load()
        await watch.synced.wait()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for uid in {a.claim.uid for a in watch} | self._bound.keys():
                self.changed(uid)
            await asyncio.Event().wait()

    async def _load(self) -> None:
        backoff = self._backoff()
        while True:
            try:
                self._bound = {r.claim.uid: r for r in await self.records.load()}
                self.fault = ""
                return
            except ApiError as e:
                fault = f"cannot read the records of bound claims: {e}"
                if fault != self.fault:
                    log.warning("cannot read the records of bound claims: %s", e)
                self.fault = fault
            await asyncio.sleep(backoff.next())

    def _backoff(self) -> Backoff:
        return Backoff(*self._delays, jitter=0.2)

    # --- one claim ------------------------------------------------------------------------------

    def _claim(self, uid: str) -> AllocatedClaim | None:
        """Returns the claim if its devices have binding conditions; else None."""
        found = self._watch.get(uid) if self._watch else None
        return found if found and found.waiting else None

    async def _work_on(self, work: _Work) -> None:
        uid, backoff = work.uid, self._backoff()
        set_log_fields(lambda: self._log_fields(uid))
        try:
            while not self._stopping:
                work.changed.clear()
                seen = self._seen(uid)
                if not self.leads():  # the process is about to end
                    await self._pause(work, backoff.duration, seen)
                    continue
                try:
                    with operation():
                        following = await self._step(work)
                    self.faults.pop(self._shown(uid), None)
                    backoff.reset()
                except Exception as e:  # a fault of one claim must not end the work on others
                    self._record_fault(uid, e)
                    await self._pause(work, backoff.next(), seen)
                    continue
                if following is NextStep.WAIT_FOR_WATCH:
                    await self._pause(work, _CATCH_UP, seen)
                elif following is NextStep.AGAIN or work.changed.is_set():
                    continue
                elif following is NextStep.DONE:
                    return
                else:
                    work.waits_for_device = True
                    await work.changed.wait()
                    work.waits_for_device = False
        finally:
            del self._work[uid]

    async def _step(self, work: _Work) -> NextStep:
        uid = work.uid
        wanted, record = self._claim(uid), self._bound.get(uid)
        if record is not None and (wanted is None or record.identity != wanted.identity):
            await self._unbind(record)
            work.result = work.written = None
            return NextStep.AGAIN
        if wanted is None or wanted.ready or wanted.failed:
            return NextStep.DONE
        if work.written and work.written[0] == wanted.identity and time.monotonic() - work.written[1] < _CATCH_UP:
            return NextStep.WAIT_FOR_WATCH
        if any(r.exclusive & wanted.exclusive for u, r in self._bound.items() if u != uid):
            return NextStep.WAIT_FOR_DEVICE
        if record is None:
            await self._record(wanted)
            return NextStep.AGAIN  # the allocation or the leader may have changed during the write
        if work.result is None or work.result[0] != wanted.identity:
            work.result = wanted.identity, await self._bind(wanted)
        written_at = time.monotonic()
        await self._write_conditions(wanted, work.result[1])
        work.written = wanted.identity, written_at
        return NextStep.AGAIN

    async def _record(self, wanted: AllocatedClaim) -> None:
        uid = wanted.claim.uid
        try:
            self._bound[uid] = await self.records.create(wanted)
        except ConflictError:  # a response was lost, or another leader wrote the record meanwhile: that record counts
            # The records of other claims in memory may be newer than the list.
            if own := next((r for r in await self.records.load() if r.claim.uid == uid), None):
                self._bound[uid] = own
            raise

    async def _bind(self, wanted: AllocatedClaim) -> DraError | None:
        """Calls ``bind``. Returns its error if another call cannot succeed; raises other errors."""
        error: DraError | None = None
        started = time.monotonic()
        try:
            await self.calls.bind(wanted)
        except (PermanentError, ConfigError) as e:
            error = e
        except DraError:
            self.metrics.inc("binds_total", operation="bind", result="retried")
            raise
        self.metrics.inc("binds_total", operation="bind", result="failed" if error else "ok")
        if error:
            log.warning("cannot bind claim: %s", error, extra={"error_code": error.code})
        else:
            log.info("bound claim", extra={"duration_s": round(time.monotonic() - started, 3)})
        return error

    async def _write_conditions(self, wanted: AllocatedClaim, error: DraError | None) -> None:
        """Writes the conditions. Raises :class:`ApiError`; a retry then writes again without another call of ``bind``."""
        statuses = {r.key: _status(r, error) for r in wanted.waiting}
        if error and not any(s.conditions for s in statuses.values()):
            log.error(
                "cannot report a failed bind: the devices have no binding failure conditions, so the scheduler keeps waiting"
            )
            return

        def is_same_allocation(claim: ClaimFields) -> bool:
            return claim.allocated_at == wanted.stamp

        if not await self.conditions.write(wanted.claim, statuses, is_same_allocation):
            log.info("the claim was deallocated while bind() ran")

    async def _unbind(self, record: BindingRecord) -> None:
        claim = record.claim
        try:
            await self.calls.unbind(claim)
        except DraError:
            self.metrics.inc("binds_total", operation="unbind", result="retried")
            raise
        self.metrics.inc("binds_total", operation="unbind", result="ok")
        await self.records.delete(record)
        self._bound.pop(claim.uid, None)
        log.info("unbound claim", extra=claim_fields(claim))
        for work in self._work.values():
            if work.waits_for_device:
                work.changed.set()

    # --- faults ---------------------------------------------------------------------------------

    def _known(self, uid: str) -> ClaimIdentity | BoundClaim | None:
        if found := self._watch.get(uid) if self._watch else None:
            return found.claim
        record = self._bound.get(uid)
        return record.claim if record else None

    def _shown(self, uid: str) -> str:
        claim = self._known(uid)
        return f"{claim.namespace}/{claim.name}" if claim else uid

    def _log_fields(self, uid: str) -> Fields:
        claim = self._known(uid)
        return claim_fields(claim) if claim else {"claim_uid": uid}

    def _record_fault(self, uid: str, e: Exception) -> None:
        shown = self._shown(uid)
        text = e.message if isinstance(e, DraError) else describe(e)
        if self.faults.get(shown) != text:
            code = {"error_code": e.code} if isinstance(e, DraError) else {}
            log.warning("cannot bind or unbind claim: %s", text, extra=code, exc_info=None if code else e)
        self.faults[shown] = text

    def _seen(self, uid: str) -> object:
        """Returns the state that decides the next step. The controller's own reports change the claim, but not this state."""
        wanted = self._claim(uid)
        return wanted and (wanted.identity, wanted.ready, wanted.failed)

    async def _pause(self, work: _Work, seconds: float, seen: object) -> None:
        """Waits until it is time to try again, or until another step is next."""
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0 and self._seen(work.uid) == seen and not self._stopping:
            work.changed.clear()
            await is_set_within(work.changed, remaining)


def _status(result: DeviceResult, error: DraError | None) -> DeviceStatus:
    if error is None:
        return DeviceStatus(conditions=[Condition(t, True, "Bound") for t in result.binding_conditions or ()])
    message = clip(error.message, _MESSAGE)
    return DeviceStatus(
        conditions=[Condition(t, True, "BindingFailed", message) for t in (result.binding_failure_conditions or ())[:1]]
    )
