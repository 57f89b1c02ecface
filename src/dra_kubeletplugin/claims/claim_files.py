"""Writes and removes a claim's files: the CDI spec, the metadata files, and a note with the claim's record.

A note is a copy of the record. If the record's file is lost, damaged or older, it is written again from the note.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Iterator, Mapping

import msgspec

from ..base.files import NOT_NOW
from ..base.telemetry.logs import claim_fields
from ..cdi import ClaimSpecs
from ..errors import RecordsError, describe, printable
from .metadata_files import MetadataFiles
from .record import Record, State, decode_record, encode_record
from .store.records import Stored, file_name, stored_of

log = logging.getLogger(__name__)
_ADVICE: Mapping[int | None, str] = {
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "raise the quota of its file system",
    errno.EROFS: "its file system is read-only; see the kernel's log, and mount it writable",
    errno.EACCES: "see the permissions of its folder, and the security profile of the plugin's pod",
    errno.EPERM: "see the permissions and attributes of its folder, and the security profile of the plugin's pod",
}


def note_of(record: Record) -> bytes:
    """Returns the note of a claim. Equal claims have equal notes, so that they can be compared."""
    state = State.UNPREPARING if record.undone else State.PREPARED
    noted = msgspec.structs.replace(
        record, state=state, owner="", error="", attempts=0, retry_at=None, updated=record.created
    )
    return encode_record(noted, noted.holds())


def read_note(specs: ClaimSpecs, uid: str) -> Stored | None:
    """Reads the claim in a note; None if there is no note or it is damaged.

    Raises ``OSError`` if the process cannot open any file now, for example because too many are open, or if the disk fails. Such a note
    must not count as missing: the devices in it would become free.
    """
    try:
        note = stored_of(specs.note(uid), file_name(uid))
        fault = "it is damaged, or belongs to another claim"
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno in NOT_NOW or e.errno == errno.EIO:
            raise
        note, fault = None, printable(e)
    if note and note.is_intact:
        return note
    log.error("cannot read the note beside a CDI spec: %s: %s", specs.path(uid), fault, extra={"claim_uid": uid})
    return None


def noted_uids(specs: ClaimSpecs) -> list[str]:
    """Returns the UIDs of the claims that may have a note; none if the CDI folder cannot be read, for example because it is a file.

    Raises ``OSError`` as :func:`read_note` does.
    """
    try:
        return specs.uids()
    except OSError as e:
        if e.errno in NOT_NOW or e.errno == errno.EIO:
            raise
        log.error("cannot read the notes beside the CDI specs: %s", describe(e))
        return []


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
        if self._probing.acquire(blocking=False):
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
            if spec := record.cdi:
                self.specs.write(record.uid, spec)

    def note(self, record: Record) -> None:
        """Writes the note of a claim. Raises nothing: a failure is logged, and the next reconcile pass writes the note of a prepared claim.

        Call it inside the transaction that commits the claim as prepared. Then no other instance can take the claim over before the note
        exists, and the note exists even if the record's file is lost directly after the commit.
        """
        try:
            self.specs.write_note(record.uid, note_of(record))
        except OSError as e:
            log.warning("cannot write the claim's note: %s", describe(e), extra=claim_fields(record))

    def put_metadata(self, record: Record) -> None:
        """Writes only the metadata files of a prepared claim."""
        with self._translated("written"):
            self.metadata.put(record)

    def are_intact(self, record: Record) -> bool:
        """Whether all files exist and match the record. Raises nothing."""
        return self.specs.has_content(record.uid, record.cdi, note_of(record)) and self.metadata.are_intact(record)

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
        """Returns the record from a claim's note; None if there is no usable note."""
        with self._translated("read"):
            note = read_note(self.specs, uid)
        row = decode_record(note.head, note.data) if note else None
        return row if isinstance(row, Record) else None

    def remove(self, record: Record) -> None:
        """Removes the spec and the metadata files, so that no container gets the devices any more. The note stays as long as the record.

        Missing files are ignored. Metadata files of a request that the record does not name stay until :meth:`remove_all`.
        """
        with self._translated("removed"):
            self.specs.remove(record.uid)
            self.metadata.remove(record)

    def remove_note(self, uid: str) -> None:
        """Removes the note of a claim that is rolled back. Otherwise the record would be restored from it."""
        with self._translated("removed"):
            self.specs.remove_note(uid)

    def remove_all(self, uid: str) -> None:
        """Removes the spec, the metadata files and the note of a claim without a record."""
        with self._translated("removed"):
            self.specs.remove(uid)
            self.metadata.remove_all(uid)
            self.specs.remove_note(uid)

    def uids(self) -> set[str]:
        """Returns the UIDs of the claims that have a file of this driver. Raises ``OSError``."""
        return {*self.specs.uids(), *self.metadata.uids()}

    @contextlib.contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        """Converts errors to :class:`RecordsError` with the failed path and the operating system's reason, and sets ``fault``.

        The text is the same for each attempt, so that Events with it are aggregated.
        """
        try:
            yield
        except OSError as e:
            advice = _ADVICE.get(e.errno, "see the disk and the mount that it is on")
            path = printable(e.filename or "a file of the claim")
            self.fault = f"{path} cannot be {verb} ({e.strerror or describe(e)}): {advice}"
            raise RecordsError(self.fault) from None
