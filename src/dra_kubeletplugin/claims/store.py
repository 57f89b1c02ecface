"""The records, in one SQLite database: write-ahead log, full sync, one transaction for a whole batch of operations.

Two processes share the file during a rolling update. Exclusive use of a device is a constraint of the database itself.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DeviceHeldError, RecordsBusyError, RecordsError, RecordsNewerError
from .batch import Batcher
from .record import Record, State

log = logging.getLogger(__name__)

SCHEMA = 2
_MIGRATIONS = {
    1: """
        CREATE TABLE claims (
            uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
            boot_id TEXT NOT NULL, owner TEXT NOT NULL DEFAULT '', doc TEXT NOT NULL,
            created REAL NOT NULL, updated REAL NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE holds (
            driver TEXT NOT NULL, pool TEXT NOT NULL, device TEXT NOT NULL, share_id TEXT NOT NULL DEFAULT '',
            uid TEXT NOT NULL REFERENCES claims (uid) ON DELETE CASCADE,
            PRIMARY KEY (driver, pool, device, share_id)
        ) WITHOUT ROWID;
        CREATE INDEX holds_by_claim ON holds (uid);
    """,
    2: """
        ALTER TABLE claims ADD COLUMN error TEXT NOT NULL DEFAULT '';
        ALTER TABLE claims ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
    """,
}
_COLUMNS = "uid, namespace, name, state, boot_id, owner, doc, error, attempts, created, updated"

Operation = Callable[[sqlite3.Connection], Any]


def connect(path: Path, wait: float) -> sqlite3.Connection:
    """An open, migrated database; a missing one is made whole before it gets its name.

    Raises ``sqlite3.Error`` where it cannot be read, :class:`RecordsNewerError` where it is too new.
    """
    if not path.exists():
        _create(path)
    db = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA foreign_keys = ON")
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"journal mode is {mode}: the file system allows no write-ahead log")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA journal_size_limit = 1048576")
        if db.execute("PRAGMA user_version").fetchone()[0] == 0:
            # A database gets its name only when it is whole: this one was emptied.
            raise sqlite3.DatabaseError("the file has no schema")
        _migrate(db, path)
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
    except BaseException:
        db.close()
        raise
    return db


def _create(path: Path) -> None:
    """An empty database under a temporary name, then renamed: a file of no bytes is always damage."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new-{time.monotonic_ns()}")
    db = sqlite3.connect(temporary, isolation_level=None)
    try:
        _migrate(db, temporary)
    finally:
        db.close()
    try:
        temporary.chmod(0o600)
        path.hardlink_to(temporary)  # fails where another instance was faster, which is as good
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    """Step by step, each in a transaction. A database one version newer is used as it is: steps only ever add."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA + 1:
        raise RecordsNewerError(
            f"{path} has schema {version}, this plugin knows {SCHEMA} and can read {SCHEMA + 1}: use a newer plugin"
        )
    for step in range(version + 1, SCHEMA + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            # Another instance may have done it while we waited.
            if db.execute("PRAGMA user_version").fetchone()[0] < step:
                for statement in _MIGRATIONS[step].split(";"):
                    if statement.strip():
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {step}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise


class Store:
    """Records of one driver. All methods may be called from any task; they are gathered into transactions.

    Args:
        path: of the database.
        driver: the driver's name, part of every hold's key.
        wait: seconds to wait for another process's transaction.
        reopen: called in the store's thread when the database cannot be opened; makes it usable or raises.
        on_missing: called there after a missing database was made.
    """

    def __init__(
        self,
        path: Path,
        driver: str,
        wait: float = 10.0,
        reopen: Callable[[Exception], sqlite3.Connection] | None = None,
        on_missing: Callable[[sqlite3.Connection], None] | None = None,
    ) -> None:
        self.path = path
        self.driver = driver
        self.wait = wait
        self.fault = ""  # why the records cannot be used; empty when they can
        self.on_fault: Callable[[str], None] = lambda fault: None
        self._reopen = reopen
        self._on_missing = on_missing
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._batcher: Batcher[tuple[Operation, bool]] = Batcher("records", self._work)

    @property
    def transactions(self) -> int:
        return self._batcher.batches

    async def close(self) -> None:
        await self._batcher.close()
        if self._db is not None:
            self._db.close()
            self._db = None

    async def do(self, operation: Operation, *, write: bool = True) -> Any:
        """Runs ``operation`` in a transaction with others; its exception rolls back only its own part.

        Raises :class:`RecordsError`, or what the operation raises.
        """
        return await self._batcher.submit((operation, write))

    # --- in the thread --------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if self._db is not None:
            self._follow_file(self._db)
        if self._db is None:
            try:
                missing = not self.path.exists()
                self._db = connect(self.path, self.wait)
                if missing and self._on_missing is not None:
                    self._on_missing(self._db)
            except (sqlite3.Error, OSError) as e:
                if self._reopen is None or is_busy(e):
                    raise
                self._db = self._reopen(e)
            self._inode = self.path.stat().st_ino
        return self._db

    def _follow_file(self, db: sqlite3.Connection) -> None:
        """The name decides, not the open file: another instance may have set it aside, or somebody may have removed it."""
        try:
            if self.path.stat().st_ino == self._inode:
                return
        except FileNotFoundError:
            log.error("%s was removed while it is in use: it is written again", self.path)
            temporary = self.path.with_name(f".{self.path.name}.again-{time.monotonic_ns()}")
            db.execute("VACUUM INTO ?", (str(temporary),))
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            temporary.rename(self.path)
        db.close()
        self._db = None

    def _work(self, items: Sequence[tuple[Operation, bool]]) -> list[Any]:
        try:
            db = self._open()
            db.execute("BEGIN IMMEDIATE" if any(write for _, write in items) else "BEGIN")
        except Exception as e:
            return [self._failed(e)] * len(items)
        results: list[Any] = []
        before = db.total_changes
        try:
            for operation, _ in items:
                results.append(_one(db, operation))
            db.execute("COMMIT")
        except Exception as e:
            _rollback(db)
            return [self._failed(e)] * len(items)
        if self.fault and db.total_changes != before:  # reading proves nothing about a full disk
            log.info("claim records can be written again")
            self._set_fault("")
        return results

    def _set_fault(self, fault: str) -> None:
        self.fault = fault
        self.on_fault(fault)

    def _failed(self, e: Exception) -> Exception:
        error = as_records_error(e, self.path)
        if not isinstance(error, RecordsBusyError):
            if self.fault != str(error):
                log.error("claim records: %s", error)
            self._set_fault(str(error))
        if (
            isinstance(e, sqlite3.DatabaseError)
            and not isinstance(e, sqlite3.OperationalError)
            and self._db is not None
        ):
            self._db.close()  # damaged: the next operation opens, and so repairs, it anew
            self._db = None
        return error

    # --- operations -----------------------------------------------------------------------------

    async def get(self, uid: str) -> Record | None:
        found: Record | None = await self.do(lambda db: read(db, uid), write=False)
        return found

    async def all(self) -> list[Record]:
        rows: list[Record] = await self.do(all_records, write=False)
        return rows

    async def save(self, record: Record) -> None:
        await self.do(lambda db: write(db, record))

    async def delete(self, uid: str) -> bool:
        """Removes a record and its holds; False where there was none."""
        return bool(await self.do(lambda db: db.execute("DELETE FROM claims WHERE uid = ?", (uid,)).rowcount))

    async def held(self) -> set[str]:
        """Names of devices that some claim holds."""
        query = "SELECT DISTINCT device FROM holds WHERE driver = ?"
        rows = await self.do(lambda db: db.execute(query, (self.driver,)).fetchall(), write=False)
        return {r[0] for r in rows}

    def insert(self, db: sqlite3.Connection, record: Record) -> None:
        """Inside an operation: a new record with its holds.

        Raises :class:`DeviceHeldError` naming the holder.
        """
        for pool, device, share in record.exclusive():
            if holder := self.holder(db, pool, device, share, record.uid):
                raise HeldByError(device, holder)
        write(db, record)
        db.executemany(
            "INSERT INTO holds (driver, pool, device, share_id, uid) VALUES (?, ?, ?, ?, ?)",
            [(self.driver, p, d, s, record.uid) for p, d, s in record.exclusive()],
        )

    def holder(self, db: sqlite3.Connection, pool: str, device: str, share: str, uid: str) -> Record | None:
        """The other claim that keeps ``uid`` from having a device: shares live beside shares, nothing beside a whole."""
        row = db.execute(
            "SELECT uid FROM holds WHERE driver = ? AND pool = ? AND device = ? AND uid != ? "
            "AND (share_id = '' OR ? = '' OR share_id = ?) LIMIT 1",
            (self.driver, pool, device, uid, share, share),
        ).fetchone()
        return read(db, row[0]) if row else None


class HeldByError(DeviceHeldError):
    """Knows the record that holds the device."""

    def __init__(self, device: str, holder: Record) -> None:
        self.holder = holder
        super().__init__(
            f"device {device} is still held by claim {holder.shown}, which is {holder.state}: "
            "it is free when that claim's pod has stopped"
        )


def _one(db: sqlite3.Connection, operation: Operation) -> Any:
    """One operation behind a savepoint. Faults of the database itself fail the whole batch."""
    db.execute("SAVEPOINT one")
    try:
        result = operation(db)
    except Exception as e:
        if isinstance(e, sqlite3.Error) and not isinstance(e, sqlite3.IntegrityError):
            raise
        db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
        return e
    db.execute("RELEASE one")
    return result


def _rollback(db: sqlite3.Connection) -> None:
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
    except sqlite3.Error:
        pass


def read(db: sqlite3.Connection, uid: str) -> Record | None:
    """Inside an operation: the record of a claim."""
    row = db.execute(f"SELECT {_COLUMNS} FROM claims WHERE uid = ?", (uid,)).fetchone()
    return _record(row) if row else None


def all_records(db: sqlite3.Connection) -> list[Record]:
    """Inside an operation: every record, oldest first."""
    return [_record(r) for r in db.execute(f"SELECT {_COLUMNS} FROM claims ORDER BY created, uid")]


def write(db: sqlite3.Connection, record: Record) -> None:
    """Inside an operation: inserts or replaces a record's own columns; columns of a newer schema stay."""
    record.updated = time.time()
    db.execute(
        f"INSERT INTO claims ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uid) DO UPDATE SET "
        "namespace = excluded.namespace, name = excluded.name, state = excluded.state, boot_id = excluded.boot_id, "
        "owner = excluded.owner, doc = excluded.doc, error = excluded.error, attempts = excluded.attempts, "
        "updated = excluded.updated",
        (
            record.uid,
            record.namespace,
            record.name,
            str(record.state),
            record.boot_id,
            record.owner,
            msgspec.json.encode(record.doc).decode(),
            record.error,
            record.attempts,
            record.created,
            record.updated,
        ),
    )


def _record(row: tuple[Any, ...]) -> Record:
    uid, namespace, name, state, boot_id, owner, doc, error, attempts, created, updated = row
    try:
        decoded = msgspec.json.decode(doc, type=dict)
    except msgspec.DecodeError as e:
        raise sqlite3.DatabaseError(f"the record of claim {uid} is no JSON: {e}") from None
    return Record(uid, namespace, name, State(state), boot_id, owner, decoded, error, attempts, created, updated)


def is_busy(e: Exception) -> bool:
    return isinstance(e, sqlite3.OperationalError) and "locked" in str(e)


def as_records_error(e: Exception, path: Path) -> RecordsError:
    """What an exception of SQLite means to an operator."""
    if isinstance(e, RecordsError):
        return e
    if is_busy(e):
        return RecordsBusyError(
            f"{path} is locked by another instance of the plugin for too long: delete its pod if it hangs"
        )
    text = str(e)
    if "disk is full" in text or "No space left" in text:
        return RecordsError(f"{path} cannot be written, the disk is full: free space below the kubelet's root")
    if "readonly" in text or "read-only" in text.lower():
        return RecordsError(f"{path} is read-only: mount the kubelet's root read-write and see its permissions")
    return RecordsError(f"{path} cannot be used: {text}")
