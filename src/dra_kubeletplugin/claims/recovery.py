"""After the records were lost: what the driver's hardware knows completes what files told."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence

from ..driver import Driver, PreparedDevice, RecoveredClaim
from ..driver.calls import Calls
from ..driver.data import plain_json
from ..errors import DraError, DriverError, printable
from . import rows
from .judge import ENDED, RECOVER
from .record import Record, State, allocated_json, identity
from .store import Store

log = logging.getLogger(__name__)


class Recovery:
    """Asks the driver until it has answered. ``report`` has a sentence for what it knew, and for what could not be merged."""

    def __init__(self, driver: Driver, calls: Calls, store: Store, boot_id: str) -> None:
        self.driver = driver
        self.calls = calls
        self.store = store
        self.boot_id = boot_id
        self._under_way: asyncio.Task[bool] | None = None
        self.report: list[str] = []
        self.fault = ""  # why it is not known what the hardware knows

    async def once(self) -> bool:
        """Merges what the driver knows, where that is still to do. False where it has to be tried again.

        A second caller joins the first: the driver is never asked twice at once.

        Raises :class:`RecordsError` where the records cannot be used.
        """
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._once(), name="recovery")
        return await asyncio.shield(self._under_way)

    async def _once(self) -> bool:
        if not await self.store.recovering():
            self.fault = ""
            return True
        try:
            claims = await self.calls(self.driver.recover)
            checked = [_checked(c) for c in claims or ()]
        except DraError as e:
            self.fault = f"recover() of the driver failed, so it is not known what its hardware has in use: {e}"
            log.error("%s", self.fault)
            return False
        told = await self.store.do(lambda db: self._merge(db, checked))
        self.report += told
        for sentence in told:
            log.warning("%s", sentence)
        self.fault = ""
        return True

    def _merge(self, db: sqlite3.Connection, claims: Sequence[RecoveredClaim]) -> list[str]:
        """All in one transaction, each claim by itself: one that conflicts is told and the others are merged."""
        ended = rows.get_meta(db, ENDED)
        added, told = [], []
        for claim in claims:
            row = rows.read(db, claim.uid)
            if isinstance(row, Record):
                _complete(db, row, claim)
                continue
            if row is not None:
                told.append(
                    f"claim {row.shown} was reported by the driver, and its record cannot be read ({row.reason})"
                )
                continue
            try:
                rows.insert(db, self.store.driver, self._record(claim, over=claim.uid in ended))
                added.append(claim.uid)
            except rows.HeldByError as e:
                told.append(f"claim {claim.uid} was reported by the driver and not taken: {e}")
        rows.clear_meta(db, RECOVER)
        rows.clear_meta(db, ENDED)
        if added:
            told.insert(0, f"{len(added)} claims were reported by the driver: {', '.join(added)}")
        return told

    def _record(self, claim: RecoveredClaim, *, over: bool) -> Record:
        devices = [allocated_json(d) | ({"data": d.data} if d.data is not None else {}) for d in claim.devices]
        doc = {"devices": devices, "cdi": None, "complete": True, "rebuilt": True}
        # What the kubelet has unprepared meanwhile is left for the next pass to undo.
        state = State.UNPREPARING if over else State.PREPARED
        return Record(claim.uid, claim.namespace, claim.name, state, self.boot_id, "", doc)


def _complete(db: sqlite3.Connection, row: Record, claim: RecoveredClaim) -> None:
    """A record that came from a file gets what only the driver knows; any other is right as it is."""
    if not row.doc.get("rebuilt"):
        return
    fence = row.fence
    known = {identity(allocated_json(d)): d for d in claim.devices}
    devices = []
    for entry in row.devices:
        told = known.get(identity(entry))
        more = {"data": told.data, "request": told.request} if told else {}
        devices.append(entry | {k: v for k, v in more.items() if v and not entry.get(k)})
    row.doc = row.doc | {"devices": devices}
    row.namespace, row.name = row.namespace or claim.namespace, row.name or claim.name
    rows.update(db, row, fence)


def _checked(claim: object) -> RecoveredClaim:
    if not isinstance(claim, RecoveredClaim) or not all(isinstance(d, PreparedDevice) for d in claim.devices):
        raise DriverError(
            f"recover() answered {printable(type(claim).__name__)}, not RecoveredClaim with PreparedDevice"
        )
    if not claim.uid or not isinstance(claim.uid, str):
        raise DriverError("recover() answered a RecoveredClaim without the UID of its claim")
    try:
        for d in claim.devices:
            plain_json(d.data)
    except ValueError as e:
        raise DriverError(f"recover() answered data of claim {printable(claim.uid)} that cannot be kept: {e}") from None
    return claim
