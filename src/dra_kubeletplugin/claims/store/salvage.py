"""Collects records from other sources if the database cannot be used: rows of the damaged file, then notes beside CDI files."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec

from ...base.files import NOT_NOW
from ...cdi import ClaimSpecs
from ...errors import printable
from ..capacity import Hold, decoded
from ..claim_files import record_of
from ..record import Record, State, UnreadableRecord
from . import rows
from .schema import lenient

log = logging.getLogger(__name__)


@dataclass
class SalvagedRecords:
    """Rows and their holds, each by claim UID."""

    rows: dict[str, rows.Row] = field(default_factory=dict)
    holds: dict[str, list[Hold]] = field(default_factory=dict)

    def lost(self, boot_id: str) -> list[Record]:
        """Returns records for claims of which only the holds are left: they stay held until unprepared or prepared again."""
        return [_holder(uid, holds, boot_id) for uid, holds in self.holds.items() if uid not in self.rows]


def _holder(uid: str, holds: Sequence[Hold], boot_id: str) -> Record:
    devices = [
        {
            "pool": h.pool,
            "device": h.device,
            **({"shareID": h.share} if h.share else {}),
            **({"takes": takes} if (takes := decoded(h.takes)) is not None else {}),
        }
        for h in holds
    ]
    doc = {"devices": devices, "cdi": None, "complete": False, "rebuilt": True}
    return Record(uid, "", "", State.PREPARED, boot_id, "", doc)


def from_database(path: Path) -> SalvagedRecords:
    """Reads all rows that a damaged file still yields. Does not change the file."""
    found = SalvagedRecords()
    try:
        db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    except sqlite3.Error:
        return found
    try:
        db.text_factory = lenient
        db.row_factory = sqlite3.Row
        _scan(db, "PRAGMA writable_schema = ON")  # a table can be read even if another table's definition is damaged
        # A damaged page ends a scan, so the table is scanned in both directions.
        for order in ("ASC", "DESC"):
            for raw in _scan(db, f"SELECT * FROM claims ORDER BY uid {order}"):
                row = rows.decode([raw.get(c, _DEFAULTS.get(c)) for c in rows.COLUMNS])
                if row.uid:
                    found.rows.setdefault(row.uid, row)
        for raw in _scan(db, "SELECT * FROM holds"):
            if raw.get("uid") is None or raw.get("device") is None:
                continue  # its page was lost: the holder is not known
            pool, device, share, uid = (rows.shown_key(raw.get(c)) for c in ("pool", "device", "share_id", "uid"))
            takes = msgspec.json.encode(known).decode() if (known := decoded(raw.get("takes"))) is not None else ""
            found.holds.setdefault(uid, []).append(Hold(pool, device, share, takes, uid))
    finally:
        db.close()
    return found


_DEFAULTS: Mapping[str, object] = {"error": "", "attempts": 0}  # columns of later schemas


def _scan(db: sqlite3.Connection, query: str) -> list[dict[str, object]]:
    """Returns the rows up to the first that cannot be read."""
    out: list[dict[str, object]] = []
    try:
        for raw in db.execute(query):
            out.append({key: raw[key] for key in raw.keys()})  # noqa: SIM118  (sqlite3.Row iterates over values)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as e:
        log.debug("%s: %s", query, printable(e))
    return out


def from_files(specs: ClaimSpecs, known: Mapping[str, rows.Row]) -> list[Record]:
    """Returns records from notes of claims without a readable row: their devices are in use.

    Raises ``OSError`` if no file can be read now.
    """
    try:
        uids = specs.uids()
    except OSError as e:
        if e.errno in NOT_NOW:
            raise
        log.error("%s cannot be read (%s): what its files tell is not known", specs.root, e.strerror)
        return []
    missing = [uid for uid in uids if not isinstance(known.get(uid), Record)]
    return [r for r in (record_of(specs, uid) for uid in missing) if r is not None]


def fill(db: sqlite3.Connection, driver: str, findings: SalvagedRecords, more: Sequence[Record]) -> list[str]:
    """Adds records that the database does not have; call it inside a transaction. Returns a sentence for each device with two claims.

    Readable rows come first, then records from files. Unreadable rows come last, and only for claims without a better source.
    """
    readable = [r for r in findings.rows.values() if isinstance(r, Record)]
    conflicts = []
    for record in [*readable, *more]:
        if rows.read(db, record.uid) is None:
            conflicts += _add(db, driver, record)
    for row in findings.rows.values():
        if isinstance(row, UnreadableRecord) and rows.read(db, row.uid) is None:
            _add_raw(db, driver, row, findings.holds.get(row.uid, []))
    return conflicts


def _add(db: sqlite3.Connection, driver: str, record: Record) -> list[str]:
    try:
        rows.insert(db, driver, record)
        return []
    except rows.HeldByError as e:
        # Both claims are kept and reported. The first keeps the device, the second only its other devices.
        rows.insert_unheld(db, record)
        rows.insert_holds(db, driver, record.holds(), or_ignore=True)
        return [f"claim {record.shown}: {e}"]


def _add_raw(db: sqlite3.Connection, driver: str, row: UnreadableRecord, holds: Sequence[Hold]) -> None:
    """Adds a row with unchanged values; only the key is replaced by its printable form, which is text."""
    values = [row.raw[c] if row.raw[c] is not None else _DEFAULTS.get(c, "") for c in rows.COLUMNS]
    rows.insert_raw(db, [row.uid, *values[1:]])
    rows.insert_holds(db, driver, holds, or_ignore=True)


def clone(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Copies the whole database, including tables and columns that only a newer version knows."""
    kinds = "SELECT name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
    for name, sql in source.execute(kinds, ("table",)).fetchall():
        target.execute(sql)
        cursor = source.execute(f'SELECT * FROM "{name}"')
        marks = ", ".join("?" * len(cursor.description))
        target.executemany(f'INSERT INTO "{name}" VALUES ({marks})', cursor)
    for _, sql in source.execute(kinds, ("index",)).fetchall():
        target.execute(sql)
    target.execute(f"PRAGMA user_version = {source.execute('PRAGMA user_version').fetchone()[0]}")


def overrule(db: sqlite3.Connection, driver: str, records: Sequence[Record], noted: Container[str]) -> list[str]:
    """Replaces rows of an older database state with the records of notes; call it inside a transaction.

    If two claims have one device, the later prepared one gets it if the other has no note: that claim has ended. ``noted`` are the UIDs
    of claims with a note. Returns the same as :func:`fill`.
    """
    newer = [record for record in records if not _is_as_new(rows.read(db, record.uid), record)]
    for record in newer:
        rows.forget(db, record.uid)
        for uid in {uid for hold in record.holds() for uid in rows.holders(db, driver, hold)}:
            row = rows.read(db, uid)
            if uid not in noted and isinstance(row, Record) and row.created < record.created:
                rows.forget(db, uid)
    return [sentence for record in newer for sentence in _add(db, driver, record)]


def _is_as_new(row: rows.Row | None, noted: Record) -> bool:
    """Whether a row is the noted prepare, or its rollback has begun since. A note is written when a claim is prepared."""
    return isinstance(row, Record) and row.created >= noted.created and row.state is not State.PREPARING
