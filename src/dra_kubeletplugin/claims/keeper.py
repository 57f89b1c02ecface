"""The database's name always stands for a whole file: made, repaired and restored under another name, then linked.

What cannot be used is set aside in two steps. ``records.db.unmerged-<time>`` has not been read yet, so whoever opens the
database next does that first; ``records.db.damaged-<time>`` has, and is kept for people. A process may die between any two
lines here: the files alone say what is left to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ..cdi import ClaimSpecs
from ..errors import RecordsBusyError
from ..observe.metrics import Metrics
from . import rows
from .files import record_of
from .judge import RECOVER
from .processes import ProcessLock
from .record import InFlight, Record
from .salvage import Findings, fill, from_database, from_files
from .schema import Connection, connect, is_damage, is_header_odd, lenient, make_tables, sync_file, transaction

log = logging.getLogger(__name__)
MERGED = "merged:"  # + name of a file that was set aside: what it had is in the database
_UNMERGED, _DAMAGED = "unmerged-", "damaged-"
_PARTS = ("", "-wal", "-shm")
_POLL = 0.02  # seconds
_REMOVING = 0.25  # seconds; a busy node may stop who removes between two names


class Keeper:
    """Opens the database at ``path``, whatever was left there.

    Args:
        path: of the database.
        specs: the driver's CDI files, a second source of records.
        process: this instance; others of it show who lives.
        in_flight: what this process works on, which no file may tell.
        boot_id: of this boot.
        wait: seconds to wait for another instance.

    ``report`` has a sentence for everything that had to be done. All methods block and are called in the store's thread.
    """

    def __init__(
        self,
        path: Path,
        specs: ClaimSpecs,
        process: ProcessLock,
        in_flight: InFlight,
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

    def open(self, fault: Exception | None = None, removed: Connection | None = None) -> Connection:
        """The database; made where there is none, repaired where it is damaged.

        ``fault`` is what an open database answered, where that was damage; ``removed`` is one that is open and whose file has
        lost its name: where nobody has made another, it gets it back.

        Raises ``sqlite3.Error``, ``OSError`` or :class:`RecordsError`.
        """
        db: Connection | None = None
        if fault is None and self.path.exists() and not self._unmerged() and not self._unfinished():
            try:
                db = connect(self.path, self.wait)
            except FileNotFoundError:
                pass
            except sqlite3.Error as e:
                if not is_damage(e):
                    raise
        db = db or self._open_thoroughly(fault, removed)
        try:
            self._readmit(db)
            self._find_lost(db)
        except BaseException:
            db.close()
            raise
        self.process.note_records()
        return db

    def restore(self, db: Connection) -> bool:
        """Gives an open database whose file was removed its name again; False where another instance has made one."""
        with self._locked():
            if self.path.exists():
                return False
            return self._name_again(db) is not None

    # --- under the lock -------------------------------------------------------------------------

    def _open_thoroughly(self, fault: Exception | None, removed: Connection | None) -> Connection:
        deadline = time.monotonic() + self.wait
        while True:
            with self._locked():
                self._clean()
                late = time.monotonic() > deadline
                # A living instance that has the removed file open, or a newer one, gives that its name again, whole.
                alone = late or not any(o.has_records for o in self.process.others())
                if removed is not None and not self.path.exists() and (alone or not removed.copied):
                    removed = self._name_again(removed)
                if self.path.exists():
                    with contextlib.suppress(FileNotFoundError):  # removed at this moment
                        return self._connect_or_repair(fault)
                elif removed is None:
                    self._finish_setting_aside()
                    if alone or self._unmerged():
                        self._make()
                        return connect(self.path, self.wait)
                if time.monotonic() > deadline + self.wait:
                    raise RecordsBusyError(
                        f"{self.path} is removed again and again: see what else writes below its folder"
                    )
            time.sleep(_POLL)

    def _name_again(self, db: Connection) -> Connection | None:
        """``db`` again, or None where it is damaged."""
        log.error("%s was removed while it is in use: it is written again", self.path)
        try:
            # Nobody writes to the removed file while it is copied; who comes later finds that its name has gone elsewhere.
            with transaction(db):
                self._publish(lambda new: _clone(db, new))
        except sqlite3.DatabaseError as e:
            if not is_damage(e):
                raise
            self._tell(f"the removed record database was damaged too ({e})")
            return None
        db.copied = True
        return db

    def _connect_or_repair(self, fault: Exception | None) -> Connection:
        try:
            if fault is not None and is_header_odd(self.path):
                raise fault
            db = connect(self.path, self.wait)
            if fault is not None and not _is_sound(db):
                db.close()
                raise fault
            return self._merge(db)
        except sqlite3.Error as e:
            if not is_damage(e):
                raise
            self._set_aside(e)
        self._make()
        return connect(self.path, self.wait)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One instance makes or repairs; another that saw the same finds the new file.

        Raises :class:`RecordsBusyError` after ``wait`` seconds.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        name = self.path.with_name(".repair-lock")
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + self.wait
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise RecordsBusyError(
                            f"{self.path} is being repaired by another instance of the plugin for more than {self.wait:g}s: "
                            "delete its pod if it hangs"
                        ) from None
                    time.sleep(_POLL)
            yield
        finally:
            os.close(fd)

    def _clean(self) -> None:
        for path in self._unfinished():
            try:
                path.unlink(missing_ok=True)
            except OSError as e:
                log.warning("%s is left behind: %s", path, e.strerror)

    def _unfinished(self) -> list[Path]:
        """Files that an instance was making when it died."""
        names = [
            *self.path.parent.glob(f".{self.path.name}.new-*"),
            *self.path.parent.glob(f".{self.path.name}.again-*"),
        ]
        return [p for p in names if not self.process.alive(p.name.rpartition(".new-")[2])]

    def _set_aside(self, fault: Exception) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = self.path.with_name(f"{self.path.name}.{_UNMERGED}{stamp}")
        # The file first: without its log it would look whole and be old.
        for part in _PARTS:
            with contextlib.suppress(FileNotFoundError):
                _with(self.path, part).rename(_with(aside, part))
        sync_file(self.path.parent)
        self.metrics.inc("records_damaged_total")
        self._tell(f"the record database was damaged ({fault}) and is set aside as {self._final(aside)}")

    def _finish_setting_aside(self) -> None:
        """A process died between the renames: the log that is left belongs to the newest file that was set aside."""
        left = [part for part in _PARTS[1:] if _with(self.path, part).exists()]
        aside = max(self._unmerged(), default=None)
        if not left:
            return
        if aside is None:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            aside = self.path.with_name(f"{self.path.name}.{_DAMAGED}{stamp}")
        for part in left:
            if not _with(aside, part).exists():
                _with(self.path, part).rename(_with(aside, part))

    def _make(self) -> None:
        """A whole database from everything that is known."""
        aside = self._unmerged()
        findings = _all_findings(aside)
        files = from_files(self.specs, findings.rows)
        lost = findings.lost(self.boot_id)

        def fill_in(db: sqlite3.Connection) -> None:
            make_tables(db)
            self._conflicts(fill(db, self.specs.driver, findings, [*files, *self.in_flight.records(), *lost]))
            for path in aside:
                rows.set_meta(db, MERGED + path.name, "")
            rows.set_meta(db, RECOVER, "pending")

        self._publish(fill_in)
        if findings.rows:
            self._tell(f"{len(findings.rows)} records were read from the damaged file")
        if files:
            self._tell(f"{len(files)} records were rebuilt from CDI files: {', '.join(r.uid for r in files)}")
        self._retire(aside)

    def _merge(self, db: Connection) -> Connection:
        """What was set aside and not read goes into the database that there is."""
        try:
            aside = self._unmerged()
            merged = rows.get_meta(db, MERGED)
            waiting = [p for p in aside if p.name not in merged]
            if waiting:
                findings = _all_findings(waiting)
                files = from_files(self.specs, findings.rows)
                db.execute("PRAGMA synchronous = FULL")  # the files get their last name after this
                with transaction(db):
                    self._conflicts(fill(db, self.specs.driver, findings, [*files, *findings.lost(self.boot_id)]))
                    for path in waiting:
                        rows.set_meta(db, MERGED + path.name, "")
                    rows.set_meta(db, RECOVER, "pending")
                db.execute("PRAGMA synchronous = NORMAL")
            self._retire(aside)
        except BaseException:
            db.close()
            raise
        return db

    def _publish(self, make: Callable[[sqlite3.Connection], None]) -> None:
        """A database that ``make`` fills, in one transaction and synced, before it has its name."""
        new = self.path.with_name(f".{self.path.name}.new-{self.process.id}")
        new.unlink(missing_ok=True)
        try:
            db = sqlite3.connect(new, isolation_level=None)
            try:
                db.text_factory = lenient
                db.execute("PRAGMA journal_mode = MEMORY")
                with transaction(db):
                    make(db)
            finally:
                db.close()
            new.chmod(0o600)
            sync_file(new)
            # What is left of the file that was there before: its log is not ours.
            rest = [_with(self.path, part) for part in _PARTS[1:]]
            if any(map(Path.exists, rest)):
                # Who removes `records.db*` removes one name after the other, and must not find ours among them.
                time.sleep(_REMOVING)
            for part in rest:
                part.unlink(missing_ok=True)
            new.rename(self.path)
            sync_file(self.path.parent)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    def _retire(self, aside: list[Path]) -> None:
        for path in aside:
            for part in reversed(_PARTS):  # the file last: it is what says that something is left to do
                with contextlib.suppress(FileNotFoundError):
                    _with(path, part).rename(_with(self._final(path), part))

    # --- the rest -------------------------------------------------------------------------------

    def _readmit(self, db: sqlite3.Connection) -> None:
        """What this process works on and the database does not know, because another instance made it."""
        records = self.in_flight.records()
        if records and any(rows.read(db, r.uid) is None for r in records):
            with transaction(db):
                self._conflicts(fill(db, self.specs.driver, Findings(), records))

    def _find_lost(self, db: sqlite3.Connection) -> None:
        """CDI files of this boot whose records are gone without a trace, as when the log was cut or removed.

        A record is there before its file is, and goes after it, so a file alone is never in order.
        """
        if not self._without_row(db):
            return
        with transaction(db):
            lost = self._without_row(db)  # once more, now that no claim can begin or end
            self._conflicts(fill(db, self.specs.driver, Findings(), lost))
            if lost:
                rows.set_meta(db, RECOVER, "pending")
        if lost:
            self._tell(f"{len(lost)} records were lost and rebuilt from CDI files: {', '.join(r.uid for r in lost)}")

    def _without_row(self, db: sqlite3.Connection) -> list[Record]:
        try:
            files = self.specs.uids()  # before the rows: a claim that ends in between has lost its file by then
        except OSError:
            return []  # reconciling says so
        known = rows.uids(db)
        found = [record_of(self.specs, uid) for uid in files if uid not in known]
        return [r for r in found if r is not None and r.boot_id == self.boot_id]

    def _unmerged(self) -> list[Path]:
        return sorted(
            p for p in self.path.parent.glob(f"{self.path.name}.{_UNMERGED}*") if not p.name.endswith(_PARTS[1:])
        )

    def _final(self, aside: Path) -> Path:
        return aside.with_name(aside.name.replace(_UNMERGED, _DAMAGED))

    def _conflicts(self, sentences: list[str]) -> None:
        for sentence in sentences:
            self._tell(f"two claims have one device: {sentence}")

    def _tell(self, sentence: str) -> None:
        self.report.append(sentence)
        log.error("%s", sentence)


def _with(path: Path, part: str) -> Path:
    return path.with_name(path.name + part)


def _is_sound(db: sqlite3.Connection) -> bool:
    try:
        return bool(db.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok")
    except sqlite3.DatabaseError:
        return False


def _all_findings(paths: Sequence[Path]) -> Findings:
    """Of several files that were set aside; the newest is right where two tell of one claim."""
    out = Findings()
    for path in sorted(paths):
        found = from_database(path)
        out.rows |= found.rows
        out.holds |= found.holds
    return out


def _clone(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Everything, also tables and columns that only a newer version knows."""
    kinds = "SELECT name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
    for name, sql in source.execute(kinds, ("table",)).fetchall():
        target.execute(sql)
        cursor = source.execute(f'SELECT * FROM "{name}"')
        marks = ", ".join("?" * len(cursor.description))
        target.executemany(f'INSERT INTO "{name}" VALUES ({marks})', cursor)
    for _, sql in source.execute(kinds, ("index",)).fetchall():
        target.execute(sql)
    target.execute(f"PRAGMA user_version = {source.execute('PRAGMA user_version').fetchone()[0]}")
