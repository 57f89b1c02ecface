"""Writes and removes a claim's files: the CDI spec, the metadata files, and a note with the claim's record.

If the journal is lost, the plugin restores the record from the note, including requests, admin access and undo steps.
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
from ..base.telemetry.logs import claim_fields
from ..cdi import ClaimSpecs
from ..errors import RecordsError, describe, printable
from .metadata_files import MetadataFiles
from .record import UNDONE, Record, State, check_doc

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
    """Encodes the note of a claim. Equal records have equal bytes, so that notes can be compared."""
    doc = msgspec.Raw(msgspec.json.encode(record.doc))
    return msgspec.json.encode(_Note(record.uid, record.namespace, record.name, record.boot_id, record.created, doc))


def record_of(specs: ClaimSpecs, uid: str) -> Record | None:
    """Reads the record from a claim's note; None if there is no note or it cannot be decoded.

    Raises ``OSError`` if the process cannot open any file now, for example because too many are open, or if the disk fails. Such a note
    must not count as missing: the devices in it would become free.
    """
    try:
        note = msgspec.json.decode(specs.note(uid), type=_Note)
        if note.uid != uid:
            raise ValueError(f"it belongs to claim {note.uid}")
        doc = check_doc(msgspec.json.decode(note.doc)) | {"complete": True}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        if getattr(e, "errno", None) in NOT_NOW | {errno.EIO}:
            raise
        log.error(
            "cannot decode the note beside a CDI spec: %s: %s", specs.path(uid), printable(e), extra={"claim_uid": uid}
        )
        return None
    state = State.UNPREPARING if doc.get(UNDONE) else State.PREPARED
    return Record(uid, note.namespace, note.name, state, note.boot, "", doc, created=note.created)


class ClaimFiles:
    """The files of claims, at the paths that ``specs`` and ``metadata`` define. All methods block and run in the record thread.

    Methods raise :class:`RecordsError` unless their docstring says otherwise.
    """

    def __init__(self, specs: ClaimSpecs, metadata: MetadataFiles) -> None:
        self.specs = specs
        self.metadata = metadata
        self.fault = ""
        """Why the last change of a claim's file failed; empty once :meth:`probe` could write to the CDI folder."""
        self._probing = threading.Lock()

    def probe(self) -> None:
        """Writes and removes a file in the CDI folder, and sets ``fault`` accordingly. Raises nothing. May be called in any thread.

        Returns at once while another thread probes: two probes would remove each other's file. If the folder's mount hangs, only one
        thread waits for it.
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
        """Writes the spec and the metadata files of a prepared claim, if it has them."""
        with self._translated("written"):
            self.metadata.put(record)
            if spec := record.doc.get("cdi"):
                self.specs.write(record.uid, spec)

    def note(self, record: Record) -> None:
        """Writes the note of a claim. Raises nothing: a failure is logged, and the next reconcile pass writes the note of a prepared claim.

        Call it inside the transaction that commits the claim as prepared. Then no other instance can take the claim over before the note
        exists, and the note exists even if the journal is lost directly after the commit.
        """
        try:
            self.specs.write_note(record.uid, note_of(record))
        except (OSError, ValueError) as e:
            log.warning("cannot write the claim's note: %s", describe(e), extra=claim_fields(record))

    def put_metadata(self, record: Record) -> None:
        """Writes only the metadata files of a prepared claim."""
        with self._translated("written"):
            self.metadata.put(record)

    def are_intact(self, record: Record) -> bool:
        """Whether all files exist and match the record. Raises nothing."""
        return self.specs.has_content(record.uid, record.doc.get("cdi"), note_of(record)) and self.metadata.are_intact(
            record
        )

    def restore(self, record: Record) -> bool:
        """Restores the files if one is missing, truncated or changed. Returns True if it wrote them.

        Call it inside the transaction that read the record. Otherwise it could overwrite newer metadata that another instance committed.
        """
        if self.are_intact(record):
            return False
        self.put(record)
        with self._translated("written"):
            self.specs.write_note(record.uid, note_of(record))
        return True

    def read_note(self, uid: str) -> Record | None:
        """Returns the record from a claim's note; None if there is no usable note.

        Raises :class:`RecordsError` if the note cannot be read now.
        """
        try:
            return record_of(self.specs, uid)
        except OSError as e:
            shown = printable(e.filename or self.specs.root)
            raise RecordsError(f"{shown} cannot be read ({e.strerror or e}): see its mount") from None

    def remove(self, record: Record) -> None:
        """Removes the spec and the metadata files, so that no container gets the devices any more. The note stays as long as the record.

        Missing files are ignored.
        """
        with self._translated("removed"):
            self.specs.remove(record.uid)
            self.metadata.remove(record)

    def remove_note(self, uid: str) -> None:
        """Removes the note of a claim that is rolled back. Otherwise the next opening of the journal would restore the claim's record.

        If the note can be neither removed nor decoded, the failure is only logged: the next reconcile pass removes the note as an orphan.
        """
        try:
            with self._translated("removed"):
                self.specs.remove_note(uid)
        except RecordsError as e:
            if self.read_note(uid) is not None:
                raise
            log.warning("cannot remove the claim's note: %s", e, extra={"claim_uid": uid})

    def remove_all(self, uid: str) -> None:
        """Removes the spec, the metadata files and the note of a claim without a record."""
        with self._translated("removed"):
            self.specs.remove(uid)
            self.metadata.remove_all(uid)
            self.specs.remove_note(uid)

    def uids(self) -> dict[str, float]:
        """Returns the claims that have a file of this driver, with the age of the newest file in seconds. Raises ``OSError``."""
        specs, metadata = self.specs, self.metadata.files()
        return {
            uid: _age(specs.note_path(uid), specs.path(uid), *metadata.get(uid, ()))
            for uid in {*specs.uids(), *metadata}
        }

    @contextlib.contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        """Converts errors to :class:`RecordsError` with the failed path and the operating system's reason, and sets ``fault``.

        The text is the same for each attempt, so that Events with it are aggregated.
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
    """Returns the seconds since the newest of these files was written."""
    written = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            written.append(path.lstat().st_mtime)
    return time.time() - max(written)
