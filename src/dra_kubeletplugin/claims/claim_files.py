"""A claim's files: the CDI spec, and a note with all that its record needs, should the database be lost.

So no name has to be parsed, and requests, admin access and a driver's undo steps survive too.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..base.files import NOT_NOW
from ..cdi import ClaimSpecs
from ..errors import RecordsError, describe, printable
from .metadata_files import MetadataFiles
from .record import Record, State, check_doc

log = logging.getLogger(__name__)
_ADVICE = {
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "raise the quota of its file system",
    errno.EROFS: "its file system is read-only; see the kernel's log, and mount it writable",
    errno.EACCES: "see the permissions of its folder, and the security profile of the plugin's pod",
    errno.EPERM: "see the permissions and attributes of its folder, and the security profile of the plugin's pod",
}


class _Note(msgspec.Struct):
    uid: str
    namespace: str
    name: str
    boot: str
    created: float
    doc: msgspec.Raw


def note_of(record: Record) -> bytes:
    """What a prepared claim's note says. The same record gives the same bytes, so that a repetition can compare."""
    doc = msgspec.Raw(msgspec.json.encode(record.doc))
    return msgspec.json.encode(_Note(record.uid, record.namespace, record.name, record.boot_id, record.created, doc))


def record_of(specs: ClaimSpecs, uid: str) -> Record | None:
    """The record that a claim's note tells of; None where there is none or it cannot be understood.

    Raises ``OSError`` where no file can be read now.
    """
    try:
        note = msgspec.json.decode(specs.note(uid), type=_Note)
        if note.uid != uid:
            raise ValueError(f"it is of claim {note.uid}")
        doc = check_doc(msgspec.json.decode(note.doc)) | {"complete": True}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        if getattr(e, "errno", None) in NOT_NOW:
            raise
        log.error("the note beside %s tells nothing of its claim (%s)", specs.path(uid), printable(e))
        return None
    return Record(uid, note.namespace, note.name, State.PREPARED, note.boot, "", doc, created=note.created)


class ClaimFiles:
    """The files of claims. ``specs`` and ``metadata`` name them. All methods block, and are called in the thread of the records.

    Raise :class:`RecordsError` where they say nothing else.
    """

    def __init__(self, specs: ClaimSpecs, metadata: MetadataFiles) -> None:
        self.specs = specs
        self.metadata = metadata
        self.fault = ""
        """Why the last change of a claim's file failed; empty once :meth:`probe` could write to the CDI folder."""
        self._probing = threading.Lock()

    def probe(self) -> None:
        """Writes and removes a file in the CDI folder, and sets ``fault`` accordingly. Raises nothing. May be called in any thread.

        Returns at once while another thread probes: two would remove each other's file, and each waits where the folder's mount hangs.
        """
        if not self._probing.acquire(blocking=False):
            return
        try:
            with contextlib.suppress(RecordsError), self._translated("written"):
                self.specs.probe()
                self.fault = ""
        finally:
            self._probing.release()

    def put(self, record: Record) -> None:
        """Writes the spec and the metadata of a prepared claim, if it has them."""
        with self._translated("written"):
            self.metadata.put(record)
            if spec := record.doc.get("cdi"):
                self.specs.write(record.uid, spec)

    def note(self, record: Record) -> None:
        """Writes the note of a claim that is prepared; raises nothing: one that cannot be written is due with the next pass.

        To be called inside the transaction that says so: then no other instance has taken the claim over, and whoever was told that
        the claim is prepared can rely on the note, should the database be lost at this moment.
        """
        try:
            self.specs.write_note(record.uid, note_of(record))
        except (OSError, ValueError) as e:
            log.warning("the note of claim %s cannot be written: %s", record.shown, describe(e))

    def put_metadata(self, record: Record) -> None:
        """Writes the metadata of a prepared claim alone."""
        with self._translated("written"):
            self.metadata.put(record)

    def holds(self, record: Record) -> bool:
        """Whether all files are there and say what the record does. Raises nothing."""
        return self.specs.holds(record.uid, record.doc.get("cdi"), note_of(record)) and self.metadata.holds(record)

    def mend(self, record: Record) -> bool:
        """Writes the files again where one is missing, cut or changed; True where one was.

        To be called inside the transaction that read the record: another instance may have news of its metadata.
        """
        if self.holds(record):
            return False
        self.put(record)
        with self._translated("written"):
            self.specs.write_note(record.uid, note_of(record))
        return True

    def known(self, uid: str) -> Record | None:
        """What the note of a claim tells of it; None where it tells nothing. Raises :class:`RecordsError` where that is not known now."""
        try:
            return record_of(self.specs, uid)
        except OSError as e:
            shown = printable(e.filename or self.specs.root)
            raise RecordsError(f"{shown} cannot be read ({e.strerror or e}): see its mount") from None

    def remove(self, uid: str) -> None:
        """Takes the spec away, so that no container gets the devices any more; the note stays as long as the record.

        A file that is not there is no fault.
        """
        with self._translated("removed"):
            self.specs.remove(uid)
            self.metadata.remove(uid)

    def forget(self, uid: str) -> None:
        """Takes the note away: what it tells is undone, and would come back with the next opening of the records.

        What cannot be removed and tells nothing is logged: the next pass finds an orphan.
        """
        try:
            with self._translated("removed"):
                self.specs.remove_note(uid)
        except RecordsError as e:
            if self.known(uid) is not None:
                raise
            log.warning("the note of claim %s cannot be removed: %s", printable(uid), e)

    def remove_all(self, uid: str) -> None:
        """Both, for a claim that has no record."""
        with self._translated("removed"):
            self.specs.remove(uid)
            self.metadata.remove_orphans(uid)
            self.specs.remove_note(uid)

    def uids(self) -> dict[str, float]:
        """The claims that have a file of ours, with the age of the newest in seconds. Raises ``OSError``."""
        specs, metadata = self.specs, self.metadata
        return {
            uid: _age(specs.note_path(uid), specs.path(uid), metadata.path(uid))
            for uid in {*specs.uids(), *metadata.uids()}
        }

    @contextlib.contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        """Raises :class:`RecordsError` that names the path that failed and the operating system's reason, and sets ``fault``.

        The text is the same for each try, so that Events of it are aggregated.
        """
        try:
            yield
        except OSError as e:
            advice = _ADVICE.get(e.errno or 0, "see the disk and the mount that it is on")
            path = printable(e.filename or "a file of the claim")
            self.fault = f"{path} cannot be {verb} ({e.strerror or describe(e)}): {advice}"
            raise RecordsError(self.fault) from None
        except ValueError as e:  # a record with names that no API server accepts
            raise RecordsError(f"the files of the claim cannot be {verb}: {printable(e)}") from None


def _age(*paths: Path) -> float:
    """Seconds since the newest of these files was written."""
    written = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            written.append(path.lstat().st_mtime)
    return time.time() - max(written)
