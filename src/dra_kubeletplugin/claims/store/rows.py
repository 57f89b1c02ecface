"""Reads and writes rows, inside a transaction of :class:`RecordStore`. A fence protects each write from concurrent changes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...base.text import join_names
from ...devices.inventory import Held
from ...errors import DeviceHeldError, OverdrawnError, printable
from ..capacity import Hold, Shortage, shared_supplies
from ..record import Fence, Record, State, UnreadableRecord, check_doc

COLUMNS = ("uid", "namespace", "name", "state", "boot_id", "owner", "doc", "error", "attempts", "created", "updated")
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM claims"
_NAMES = frozenset({"uid", "namespace", "name"})  # used in messages, commands and file names
_MOST = 1e12  # seconds, or attempts: no recorded number is larger
_BLANKS = str.maketrans("\n\t", "\ufffd\ufffd")
Row = Record | UnreadableRecord


class HeldByError(DeviceHeldError):
    """Devices are held; ``holders`` are the rows of the claims that hold them."""

    def __init__(self, device: str, holders: Sequence[Row]) -> None:
        self.device = device
        self.holders = holders
        super().__init__(f"device {device} is still held by claim {_shown(holders[0])}")


def _shown(holder: Row) -> str:
    if isinstance(holder, UnreadableRecord):
        return f"{holder.shown}, whose record cannot be read ({holder.reason}): see `dra claims`"
    return f"{holder.shown}, which is {holder.state}: it is free when that claim's pod has stopped"


class OverdrawnByError(OverdrawnError):
    """Counters or capacity do not suffice; ``holders`` are the rows of the claims that take them."""

    def __init__(self, shortage: Shortage, holders: Sequence[Row]) -> None:
        self.shortage = shortage
        self.holders = holders
        shown = [f"{h.shown}{_TAKES_UNKNOWN if h.uid in shortage.unknown else ''}" for h in holders]
        by = f" by claim{'s' if len(holders) > 1 else ''} {join_names(shown, _NAMED)}: it is free when their pods have stopped"
        super().__init__(f"device {', '.join(shortage.devices)}: {shortage}{by if holders else ''}")


_NAMED = 4  # holders that a message lists
_TAKES_UNKNOWN = " (amount unknown)"


def read(db: sqlite3.Connection, uid: str) -> Row | None:
    row = db.execute(f"{_SELECT} WHERE uid = ?", (uid,)).fetchone()
    return decode(row) if row else None


def read_all(db: sqlite3.Connection) -> list[Row]:
    """Returns every row, oldest first."""
    return [decode(r) for r in db.execute(f"{_SELECT} ORDER BY created, uid")]


def uids(db: sqlite3.Connection) -> set[str]:
    """Returns the UIDs of all claims that have a row."""
    return {shown_key(r[0]) for r in db.execute("SELECT uid FROM claims")}


def count_prepared(db: sqlite3.Connection) -> int:
    found: int = db.execute("SELECT count(*) FROM claims WHERE state = ?", (State.PREPARED.value,)).fetchone()[0]
    return found


def held_devices(db: sqlite3.Connection, driver: str) -> Held:
    """Returns each device that some claim has, including admin access, with its published description if that is known."""
    held: dict[tuple[str, str], Mapping[str, Any]] = {
        (pool, device): {}
        for pool, device in db.execute("SELECT DISTINCT pool, device FROM holds WHERE driver = ?", (driver,))
    }
    for row in read_all(db):
        for d in row.devices if isinstance(row, Record) else ():
            held[d["pool"], d["device"]] = d.get("published") or held.get((d["pool"], d["device"])) or {}
    return held


def insert(db: sqlite3.Connection, driver: str, record: Record) -> None:
    """Inserts a record with its holds.

    Raises :class:`HeldByError` with all holders, and ``sqlite3.IntegrityError`` if the claim has a row.
    """
    check_free(db, driver, record)
    insert_free(db, driver, record)


def insert_free(db: sqlite3.Connection, driver: str, record: Record) -> None:
    """Inserts a record like :func:`insert`. Call :func:`check_free` first, in the same transaction."""
    insert_unheld(db, record)
    insert_holds(db, driver, record.holds())


def insert_holds(db: sqlite3.Connection, driver: str, holds: Sequence[Hold], *, or_ignore: bool = False) -> None:
    """Inserts holds of claims that have a row. With ``or_ignore``, a device that another claim holds stays with that claim.

    Without it, such a device raises ``sqlite3.IntegrityError``.
    """
    db.executemany(
        f"INSERT {'OR IGNORE ' if or_ignore else ''}INTO holds (driver, pool, device, share_id, takes, uid) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [(driver, h.pool, h.device, h.share, h.takes, h.uid) for h in holds],
    )


def check_free(db: sqlite3.Connection, driver: str, record: Record) -> None:
    """Raises :class:`HeldByError` with all other claims that hold a device of ``record``."""
    found: dict[str, Row] = {}
    first = ""
    for hold in record.holds():
        for uid in holders(db, driver, hold):
            row = holder(db, uid)
            first = first or hold.device
            found.setdefault(row.uid, row)
    if found:
        raise HeldByError(first, list(found.values()))


def holder(db: sqlite3.Connection, uid: str) -> Row:
    """Returns the row of a claim that holds something."""
    return read(db, uid) or UnreadableRecord(shown_key(uid), "its row cannot be found", {})


def other_holds(
    db: sqlite3.Connection, driver: str, wanted: Sequence[Hold], uid: str, *, names: bool = False
) -> list[Hold]:
    """Returns the holds of other claims than ``uid`` on the counter sets and devices from which ``wanted`` takes something.

    Share ids are left empty, and UIDs too unless ``names`` is set: a device may have hundreds of shares, and each text takes time.
    """
    found: list[Hold] = []
    for pool, device in shared_supplies(wanted):
        what, per = ("uid, 1", "") if names else ("'', count(*)", " GROUP BY device, takes")
        only, at = ("", ()) if device is None else (" AND device = ?", (device,))
        query = (
            f"SELECT device, takes, {what} FROM holds WHERE driver = ? AND pool = ? AND uid != ? AND takes != '{{}}'"
        )
        for name, takes, other, count in db.execute(f"{query}{only}{per}", (driver, pool, uid, *at)):
            found += [Hold(pool, name, "", takes, other)] * count
    return found


def insert_unheld(db: sqlite3.Connection, record: Record) -> None:
    """Inserts a record without holds, for a claim that is rolled back whichever claim has its devices now."""
    record.updated = time.time()
    insert_raw(db, encode(record))


def insert_raw(db: sqlite3.Connection, values: Sequence[object]) -> None:
    """Inserts a row with unchanged values, in the order of ``COLUMNS``."""
    db.execute(f"INSERT INTO claims ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})", values)


def holders(db: sqlite3.Connection, driver: str, hold: Hold) -> list[str]:
    """Returns other claims whose hold conflicts: shares of a device can coexist, a whole device excludes every other hold."""
    return [
        r[0]
        for r in db.execute(
            "SELECT DISTINCT uid FROM holds WHERE driver = ? AND pool = ? AND device = ? AND uid != ? "
            "AND (share_id = '' OR ? = '' OR share_id = ?)",
            (driver, hold.pool, hold.device, hold.uid, hold.share, hold.share),
        )
    ]


def update(db: sqlite3.Connection, record: Record, fence: Fence) -> bool:
    """Updates a record; columns of a newer schema stay. Returns False, without effect, if the fence does not match."""
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
    """Updates only a record's state and owner. Returns False, without effect, if the fence does not match."""
    record.updated = time.time()
    return (
        db.execute(
            "UPDATE claims SET state = ?, owner = ?, updated = ? WHERE uid = ? AND owner = ? AND state = ?",
            (record.state.value, record.owner, record.updated, fence.uid, fence.owner, fence.state.value),
        ).rowcount
        == 1
    )


def delete(db: sqlite3.Connection, fence: Fence) -> bool:
    """Deletes a record with its holds. Returns False, without effect, if the fence does not match."""
    return (
        db.execute(
            "DELETE FROM claims WHERE uid = ? AND owner = ? AND state = ?", (fence.uid, fence.owner, fence.state.value)
        ).rowcount
        == 1
    )


def forget(db: sqlite3.Connection, uid: str) -> None:
    """Deletes a row and its holds in any state; for operators, and for rows that cannot be read.

    A damaged key may have any type and may not be text. It is found by its printable form.
    """
    for table in ("holds", "claims"):
        keys = {bytes(r[0] or b"") for r in db.execute(f"SELECT DISTINCT CAST(uid AS BLOB) FROM {table}")}
        matches = [(key,) for key in keys if shown_key(key) == uid]
        db.executemany(f"DELETE FROM {table} WHERE CAST(uid AS BLOB) = ?", matches)


def shown_key(raw: object) -> str:
    """Returns a key of the database as messages and commands show it."""
    return printable(raw.decode(errors="replace") if isinstance(raw, bytes) else raw).translate(_BLANKS)


def get_meta(db: sqlite3.Connection, prefix: str) -> dict[str, str]:
    """Returns the database's metadata for a key prefix, by the rest of the key."""
    found = db.execute("SELECT key, value FROM meta WHERE substr(key, 1, ?) = ?", (len(prefix), prefix))
    return {key[len(prefix) :]: value for key, value in found}


def has_meta(db: sqlite3.Connection, key: str) -> bool:
    """Whether a metadata key exists. It is checked with every claim."""
    return db.execute("SELECT 1 FROM meta WHERE key = ?", (key,)).fetchone() is not None


def set_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def clear_meta(db: sqlite3.Connection, prefix: str) -> None:
    db.execute("DELETE FROM meta WHERE substr(key, 1, ?) = ?", (len(prefix), prefix))


def encode(record: Record) -> tuple[object, ...]:
    """Encodes a record as a row. Raises ``TypeError`` or ``ValueError`` for a document that is not JSON."""
    doc = msgspec.json.encode(record.doc).decode()
    return (
        record.uid, record.namespace, record.name, record.state.value, record.boot_id, record.owner, doc,
        printable(record.error), record.attempts, record.created, record.updated,
    )  # fmt: skip


def decode(row: Sequence[object]) -> Row:
    """Decodes a row. Returns an unreadable record with the reason if it is not valid."""
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
        return UnreadableRecord(shown_key(raw["uid"]), printable(e), raw)


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
