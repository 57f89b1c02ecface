"""What can be known of claims when their database cannot be used: the damaged file's own rows, then notes beside CDI files."""

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
    """Rows, and what they hold, each by claim UID."""

    rows: dict[str, rows.Row] = field(default_factory=dict)
    holds: dict[str, list[Hold]] = field(default_factory=dict)

    def lost(self, boot_id: str) -> list[Record]:
        """Claims of which nothing is left but what they hold: that is in use until they are unprepared, or prepared again."""
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
    """Everything that a damaged file still gives; it is only read."""
    found = SalvagedRecords()
    try:
        db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    except sqlite3.Error:
        return found
    try:
        db.text_factory = lenient
        db.row_factory = sqlite3.Row
        _scan(db, "PRAGMA writable_schema = ON")  # a table is read though another's definition is damaged
        # A damaged page in the middle ends a scan, so the table is read from both ends.
        for order in ("ASC", "DESC"):
            for raw in _scan(db, f"SELECT * FROM claims ORDER BY uid {order}"):
                row = rows.decode([raw.get(c, _DEFAULTS.get(c)) for c in rows.COLUMNS])
                if row.uid:
                    found.rows.setdefault(row.uid, row)
        for raw in _scan(db, "SELECT * FROM holds"):
            if raw.get("uid") is None or raw.get("device") is None:
                continue  # of a page that was lost: it is not known who held what
            pool, device, share, uid = (rows.shown_key(raw.get(c)) for c in ("pool", "device", "share_id", "uid"))
            takes = msgspec.json.encode(known).decode() if (known := decoded(raw.get("takes"))) is not None else ""
            found.holds.setdefault(uid, []).append(Hold(pool, device, share, takes, uid))
    finally:
        db.close()
    return found


_DEFAULTS: Mapping[str, object] = {"error": "", "attempts": 0}  # columns of later schemas


def _scan(db: sqlite3.Connection, query: str) -> list[dict[str, object]]:
    """The rows up to the first that cannot be read."""
    out: list[dict[str, object]] = []
    try:
        for raw in db.execute(query):
            out.append({key: raw[key] for key in raw.keys()})  # noqa: SIM118  (sqlite3.Row iterates over values)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as e:
        log.debug("%s: %s", query, printable(e))
    return out


def from_files(specs: ClaimSpecs, known: Mapping[str, rows.Row]) -> list[Record]:
    """Records of CDI files whose claims have no readable row: their devices are in use, whoever's claim it is.

    Raises ``OSError`` where no file can be read now.
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
    """Inside a transaction: adds what the database does not have. Answers a sentence for each device with two claims.

    Readable rows come first, those of files next, rows that cannot be read last and only where nothing better is known.
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
        # It happened already, so both are kept and told; the first keeps the device, the second what is left of its own.
        rows.insert_unheld(db, record)
        rows.insert_holds(db, driver, record.holds(), or_ignore=True)
        return [f"claim {record.shown}: {e}"]


def _add_raw(db: sqlite3.Connection, driver: str, row: UnreadableRecord, holds: Sequence[Hold]) -> None:
    """The row as it was, under the key by which it is shown: that one is text."""
    values = [row.raw[c] if row.raw[c] is not None else _DEFAULTS.get(c, "") for c in rows.COLUMNS]
    rows.insert_raw(db, [row.uid, *values[1:]])
    rows.insert_holds(db, driver, holds, or_ignore=True)


def clone(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
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


def overrule(db: sqlite3.Connection, driver: str, records: Sequence[Record], noted: Container[str]) -> list[str]:
    """Inside a transaction: what notes tell takes the place of what an older state of the database says.

    Of two claims with one device the one that was prepared later has it, where the other has no note: it ended before. ``noted``
    are the claims that have one. Answers as :func:`fill` does.
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
    """Whether a row is the one that was noted, or its undoing has begun since; a note comes when a claim is prepared."""
    return isinstance(row, Record) and row.created >= noted.created and row.state is not State.PREPARING
