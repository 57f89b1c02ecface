"""What is to be done with a claim, by what is on record of it. Pure, but for marking the record that is to be undone.

Judging and marking are one transaction, so nothing changes in between.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import DraError, HardwareUnknownError, RecordUnreadableError
from .capacity import Supply, shortage
from .instances import InstanceLock
from .record import Record, State, UnreadableRecord
from .store import rows

log = logging.getLogger(__name__)
RECOVER = "recover"  # in the database's own notes: the driver has to be asked what its hardware knows
_NODE = "node_name"  # the node's name when there was last a first claim
ENDED = "ended:"  # + UID of a claim that was unprepared before the driver told of it


@dataclass(frozen=True)
class Prepare:
    """The record is written and the devices are held: prepare."""

    record: Record


@dataclass(frozen=True)
class AlreadyPrepared:
    """Prepared already, as it should be."""

    record: Record


@dataclass(frozen=True)
class RollBack:
    """Marked as ours: undo it, then ask again. ``fault`` is why its CDI spec is still there."""

    record: Record
    fault: DraError | None = None


@dataclass(frozen=True)
class RolledBack:
    """It was marked, and is gone: nothing of it concerned the driver."""

    record: Record


@dataclass(frozen=True)
class InProgress:
    """Another living process works on it."""

    record: Record


@dataclass(frozen=True)
class StaleHolders:
    """Claims that hold devices and run no more: from before a reboot, or of a dead process's unfinished work."""

    holders: list[Record]


@dataclass(frozen=True)
class NothingToDo:
    """There is no record."""


Decision = Prepare | AlreadyPrepared | RollBack | RolledBack | InProgress | StaleHolders | NothingToDo


class Transitions:
    """Judges for one process in one boot. Its methods are operations: they run inside a transaction.

    ``prepares`` says whether this process prepares a claim now. ``node`` is the node's name; empty where it is not known.
    """

    def __init__(
        self, driver: str, process: InstanceLock, boot_id: str, prepares: Callable[[str], bool], node: str = ""
    ) -> None:
        self.driver = driver
        self.process = process
        self.boot_id = boot_id
        self.prepares = prepares
        self.node = node

    def begin(self, db: sqlite3.Connection, wanted: Record, fault: Exception | None, supply: Supply) -> Decision:
        """For a prepare. ``fault`` is why the claim could not be prepared afresh; ``supply`` is what there is to be had now.

        Raises ``fault``, :class:`DeviceHeldError` naming the holders, of a device or of what is needed of its counters and
        capacity, :class:`RecordUnreadableError`, and :class:`HardwareUnknownError` while it is not known what the hardware has
        in use.
        """
        found = self.readable(rows.read(db, wanted.uid))
        if found is not None:
            return self._known(db, found, wanted)
        if fault is not None:
            raise fault
        if rows.has_meta(db, RECOVER):
            raise HardwareUnknownError(
                "the records were made anew, and recover() of the driver has not yet said what its hardware has in use: "
                "nothing is prepared before it has; the kubelet tries again"
            )
        self._check_node(db)
        try:
            rows.check_free(db, self.driver, wanted)
        except rows.HeldByError as e:
            stale = [h for h in e.holders if isinstance(h, Record) and self._is_stale(h)]
            if len(stale) == len(e.holders):
                return StaleHolders(stale)
            raise rows.HeldByError(e.device, [h for h in e.holders if h not in stale]) from None
        stale = self._check_left(db, wanted, supply)
        if stale:
            return StaleHolders(stale)
        rows.insert_free(db, self.driver, wanted)  # that nobody has its devices was looked at just now
        return Prepare(wanted)

    def _check_node(self, db: sqlite3.Connection) -> None:
        """A node's pools are named after it, so after a change of its name the records hold the same devices under other pools.

        Raises :class:`HardwareUnknownError` while there are claims that were prepared under another name of the node.
        """
        former = rows.get_meta(db, _NODE).get("")
        if not self.node or former == self.node:
            return
        uids = rows.uids(db) if former is not None else ()
        if uids:
            raise HardwareUnknownError(
                f"{len(uids)} claims were prepared when this node was named {former}, and may hold the same devices: nothing new is "
                f"prepared before the kubelet has unprepared them ({', '.join(sorted(uids)[:3])})"
            )
        rows.set_meta(db, _NODE, self.node)

    def _check_left(self, db: sqlite3.Connection, wanted: Record, supply: Supply) -> list[Record]:
        """Whether counters and capacity suffice. Answers the stale claims without which they do; nothing where they do at once.

        Raises :class:`OverdrawnError` naming the claims that hold too much.
        """
        mine = wanted.holds()
        if shortage(mine, rows.beside(db, self.driver, mine, wanted.uid), supply) is None:
            return []
        held = rows.beside(db, self.driver, mine, wanted.uid, names=True)
        takers = {uid: rows.holder(db, uid) for uid in dict.fromkeys(h.uid for h in held)}
        stale = {uid: row for uid, row in takers.items() if isinstance(row, Record) and self._is_stale(row)}
        missing = shortage(mine, [h for h in held if h.uid not in stale], supply)
        if missing is not None:
            raise rows.OverdrawnByError(missing, [takers[uid] for uid in sorted(missing.holders)])
        return list(stale.values())

    def _known(self, db: sqlite3.Connection, found: Record, wanted: Record) -> Decision:
        if self.answers(found) and found.same_allocation(wanted):
            # That it was asked for tells another instance, which found the claim gone just before, that it is not.
            if not found.name or self.process.others():
                fence = found.fence
                found.complete_from(wanted)
                rows.update(db, found, fence)
            return AlreadyPrepared(found)
        if self.is_others(found):
            return InProgress(found)
        return self._mark(db, found)

    def end(self, db: sqlite3.Connection, uid: str, known: Callable[[], Record | None]) -> Decision:
        """For an unprepare. ``known`` is what else tells of the claim, asked only where the record does not."""
        row = rows.read(db, uid)
        if not isinstance(row, Record):
            record = known()
            if record is None:
                self.readable(row)
                return NothingToDo()
            return self._adopt(db, record)
        return InProgress(row) if self.is_others(row) else self._mark(db, row)

    def remember_end(self, db: sqlite3.Connection, uid: str) -> None:
        """While the driver has not said yet what its hardware knows: the kubelet was told that this claim is over."""
        if rows.has_meta(db, RECOVER):
            rows.set_meta(db, ENDED + uid, "")

    def take_back(self, db: sqlite3.Connection, ours: Record) -> Decision:
        """For a prepare of ours that cannot be completed, whatever became of its record meanwhile."""
        row = rows.read(db, ours.uid)
        if row is None:
            return self._adopt(db, ours)
        if not isinstance(row, Record):
            return NothingToDo()
        if row.owner == self.process.id:
            return self._mark(db, row)
        # The write that seemed to fail was done, or another instance has taken the claim over and answers for it.
        return AlreadyPrepared(row) if self.answers(row) and row.same_allocation(ours) else InProgress(row)

    def _adopt(self, db: sqlite3.Connection, record: Record) -> Decision:
        """Undoes what no row tells of, unless its devices are another claim's by now: those are left alone, and its files go."""
        rows.forget(db, record.uid)
        record.state, record.owner = State.UNPREPARING, self.process.id
        try:
            rows.insert(db, self.driver, record)
        except rows.HeldByError as e:
            log.error("claim %s left something behind that is not undone: %s", record.shown, e)
            return NothingToDo()
        return RollBack(record)

    def reclaim(self, db: sqlite3.Connection, seen: Record) -> Decision:
        """For a prepared claim that the API server does not have any more, if it is still the one that was looked at."""
        row = rows.read(db, seen.uid)
        if not isinstance(row, Record) or (row.created, row.updated) != (seen.created, seen.updated):
            return NothingToDo()
        return self._mark(db, row) if row.fence == seen.fence else NothingToDo()

    def tidy(self, db: sqlite3.Connection, uid: str) -> Decision:
        """For what a dead process left, or an undo that failed. Prepared claims are left alone."""
        row = rows.read(db, uid)
        if not isinstance(row, Record) or row.state is State.PREPARED or self.is_others(row):
            return NothingToDo()
        return self._mark(db, row)

    def free(self, db: sqlite3.Connection, uid: str) -> Decision:
        """For a hold that looked stale: it is judged again."""
        row = rows.read(db, uid)
        return self._mark(db, row) if isinstance(row, Record) and self._may_free(row) else NothingToDo()

    def answers(self, record: Record) -> bool:
        """Whether a repetition may be answered from the record alone."""
        return record.state is State.PREPARED and record.boot_id == self.boot_id and not record.partial

    def is_others(self, record: Record) -> bool:
        """Whether another living process works on the claim now."""
        return record.owner not in {"", self.process.id} and self.process.alive(record.owner)

    def readable(self, row: rows.Row | None) -> Record | None:
        """Raises :class:`RecordUnreadableError`."""
        if isinstance(row, UnreadableRecord):
            raise RecordUnreadableError(
                f"the record of claim {row.shown} cannot be read ({row.reason}) and its devices stay held: use the plugin "
                f"version that wrote it, or, when its pod is gone, `dra claims forget {row.uid}`"
            )
        return row

    def _is_stale(self, holder: Record) -> bool:
        """Also while it is undone: who needs its devices waits for that."""
        return not self.prepares(holder.uid) and self._may_free(holder)

    def _may_free(self, holder: Record) -> bool:
        if self.is_others(holder):
            return False
        return holder.boot_id != self.boot_id or holder.state is not State.PREPARED

    def _mark(self, db: sqlite3.Connection, found: Record) -> Decision:
        fence = found.fence
        found.state, found.owner = State.UNPREPARING, self.process.id
        return RollBack(found) if rows.mark(db, found, fence) else NothingToDo()
