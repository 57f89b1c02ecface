"""Reconciles records, CDI files and the API server's claims: at start, and every ``reconcile_interval`` (300 s by default).

A pass writes CDI files of prepared claims again if they were removed or changed; so does a repeated prepare. The folder is not watched.
A claim that vanished from the API server is unprepared in a later pass, when no pod of the node can use it (`running_pods.py`) and its
grace period is over. A pass waits a bounded time for each claim's work. Longer work continues in its own task, and a later pass sees
its result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

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
            # Unfinished work of dead processes, and rollbacks that failed.
            unfinished = [r.uid for r in records if r.state is not State.PREPARED]
            await self._all(unfinished, self.rollback.tidy, report.rolled_back, report)
            prepared = [r.uid for r in records if self.transitions.is_prepared(r)]
            await self._all(prepared, self.rollback.repair_files, report.files_restored, report)
            if not await self.store.recovering():  # until then, the driver may still report claims
                orphans = await in_own_thread(self._orphans, {r.uid for r in records})
                await self._all(orphans, self.rollback.remove_orphan, report.files_removed, report)
            if ask_server:
                ended = {r.uid: r for r in await self._ended(records, report)}
                await self._all(ended, lambda uid: self._reclaim(ended[uid]), report.unprepared, report)
            for action, uids in vars(report).items():
                self.metrics.inc("reconcile_actions_total", len(uids), action=action)
            level = logging.INFO if any(vars(report).values()) else logging.DEBUG
            if ask_server:
                log.log(level, "reconciled: %s", report)
            else:
                log.log(level, "reconciled at start: %s", report)
        return report

    def _orphans(self, known: set[str]) -> list[str]:
        """Returns claims with files but no record. Also removes temporary files of writers that died."""
        files = self.files
        try:
            files.specs.clean(self.transitions.process.alive)
            return sorted(files.uids() - known)
        except OSError as e:
            shown = printable(e.filename or files.specs.root)
            raise RecordsError(f"{shown} cannot be read ({e.strerror or e}): see its mount") from None

    async def _ended(self, records: Sequence[Record], report: ReconcileReport) -> Sequence[Record]:
        """Returns claims that were deleted or replaced on the API server, or lost their devices, and whose grace period is over.

        The grace period (option RECONCILE_GRACE_PERIOD, 120 s) begins with the first pass that does not find the claim, and in which no
        pod of the node can use it. A later pass unprepares it: with passes every 300 s, 5 to 10 minutes after its deletion. No claim is
        unprepared while the kubelet is known to be away.
        """
        gone: list[Record] = []
        unreadable: list[ApiUnavailableError] = []
        deadline = self.pods.clock() + self.settings.call_timeout
        for record in records:
            if record.state is not State.PREPARED or not record.name or record.uid in self.tasks:
                continue
            try:
                if await self._is_live(record, report.waiting):
                    self.pods.set_live(record)
                else:
                    gone.append(record)
            except ApiUnavailableError as e:
                unreadable.append(e)
                if self.pods.clock() > deadline:
                    break  # the API server does not respond, and each request waits for its timeout
        if unreadable:
            log.warning("cannot read claims from the API server: %d, for example: %s", len(unreadable), unreadable[0])
        ended = await self.pods.ended(gone, records)
        if ended and await self._kubelet_is_away():
            self.pods.restart_grace_periods()
            ended = []
        report.waiting += [r.uid for r in gone if r not in ended]
        return ended

    async def _is_live(self, record: Record, waiting: list[str]) -> bool:
        """Whether a claim still has the devices that were prepared for it, or a pod of this node may still use them.

        A claim that only the kubelet may unprepare is added to ``waiting``. Raises :class:`ApiUnavailableError`.
        """
        claim = await self.verifier.fetch(ClaimIdentity(record.namespace, record.name, record.uid))
        if claim is None or self.verifier.has(claim, record):
            return claim is not None
        if not self.verifier.may_be_in_use(claim, record):
            return False
        waiting.append(record.uid)
        log.warning(
            "the claim was prepared with devices that it no longer has, and its pod may still use them; they stay held until "
            "the kubelet unprepares the claim: delete that pod",
            extra={**claim_fields(record), "devices": [str(d["device"]) for d in record.devices]},
        )
        return True

    async def _reclaim(self, record: Record) -> bool:
        async def is_over() -> bool:
            if not self.pods.is_unused(record) or await self._is_live(record, []):
                return False  # a kubelet registered meanwhile, or the claim has its devices again
            log.warning(
                "unpreparing a claim that was deleted or lost its devices, because the kubelet did not unprepare it",
                extra=claim_fields(record),
            )
            return True

        return await self.rollback.reclaim(record, is_over)

    async def _kubelet_is_away(self) -> bool:
        """Whether the kubelet is away, or may be: its pods may still run, also if the API server has deleted their claims."""
        try:
            away = await self.verifier.slices.kubelet_is_away()
        except (ApiError, TimeoutError) as e:
            log.warning("cannot check whether the kubelet of this node is alive: %s", describe(e))
            return True
        if away:
            log.warning("the kubelet of this node does not respond; deleted claims keep their devices until it does")
        return away

    async def _all(
        self, uids: Iterable[str], work: Callable[[str], Awaitable[bool]], done: list[str], report: ReconcileReport
    ) -> None:
        """Does work on several claims concurrently, except claims with work in flight. Adds each claim to its list of the report."""

        async def one(uid: str) -> None:
            try:
                async with asyncio.timeout(self.settings.call_timeout):
                    if await work(uid):
                        done.append(uid)
            except (TimeoutError, StoppingError):  # a timeout ends only the waiting: the work is shielded
                report.still_working.append(uid)
            except DraError as e:
                if not isinstance(e, UndoFailedError):  # it is logged already
                    self.rollback.retries.log(uid, "cannot reconcile claim: %s", e)
                report.failed.append(uid)

        async with asyncio.TaskGroup() as group:
            for uid in uids:
                if uid not in self.tasks:
                    group.create_task(one(uid))
