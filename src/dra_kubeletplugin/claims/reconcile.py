"""Reconciles records, CDI files and the API server's claims: at start, and every ``reconcile_interval`` (300 s by default).

A pass writes CDI files of prepared claims again if they were removed or changed; so does a repeated prepare. The folder is not watched.
A claim that vanished from the API server is unprepared in a later pass, when no pod of the node can use it (`running_pods.py`) and its
grace period is over. A pass waits a bounded time for each claim's work. Longer work continues in its own task, and a later pass sees
its result.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..base.settings import Settings
from ..base.telemetry.logs import claim_fields, operation
from ..base.threads import in_own_thread
from ..errors import (
    ApiError,
    ApiUnavailableError,
    DraError,
    RecordsError,
    StoppingError,
    UndoFailedError,
    describe,
    printable,
)
from .claim_fields import ClaimIdentity
from .record import Record, State
from .rollback import Rollback
from .running_pods import ClaimPods
from .verification import Verifier

log = logging.getLogger(__name__)
_FAILURES = 3  # failed API requests after which a pass sends no more
_ORPHAN_AGE = 5.0  # minimum age in seconds of a file without a record before it is removed
_Key = tuple[str, float]  # claim UID and creation time of its record; a claim that is prepared again has the same UID


@dataclass
class ReconcileReport:
    """Results of one pass, by claim UID."""

    rolled_back: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    files_restored: list[str] = field(default_factory=list)
    files_removed: list[str] = field(default_factory=list)
    unprepared: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    still_working: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{name.replace('_', ' ')}: {len(uids)}" for name, uids in vars(self).items() if uids]
        return ", ".join(parts) or "nothing to do"

    def __bool__(self) -> bool:
        return any(vars(self).values())


class Reconciler:
    """Runs the reconcile passes of one driver.

    It waits for the work that it starts at most as long as the kubelet waits for a call.
    """

    def __init__(self, rollback: Rollback, verifier: Verifier, pods: ClaimPods, settings: Settings) -> None:
        self.rollback = rollback
        self.verifier = verifier
        self.pods = pods
        self.settings = settings
        self.store, self.files, self.transitions = rollback.store, rollback.files, rollback.transitions
        self.tasks, self.metrics = rollback.tasks, rollback.metrics
        self.last: ReconcileReport | None = None
        self._gone_since: dict[_Key, float] = {}
        self._unknown: set[str] = set()  # UIDs of claims that could not be read at the last attempt
        self._kubelet_was_away = False  # whether the kubelet was away at the last check
        # UIDs of claims that only the kubelet may unprepare; a warning was logged for each
        self._left_to_kubelet: set[str] = set()

    def kubelet_registered(self) -> None:
        """Restarts each grace period: a kubelet that has just started unprepares the claims that ended while it was away."""
        self._gone_since.clear()
        self.pods.forget_users()

    async def run(self, interval: float) -> None:
        """Runs a pass every ``interval`` seconds. Never returns; failures are logged and retried in the next pass."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.once()
            except DraError as e:
                log.warning("reconcile failed; the next pass is in %g s: %s", interval, e)

    async def once(self, *, ask_server: bool = True) -> ReconcileReport:
        """Runs one pass. Without ``ask_server``, it uses local state only; the first pass, at the start of the plugin, does so.

        Raises :class:`RecordsError` if the records or the CDI files cannot be read.
        """
        report = ReconcileReport()
        with operation():
            records = await self.store.all()
            await self._leftovers(records, report)
            await self._files(records, report)
            if ask_server:
                await self._claims(records, report)
            for action, uids in vars(report).items():
                self.metrics.inc("reconcile_actions_total", len(uids), action=action)
            level = logging.INFO if report else logging.DEBUG
            if ask_server:
                log.log(level, "reconciled: %s", report)
            else:
                log.log(level, "reconciled at start: %s", report)
        self.last = report
        return report

    async def _leftovers(self, records: list[Record], report: ReconcileReport) -> None:
        """Rolls back unfinished work of dead processes, and retries rollbacks that failed."""
        unfinished = [
            r.uid for r in records if r.state is not State.PREPARED and not self.transitions.has_other_owner(r)
        ]
        await self._all(unfinished, self.rollback.tidy, report.rolled_back, report)

    async def _files(self, records: list[Record], report: ReconcileReport) -> None:
        """Restores lost CDI files of claims prepared in this boot. Removes this driver's files that have no record."""
        prepared = [r.uid for r in records if self.transitions.is_prepared(r)]
        await self._all(prepared, self.rollback.repair_files, report.files_restored, report)
        if await self.store.recovering():
            return  # the driver has not yet reported the claims that it knows: no file counts as an orphan
        try:
            found = await in_own_thread(self._orphans, {r.uid for r in records})
        except OSError as e:
            shown = printable(e.filename or self.files.specs.root)
            raise RecordsError(f"{shown} cannot be read ({e.strerror or e}): see its mount") from None
        await self._all(found, self.rollback.remove_orphan, report.files_removed, report)

    def _orphans(self, known: set[str]) -> list[str]:
        """Returns claims with old files but no record. Also removes temporary files of writers that died."""
        self.files.specs.clean(self.transitions.process.alive)
        # A clock that was set back leaves files with times in the future.
        return sorted(uid for uid, age in self.files.uids().items() if uid not in known and abs(age) > _ORPHAN_AGE)

    async def _claims(self, records: list[Record], report: ReconcileReport) -> None:
        """Unprepares claims that were deleted or replaced on the API server, or lost their devices, after a grace period.

        The grace period (option RECONCILE_GRACE_PERIOD, 120 s) begins with the first pass that does not find the claim, and in which no
        pod of the node can use it. A later pass unprepares it: with passes every 300 s, 5 to 10 minutes after its deletion. No claim is
        unprepared while the kubelet is known to be away.
        """
        gone = await self._gone(records, report)
        held = await self.pods.held(gone, records)
        now = time.monotonic()
        ended: dict[str, Record] = {}
        for record in gone:
            key = (record.uid, record.created)
            if record.uid in held:
                self._gone_since.pop(key, None)
                report.waiting.append(record.uid)
            elif now - self._gone_since.setdefault(key, now) < self.settings.reconcile_grace_period:
                report.waiting.append(record.uid)
            else:
                ended[record.uid] = record
        if ended and await self._must_wait():
            report.waiting += ended
            self._gone_since.clear()
            ended.clear()
        known = {(r.uid, r.created) for r in records}
        self._gone_since = {key: since for key, since in self._gone_since.items() if key in known}
        uids = {uid for uid, _ in known}
        self._left_to_kubelet &= uids
        self._unknown &= uids
        await self._all(ended, lambda uid: self._reclaim(ended[uid]), report.unprepared, report)

    async def _gone(self, records: list[Record], report: ReconcileReport) -> list[Record]:
        """Returns the prepared claims that the API server no longer has with their devices."""
        out: list[Record] = []
        failures = 0
        # Claims that could not be read come last: a few failures end the pass, and the other claims would never be read.
        for record in sorted(records, key=lambda r: r.uid in self._unknown):
            if record.state is not State.PREPARED or not record.name or record.uid in self.tasks:
                continue
            try:
                live = await self._is_live(record)
            except ApiUnavailableError as e:
                log.warning("cannot read claim from the API server: %s", e, extra=claim_fields(record))
                self._unknown.add(record.uid)
                failures += 1
                if failures == _FAILURES:
                    break  # the API server is unreachable, and each request waits for its timeout
                continue
            self._unknown.discard(record.uid)
            if not live:
                out.append(record)
                continue
            self._gone_since.pop((record.uid, record.created), None)
            self.pods.set_live(record)
            if record.uid in self._left_to_kubelet:
                report.waiting.append(record.uid)
        return out

    async def _is_live(self, record: Record) -> bool:
        """Whether a claim still has the devices that were prepared for it, or a pod of this node may still use them.

        Raises :class:`ApiUnavailableError`.
        """
        claim = await self.verifier.fetch(ClaimIdentity(record.namespace, record.name, record.uid))
        has = claim is not None and self.verifier.has(claim, record)
        if claim is not None and not has and self.verifier.may_be_in_use(claim, record):
            self._leave(record)
            return True
        self._left_to_kubelet.discard(record.uid)
        return has

    async def _reclaim(self, record: Record) -> bool:
        async def is_over() -> bool:
            try:
                if (record.uid, record.created) not in self._gone_since or await self._is_live(record):
                    return False  # a kubelet registered meanwhile, or the claim has its devices again
            except ApiUnavailableError as e:
                log.warning("cannot read claim from the API server: %s", e, extra=claim_fields(record))
                return False
            log.warning(
                "unpreparing a claim that was deleted or lost its devices, because the kubelet did not unprepare it",
                extra=claim_fields(record),
            )
            return True

        return await self.rollback.reclaim(record, is_over)

    async def _must_wait(self) -> bool:
        """Whether the kubelet is away, or may be: its pods may still run, also if the API server has deleted their claims."""
        try:
            away = await self.verifier.slices.kubelet_is_away()
        except (ApiError, TimeoutError) as e:
            log.warning("cannot check whether the kubelet of this node is alive: %s", describe(e))
            return True
        if away and not self._kubelet_was_away:
            log.warning("the kubelet of this node does not respond; deleted claims keep their devices until it does")
        self._kubelet_was_away = away
        return away

    def _leave(self, record: Record) -> None:
        if record.uid not in self._left_to_kubelet:
            self._left_to_kubelet.add(record.uid)
            log.warning(
                "the claim was prepared with devices that it no longer has, and its pod may still use them; they stay held until "
                "the kubelet unprepares the claim: delete that pod",
                extra={**claim_fields(record), "devices": [str(d["device"]) for d in record.devices]},
            )

    async def _all(
        self, uids: Iterable[str], work: Callable[[str], Awaitable[bool]], done: list[str], report: ReconcileReport
    ) -> None:
        """Starts work on several claims concurrently and waits for it; skips claims with work in flight."""
        tasks: Mapping[str, asyncio.Task[Any]] = {
            uid: asyncio.ensure_future(work(uid)) for uid in uids if uid not in self.tasks
        }
        if not tasks:
            return
        # A cancelled pass does not read the results. Without the callback, asyncio would log each exception.
        for task in tasks.values():
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait(tasks.values(), timeout=self.settings.call_timeout)
        for uid, task in tasks.items():
            if not task.done():
                report.still_working.append(uid)
                task.cancel()  # cancels only the waiting: the work is shielded
            elif (error := task.exception()) is None:
                if task.result():
                    done.append(uid)
            elif isinstance(error, StoppingError):
                report.still_working.append(uid)
            elif isinstance(error, DraError):
                if not isinstance(error, UndoFailedError):  # it is logged already
                    self.rollback.retries.log(uid, "cannot reconcile claim: %s", error)
                report.failed.append(uid)
            else:
                raise error
