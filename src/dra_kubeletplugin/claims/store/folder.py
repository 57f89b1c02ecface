"""The folder of the records: a file for each claim, which all instances of the plugin read and replace under one lock.

Each instance keeps all records in memory. Before each decision, it reads the files that have changed. No instance changes a file in place
(`files.py`), so a file that is damaged was damaged by something else. What happens then:

- A file that was removed, or damaged in place, is written again from memory; or else from the claim's note (`claim_files.py`).
- Without both, a damaged file is set aside as ``<uid>.damaged-<time>``. Its devices are not known, so no claim is prepared for the first
  time until the driver's ``recover()`` has returned which devices are in use.
- If the whole folder was removed or replaced, memory and notes are written again where they are newer, and ``recover()`` is called.
- If two files hold one device, the claim with a note of this boot keeps it, or else the older claim.
- If only the second line of a file is damaged, the first one still holds the devices (`record.py`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from ...base import forks
from ...base.flock import FileLock
from ...base.telemetry.metrics import Metrics
from ...base.text import counted
from ...cdi import ClaimSpecs
from ...cdi.directory import is_uid, remove_file
from ..claim_files import read_note
from ..instance_lock import InstanceLock
from ..record import Record, State, decode_record
from .files import (
    LOCK,
    SYNCED,
    TEMPORARY,
    RecordFiles,
    Seen,
    acquire,
    is_record_file,
    read_content,
    seen_of,
    sync_folder,
    synced_path,
)
from .records import DAMAGED, NODE_FILE, RECOVER, SUFFIX, Records, Stored, meta_of, stored_of, uid_of

log = logging.getLogger(__name__)
_DAMAGED = ".damaged-"
_DRIVER = "driver"  # meta key: the name of the driver that wrote the records
_ID = "id"  # meta key: another one shows that the files were removed, and that another instance has written the metadata again


class ClaimFolder:
    """The records in the folder at ``path``. All methods block and run in the record thread.

    Args:
        specs: the driver's CDI files; the notes beside them are copies of the records.
        process: this instance; it also finds the other living instances.
        boot_id: the id of this boot.
        wait: seconds to wait for the lock.

    ``report`` has a sentence for every repair. ``repairs`` counts the opening and all repairs after which ``recover()`` may be due.
    """

    def __init__(
        self, path: Path, specs: ClaimSpecs, process: InstanceLock, boot_id: str, wait: float, metrics: Metrics
    ) -> None:
        self.path = path
        self.specs = specs
        self.process = process
        self.boot_id = boot_id
        self.wait = wait
        self.metrics = metrics
        self.records = Records()
        self.report: list[str] = []
        self.repairs = 0
        self._files = RecordFiles(path)
        self._lock = FileLock(path / LOCK, makes_folder=True)
        self._fd = -1  # the folder that was read, kept open so that no other folder gets its inode
        self._modified = 0  # when the folder was modified, in ns, after the last read or write of this instance
        self._seen: dict[str, Seen] = {}
        self._others = False  # whether another instance lived at the last refresh: it may have written since, and ended
        self._news: list[str] = []  # sentences for the report, once the repair is written

    @contextlib.contextmanager
    def locked(self, wait: float) -> Iterator[Records]:
        """Takes the lock and yields the records with all changes of other instances.

        Raises ``OSError`` or :class:`RecordsError`; the error is a :class:`RecordsBusyError` after ``wait`` seconds without the lock.
        """
        acquire(self._lock, wait)
        try:
            self._refresh()
            yield self.records
        finally:
            self._lock.release()

    def is_current(self) -> bool:
        """Whether the records in memory are those in the folder. Needs no lock."""
        with contextlib.suppress(OSError):
            info = os.stat(self.path)
            # The clock of a file system advances in steps, so two writes can have the same time.
            is_unchanged = self._is_known(info) and info.st_mtime_ns == self._modified
            return is_unchanged and not self._others and not self.process.others()
        return False

    def commit(self, *, sync: bool) -> None:
        """Writes all changes since the last commit. Call it in :meth:`locked`.

        Raises ``OSError``; the caller then undoes the changes in memory. What was written nevertheless is read by the next transaction.
        """
        files = self.records.changed_files()
        if not files:
            return
        # A file that has no synced version, and the metadata, which no note repeats, must survive a power failure.
        sync = sync or any(data and (name == NODE_FILE or name not in self._seen) for name, data in files.items())
        self._modified = 0
        # The metadata come first while they ask for recover(), and last when they no longer do: the process may die in between.
        is_due = self.records.has_meta(RECOVER)
        order = sorted(files, key=lambda name: (name == NODE_FILE) is not is_due)
        written = self._files.replace(files, order, sync=sync)
        info = os.stat(self.path)
        if not self._is_known(info):
            raise FileNotFoundError(errno.ENOENT, "the folder was replaced", str(self.path))
        self.records.commit()
        self._seen = {name: seen for name, seen in self._seen.items() if name not in files} | written
        self._modified = info.st_mtime_ns

    def check(self) -> None:
        """Detects files that were removed, replaced or overwritten, and the loss of the folder, and repairs them."""
        with contextlib.suppress(FileNotFoundError):
            if self._is_known(os.stat(self.path)) and self._changes() == ({}, set()):
                return
        with self.locked(self.wait):
            self._read_changes()

    def probe(self, size: int) -> None:
        """Writes and syncs a file of ``size`` bytes, and removes it. Raises ``OSError`` or :class:`RecordsError`."""
        with self.locked(self.wait):
            self._files.remove_temporary(self._files.write_temporary({"_probe": bytes(size)}, sync=True))

    def close(self) -> None:
        self._lock.close()
        self._forget_folder()

    # --- under the lock -------------------------------------------------------------------------

    def _refresh(self) -> None:
        info, had_others, self._others = os.stat(self.path), self._others, bool(self.process.others())
        if not self._is_known(info):
            self._open()
        elif info.st_mtime_ns != self._modified or self._others or had_others:
            self._read_changes()

    def _is_known(self, info: os.stat_result) -> bool:
        return self._fd >= 0 and os.path.samestat(info, os.fstat(self._fd))

    def _open(self) -> None:
        """Reads the folder for the first time, or after it or its metadata were lost. Adds the claims that it lacks."""
        former, known, seen = self._fd, self.records, self._seen
        self._fd = forks.open_file(self.path.resolve(), os.O_RDONLY | os.O_DIRECTORY)
        self.records, self._seen = Records(), {}
        try:
            names = os.listdir(self.path)
            self._remove_leftovers(names)
            self._modified = os.fstat(self._fd).st_mtime_ns  # before the files are read
            changed, _ = self._changes()
            is_new = not self._read_meta(changed.pop(NODE_FILE, None))
            id, known_id = (records.get_meta(_ID).get("", "") for records in (self.records, known))
            is_replaced = former >= 0 and (id != known_id or not os.path.samestat(os.fstat(former), os.fstat(self._fd)))
            if is_new:
                with contextlib.suppress(OSError):  # the folder may belong to another user
                    os.fchmod(self._fd, 0o700)
            for uid, is_damaged, time in (name.partition(_DAMAGED) for name in names):
                if is_new and former < 0 and is_damaged and is_uid(uid):  # the lost metadata had these names
                    self.records.set_meta(DAMAGED + uid, f"{uid}{_DAMAGED}{time}")
            for key, value in (
                known.get_meta("") | {_ID: id or os.urandom(8).hex(), _DRIVER: self.specs.driver}
            ).items():
                self.records.set_meta(key, value)
            if is_new or is_replaced:  # a removed folder looks like a first start
                self.records.set_meta(RECOVER, "pending")
            self._read_claims(changed, (), known)
            self._add_lost(known, names, every_boot=is_new or is_replaced)
            self._settle_conflicts(known)
            self.commit(sync=True)
            # The process that wrote the files, or made the folder, may have been killed before it synced them.
            os.fsync(self._fd)
            sync_folder(self.path.parent)
        except BaseException:
            forks.close(self._fd)
            self._fd, self.records, self._seen, self._modified = former, known, seen, 0
            self._news.clear()
            raise
        if former >= 0:
            forks.close(former)
        if is_replaced:
            self._news.append(f"the folder {self.path} was removed or replaced while it is in use; it is written again")
        self._report_news()
        self.repairs += 1

    def _remove_leftovers(self, names: Iterable[str]) -> None:
        """Removes files that a process had not written completely when it died."""
        for name in names:
            if name.startswith(".") and name.endswith(TEMPORARY):
                with contextlib.suppress(OSError):  # a person may have made a folder with this name
                    os.unlink(f"{self.path}/{name}")

    def _forget_folder(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            forks.close(fd)

    def _changes(self) -> tuple[dict[str, Seen], set[str]]:
        """Returns the files that differ from what was last read or written, and the names of those that are gone."""
        found: dict[str, Seen] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if is_record_file(entry.name):
                    found[entry.name] = seen_of(entry.stat(follow_symlinks=False))
        return {name: seen for name, seen in found.items() if self._seen.get(name) != seen}, self._seen.keys() - found

    def _read_changes(self) -> None:
        """Reads all files that have changed, and repairs damaged and lost ones."""
        self._modified = os.stat(self.path).st_mtime_ns  # before the names are read
        changed, gone = self._changes()
        try:
            if NODE_FILE in gone or (NODE_FILE in changed and not self._read_meta(changed.pop(NODE_FILE))):
                self._open()  # whatever removed this file may have removed more
                return
            self._read_claims(changed, gone, self.records)
            loaded = [stored for name in changed if (stored := self.records.by_file(name))]
            if any(self.records.holders(hold) for stored in loaded for hold in stored.holds):
                self._settle_conflicts(self.records)
            self.commit(sync=True)
        except BaseException:
            self.records.undo()
            self._modified = 0
            self._news.clear()
            raise
        self._report_news()

    def _read_meta(self, seen: Seen | None) -> bool:
        """Reads the metadata. Returns False if they are lost, or were written again after a loss. A damaged file is set aside."""
        data = read_content(self.path / NODE_FILE) if seen else None
        if seen is None or data is None:
            return False
        meta = meta_of(data)
        if meta is None:
            self._rename_damaged({NODE_FILE: _damaged_name(NODE_FILE)})
            return False
        if self.records.has_meta(_ID) and self.records.get_meta(_ID)[""] != meta.get(_ID):
            return False
        self.records.load_meta(meta)
        self._seen[NODE_FILE] = seen
        return True

    def _read_claims(self, changed: Mapping[str, Seen], gone: Iterable[str], known: Records) -> None:
        """Reads the files of claims. ``known`` are the records in memory, from which lost files are written again."""
        damaged: dict[str, Stored | None] = {}
        for name, seen in sorted(changed.items()):
            data = read_content(self.path / name)
            if data is None:  # it was removed just now; the next check finds that
                continue
            found = stored_of(data, name)
            if found is None or not found.is_intact:
                copy = self._copy(name, known)
                if copy or not found:
                    damaged[name] = copy
                    continue
            self.records.load(found)
            self.records.drop_meta(DAMAGED + uid_of(name))  # a person has put the file back
            self._seen[name] = seen
        self._repair(damaged)
        for name in gone:
            self._restore_or_end(name)

    def _repair(self, damaged: Mapping[str, Stored | None]) -> None:
        """Writes damaged files again from their copies, and sets the others aside: then it is not known which devices they hold."""
        renamed = {
            name: _damaged_name(name) for name, copy in damaged.items() if not copy or (self.path / name).is_dir()
        }
        if renamed:
            for name, kept in renamed.items():
                if not damaged[name]:
                    self.records.set_meta(DAMAGED + uid_of(name), kept)
            self.records.set_meta(RECOVER, "pending")
            self.commit(sync=True)  # first: after the next step, a process that starts cannot find that a claim is lost
            self._rename_damaged(renamed)
            self.repairs += 1
        for copy in filter(None, damaged.values()):
            self._restore(copy, "damaged")

    def _copy(self, name: str, known: Records) -> Stored | None:
        """Returns the best copy of a damaged file: from memory, from the claim's note, or after a power failure from its last sync."""
        note = read_note(self.specs, uid_of(name))
        if found := known.by_file(name):
            return self._newest(found, note)
        second = self._second(name)
        if second and second.head.boot_id != self.boot_id:
            return second if note is None or note.head.created < second.head.created else note
        return note

    def _second(self, name: str) -> Stored | None:
        """Returns the last synced version of a claim's file; None if it is missing or damaged."""
        found = stored_of(read_content(Path(synced_path(self.path, name))) or b"", name)
        return found if found and found.is_intact else None

    def _newest(self, found: Stored, note: Stored | None) -> Stored:
        """Returns the record in memory, or the note if another instance may have written it later."""
        own = found.head.owner == self.process.id
        return note if note and self._others and not own and _is_later(note, found) else found

    def _restore_or_end(self, name: str) -> None:
        """Handles a file that is gone. It was removed by hand if the claim's note or the second name of the file is still there: the end of
        a claim removes them first. Or another instance has set the file aside.
        """
        old, damaged = self.records.by_file(name), DAMAGED + uid_of(name)
        note = read_note(self.specs, old.head.uid) if old else None
        if old and (note or self.records.has_meta(damaged) or os.path.lexists(synced_path(self.path, name))):
            self._restore(self._newest(old, note), "removed")
            self.records.drop_meta(damaged)
            return
        if old:
            self.records.unload(old.head.uid)
        del self._seen[name]

    def _restore(self, stored: Stored, fault: str) -> None:
        self.records.restore(stored)
        self._news.append(f"the file of claim {stored.shown} was {fault}; it is written again")

    def _add_lost(self, known: Records, names: Collection[str], *, every_boot: bool) -> None:
        """Adds the claims that the folder lacks or has in an older version.

        They are in memory and have not ended since, or have a note, or have only the second name of their file.
        """
        lost = {*self._add_known(known), *self._add_noted(every_boot=every_boot), *self._add_second(names)}
        if lost:
            self.records.set_meta(RECOVER, "pending")
            self._news.append(f"{counted(len(lost), 'record')} lost and written again: {', '.join(sorted(lost))}")

    def _add_known(self, known: Records) -> Iterator[str]:
        found = dict(self.records.stored())
        for uid, stored in known.stored().items():
            if stored.head.owner == self.process.id:
                is_needed = uid not in found or found[uid].data != stored.data
            elif uid in found:
                is_needed = _updated(stored) > _updated(found[uid])
            else:  # a device whose claim has ended may have another holder
                is_needed = not self._others or not any(self.records.holders(hold) for hold in stored.holds)
            if is_needed:
                self.records.restore(stored)
                if uid not in found:
                    self._doubt(stored)
                    yield uid

    def _add_noted(self, *, every_boot: bool) -> Iterator[str]:
        for name in self.specs.uids():
            note = read_note(self.specs, name)
            if note is None or not (every_boot or note.head.boot_id == self.boot_id):
                continue
            uid, present = note.head.uid, self.records.stored().get(note.head.uid)
            is_newer = note.head.boot_id == self.boot_id and present and _is_later(note, present)
            if present is None or (is_newer and present.head.owner != self.process.id):
                self.records.restore(note)
                # With the same time, a process has died after it wrote the note, and nothing was lost.
                if present is None or present.head.created != note.head.created:
                    yield uid

    def _add_second(self, names: Collection[str]) -> Iterator[str]:
        for file in (n for n in names if n.startswith(".") and n.endswith(SYNCED)):
            name = f"{file[1:].removesuffix(SYNCED)}{SUFFIX}"
            second = None if name in names else self._second(name)
            if second and second.head.uid not in self.records.stored():
                self.records.restore(second)
                yield second.head.uid

    def _doubt(self, stored: Stored) -> None:
        """Marks a prepared claim that another instance may have ended, because it has no note: no prepare is answered from its record."""
        row = decode_record(stored.head, stored.data)
        if (
            self._others
            and isinstance(row, Record)
            and row.state is State.PREPARED
            and not read_note(self.specs, row.uid)
        ):
            row.recovered, row.complete = True, False
            self.records.update(row, row.fence)

    def _settle_conflicts(self, known: Records) -> None:
        """If files hold one device, one claim keeps it. The others are rolled back without a call of the driver.

        A device gets a new holder only after its former holder was undone. So one of the files is outdated, for example from a backup.
        """

        for uid, other in self.records.conflicts(lambda stored: self._age(stored, known)):
            row = self.records.read(uid)
            # The driver has reported a recovered claim, so the hardware has it.
            if isinstance(row, Record) and not row.superseded and not row.recovered:
                self._news.append(f"two claims have one device: claim {uid} is rolled back, and claim {other} keeps it")
                fence, row.state, row.owner, row.superseded = row.fence, State.UNPREPARING, "", True
                self.records.update(row, fence)

    def _age(self, stored: Stored, known: Records) -> tuple[bool, float, str]:
        """Returns a key by which the claim that keeps a device comes first: this process works on it, it has a note, or it is older."""
        uid, created = stored.head.uid, stored.head.created
        of = known.stored().get(uid)
        if of and of.head.owner == self.process.id:
            return False, created, uid
        note = read_note(self.specs, uid)
        return note is None or (note.head.boot_id, note.head.created) != (self.boot_id, created), created, uid

    def _rename_damaged(self, names: Mapping[str, str]) -> None:
        """Renames damaged files. First removes their older versions, from which the next start would roll back prepared claims."""
        for name, kept in names.items():
            remove_file(synced_path(self.path, name))
            os.rename(self.path / name, self.path / kept)
            self._seen.pop(name, None)
            self.metrics.inc("records_damaged_total")
            self._add_report(f"the file {self.path / name} was damaged and is set aside as {kept}")

    def _report_news(self) -> None:
        news, self._news = self._news, []
        for sentence in news:
            self._add_report(sentence)

    def _add_report(self, sentence: str) -> None:
        self.report.append(sentence)
        log.error("claim records: %s", sentence)


def _is_later(note: Stored, stored: Stored) -> bool:
    """Whether a note was written after this version of its claim. A note is written when its claim is prepared."""
    return note.head.created > stored.head.created or (
        note.head.created == stored.head.created and stored.head.state == State.PREPARING
    )


def _updated(stored: Stored) -> float:
    row = decode_record(stored.head, stored.data)
    return row.updated if isinstance(row, Record) else 0.0


def _damaged_name(name: str) -> str:
    return f"{uid_of(name)}{_DAMAGED}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
