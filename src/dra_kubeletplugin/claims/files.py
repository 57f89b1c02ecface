"""A claim's files: the CDI spec, and a note with all that its record needs, should the database be lost.

So no name has to be parsed, and requests, admin access and a driver's undo steps survive too.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import msgspec

from ..cdi import ClaimSpecs
from ..errors import RecordsError, describe, printable
from .batch import Batcher
from .record import Record, State, check_doc

log = logging.getLogger(__name__)


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
    """The record that a claim's note tells of; None where there is none or it cannot be understood."""
    try:
        note = msgspec.json.decode(specs.note(uid), type=_Note)
        if note.uid != uid:
            raise ValueError(f"it is of claim {note.uid}")
        doc = check_doc(msgspec.json.decode(note.doc)) | {"complete": True}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        log.error("the note beside %s tells nothing of its claim (%s)", specs.path(uid), printable(e))
        return None
    return Record(uid, note.namespace, note.name, State.PREPARED, note.boot, "", doc, created=note.created)


class Files:
    """The files of claims, written in one thread of their own. ``specs`` names them."""

    def __init__(self, specs: ClaimSpecs) -> None:
        self.specs = specs
        self._batcher: Batcher[Callable[[], object]] = Batcher("cdi", self._work)

    async def put(self, record: Record) -> None:
        """Writes the spec of a prepared claim, if it has one.

        Raises :class:`RecordsError`.
        """
        if spec := record.doc.get("cdi"):
            await self._do(functools.partial(self.specs.write, record.uid, spec))

    def note(self, record: Record) -> None:
        """Has the note of a prepared claim written; nobody waits for it.

        What is asked for later comes later. A note that a death prevents is written when the next start mends files; only a
        database lost in the same moment would miss it.
        """
        self._batcher.post(functools.partial(self._write_note, record))

    def _write_note(self, record: Record) -> None:
        try:
            self.specs.write_note(record.uid, note_of(record))
        except (OSError, ValueError) as e:
            log.warning("the note of claim %s cannot be written: %s", record.shown, describe(e))

    async def mend(self, record: Record) -> bool:
        """Writes the files again where one is missing, cut or changed; True where one was.

        Raises :class:`RecordsError`.
        """
        spec, note = record.doc.get("cdi"), note_of(record)

        def compare() -> bool:
            if self.specs.holds(record.uid, spec, note):
                return False
            if spec:
                self.specs.write(record.uid, spec)
            self.specs.write_note(record.uid, note)
            return True

        return bool(await self._do(compare))

    def known(self, uid: str) -> Record | None:
        """What the file of a claim tells of it; None where it tells nothing. Blocks."""
        return record_of(self.specs, uid)

    async def remove(self, uid: str) -> None:
        """Takes the spec away, so that no container gets the devices any more; the note stays as long as the record.

        Raises :class:`RecordsError`; a file that is not there is no fault.
        """
        await self._do(functools.partial(self.specs.remove, uid))

    def forget(self, uid: str) -> None:
        """Takes the note away: what it tells is undone. Blocks; a failure is logged, and the next pass finds an orphan."""
        try:
            self.specs.remove_note(uid)
        except (OSError, ValueError) as e:
            log.warning("the note of claim %s cannot be removed: %s", printable(uid), describe(e))

    async def remove_all(self, uid: str) -> None:
        """Both, for a claim that has no record.

        Raises :class:`RecordsError`.
        """
        await self.remove(uid)
        await self._do(functools.partial(self.specs.remove_note, uid))

    async def close(self, timeout: float) -> None:
        await self._batcher.close(timeout)

    async def _do(self, work: Callable[[], object]) -> object:
        return await self._batcher.submit(work)

    def _work(self, items: Sequence[Callable[[], object]]) -> list[object]:
        return [self._one(item) for item in items]

    def _one(self, item: Callable[[], object]) -> object:
        try:
            return item()
        except OSError as e:
            return RecordsError(f"{self.specs.root} cannot be written ({e.strerror or e}): see its mount and space")
        except ValueError as e:  # a name that no file can have
            return RecordsError(f"{self.specs.root} cannot have the files of such a claim: {printable(e)}")
