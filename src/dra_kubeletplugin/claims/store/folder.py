"""The folder of the records: a file for each claim, which all instances of the plugin read and replace under one lock.

Each instance keeps all records in memory. Before each decision, it reads the files that have changed. No instance changes a file in place
(`files.py`), so a file that is damaged was damaged by something else. What happens then:

- A file that was damaged, or removed by hand, is written again from the newest copy: memory, the claim's note (`claim_files.py`), or
  after a power failure the last synced version. The end of a claim removes the copies first, so a file that is gone with them has ended.
- A file without both stays. Its devices are not known, so no claim is prepared for the first time until the driver's ``recover()`` has
  returned which devices are in use.
- If the whole folder was removed or replaced, memory and notes are written again where they are newer, and ``recover()`` is called.
- If two files hold one device, the claim with a note of this boot keeps it, or else the older claim.
- If only the second line of a file is damaged, the first one still holds the devices (`record.py`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from ...base.flock import FileLock
from ...base.telemetry.metrics import Metrics
from ...base.text import counted
from ...cdi import ClaimSpecs
from ..claim_files import noted_uids, read_note
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
from .records import NODE_FILE, RECOVER, Records, Stored, file_name, meta_of, stored_of, uid_of

log = logging.getLogger(__name__)
_DRIVER = "driver"  # meta key: the name of the driver that wrote the records
_ID = "id"  # meta key: another value shows that the files were removed, and that another instance has written the node file again
_STATES: list[str] = list(State)  # in the order in which a claim has them


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

        Raises ``OSError`` or :class:`.RecordsError`; the error is a :class:`.RecordsBusyError` after ``wait`` seconds without the lock.
        """
        acquire(self._lock, wait)
        try:
            info, had_others, self._others = os.stat(self.path), self._others, bool(self.process.others())
            if not self._is_known(info):
                self._open()
            elif info.st_mtime_ns != self._modified or self._others or had_others:
                self._read_changes()
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
        # A file that has no synced version, and the node file, which has no copy, must survive a power failure.
        sync = sync or any(data and (name == NODE_FILE or name not in self._seen) for name, data in files.items())
        self._modified = 0
        # The node file comes first while recover() is due, and last when it no longer is: the process may die in between.
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
            if self._is_known(os.stat(self.path)) and not any(self._changes()):
                return
        with self.locked(self.wait):
            self._read_changes()

    def probe(self, size: int) -> None:
        """Writes and syncs a file of ``size`` bytes, and removes it. Raises ``OSError`` or :class:`.RecordsError`."""
        with self.locked(self.wait):
            self._files.remove_temporary(self._files.write_temporary({"_probe": bytes(size)}, sync=True))

    def close(self) -> None:
        self._lock.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # --- under the lock -------------------------------------------------------------------------

    def _is_known(self, info: os.stat_result) -> bool:
        return self._fd >= 0 and os.path.samestat(info, os.fstat(self._fd))

    def _changes(self) -> tuple[dict[str, Seen], set[str]]:
        """Returns the files that differ from what was last read or written, and the names of those that are gone."""
        found: dict[str, Seen] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if is_record_file(entry.name) and not self._rename_folder(entry):
                    found[entry.name] = seen_of(entry.stat(follow_symlinks=False))
        gone = {NODE_FILE, *map(file_name, self.records.stored())} - found.keys()
        return {name: seen for name, seen in found.items() if self._seen.get(name) != seen}, gone

    def _rename_folder(self, entry: os.DirEntry[str]) -> bool:
        """Renames a folder that has the name of a file: it can be neither replaced nor removed like a file. Returns False for a file."""
        if not entry.is_dir(follow_symlinks=False):
            return False
        new_path = f"{entry.path}.{os.urandom(4).hex()}"
        os.rename(entry.path, new_path)
        sentence = f"{entry.path} is a folder in the place of a record; it is renamed to {new_path}: remove it"
        log.error("claim records: %s", sentence)
        self.report.append(sentence)
        return True

    def _open(self) -> None:
        """Reads the folder for the first time, or after it or its node file was lost. Adds the claims that it lacks."""
        former, self._fd = self._fd, os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        known_meta = self.records.get_meta("")
        try:
            self._seen = {}
            with self._repairing():
                # The process that wrote the files, or made the folder, may have been killed before it synced them.
                os.fsync(self._fd)
                sync_folder(self.path.parent)
                names = os.listdir(self.path)
                for name in names:  # a process that died had not written these files completely
                    if name.startswith(".") and name.endswith(TEMPORARY):
                        with contextlib.suppress(OSError):  # a person may have made a folder with this name
                            os.unlink(f"{self.path}/{name}")
                changed, gone = self._changes()
                meta = self._read_meta()
                self.records.load_meta(meta or {})
                if former >= 0:
                    self._news.append(
                        f"the folder {self.path} was removed or replaced while it is in use; it is written again"
                    )
                if meta is None:
                    with contextlib.suppress(OSError):  # the folder may belong to another user
                        os.fchmod(self._fd, 0o700)
                id = (meta or {}).get(_ID) or os.urandom(8).hex()
                for key, value in {**known_meta, _ID: id, _DRIVER: self.specs.driver}.items():
                    self.records.set_meta(key, value)
                self._read_files(changed, is_opened=True)
                is_replaced = meta is None or former >= 0  # a removed folder looks like a first start
                lost = self._add_lost(gone, names, every_boot=is_replaced)
                if lost:
                    self._news.append(
                        f"{counted(len(lost), 'record')} lost and written again: {', '.join(sorted(lost))}"
                    )
                if lost or is_replaced:
                    self.records.set_meta(RECOVER, "pending")
        except BaseException:
            os.close(self._fd)
            self._fd, self._modified = former, 0
            self.records.load_meta(known_meta)
            if former < 0:  # nothing is known yet
                self.records, self.repairs = Records(), 0
            raise
        if former >= 0:
            os.close(former)
        self.repairs += 1

    def _read_changes(self) -> None:
        """Reads all files that have changed, and repairs damaged and lost ones."""
        with self._repairing():
            changed, gone = self._changes()
            is_lost = NODE_FILE in gone
            if NODE_FILE in changed:
                meta = self._read_meta()
                is_lost = meta is None or meta.get(_ID) != self.records.get_meta(_ID)[""]
                if meta and not is_lost:
                    self.records.load_meta(meta)
                    self._seen[NODE_FILE] = changed[NODE_FILE]
            if not is_lost:
                self._read_files(changed, is_opened=False)
                for name in gone:
                    self._restore_or_end(name)
        if is_lost:
            self._open()  # whatever removed the node file may have removed more

    @contextlib.contextmanager
    def _repairing(self) -> Iterator[None]:
        """Writes and reports the repairs of the block, or undoes them."""
        self._modified = os.fstat(self._fd).st_mtime_ns  # before the files are read
        try:
            yield
            self._settle_conflicts()
            self.commit(sync=True)
        except BaseException:
            self.records.undo()
            self._modified = 0
            self._news.clear()
            raise
        for sentence in self._news:
            log.error("claim records: %s", sentence)
        self.report += self._news
        self._news.clear()

    def _read_meta(self) -> Mapping[str, str] | None:
        """Reads the meta keys; None if the node file is lost or damaged."""
        return meta_of(read_content(self.path / NODE_FILE) or b"")

    def _read_files(self, changed: Mapping[str, Seen], *, is_opened: bool) -> None:
        """Reads the files of claims. Writes damaged ones again from their copies. In an opened folder, newer records in memory stay."""
        for name, seen in sorted(changed.items()):
            data = read_content(self.path / name) if name != NODE_FILE else None
            if data is None:
                continue  # if it was removed just now, the next check finds that
            found, known = stored_of(data, name), self.records.stored().get(uid_of(name))
            if not found.is_intact and (copy := self._copy(name)):
                self._restore(copy, "damaged")
            elif is_opened and known and (self._is_own(known) or self._rank(known) > self._rank(found)):
                self.records.restore(known)
            else:
                self.records.load(found)
                self._seen[name] = seen
                if found.is_damaged:
                    self.records.set_meta(RECOVER, "pending")
                    self.repairs += 1
                    self.metrics.inc("records_damaged_total")
                    self._news.append(
                        f"the file {self.path / name} is damaged and has no copy: the devices of its claim are not known"
                    )

    def _restore_or_end(self, name: str) -> None:
        """Handles a file that is gone. It was removed by hand if the claim's note or the second name of the file is still there: the end of
        a claim removes them first.
        """
        is_removed = os.path.lexists(synced_path(self.path, name)) or read_note(self.specs, uid_of(name))
        if is_removed and (copy := self._copy(name) or self._second(name)):
            self._restore(copy, "removed")
        else:
            self.records.unload(uid_of(name))
            self._seen.pop(name, None)

    def _add_lost(self, gone: Collection[str], names: Iterable[str], *, every_boot: bool) -> list[str]:
        """Adds the claims that an opened folder lacks, or has in an older version. Returns the UIDs of the claims that were lost.

        A claim comes from memory, if it has not ended since; from its note of this boot, or of any boot with ``every_boot``; or from the
        second name of its file. If the folder has the claim and lacks only its last write, the claim was not lost.
        """
        lost = []
        for uid, known in [(uid, known) for uid, known in self.records.stored().items() if file_name(uid) in gone]:
            # A device of a claim that another instance has ended may have another holder.
            if self._others and not self._is_own(known) and any(map(self.records.holders, known.holds)):
                self.records.forget(uid)
            else:
                self.records.restore(known)
                lost.append(uid)
                row = self.records.read(uid) if self._others and not read_note(self.specs, uid) else None
                if isinstance(row, Record) and row.state is State.PREPARED:
                    # Another instance may have ended it, so no prepare is answered from this record.
                    row.recovered, row.complete = True, False
                    self.records.update(row, row.fence)
        synced = (name[1:].removesuffix(SYNCED) for name in names if name.endswith(SYNCED))
        for uid in sorted({*noted_uids(self.specs), *synced}):
            present, copy = self.records.stored().get(uid), read_note(self.specs, uid)
            if copy and copy.head.boot_id != self.boot_id and not every_boot:
                copy = None
            if not present:
                copy = copy or self._second(file_name(uid))
            if copy and (not present or self._rank(copy) > self._rank(present)):
                self.records.restore(copy)
                # With the same time, a process has died after it wrote the note, and nothing was lost.
                if not present or present.head.created != copy.head.created:
                    lost.append(uid)
        return lost

    def _restore(self, stored: Stored, fault: str) -> None:
        self.records.restore(stored)
        self._news.append(
            f"the file of claim {decode_record(stored.head, stored.data).shown} was {fault}; it is written again"
        )

    def _copy(self, name: str) -> Stored | None:
        """Returns the newest copy of a claim: from memory, from its note, or after a power failure from the last sync of its file."""
        known, second = self.records.stored().get(uid_of(name)), self._second(name)
        copies = [
            known if known and not known.is_damaged else None,
            read_note(self.specs, uid_of(name)),
            second if second and second.head.boot_id != self.boot_id else None,
        ]
        return max(filter(None, copies), key=self._rank, default=None)

    def _second(self, name: str) -> Stored | None:
        """Returns the last synced version of a claim's file; None if it is missing or damaged."""
        found = stored_of(read_content(Path(synced_path(self.path, name))) or b"", name)
        return found if found.is_intact else None

    def _is_own(self, stored: Stored) -> bool:
        """Whether this process works on the claim: then no other instance can have a newer version."""
        return stored.head.owner == self.process.id

    def _rank(self, stored: Stored) -> tuple[bool, float, int, float]:
        """Returns a key by which a newer version of a claim comes after an older one. The states of a claim have one order."""
        state, row = stored.head.state, decode_record(stored.head, stored.data)
        order = _STATES.index(state) if state in _STATES else len(_STATES)
        updated = row.updated if isinstance(row, Record) else math.inf  # of a newer version, which no copy replaces
        return self._is_own(stored), stored.head.created, order, updated

    def _settle_conflicts(self) -> None:
        """If files hold one device, one claim keeps it. The others are rolled back without a call of the driver.

        A device gets a new holder only after its former holder was undone. So one of the files is outdated, for example from a backup.
        """

        def age(stored: Stored) -> tuple[bool, float, str]:
            """Returns a key by which the claim comes first that this process works on, or that has a note, or that is older."""
            uid, created = stored.head.uid, stored.head.created
            note = read_note(self.specs, uid)
            is_noted = note is not None and (note.head.boot_id, note.head.created) == (self.boot_id, created)
            return not (is_noted or self._is_own(stored)), created, uid

        for uid, other in self.records.conflicts(age):
            row = self.records.read(uid)
            # The driver has reported a recovered claim, so the hardware has it.
            if isinstance(row, Record) and not row.superseded and not row.recovered:
                self._news.append(f"two claims have one device: claim {uid} is rolled back, and claim {other} keeps it")
                fence, row.state, row.owner, row.superseded = row.fence, State.UNPREPARING, "", True
                self.records.update(row, fence)
