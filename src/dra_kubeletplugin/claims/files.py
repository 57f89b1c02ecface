"""A claim's CDI file as a second record: its annotations carry all that the record would need, should the database be lost.

So no name has to be parsed, and a driver's undo steps survive too. Source of the annotation rules: CDI specification 1.1.0.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..cdi import ClaimSpecs
from ..cdi.spec import minimum_version
from ..errors import RecordsError, printable
from .batch import Batcher
from .record import Record, State, check_doc

log = logging.getLogger(__name__)
JSON = dict[str, Any]
ANNOTATION = "dra-kubeletplugin.dev/record"
_MAX = 240 * 1024  # bytes; CDI takes 256 KiB of annotations in all


def spec_of(record: Record) -> JSON | None:
    """The CDI spec that belongs to a record, as the file has it; None where the claim needs none.

    The same record gives the same bytes, so that a repetition can compare.
    """
    spec = record.doc.get("cdi")
    if not spec:
        return None
    out: JSON = {**spec, "annotations": {ANNOTATION: _annotation(record)}}
    out["cdiVersion"] = minimum_version(out)
    # The order of the specification, whatever the record's was.
    return {key: out[key] for key in ("cdiVersion", "kind", "annotations", "devices", "containerEdits") if key in out}


def _annotation(record: Record) -> str:
    known: JSON = {
        "namespace": record.namespace,
        "name": record.name,
        "boot": record.boot_id,
        "created": record.created,
        "devices": record.devices,
        "undo": record.steps,
    }
    text = msgspec.json.encode(known).decode()
    if len(text) > _MAX:
        # What the driver itself wrote is too large for a file that every runtime reads; devices always fit.
        known |= {"devices": [{k: v for k, v in d.items() if k != "data"} for d in record.devices], "undo": []}
        text = msgspec.json.encode(known).decode()
    return text


def record_of(specs: ClaimSpecs, uid: str) -> Record | None:
    """The record that a claim's file tells of; None where there is no file or it cannot be understood."""
    try:
        spec = specs.read(uid)
        known = msgspec.json.decode(spec["annotations"][ANNOTATION], type=dict)
        plain = {k: v for k, v in spec.items() if k != "annotations"}
        doc = check_doc(
            {"devices": known["devices"], "undo": known["undo"], "cdi": plain, "complete": True, "rebuilt": True}
        )
        for key in ("namespace", "name", "boot"):
            if not isinstance(known[key], str):
                raise ValueError(f"{key} is no text")
        return Record(
            uid,
            known["namespace"],
            known["name"],
            State.PREPARED,
            known["boot"],
            "",
            doc,
            created=float(known["created"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, msgspec.DecodeError) as e:
        log.error(
            "CDI file %s tells nothing of its claim (%s): its devices are not known", specs.path(uid), printable(e)
        )
        return None


class Files:
    """The CDI files of claims, written in one thread of their own. ``specs`` names them."""

    def __init__(self, specs: ClaimSpecs) -> None:
        self.specs = specs
        self._batcher: Batcher[Callable[[], object]] = Batcher("cdi", self._work)

    async def put(self, record: Record) -> None:
        """Writes the file of a prepared claim, if it needs one.

        Raises :class:`RecordsError`.
        """
        spec = spec_of(record)
        if spec is not None:
            await self._do(functools.partial(self.specs.write, record.uid, spec))

    async def mend(self, record: Record) -> bool:
        """Writes the file again where it is missing, cut or changed; True where it was.

        Raises :class:`RecordsError`.
        """
        spec = spec_of(record)
        if spec is None:
            return False

        def compare() -> bool:
            if self.specs.holds(record.uid, spec):
                return False
            self.specs.write(record.uid, spec)
            return True

        return bool(await self._do(compare))

    def known(self, uid: str) -> Record | None:
        """What the file of a claim tells of it; None where it tells nothing. Blocks."""
        return record_of(self.specs, uid)

    async def remove(self, uid: str) -> None:
        """Raises :class:`RecordsError`; a file that is not there is no fault."""
        await self._do(functools.partial(self.specs.remove, uid))

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
