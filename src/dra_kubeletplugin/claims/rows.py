"""Operations on records, each inside a transaction of :class:`Store`. Every write is fenced by what its writer has read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence

import msgspec

from ..errors import DeviceHeldError, printable
from .record import Fence, Record, State, Unreadable, check_doc

COLUMNS = ("uid", "namespace", "name", "state", "boot_id", "owner", "doc", "error", "attempts", "created", "updated")
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM claims"
_NAMES = frozenset({"uid", "namespace", "name"})  # in messages, commands and names of files
_MOST = 1e12  # seconds, or tries: no number on record is larger
_BLANKS = str.maketrans("\n\t", "\ufffd\ufffd")
Row = Record | Unreadable


class HeldByError(DeviceHeldError):
    """Knows the rows that hold devices."""

    def __init__(self, device: str, holders: Sequence[Row]) -> None:
        self.device = device
        self.holders = holders
        super().__init__(f"device {device} is still held by claim {_shown(holders[0])}")


def _shown(holder: Row) -> str:
    if isinstance(holder, Unreadable):
        return f"{holder.shown}, whose record cannot be read ({holder.reason}): see `dra claims`"
    return f"{holder.shown}, which is {holder.state}: it is free when that claim's pod has stopped"


def read(db: sqlite3.Connection, uid: str) -> Row | None:
    row = db.execute(f"{_SELECT} WHERE uid = ?", (uid,)).fetchone()
    return decode(row) if row else None


def read_all(db: sqlite3.Connection) -> list[Row]:
    """Every row, oldest first."""
    return [decode(r) for r in db.execute(f"{_SELECT} ORDER BY created, uid")]


def uids(db: sqlite3.Connection) -> set[str]:
    """Of every claim that has a row."""
    return {shown_key(r[0]) for r in db.execute("SELECT uid FROM claims")}


def count_prepared(db: sqlite3.Connection) -> int:
    found: int = db.execute("SELECT count(*) FROM claims WHERE state = ?", (State.PREPARED.value,)).fetchone()[0]
    return found


def held_devices(db: sqlite3.Connection, driver: str) -> set[str]:
    """Names of devices that some claim holds, admin access included."""
    held = {r[0] for r in db.execute("SELECT DISTINCT device FROM holds WHERE driver = ?", (driver,))}
    for row in read_all(db):
        if isinstance(row, Record):
            held.update(d["device"] for d in row.devices)
    return held


def insert(db: sqlite3.Connection, driver: str, record: Record) -> None:
    """A new record with its holds.

    Raises :class:`HeldByError` with all holders, and ``sqlite3.IntegrityError`` where the claim has a row.
    """
    found: list[Row] = []
    first = ""
    for pool, device, share in record.exclusive():
        for uid in holders(db, driver, pool, device, share, record.uid):
            row = read(db, uid) or Unreadable(shown_key(uid), "its row cannot be found", {})
            if row.uid not in {r.uid for r in found}:
                found.append(row)
                first = first or device
    if found:
        raise HeldByError(first, found)
    insert_unheld(db, record)
    db.executemany(
        "INSERT INTO holds (driver, pool, device, share_id, uid) VALUES (?, ?, ?, ?, ?)",
        # A claim may name a device in two requests; it holds it once.
        sorted({(driver, p, d, s, record.uid) for p, d, s in record.exclusive()}),
    )


def insert_unheld(db: sqlite3.Connection, record: Record) -> None:
    """A new record without holds, for a claim that is undone whoever has its devices now."""
    record.updated = time.time()
    insert_raw(db, encode(record))


def insert_raw(db: sqlite3.Connection, values: Sequence[object]) -> None:
    """A row as it is, in the order of ``COLUMNS``."""
    db.execute(f"INSERT INTO claims ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})", values)


def holders(db: sqlite3.Connection, driver: str, pool: str, device: str, share: str, uid: str) -> list[str]:
    """Other claims that keep ``uid`` from a device: shares live beside shares, nothing beside a whole."""
    return [
        r[0]
        for r in db.execute(
            "SELECT DISTINCT uid FROM holds WHERE driver = ? AND pool = ? AND device = ? AND uid != ? "
            "AND (share_id = '' OR ? = '' OR share_id = ?)",
            (driver, pool, device, uid, share, share),
        )
    ]


def update(db: sqlite3.Connection, record: Record, fence: Fence) -> bool:
    """Writes a record's own columns; columns of a newer schema stay. False, and no effect, where the fence does not hold."""
    record.updated = time.time()
    return (
        db.execute(
            "UPDATE claims SET namespace = ?, name = ?, state = ?, boot_id = ?, owner = ?, doc = ?, error = ?, attempts = ?, "
            "created = ?, updated = ? WHERE uid = ? AND owner = ? AND state = ?",
            (*encode(record)[1:], fence.uid, fence.owner, fence.state.value),
        ).rowcount
        == 1
    )


def mark(db: sqlite3.Connection, record: Record, fence: Fence) -> bool:
    """Writes a record's state and owner alone. False, and no effect, where the fence does not hold."""
    record.updated = time.time()
    return (
        db.execute(
            "UPDATE claims SET state = ?, owner = ?, updated = ? WHERE uid = ? AND owner = ? AND state = ?",
            (record.state.value, record.owner, record.updated, fence.uid, fence.owner, fence.state.value),
        ).rowcount
        == 1
    )


def delete(db: sqlite3.Connection, fence: Fence) -> bool:
    """Drops a record with its holds. False, and no effect, where the fence does not hold."""
    return (
        db.execute(
            "DELETE FROM claims WHERE uid = ? AND owner = ? AND state = ?", (fence.uid, fence.owner, fence.state.value)
        ).rowcount
        == 1
    )


def forget(db: sqlite3.Connection, uid: str) -> None:
    """Drops a row and its holds whatever they are; for operators, and for rows that cannot be read.

    A damaged key may be of any type, and no text: it is found as it is shown.
    """
    for table in ("holds", "claims"):
        keys = {bytes(r[0] or b"") for r in db.execute(f"SELECT DISTINCT CAST(uid AS BLOB) FROM {table}")}
        meant = [(key,) for key in keys if shown_key(key) == uid]
        db.executemany(f"DELETE FROM {table} WHERE CAST(uid AS BLOB) = ?", meant)


def shown_key(raw: object) -> str:
    """A key of the database as messages and commands name it."""
    return printable(raw.decode(errors="replace") if isinstance(raw, bytes) else raw).translate(_BLANKS)


def get_meta(db: sqlite3.Connection, prefix: str) -> dict[str, str]:
    """What the database knows of itself, by the rest of the key."""
    found = db.execute("SELECT key, value FROM meta WHERE substr(key, 1, ?) = ?", (len(prefix), prefix))
    return {key[len(prefix) :]: value for key, value in found}


def set_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def clear_meta(db: sqlite3.Connection, prefix: str) -> None:
    db.execute("DELETE FROM meta WHERE substr(key, 1, ?) = ?", (len(prefix), prefix))


def encode(record: Record) -> tuple[object, ...]:
    """Raises ``TypeError`` or ``ValueError`` for a document that is no JSON."""
    doc = msgspec.json.encode(record.doc).decode()
    return (
        record.uid, record.namespace, record.name, record.state.value, record.boot_id, record.owner, doc,
        printable(record.error), record.attempts, record.created, record.updated,
    )  # fmt: skip


def decode(row: Sequence[object]) -> Row:
    """The record of a row, or what keeps it from being one."""
    raw = dict(zip(COLUMNS, row, strict=True))
    try:
        doc = msgspec.json.decode(_text(raw, "doc"))
        return Record(
            uid=_text(raw, "uid"),
            namespace=_text(raw, "namespace"),
            name=_text(raw, "name"),
            state=State(_text(raw, "state")),
            boot_id=_text(raw, "boot_id"),
            owner=_text(raw, "owner"),
            doc=check_doc(doc),
            error=_text(raw, "error"),
            attempts=int(_number(raw, "attempts")),
            created=_number(raw, "created"),
            updated=_number(raw, "updated"),
        )
    except (ValueError, RecursionError) as e:
        return Unreadable(shown_key(raw["uid"]), printable(e), raw)


def _text(raw: Mapping[str, object], column: str) -> str:
    value = raw[column]
    if (
        not isinstance(value, str)
        or (column in _NAMES and not (value.isascii() and value.isprintable()) and value != shown_key(value))
        or (column == "uid" and not value)
    ):
        raise ValueError(f"column {column} is no text that it may be")
    return value


def _number(raw: Mapping[str, object], column: str) -> float:
    value = raw[column]
    if not isinstance(value, int | float) or not abs(value) < _MOST:
        raise ValueError(f"column {column} is no number that it may be")
    return value
