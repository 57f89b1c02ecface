"""Completes lost records after a repair: adds the claims that the driver's ``recover()`` finds in the hardware."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..base.shared_call import SharedCall
from ..base.text import counted
from ..cdi.directory import is_uid
from ..driver import Driver, PreparedDevice, RecoveredClaim, SharedStep
from ..driver.calls import Calls
from ..driver.data import plain_json
from ..driver.hardware_lock import check_key
from ..errors import DraError, DriverError, describe, printable
from .holders import HeldByError
from .record import Record, State, allocated_json, identity
from .store.records import RECOVER, Records
from .store.store import RecordStore
from .transitions import ENDED

log = logging.getLogger(__name__)
_SLOW = 10.0  # seconds until a recover() that has not returned is logged


class Recovery:
    """Calls ``recover()`` until it succeeds.

    ``report`` contains sentences: one that lists the added claims, and one for each claim that has an unreadable record, or a device that
    another claim holds too.
    """

    def __init__(self, driver: Driver, calls: Calls, store: RecordStore, boot_id: str) -> None:
        self.driver = driver
        self.calls = calls
        self.store = store
        self.boot_id = boot_id
        self.report: list[str] = []
        self.fault = ""  # why it is not known which hardware is in use; empty if it is known
        self._recover = SharedCall(lambda: self.calls(self.driver.recover), "recover")

    async def once(self) -> bool:
        """Calls ``recover()`` and merges its claims, if that is due. Returns False if it has to be tried again.

        Raises :class:`RecordsError` if the records cannot be used.
        """
        if not await self.store.recovering():
            self.fault = ""
            return True
        if type(self.driver).recover is Driver.recover and (lost := await self.store.damaged()):
            self.fault = (
                f"the files of {counted(len(lost), 'claim')} were damaged, and the driver has no recover(): no claim is prepared for the "
                f"first time; when the pods of these claims are gone, run `dra claims forget UID`: {', '.join(lost[:3])}"
            )
            return False
        try:
            checked = _all_checked(await self._call_recover())
        except DraError as e:
            self.fault = f"recover() of the driver failed, so the plugin does not know which hardware is in use: {e}"
            log.error("records are not complete: %s", self.fault)
            return False
        sentences = await self.store.do(lambda records: self._merge(records, checked))
        self.report += sentences
        for sentence in sentences:
            log.warning("records were completed: %s", sentence)
        self.fault = ""
        return True

    async def _call_recover(self) -> Sequence[RecoveredClaim]:
        """Waits for ``recover()``. Concurrent callers share one call, and a slow call is logged."""
        call = self._recover.begin()
        done, _ = await asyncio.wait([call], timeout=_SLOW)
        if not done:
            self.fault = f"recover() of the driver has not returned for {_SLOW:g} s, so the plugin does not know which hardware is in use"
            log.error("records are not complete: %s", self.fault)
            await asyncio.wait([call])
        return call.result()

    def _merge(self, records: Records, claims: Sequence[RecoveredClaim]) -> list[str]:
        """Merges the claims in one transaction. A conflicting claim is only reported; all other claims are merged."""
        for uid in records.damaged():
            records.forget(uid)  # the driver has reported which devices are in use
        ended = records.get_meta(ENDED)
        reported = {claim.uid for claim in claims}
        added, sentences = [], []
        for claim in claims:
            row = records.read(claim.uid)
            if isinstance(row, Record):
                _complete(records, row, claim)
                continue
            if row is not None:
                sentences.append(
                    f"claim {row.shown} was reported by the driver, and its record cannot be read ({row.reason})"
                )
                continue
            record = self._record(claim, ended=claim.uid in ended)
            try:
                records.insert(record)
                added.append(claim.uid)
            except HeldByError as e:
                if reported & {holder.uid for holder in e.holders}:
                    sentences.append(f"claim {claim.uid} was reported by the driver and is not recorded: {e}")
                    continue
                # The driver did not report the recorded holder, only this claim. So this claim is recorded too, and no other claim
                # gets the device before this claim is undone.
                records.insert(record, shared=True)
                sentences.append(f"claim {claim.uid} was reported by the driver, and another claim has its device: {e}")
        records.clear_meta(RECOVER)
        records.clear_meta(ENDED)
        if added:
            sentences.insert(0, f"{counted(len(added), 'claim')} reported by the driver: {', '.join(added)}")
        return sentences

    def _record(self, claim: RecoveredClaim, *, ended: bool) -> Record:
        devices = [allocated_json(d) | ({"data": d.data} if d.data is not None else {}) for d in claim.devices]
        # The next pass rolls back a claim that the kubelet has unprepared meanwhile.
        state = State.UNPREPARING if ended else State.PREPARED
        return Record(
            claim.uid,
            claim.namespace,
            claim.name,
            state,
            self.boot_id,
            devices=devices,
            recovered=True,
            **_steps(claim),
        )


def _steps(claim: RecoveredClaim) -> dict[str, Any]:
    """Returns the fields of the record with the claim's steps."""
    shared = claim.shared_steps or ()
    return {
        "undo": [{"step": step, "data": data} for step, data in claim.undo_steps or ()],
        "shared": [{"step": s.step, "key": s.key, "data": s.data, "ready": True} for s in shared],
        "shared_unknown": claim.shared_steps is None,
    }


def _complete(records: Records, row: Record, claim: RecoveredClaim) -> None:
    """Adds data that only the driver knows to a record that was recovered or superseded. Does not change other records."""
    if not (row.recovered or row.superseded):
        return
    fence = row.fence
    known = {identity(allocated_json(d)): d for d in claim.devices}
    devices = []
    for entry in row.devices:
        device = known.get(identity(entry))
        more = {"data": device.data, "request": device.request} if device else {}
        devices.append(entry | {k: v for k, v in more.items() if v and not entry.get(k)})
    row.devices, row.superseded = devices, False  # the hardware has this claim
    steps = _steps(claim)
    row.undo = row.undo or steps["undo"]
    if row.shared_unknown and not steps["shared_unknown"]:
        row.shared, row.shared_unknown = steps["shared"], False
    row.namespace, row.name = row.namespace or claim.namespace, row.name or claim.name
    records.update(row, fence)


def _all_checked(result: object) -> list[RecoveredClaim]:
    if not isinstance(result, list | tuple | None):
        raise DriverError(f"recover() returned {printable(type(result).__name__)}, not a list of RecoveredClaim")
    return [_checked(c) for c in result or ()]


def _checked(claim: object) -> RecoveredClaim:
    """Checks that a claim can be recorded.

    Raises :class:`DriverError` with the reason if it cannot.
    """
    if not isinstance(claim, RecoveredClaim) or not isinstance(claim.devices, list | tuple):
        raise DriverError(
            f"recover() returned {printable(type(claim).__name__)}, not RecoveredClaim with a list of PreparedDevice"
        )
    if not claim.uid:
        raise DriverError("recover() returned a RecoveredClaim without the UID of its claim")
    shown = f"recover() returned a RecoveredClaim (UID {printable(claim.uid)})"
    devices = []
    for device in claim.devices:
        if not isinstance(device, PreparedDevice):
            raise DriverError(f"{shown} with {printable(type(device).__name__)}, not PreparedDevice")
        for field in ("request", "pool", "name"):
            _check_text(f"{shown}: {field} of a device", getattr(device, field))
        if not device.name:
            raise DriverError(f"{shown} with a device that has no name")
        _check_text(f"{shown}: share_id of a device", device.share_id or "")
        try:
            devices.append(dataclasses.replace(device, data=plain_json(device.data)))
        except ValueError as e:
            raise DriverError(f"{shown}: device {device.name}: {e}") from None
    for field in ("uid", "namespace", "name"):
        _check_text(f"{shown}: {field}", getattr(claim, field))
    if not is_uid(claim.uid):
        raise DriverError(f"{shown}, which is not the UID of a ResourceClaim")
    return dataclasses.replace(
        claim,
        devices=devices,
        shared_steps=_checked_shared_steps(claim.shared_steps, shown),
        undo_steps=_checked_undo_steps(claim.undo_steps, shown),
    )


def _checked_undo_steps(steps: Sequence[tuple[str, Mapping[str, Any]]], shown: str) -> list[tuple[str, Any]]:
    try:
        checked = [(step, plain_json(dict(data))) for step, data in steps]
    except (TypeError, ValueError) as e:
        raise DriverError(f"{shown}, whose undo_steps are not pairs of a name and data: {describe(e)}") from None
    for step, _ in checked:
        _check_text(f"{shown}: name of an undo step", step)
    return checked


def _checked_shared_steps(steps: object, shown: str) -> Sequence[SharedStep] | None:
    if steps is None:
        return None
    if not isinstance(steps, list | tuple) or not all(isinstance(s, SharedStep) for s in steps):
        raise DriverError(f"{shown}, whose shared_steps are not a list of SharedStep")
    for step in steps:
        _check_text(f"{shown}: name of a shared step", step.step)
        check_key(step.key)
    try:
        return [dataclasses.replace(s, data=plain_json(dict(s.data))) for s in steps]
    except ValueError as e:
        raise DriverError(f"{shown}: shared step: {e}") from None


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value.isprintable():
        raise DriverError(f"{what} is not printable text: {printable(value)}")
