"""The journal of record changes: one append-only file, which all instances of the plugin share. They lock its folder.

Each instance keeps all records in memory. Before each decision, it reads the lines that other instances appended. Compaction and repair
replace the file: a new file gets the journal's name only when it is complete, and has a higher generation. In its own file
(`instance_lock.py`), each instance notes the generation of the journal that it has open. So an instance that finds a missing or older
journal waits for a living instance that has a newer one.

A damaged file is kept under another name. The new file has all lines that can be read, the records in flight, and the records from the
notes beside CDI files. If records may be lost, the driver's ``recover()`` is called then, and no new claim is prepared before it has
returned. Damage is found when the file is opened, when it is read on, and by a regular check.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ...base.files import NOT_NOW
from ...base.flock import FolderLock
from ...base.telemetry.metrics import Metrics
from ...base.text import counted
from ...cdi import ClaimSpecs
from ...errors import RecordsBusyError, RecordsError, describe, printable
from ..claim_files import record_of
from ..holders import HeldByError
from ..instance_lock import Instance, InstanceLock
from ..record import SUPERSEDED, UNDONE, UNPROVEN, InFlightRecords, Record, Row, State
from .journal_file import JournalFile, new_header, sync_folder, write_new
from .records import RECOVER, Records

log = logging.getLogger(__name__)
_REMOVED = "it was removed"
_POLL = 0.01  # seconds between checks whether another instance has written the file again
_SMALL = 1 << 20  # bytes; a smaller journal is not compacted
_MAX_GROWTH = 4  # a journal this many times larger than its live content is compacted


@dataclasses.dataclass(eq=False)
class Journal:
    """The journal at ``path``. All methods block and run in the record thread.

    Args:
        path: the journal's path.
        specs: the driver's CDI files; the notes beside them are a second source of records.
        process: this instance; it also finds the other living instances.
        in_flight: records that this process works on and that may be in no file.
        boot_id: the id of this boot.
        wait: seconds to wait for another instance.

    ``report`` has a sentence for every repair. ``loads`` counts how often a file was opened.
    """

    path: Path
    specs: ClaimSpecs
    process: InstanceLock
    in_flight: InFlightRecords
    boot_id: str
    wait: float
    metrics: Metrics
    report: list[str] = dataclasses.field(default_factory=list)
    loads: int = 0
    file: JournalFile | None = None
    # Generation of the last repair whose file all living instances have read. The first file has generation 1 and replaced no other.
    _followed: int = 1

    def __post_init__(self) -> None:
        self._lock = FolderLock(self.path.parent)

    @contextlib.contextmanager
    def locked(self, wait: float, *, write: bool = True) -> Iterator[JournalFile]:
        """Takes the lock and yields the journal with all changes of other instances.

        After a repair that may have lost records, writes wait until each living instance has added the records that it knows.

        Raises ``OSError`` or :class:`RecordsError`; the error is a :class:`RecordsBusyError` after ``wait`` seconds without the lock.
        """
        deadline = time.monotonic() + wait
        while True:
            self._acquire(deadline)
            try:
                try:
                    self._refresh()
                    if write:
                        self._check_all_followed()
                except RecordsBusyError:
                    if time.monotonic() > deadline:
                        raise
                else:
                    assert self.file
                    yield self.file
                    return
            finally:
                self._lock.release()
            time.sleep(_POLL)

    def _acquire(self, deadline: float) -> None:
        try:
            acquire(self._lock, self.path, deadline)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            acquire(self._lock, self.path, deadline)

    def is_current(self) -> bool:
        """Whether the records in memory match the file. Needs no lock."""
        with contextlib.suppress(OSError):
            return self.file is not None and not self.file.fault and self.file.is_unchanged(os.lstat(self.path))
        return False

    def commit(self, *, sync: bool) -> None:
        """Writes all changes since the last commit as one write. Call it in :meth:`locked`.

        Raises ``OSError`` or :class:`RecordsError`; the caller then undoes the changes in memory. If a failed write left lines in
        the file, they are later read as lines of another instance.
        """
        if self.file and self.file.records.changes:
            self.file.append(self.file.records.changed_lines(), sync=sync)
            self.file.records.commit()
            if not self.is_current():
                self._refresh()  # the file was removed or replaced during the write; a retry finds the true state

    def check(self) -> None:
        """Detects a file that was removed, replaced or overwritten, and repairs it."""
        if self.is_current() and self.file and not self.file.was_touched():
            return
        with self.locked(self.wait, write=False) as file:
            if not file.is_intact():
                file.fault = "its content was overwritten"
                self._refresh()

    def compact(self) -> None:
        """Replaces a file that is much larger than its content."""
        if self.file and self.file.end > max(_SMALL, _MAX_GROWTH * self.file.live):
            with self.locked(0) as file:
                if file.end > max(_SMALL, _MAX_GROWTH * file.live):
                    self._replace(file, file.records, complete=True)

    def close(self) -> None:
        """Closes the file and notes that this instance has none open, so that other instances do not wait for it."""
        self.drop()
        self._lock.close()
        with contextlib.suppress(OSError):
            self.process.note_records(0)

    def drop(self) -> None:
        """Closes the file. The next use reads it again."""
        file, self.file = self.file, None
        if file:
            file.close()

    # --- under the lock -------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Reads the lines that other instances appended, and opens or repairs the file if needed.

        Raises :class:`RecordsBusyError` if another instance has to write the file again.
        """
        file = self.file
        try:
            info = os.lstat(self.path)
        except FileNotFoundError:
            info = None
        if file is None or info is None or (info.st_dev, info.st_ino) != file.inode:
            self._open(file)
            return
        file.size = info.st_size
        if info.st_size != file.end:
            file.read_on()
        if file.fault:  # also damage that an earlier repair found but could not repair
            self._repair(file.fault, file, complete=False)

    def _check_all_followed(self) -> None:
        """Raises :class:`RecordsBusyError` if another instance has not read the file since a repair that may have lost records."""
        assert self.file
        repaired = self.file.header.repaired
        if repaired > self._followed:
            for other in self.process.others():
                if other.generation is None or 0 < other.generation < repaired:
                    raise self._waits_for(other)
            self._followed = repaired

    def _waits_for(self, other: Instance) -> RecordsBusyError:
        return RecordsBusyError(
            f"{self.path} was removed, replaced or repaired, and process {self.process.pid(other.id)} of the plugin, which has it "
            "open, has not repaired or reopened it yet: delete its pod if it hangs"
        )

    def _open(self, known: JournalFile | None) -> None:
        """Opens the file after it was created or replaced, or repairs it. Raises the same errors as :meth:`_refresh`."""
        if known:
            known.read_on()  # another instance may have appended lines before the file lost its name
        elif self.path.is_symlink():
            raise RecordsError(
                f"{self.path} is a symbolic link: replace the link with the journal file that it points to"
            )
        own = known.header.generation if known else 0
        # An instance whose file cannot be read may have a newer journal open.
        newer = [o for o in self.process.others() if o.generation is None or o.generation > own]
        least = max([own + bool(known), *(other.generation or 0 for other in newer)])
        found, fault = None, _REMOVED
        with contextlib.suppress(FileNotFoundError):
            found = JournalFile(self.path)
            fault = self._fault_of(found, known, least)
        try:
            if found and not fault:
                self._use(found, known)
            elif newer:
                raise self._waits_for(max(newer, key=lambda other: other.generation or 0))
            elif known and found and found.header.generation > own and found.header.id == known.header.id:
                # The file that replaced the known one is damaged, and the instance that wrote it has ended.
                self._add_known(found, known)
                self._repair(fault, found, complete=False)
            else:
                self._repair(fault, known or found, complete=bool(known and not (known.fault or known.is_superseded)))
        finally:
            if found and found is not self.file:
                found.close()

    def _fault_of(self, found: JournalFile, known: JournalFile | None, least: int) -> str:
        """Returns why ``found`` cannot be used, or an empty text. ``least`` is the lowest generation that it may have."""
        if found.header.driver not in {"", self.specs.driver}:
            found.records = Records()
            return f"it belongs to driver {printable(found.header.driver)}"
        if not found.fault and known and known.header.id != found.header.id:
            return "another file is in its place"
        is_old = "an older file is in its place" if found.header.generation < least else ""
        return found.fault or ("a newer file had replaced it" if found.is_superseded else is_old)

    def _use(self, file: JournalFile, known: JournalFile | None) -> None:
        """Uses ``file`` from now on, with the records that only this instance knows. If that fails, ``known`` stays in use."""
        records = file.records
        before = records.uids()
        if known is None or file.header.repaired > known.header.generation:
            # Another instance may not have known the last changes of this one.
            self._add(records, [r for r in self.in_flight.records() if r.uid not in before])
            if known:
                self._add_known(file, known)
        self._rebuild(records, complete=True)
        if lost := records.uids() - before:
            records.set_meta(RECOVER, "pending")
            file.append(records.changed_lines(), sync=True)
            records.commit()
            self._add_report(f"{counted(len(lost), 'record')} lost and rebuilt: {', '.join(sorted(lost))}")
        # The process that wrote the file may have been killed before it synced the folder.
        sync_folder(self.path.parent)
        # Last: from then on other instances do not wait for this one.
        self.process.note_records(file.header.generation)
        self.file = file
        self.loads += 1
        if known:
            known.close()

    def _uids_with_files(self) -> Sequence[str]:
        try:
            return self.specs.uids()
        except OSError as e:
            if e.errno in NOT_NOW or e.errno == errno.EIO:
                raise
            log.error(
                "cannot read the CDI folder %s (%s): claims that are recorded only in this folder are not found",
                self.specs.root,
                e.strerror,
            )
            return []

    def _repair(self, fault: str, source: JournalFile | None, *, complete: bool) -> None:
        """Writes a new file with everything that is known: ``source``, records in flight, and notes. The old file is kept.

        If not ``complete``, ``source`` may lack records. The driver's ``recover()`` is then called.
        """
        records = source.records if source else Records()
        try:
            in_flight = [r for r in self.in_flight.records() if not isinstance(records.read(r.uid), Record)]
            self._add(records, in_flight)
            rebuilt = self._rebuild(records, complete=complete)
            if not complete:
                self._mark_unproven(records)
            if rebuilt or not complete:
                records.set_meta(RECOVER, "pending")
            if source and fault == _REMOVED:
                log.error("the record journal %s was removed while it is in use: it is written again", self.path)
            self._replace(source, records, complete=complete, fault=fault)
        except BaseException:
            records.undo()
            raise
        if rebuilt:
            uids = ", ".join(r.uid for r in rebuilt)
            self._add_report(f"{counted(len(rebuilt), 'record')} rebuilt from CDI files: {uids}")

    def _rebuild(self, records: Records, *, complete: bool) -> list[Record]:
        """Adds records from notes, and returns them.

        A record exists before its note and is deleted after it, so a note of this boot without a record shows a loss. If records may be
        outdated, a note also replaces an older, unreadable or not yet prepared record, but not the record of a claim in flight.
        """
        skipped = records.uids() if complete else {r.uid for r in self.in_flight.records()}
        noted = [record_of(self.specs, uid) for uid in self._uids_with_files() if uid not in skipped]
        if complete:
            rebuilt = [r for r in noted if r is not None and r.boot_id == self.boot_id]
        else:
            rebuilt = [r for r in noted if r is not None and not _is_as_new(records.read(r.uid), r)]
        self._add(records, sorted(rebuilt, key=lambda r: r.created, reverse=True), rebuilt=True)
        return rebuilt

    def _mark_unproven(self, records: Records) -> None:
        """Marks claims that have shared steps but no note. Their last lines may be lost, so no other claim relies on their shared steps."""
        for row in map(records.read, records.uids()):
            if isinstance(row, Record) and row.shared and record_of(self.specs, row.uid) is None:
                row.doc = {**row.doc, UNPROVEN: True}
                records.update(row, row.fence)

    def _add_known(self, file: JournalFile, known: JournalFile) -> None:
        """Adds the claims of ``known`` that ``file`` lacks.

        A prepared claim without a note has ended since: the line that deleted its record was lost with the damaged file. Such a claim
        holds its devices until a prepare or a reconcile pass decides. Its record is never the response to a repeated prepare.
        """
        before = file.records.uids()
        file.records.add_missing(known.records, file.ended)
        unproven = []
        for row in map(file.records.read, file.records.uids() - before):
            if isinstance(row, Record) and row.state is State.PREPARED and record_of(self.specs, row.uid) is None:
                row.doc = {**row.doc, "rebuilt": True, "complete": False}
                unproven.append(row)
        self._add(file.records, unproven, rebuilt=True)

    def _add(self, records: Records, more: Sequence[Record], *, rebuilt: bool = False) -> None:
        """Adds records. Two claims with one device are both kept and reported, and both hold it.

        A device gets a new holder only after its former holder was undone. So a rebuilt record that is older than the other holders is
        marked as superseded.
        """
        for record in more:
            records.forget(record.uid)
            try:
                records.insert(record)
            except HeldByError as e:
                if rebuilt and all(isinstance(h, Record) and h.created > record.created for h in e.holders):
                    record.doc = {**record.doc, SUPERSEDED: True}
                records.insert(record, shared=True)
                self._add_report(f"two claims have one device: claim {record.shown}: {e}")

    def _replace(self, old: JournalFile | None, records: Records, *, complete: bool, fault: str = "") -> None:
        """Writes a new file and gives it the journal's name.

        The process may die between any two lines here; the next process then repeats the missing steps.

        ``fault`` is why the old file has to be kept; empty for compaction.
        """
        generation = 1 + (old.header.generation if old else 0)
        repaired = old.header.repaired if old and complete else generation
        header = new_header(self.specs.driver, generation, repaired, old.header if old else None)
        new = write_new(self.path, header, old.content() if old else records.all_lines())
        file = None
        try:
            # Opened by its temporary name: another program may replace a file with the final name at any moment.
            file = JournalFile(new)
            if fault:
                self._keep_damaged_file(fault)
            # Before the file gets its name: no other instance may repair an older file meanwhile.
            self.process.note_records(generation)
            new.rename(self.path)
        except BaseException:
            if file:
                file.close()
            new.unlink(missing_ok=True)
            self.process.note_records(self.file.header.generation if self.file else 0)
            raise
        known, self.file = self.file, file
        self.loads += 1
        try:
            sync_folder(self.path.parent)
        except OSError:
            self.drop()  # the next use syncs it first
            raise
        finally:
            for replaced in filter(None, {known, old}):
                replaced.supersede()
                replaced.close()

    def _keep_damaged_file(self, fault: str) -> None:
        """Links the damaged file to a second name, under which operators can find it."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        kept = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        try:
            os.link(self.path, kept, follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError:  # a file system without links
            try:
                kept.write_bytes(self.path.read_bytes())
            except OSError:
                kept.unlink(missing_ok=True)
                raise
        self.metrics.inc("records_damaged_total")
        self._add_report(f"the record journal was damaged ({fault}) and is set aside as {kept}")

    def _add_report(self, sentence: str) -> None:
        self.report.append(sentence)
        log.error("claim records: %s", sentence)


def _is_as_new(row: Row | None, noted: Record) -> bool:
    """Whether a record is at least as new as the note.

    It then shows the prepare that the note describes as complete, or a later state such as its rollback.
    """
    if not isinstance(row, Record) or row.created < noted.created or row.state is State.PREPARING:
        return False
    return bool(row.doc.get(UNDONE)) or not noted.doc.get(UNDONE)


def acquire(lock: FolderLock, path: Path, deadline: float) -> None:
    """Takes the lock of the journal at ``path``. Raises ``OSError``, or :class:`RecordsBusyError` at ``deadline``."""
    try:
        lock.acquire(deadline)
    except TimeoutError:
        raise RecordsBusyError(
            f"{path} is locked by another instance of the plugin for too long: delete its pod if it hangs"
        ) from None


def as_records_error(e: Exception, path: Path) -> RecordsError:
    """Converts an error of the file system to an error for operators."""
    if isinstance(e, RecordsError):
        return e
    if isinstance(e, OSError) and e.errno in {errno.ENOSPC, errno.EDQUOT}:
        return RecordsError(f"{path} cannot be written, the disk is full: free space below the kubelet's root")
    if isinstance(e, OSError) and e.errno == errno.EROFS:
        return RecordsError(f"{path} is read-only: mount the kubelet's root read-write")
    if isinstance(e, PermissionError):
        return RecordsError(
            f"{path} may not be read or written ({e.strerror}): see its owner and mode, and the node's security policy, such as SELinux"
        )
    if isinstance(e, IsADirectoryError):
        return RecordsError(
            f"{e.filename or path} is a directory: move it away, and the plugin writes its records again"
        )
    return RecordsError(f"{path} cannot be used: {describe(e) if not isinstance(e, OSError) else printable(e)}")
