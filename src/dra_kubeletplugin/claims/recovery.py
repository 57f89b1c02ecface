"""Completes lost records after a repair: adds the claims that the driver's ``recover()`` finds in the hardware."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ..base.text import counted
from ..cdi.directory import is_uid
from ..driver import Driver, RecoveredClaim
from ..driver.attachment import overrides
from ..driver.calls import Calls
from ..driver.data import plain_json
from ..errors import DraError, DriverError, describe, kind_of, printable
from .record import Record, State, allocated_json
from .store.records import RECOVER, HeldByError, Records
from .store.store import Mode, RecordStore
from .transitions import ENDED
from .undo_steps import shared_entry, undo_entry

log = logging.getLogger(__name__)
_SHAPE = "a RecoveredClaim with devices of PreparedDevice, shared_steps of SharedStep, and undo_steps of a method and its data"
_UNKNOWN = "so the plugin does not know which hardware is in use"


class Recovery:
    """Calls ``recover()`` until it succeeds.

    ``report`` contains sentences: one that lists the added claims, and one for each claim that has an unreadable record, or a device that
    another claim holds too.
    """

    def __init__(self, driver: Driver, calls: Calls, store: RecordStore, boot_id: str, slow: float) -> None:
        self.driver = driver
        self.calls = calls
        self.store = store
        self.boot_id = boot_id
        self.slow = slow  # seconds until a recover() that has not returned is logged
        self.report: list[str] = []
        self.fault = ""  # why it is not known which hardware is in use; empty if it is known
        self._lock = asyncio.Lock()

    async def once(self) -> bool:
        """Calls ``recover()`` and merges its claims, if that is due. Returns False if it has to be tried again.

        Raises :class:`.RecordsError` if the records cannot be used.
        """
        async with self._lock:  # a start that takes long continues while the background task begins
            if not await self.store.recovering():
                self.fault = ""
                return True
            if not overrides(self.driver, "recover") and (lost := await self.store.do(Records.damaged, Mode.READ)):
                self._fail(
                    f"the files of {counted(len(lost), 'claim')} were damaged, and the driver has no recover(): no claim is prepared for "
                    f"the first time; when the pods of these claims are gone, run `dra claims forget UID`: {', '.join(lost[:3])}"
                )
                return False
            slow = f"recover() of the driver has not returned for {self.slow:g} s, {_UNKNOWN}"
            timer = asyncio.get_running_loop().call_later(self.slow, self._fail, slow)
            try:
                claims = await self.calls(self.driver.recover)
                if not isinstance(claims, list | tuple | None):
                    raise DriverError(f"recover() returned {kind_of(claims)}, not a list of RecoveredClaim")
                found = [_record(self.driver, claim, self.boot_id) for claim in claims or ()]
            except DraError as e:
                self._fail(f"recover() of the driver failed, {_UNKNOWN}: {e}")
                return False
            finally:
                timer.cancel()
            sentences = await self.store.do(lambda records: self._merge(records, found))
            self.report += sentences
            for sentence in sentences:
                log.warning("records were completed: %s", sentence)
            self.fault = ""
            return True

    def _fail(self, fault: str) -> None:
        if fault != self.fault:
            log.error("records are not complete: %s", fault)
        self.fault = fault

    def _merge(self, records: Records, found: Sequence[Record]) -> list[str]:
        """Merges the claims in one transaction. A conflicting claim is only reported; all other claims are merged."""
        for uid in records.damaged():
            records.forget(uid)  # the driver has reported which devices are in use
        ended = records.get_meta(ENDED)
        reported = {record.uid for record in found}
        added, sentences = [], []
        for record in found:
            row = records.read(record.uid)
            if isinstance(row, Record):
                if row.superseded:  # the hardware has this claim, so the driver has to undo it
                    fence, row.superseded, row.recovered = row.fence, False, True
                    records.update(row, fence)
                continue
            if row is not None:
                sentences.append(
                    f"claim {row.shown} was reported by the driver, and its record cannot be read ({row.reason})"
                )
                continue
            if record.uid in ended:  # the next pass rolls back a claim that the kubelet has unprepared meanwhile
                record.state = State.UNPREPARING
            try:
                records.insert(record)
                added.append(record.uid)
            except HeldByError as e:
                if reported & {holder.uid for holder in e.holders}:
                    sentences.append(f"claim {record.uid} was reported by the driver and is not recorded: {e}")
                    continue
                # The driver did not report the recorded holder, only this claim. So this claim is recorded too, and no other claim
                # gets the device before this claim is undone.
                records.insert(record, shared=True)
                sentences.append(
                    f"claim {record.uid} was reported by the driver, and another claim has its device: {e}"
                )
        records.clear_meta(RECOVER)
        records.clear_meta(ENDED)
        if added:
            sentences.insert(0, f"{counted(len(added), 'claim')} reported by the driver: {', '.join(added)}")
        return sentences


def _record(driver: Driver, claim: RecoveredClaim, boot_id: str) -> Record:
    """Returns the record of a claim. Raises :class:`DriverError` if the record cannot be written and read back."""
    shown = f"recover() returned {kind_of(claim)} (UID {printable(getattr(claim, 'uid', '?'))})"
    try:
        names = [claim.uid, claim.namespace, claim.name]
        devices = []
        for device in claim.devices:
            names += [device.request, device.pool, device.name, device.share_id or ""]
            data = {} if device.data is None else {"data": plain_json(device.data, f"data of {device.name}")}
            devices.append(allocated_json(device) | data)
        undo = [undo_entry(driver, method, data) for method, data in claim.undo_steps or ()]
        shared = [shared_entry(driver, s.setup, s.key, s.data) | {"ready": True} for s in claim.shared_steps or ()]
    except (AttributeError, TypeError, ValueError) as e:
        raise DriverError(f"{shown}, which is not {_SHAPE}: {describe(e)}") from None
    for name in names:
        if not isinstance(name, str) or not name.isprintable():
            raise DriverError(f"{shown} with a name that is not printable text: {printable(name)}")
    if not claim.uid or not all(d["device"] for d in devices):
        raise DriverError(f"{shown} without a UID, or with a device that has no name")
    if not is_uid(claim.uid):
        raise DriverError(f"{shown}, which is not the UID of a ResourceClaim")
    return Record(
        claim.uid,
        claim.namespace,
        claim.name,
        State.PREPARED,
        boot_id,
        devices=devices,
        undo=undo,
        shared=shared,
        shared_unknown=claim.shared_steps is None,
        recovered=True,
    )
