"""Opens the record database: creates, repairs or restores it under a temporary name, then links the complete file.

Instances that have a removed file open keep its content, and one of them writes the file again with the next generation number.
Each instance notes its generation in its lock file before it uses the database. So an instance with an older generation knows that
its file is outdated, and waits. All of this happens under one lock. A process may die between any two lines here: the files alone
show the remaining steps, see :class:`RecordFolder`.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...base.files import NOT_NOW
from ...base.telemetry.metrics import Metrics
from ...base.text import counted
from ...cdi import ClaimSpecs
from ...errors import RecordsBusyError, RecordsError
from ..claim_files import record_of
from ..instances import Instance, InstanceLock, OpenDatabase
from ..record import InFlightRecords, Record
from ..transitions import RECOVER
from . import rows
from .folder import POLL, RecordFolder
from .salvage import SalvagedRecords, clone, fill, from_database, from_files, overrule
from .schema import (
    Connection,
    Inodes,
    connect,
    inodes_of,
    is_damage,
    is_header_invalid,
    is_sound,
    is_torn,
    make_tables,
    transaction,
)

log = logging.getLogger(__name__)
MERGED = "merged:"  # meta key + name of a file that was set aside: its content is in the database
_GENERATION = "generation"
_COPIED = "copied"  # meta key: the content of this file was copied to a newer one


class RecordDatabase:
    """Opens and repairs the database at ``path``. All methods block and run in the record thread.

    Args:
        path: of the database.
        specs: the driver's CDI files, a second source of records.
        process: this instance; it also finds the other living instances.
        in_flight: records that this process works on and that may be in no file.
        boot_id: of this boot.
        wait: seconds to wait for another instance.

    ``report`` has a sentence for every repair.
    """

    def __init__(
        self,
        path: Path,
        specs: ClaimSpecs,
        process: InstanceLock,
        in_flight: InFlightRecords,
        boot_id: str,
        wait: float,
        metrics: Metrics,
    ) -> None:
        self.path = path
        self.specs = specs
        self.process = process
        self.in_flight = in_flight
        self.boot_id = boot_id
        self.wait = wait
        self.metrics = metrics
        self.report: list[str] = []
        self.folder = RecordFolder(path, process, wait)

    def open(self, fault: Exception | None = None, old: Connection | None = None) -> Connection:
        """Returns the open database. Creates it if it does not exist and repairs it if it is damaged.

        Args:
            fault: the error of an open database, if it shows damage.
            old: an open connection whose file has lost its name. The file is written again, unless an instance has a newer one.

        Raises ``sqlite3.Error``, ``OSError`` or :class:`RecordsError`.
        """
        db = self._opened(fault, old)
        try:
            self._readmit(db)
            self._find_lost(db)
        except BaseException:
            db.close()
            self._note(old)
            raise
        return db

    def close(self, db: Connection) -> None:
        """Closes the database and notes that this instance has none open, so that other instances do not wait for it."""
        with contextlib.suppress(sqlite3.Error):
            db.close()
        with contextlib.suppress(OSError):
            self._note(None)

    def restore(self, db: Connection) -> bool:
        """Writes the file again for an open database that lost its name or its log.

        Returns False if another instance has written a newer file.
        """
        with self.folder.locked():
            if db.is_named(self.path):
                return True
            named, others = inodes_of(self.path), self._others()
            if (named[0] is None or is_torn(db.inodes, named)) and not _newer(others, db.generation):
                return self._write_again(db, _next(others, db))
            return False

    # --- under the lock -------------------------------------------------------------------------

    def _opened(self, fault: Exception | None, old: Connection | None) -> Connection:
        deadline = time.monotonic() + self.wait
        while True:
            with self.folder.locked():
                self.folder.clean()
                found = self._open_now(fault, old)
                if isinstance(found, Connection):
                    return found
            if time.monotonic() > deadline:
                raise RecordsBusyError(f"{self.path} {self._why(found)}")
            time.sleep(POLL)

    def _why(self, waited_for: Instance | None) -> str:
        if waited_for is None:
            return "is removed again and again: see what else writes below its folder"
        return (
            f"or its log was removed, and process {self.process.pid(waited_for.id)} of the plugin, which has it open, does not "
            f"write it again within {self.wait:g}s: delete its pod if it hangs"
        )

    def _open_now(self, fault: Exception | None, old: Connection | None) -> Connection | Instance | None:
        """Opens or repairs the database once.

        Returns the connection; the instance that has to write the file again, if it is another one; or None if the file was lost once more.
        The sources of a repair are kept until the new file is open, so the next attempt has them again.
        """
        if old is None and self.path.is_symlink():
            # SQLite keeps the log beside the link's target, so here it would seem that the database has no log.
            raise RecordsError(f"{self.path} is a symbolic link: move the database and its log there in its place")
        named, others = inodes_of(self.path), self._others()
        if named[0] is not None and not (old and is_torn(old.inodes, named)):
            if torn := _torn(others, named):
                return torn
            with contextlib.suppress(FileNotFoundError):
                if found := self._connect_or_set_aside(others, fault):
                    return found
        with contextlib.suppress(FileNotFoundError):
            return self._rebuild(old, others)
        return None

    def _rebuild(self, old: Connection | None, others: Mapping[Instance, OpenDatabase]) -> Connection | Instance | None:
        """Writes a new file: from ``old`` if it is open, otherwise from files that were set aside and from CDI files.

        Returns the same as :meth:`_open_now`.
        """
        unread = self.folder.unread()
        newer = _newer({i: o for i, o in others.items() if o.inodes[0] not in unread}, old.generation if old else 0)
        if newer:
            return newer
        generation = _next(others, old)
        if old and old.inodes[0] not in unread and self._write_again(old, generation):
            found = self._connect_or_set_aside(others)
            if found or is_sound(old):  # a copy of a sound database is not damaged: another file has replaced it
                return found
        self.folder.finish_setting_aside()
        self._make(generation)
        return self._connect_or_set_aside(others)

    def _connect_or_set_aside(
        self, others: Mapping[Instance, OpenDatabase], fault: Exception | None = None
    ) -> Connection | Instance | None:
        """Opens the file, or sets it aside if it is damaged and returns None."""
        try:
            if fault is not None and is_header_invalid(self.path):
                raise fault
            return self._connect(others)
        except sqlite3.Error as e:
            if not is_damage(e):
                raise
            # A sound file seems damaged if the log beside it belongs to another file.
            if torn := _torn(others, inodes_of(self.path)):
                return torn
            self._set_aside(e)
            return None

    def _connect(self, others: Mapping[Instance, OpenDatabase]) -> Connection | Instance:
        """Opens the file and notes that this instance has it open.

        Returns the other instance if one has the file open with a log that was removed: a second log would ruin the file.
        """
        named = inodes_of(self.path)
        db = connect(self.path, self.wait)
        if torn := _torn(others, db.inodes):
            db.close()
            return torn
        try:
            db.generation = _generation(db)
            self._merge(db)
            self._request_recovery(db, named)
            self._note(db)
        except BaseException:
            db.close()
            raise
        return db

    def _request_recovery(self, db: Connection, named: Inodes) -> None:
        """Requests recovery if an instance died and its log is gone: only the hardware may know the claims that it began."""
        if any(dead.inodes[0] == named[0] and dead.inodes[1] != named[1] for dead in self.process.dead_databases):
            log.warning(
                "the log of %s is not that of an instance that died: the driver is asked what its hardware knows",
                self.path,
            )
            with transaction(db):
                rows.set_meta(db, RECOVER, "pending")
        self.process.clear_dead_databases()

    def _others(self) -> dict[Instance, OpenDatabase]:
        """Returns the other living instances that have a database open."""
        return {i: i.opened for i in self.process.others() if i.opened}

    def _note(self, db: Connection | None) -> None:
        self.process.note_records(OpenDatabase(db.generation, db.inodes) if db else None)

    def _write_again(self, old: Connection, generation: int) -> bool:
        """Writes a copy of the open database ``old`` under its name. Returns False if ``old`` is damaged."""
        if inodes_of(self.path)[0] not in {None, old.inodes[0]}:
            aside = self.folder.set_aside_alone()
            self._add_report(
                f"{self.path} was replaced while it is in use: what came in its place is set aside as {aside}"
            )
        log.error("%s, or its log, was removed while it is in use: it is written again", self.path)

        def copy(new: sqlite3.Connection) -> None:
            # An instance that still opens the old file later finds that its name has moved.
            with transaction(old):
                clone(old, new)
                outdated = rows.has_meta(old, _COPIED) or old.inodes[0] in self.folder.damaged()
                # Committed before the copy is linked: if the process dies in between, no outdated copy is taken for the newest one.
                rows.set_meta(old, _COPIED, "")
            if outdated:  # the instance that had the newer file is dead, and the file is gone
                rows.clear_meta(new, _COPIED)
                rows.set_meta(new, RECOVER, "pending")
                noted = from_files(self.specs, {})
                self._conflicts(overrule(new, self.specs.driver, noted, {r.uid for r in noted}))

        try:
            self._publish(copy, generation)
        except sqlite3.DatabaseError as e:
            # A damaged database may have a row twice.
            if not is_damage(e) and not isinstance(e, sqlite3.IntegrityError):
                raise
            self._add_report(f"the removed record database was damaged too ({e})")
            if self.path.exists():
                self._set_aside(e)
            return False
        return True

    def _set_aside(self, fault: Exception) -> None:
        aside = self.folder.set_aside()
        self.metrics.inc("records_damaged_total")
        self._add_report(f"the record database was damaged ({fault}) and is set aside as {aside}")

    def _publish(self, make: Callable[[sqlite3.Connection], None], generation: int) -> None:
        def counted(db: sqlite3.Connection) -> None:
            make(db)
            rows.set_meta(db, _GENERATION, str(generation))

        self.folder.publish(counted)

    def _make(self, generation: int) -> None:
        """Builds a complete database from all known sources."""
        aside = self.folder.unmerged()
        findings = _all_findings(aside)
        files = from_files(self.specs, findings.rows)
        lost = findings.lost(self.boot_id)

        def fill_in(db: sqlite3.Connection) -> None:
            make_tables(db)
            self._conflicts(fill(db, self.specs.driver, findings, [*files, *self.in_flight.records(), *lost]))
            for path in aside:
                rows.set_meta(db, MERGED + path.name, "")
            rows.set_meta(db, RECOVER, "pending")

        self._publish(fill_in, generation)
        if findings.rows:
            self._add_report(f"read from the damaged file: {counted(len(findings.rows), 'record')}")
        if files:
            self._add_report(
                f"{counted(len(files), 'record')} rebuilt from CDI files: {', '.join(r.uid for r in files)}"
            )

    def _merge(self, db: Connection) -> None:
        """Merges files that were set aside and not read yet into the open database."""
        aside = self.folder.unmerged()
        merged = rows.get_meta(db, MERGED)
        waiting = [p for p in aside if p.name not in merged]
        if waiting:
            findings = _all_findings(waiting)
            files = from_files(self.specs, findings.rows)
            db.execute("PRAGMA synchronous = FULL")  # the files get their final names after this
            with transaction(db):
                self._conflicts(fill(db, self.specs.driver, findings, [*files, *findings.lost(self.boot_id)]))
                for path in waiting:
                    rows.set_meta(db, MERGED + path.name, "")
                rows.set_meta(db, RECOVER, "pending")
            db.execute("PRAGMA synchronous = NORMAL")
        self.folder.retire(aside)

    # --- lost records ---------------------------------------------------------------------------

    def _readmit(self, db: sqlite3.Connection) -> None:
        """Adds records that this process works on and that are missing because another instance rebuilt the database."""
        records = self.in_flight.records()
        if records and any(rows.read(db, r.uid) is None for r in records):
            with transaction(db):
                self._conflicts(fill(db, self.specs.driver, SalvagedRecords(), records))

    def _find_lost(self, db: sqlite3.Connection) -> None:
        """Restores records from notes of this boot that have no row, for example because the log was cut or removed.

        A record exists before its file and is deleted after it, so a file without a record shows a loss.
        """
        if not self._without_row(db)[0]:
            return
        with transaction(db):
            lost, noted = self._without_row(db)  # again, now that no claim can begin or end
            self._conflicts(overrule(db, self.specs.driver, lost, noted))
            if lost:
                rows.set_meta(db, RECOVER, "pending")
        if lost:
            self._add_report(
                f"{counted(len(lost), 'record')} lost and rebuilt from CDI files: {', '.join(r.uid for r in lost)}"
            )

    def _without_row(self, db: sqlite3.Connection) -> tuple[list[Record], set[str]]:
        """Returns the records of notes that have no row, and the UIDs of all claims with files."""
        try:
            # Read before the rows: a claim that ends in between has then lost its file already.
            files = self.specs.uids()
        except OSError as e:
            if e.errno in NOT_NOW:
                raise
            return [], set()  # reconciling reports it
        known = rows.uids(db)
        found = [record_of(self.specs, uid) for uid in files if uid not in known]
        return [r for r in found if r is not None and r.boot_id == self.boot_id], set(files)

    def _conflicts(self, sentences: list[str]) -> None:
        for sentence in sentences:
            self._add_report(f"two claims have one device: {sentence}")

    def _add_report(self, sentence: str) -> None:
        self.report.append(sentence)
        log.error("%s", sentence)


def _generation(db: sqlite3.Connection) -> int:
    """Returns how often the database was rebuilt; 1 for a file from before this was counted."""
    try:
        return int(rows.get_meta(db, _GENERATION)[""])
    except (KeyError, ValueError):
        return 1


def _torn(others: Mapping[Instance, OpenDatabase], named: Inodes) -> Instance | None:
    return next((instance for instance, opened in others.items() if is_torn(opened.inodes, named)), None)


def _newer(others: Mapping[Instance, OpenDatabase], generation: int) -> Instance | None:
    return next((instance for instance, opened in others.items() if opened.generation > generation), None)


def _next(others: Mapping[Instance, OpenDatabase], old: Connection | None) -> int:
    return 1 + max([old.generation if old else 0, *(opened.generation for opened in others.values())])


def _all_findings(paths: Sequence[Path]) -> SalvagedRecords:
    """Reads several files that were set aside. If two have the same claim, the newest one wins."""
    out = SalvagedRecords()
    for path in sorted(paths):
        found = from_database(path)
        out.rows |= found.rows
        out.holds |= found.holds
    return out
