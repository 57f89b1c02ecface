"""Brings records, CDI files and the API server's claims together: at start, and every few minutes."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from ..errors import ApiUnavailableError, ClaimError, DraError
from ..observe.log import operation
from ..observe.metrics import Metrics
from .engine import Engine
from .record import Record, State
from .verify import ClaimRef

log = logging.getLogger(__name__)
_ORPHAN_AGE = 5.0  # seconds that a file must have been without a record


@dataclass
class Report:
    """What one pass did, by claim UID."""

    undone: list[str] = field(default_factory=list)
    undo_failed: list[str] = field(default_factory=list)
    files_restored: list[str] = field(default_factory=list)
    files_removed: list[str] = field(default_factory=list)
    unprepared: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{name.replace('_', ' ')}: {len(uids)}" for name, uids in vars(self).items() if uids]
        return ", ".join(parts) or "nothing to do"


class Reconciler:
    """``grace``: seconds for which a claim must be gone before it is unprepared."""

    def __init__(self, engine: Engine, metrics: Metrics, grace: float) -> None:
        self.engine = engine
        self.metrics = metrics
        self.grace = grace
        self.last: Report | None = None
        self._gone_since: dict[str, float] = {}

    async def run(self, interval: float) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.once()
            except DraError as e:
                log.warning("reconciling failed, trying again in %gs: %s", interval, e)

    async def once(self, *, ask_server: bool = True) -> Report:
        """One pass. Without ``ask_server`` only what this node knows by itself: that is what a start needs.

        Raises :class:`RecordsError` where the records cannot be read.
        """
        report = Report()
        with operation():
            records = await self.engine.store.all()
            busy = set(self.engine.busy)
            await self._leftovers([r for r in records if r.uid not in busy], report)
            await self._files(records, report)
            if ask_server:
                await self._claims([r for r in records if r.uid not in busy], report)
            prepared = sum(r.state is State.PREPARED for r in await self.engine.store.all())
            self.metrics.set("prepared_claims", prepared)
            for action, uids in vars(report).items():
                self.metrics.inc("reconciled_total", len(uids), action=action)
            log.log(logging.INFO if str(report) != "nothing to do" else logging.DEBUG, "reconciled: %s", report)
        self.last = report
        return report

    async def _leftovers(self, records: list[Record], report: Report) -> None:
        """Unfinished work of dead processes, and undo that failed before."""

        async def undo(record: Record) -> None:
            ref = ClaimRef(record.namespace, record.name, record.uid)
            try:
                await self.engine.run("unprepare", ref, self.engine.undo_leftover)
                report.undone.append(record.uid)
            except DraError as e:
                log.error("leftover of claim %s (%s): %s", record.shown, record.state, e)
                report.undo_failed.append(record.uid)

        unfinished = [r for r in records if r.state is not State.PREPARED and not self.engine.is_others(r)]
        await asyncio.gather(*(undo(r) for r in unfinished))

    async def _files(self, records: list[Record], report: Report) -> None:
        """Lost CDI files come back (same boot); files of ours without a record go. Nobody else's is touched."""
        engine = self.engine
        for record in records:
            if record.state is State.PREPARED and record.boot_id == engine.boot_id and record.doc.get("cdi"):
                if record.uid not in engine.busy and not engine.specs.exists(record.uid):
                    await engine.run("restore", _ref(record), lambda _, r=record: engine.restore_file(r))  # type: ignore[misc]
                    report.files_restored.append(record.uid)
        known = {r.uid for r in records}
        for uid in engine.specs.uids():
            if uid in known or uid in engine.busy or not self._old(uid):
                continue
            if await engine.store.get(uid) is None:
                await engine.remove_file(uid)
                report.files_removed.append(uid)

    def _old(self, uid: str) -> bool:
        try:
            return time.time() - self.engine.specs.path(uid).stat().st_mtime > _ORPHAN_AGE
        except OSError:
            return False

    async def _claims(self, records: list[Record], report: Report) -> None:
        """Claims that are gone from the API server, or were replaced, are unprepared after a grace period."""
        now = time.monotonic()
        for record in records:
            if record.state is not State.PREPARED or not record.name:
                continue
            try:
                claim = await self.engine.verifier.fetch(_ref(record))
            except ApiUnavailableError:
                return
            except ClaimError as e:
                log.warning("cannot reconcile claim %s: %s", record.shown, e)
                continue
            if claim is not None and claim["metadata"]["uid"] == record.uid:
                self._gone_since.pop(record.uid, None)
                continue
            since = self._gone_since.setdefault(record.uid, now)
            if now - since < self.grace:
                report.waiting.append(record.uid)
                continue
            log.warning("claim %s is gone from the API server and nobody unprepared it: doing it now", record.shown)
            try:
                await self.engine.run("unprepare", _ref(record), self.engine.unprepare_one)
                report.unprepared.append(record.uid)
                self._gone_since.pop(record.uid, None)
            except DraError as e:
                log.error("claim %s: %s", record.shown, e)
                report.undo_failed.append(record.uid)


def _ref(record: Record) -> ClaimRef:
    return ClaimRef(record.namespace, record.name, record.uid)
