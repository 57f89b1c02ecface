"""Decides the next step for a claim from its record, and marks the record that is to be rolled back.

The decision and the mark are one transaction, so nothing changes in between. A decision changes only records.
If another claim holds a device, a prepare fails with :class:`.HeldByError`. Of two simultaneous prepares, the second transaction finds
the record of the first.

After a reboot of the node, records stay and keep their devices held. The start rolls back only unfinished claims. A claim that was
prepared before the reboot is rolled back when the kubelet prepares or unprepares it. It is also rolled back when another claim needs its
devices, or when it has vanished from the API server.
A repeated prepare returns the recorded response if the claim was prepared in this boot, its record is not ``recovered``, and its
allocation did not change. If the API server returns an error or does not respond for 1.2 seconds,
``engine.py`` returns the recorded response without comparing the allocation. If the API server reports that the claim does not exist,
the call fails.

The table has the decision for each record with the same allocation; ``start`` is the work after a start and between calls. A test
generates it:

    state        boot     owner                                   prepare          unprepare   other claim wants it  start
    Preparing    this     none or this process or a dead process  RollBack         RollBack    StaleHolders          RollBack
    Preparing    this     a living process                        InProgress       InProgress  HeldByError           NothingToDo
    Preparing    earlier  none or this process or a dead process  RollBack         RollBack    StaleHolders          RollBack
    Preparing    earlier  a living process                        InProgress       InProgress  HeldByError           NothingToDo
    Prepared     this     none or this process or a dead process  AlreadyPrepared  RollBack    HeldByError           NothingToDo
    Prepared     this     a living process                        AlreadyPrepared  InProgress  HeldByError           NothingToDo
    Prepared     earlier  none or this process or a dead process  RollBack         RollBack    StaleHolders          NothingToDo
    Prepared     earlier  a living process                        InProgress       InProgress  HeldByError           NothingToDo
    Unpreparing  this     none or this process or a dead process  RollBack         RollBack    StaleHolders          RollBack
    Unpreparing  this     a living process                        InProgress       InProgress  HeldByError           NothingToDo
    Unpreparing  earlier  none or this process or a dead process  RollBack         RollBack    StaleHolders          RollBack
    Unpreparing  earlier  a living process                        InProgress       InProgress  HeldByError           NothingToDo
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from ..base.telemetry.logs import claim_fields
from ..base.text import join_names
from ..errors import DraError, HardwareUnknownError, OverdrawnError, RecordUnreadableError
from .capacity import Shortage, Supply, shortage
from .instance_lock import InstanceLock
from .record import Record, Row, State, UnreadableRecord
from .store.records import RECOVER, HeldByError, Records

log = logging.getLogger(__name__)
_NAMED = 4  # holders that a message lists
_NODE = "node_name"  # meta key: the node's name when the newest record was written for a new claim
ENDED = "ended:"  # meta key + UID: a claim that was unprepared before the driver reported it


class OverdrawnByError(OverdrawnError):
    """Counters or capacity do not suffice; ``holders`` are the records of the claims that take them."""

    def __init__(self, shortage: Shortage, holders: Sequence[Row]) -> None:
        self.holders = holders
        shown = [f"{h.shown}{' (amount unknown)' if h.uid in shortage.unknown else ''}" for h in holders]
        by = f" by claim{'s' if len(holders) > 1 else ''} {join_names(shown, _NAMED)}: this amount is free when their pods have stopped"
        super().__init__(f"device {', '.join(shortage.devices)}: {shortage.text}{by if holders else ''}")


class _OfRecord(msgspec.Struct, frozen=True):
    record: Record


class Prepare(_OfRecord, frozen=True):
    """The record is written and the devices are held: the claim can be prepared."""


class AlreadyPrepared(_OfRecord, frozen=True):
    """The claim is prepared and its record is valid. ``restored`` is True if files of the claim were written again."""

    restored: bool = False


class RollBack(_OfRecord, frozen=True):
    """The claim is marked and owned by this process: roll it back; a prepare then decides again.

    ``fault`` is why the claim's CDI spec could not be removed; None if it was removed. ``done`` is True if the driver has nothing to
    undo, so that the record is deleted already.
    """

    fault: DraError | None = None
    done: bool = False


class InProgress(_OfRecord, frozen=True):
    """Another living process works on the claim."""


class StaleHolders(msgspec.Struct, frozen=True):
    """Claims that hold devices without using them: prepared before a reboot, or left unfinished by a dead process."""

    holders: list[Record]


class NothingToDo(msgspec.Struct, frozen=True):
    """This process has nothing to do for the claim: no record, another owner, or a record that changed meanwhile.

    ``cleared`` is True if files of a claim without a record were removed.
    """

    cleared: bool = False


Decision = Prepare | AlreadyPrepared | RollBack | InProgress | StaleHolders | NothingToDo


class Transitions:
    """Makes decisions for one process in one boot. Its methods are operations: they run inside a transaction.

    Args:
        prepares: returns whether this process prepares a claim now.
        node: the node's name; empty if it is not known.
    """

    def __init__(self, process: InstanceLock, boot_id: str, prepares: Callable[[str], bool], node: str = "") -> None:
        self.process = process
        self.boot_id = boot_id
        self.prepares = prepares
        self.node = node

    def begin(self, records: Records, wanted: Record, fault: Exception | None, supply: Supply) -> Decision:
        """Decides for a prepare.

        Args:
            records: the records, in a write transaction.
            wanted: the record to write if the claim has none.
            fault: why the claim cannot be prepared for the first time; ignored if it is prepared already.
            supply: the current counters and capacity.

        Raises ``fault``, or :class:`.DeviceHeldError` with the holders of a device, or of the counters and capacity that the claim needs.
        Raises :class:`RecordUnreadableError`; or :class:`HardwareUnknownError` while it is not known which devices are in use.
        """
        found = self.readable(records.read(wanted.uid))
        if found is not None:
            return self._repeat(records, found, wanted)
        if fault is not None:
            raise fault
        if records.has_meta(RECOVER):
            raise HardwareUnknownError(
                "records were lost or damaged, so it is not known which devices are in use: no further claim is prepared until recover() "
                "of the driver has returned them or, without recover(), the damaged claims are forgotten (see /readyz); the kubelet retries"
            )
        self._check_node(records)
        try:
            records.check_free(wanted)
        except HeldByError as e:
            stale = [h for h in e.holders if isinstance(h, Record) and self._is_stale(h)]
            if len(stale) == len(e.holders):
                return StaleHolders(stale)
            raise HeldByError(e.device, [h for h in e.holders if h not in stale]) from None
        stale = self._check_capacity(records, wanted, supply)
        if stale:
            return StaleHolders(stale)
        records.insert(wanted, shared=True)  # check_free() has just found the devices free
        return Prepare(wanted)

    def _check_node(self, records: Records) -> None:
        """Checks that the node has kept its name. Pools are named after the node, so under a new name the records would miss held devices.

        Raises :class:`HardwareUnknownError` while there are claims that were prepared under another name of the node.
        """
        former = records.get_meta(_NODE).get("")
        if not self.node or former == self.node:
            return
        uids = records.uids() if former is not None else ()
        if uids:
            raise HardwareUnknownError(
                f"{len(uids)} claims were prepared when this node was named {former}, and may hold the same devices: no other claim "
                f"is prepared until the kubelet has unprepared them ({', '.join(sorted(uids)[:3])})"
            )
        records.set_meta(_NODE, self.node)

    def _check_capacity(self, records: Records, wanted: Record, supply: Supply) -> list[Record]:
        """Checks counters and capacity. Returns the stale claims that must be rolled back first; empty if everything fits.

        Raises :class:`OverdrawnError` with the claims that hold too much.
        """
        wanted_holds = wanted.holds()
        held = records.other_holds(wanted_holds, wanted.uid)
        if shortage(wanted_holds, held, supply) is None:
            return []
        takers = {uid: row for uid in dict.fromkeys(h.uid for h in held) if (row := records.read(uid))}
        stale = {uid: row for uid, row in takers.items() if isinstance(row, Record) and self._is_stale(row)}
        missing = shortage(wanted_holds, [h for h in held if h.uid not in stale], supply)
        if missing is not None:
            raise OverdrawnByError(missing, [takers[uid] for uid in sorted(missing.holders)])
        return list(stale.values())

    def _repeat(self, records: Records, found: Record, wanted: Record) -> Decision:
        if self.is_prepared(found) and found.same_allocation(wanted):
            # Another instance may have found the claim deleted and may be about to unprepare it. Updating the record prevents that.
            if not found.name or self.process.others():
                fence = found.fence
                found.complete_from(wanted)
                records.update(found, fence)
            return AlreadyPrepared(found)
        if self.has_other_owner(found):
            return InProgress(found)
        return self._mark(records, found)

    def end(self, records: Records, uid: str, read_note: Callable[[], Record | None]) -> Decision:
        """Decides for an unprepare.

        ``read_note`` returns the record from the claim's note. It is called only if there is no readable record of the claim.
        """
        row = records.read(uid)
        if not isinstance(row, Record):
            record = read_note()
            if record is None:
                self.readable(row)
                return NothingToDo()
            return self._adopt(records, record)
        return InProgress(row) if self.has_other_owner(row) else self._mark(records, row)

    def remember_end(self, records: Records, uid: str) -> None:
        """Records that the claim was unprepared, as long as the driver's recover() may still report the claim."""
        if records.has_meta(RECOVER):
            records.set_meta(ENDED + uid, "")

    def fail_prepare(self, records: Records, failed: Record) -> Decision:
        """Decides for a prepare of this process that failed. The record may have changed meanwhile."""
        row = records.read(failed.uid)
        if row is None:
            return self._adopt(records, failed)
        if not isinstance(row, Record):
            return NothingToDo()
        if row.owner == self.process.id:
            return self._mark(records, row)
        # The write that seemed to fail succeeded, or another instance has taken the claim over and is responsible for it.
        return AlreadyPrepared(row) if self.is_prepared(row) and row.same_allocation(failed) else InProgress(row)

    def _adopt(self, records: Records, record: Record) -> Decision:
        """Inserts a record for a claim without a readable record, so that it can be rolled back.

        If another claim holds the devices now, nothing is undone, and only this claim's files are removed.
        """
        records.forget(record.uid)
        record.state, record.owner = State.UNPREPARING, self.process.id
        try:
            records.insert(record)
        except HeldByError as e:
            log.error(
                "the claim is not rolled back, because its devices have another holder: %s",
                e,
                extra=claim_fields(record),
            )
            return NothingToDo()
        return RollBack(record)

    def reclaim(self, records: Records, seen: Record) -> Decision:
        """Decides for a prepared claim that the API server no longer has. Its record must be unchanged since ``seen`` was read."""
        version = (seen.created, seen.updated, seen.fence)
        return self._mark_if(records, seen.uid, lambda r: (r.created, r.updated, r.fence) == version)

    def tidy(self, records: Records, uid: str) -> Decision:
        """Decides for unfinished work of a dead process, or a failed rollback. Prepared claims are left alone."""
        return self._mark_if(records, uid, lambda r: r.state is not State.PREPARED and not self.has_other_owner(r))

    def free(self, records: Records, uid: str) -> Decision:
        """Decides again for a claim whose hold seemed stale."""
        return self._mark_if(records, uid, self._may_free)

    def is_prepared(self, record: Record) -> bool:
        """Whether a repeated prepare can return the recorded response: prepared in this boot, and not ``recovered``."""
        return record.state is State.PREPARED and record.boot_id == self.boot_id and not record.recovered

    def has_other_owner(self, record: Record) -> bool:
        """Whether another living process works on the claim now."""
        return record.owner not in {"", self.process.id} and self.process.alive(record.owner)

    def readable(self, row: Row | None) -> Record | None:
        """Returns the row unless it is unreadable. Raises :class:`RecordUnreadableError`."""
        if isinstance(row, UnreadableRecord):
            raise RecordUnreadableError(
                f"the record of claim {row.shown} cannot be read ({row.reason}) and its devices stay held: use the plugin "
                f"version that wrote it, or, when its pod is gone, `dra claims forget {row.uid}`"
            )
        return row

    def _is_stale(self, holder: Record) -> bool:
        """Whether a hold is stale. It is stale during its rollback too; a claim that needs the devices waits for the rollback."""
        return not self.prepares(holder.uid) and self._may_free(holder)

    def _may_free(self, holder: Record) -> bool:
        is_in_use = holder.boot_id == self.boot_id and holder.state is State.PREPARED
        return not is_in_use and not self.has_other_owner(holder)

    def _mark_if(self, records: Records, uid: str, is_due: Callable[[Record], bool]) -> Decision:
        row = records.read(uid)
        return self._mark(records, row) if isinstance(row, Record) and is_due(row) else NothingToDo()

    def _mark(self, records: Records, found: Record) -> Decision:
        fence = found.fence
        found.state, found.owner = State.UNPREPARING, self.process.id
        records.update(found, fence)
        return RollBack(found)
