"""Creates, migrates and opens the record database's tables. Callers decide how to handle a missing or damaged file."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from ...errors import RecordsBusyError, RecordsError, RecordsNewerError, printable

SCHEMA = 4
_MIGRATIONS = {
    1: (
        "CREATE TABLE claims ("
        "uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, "
        "boot_id TEXT NOT NULL, owner TEXT NOT NULL DEFAULT '', doc TEXT NOT NULL, "
        "created REAL NOT NULL, updated REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE holds ("
        "driver TEXT NOT NULL, pool TEXT NOT NULL, device TEXT NOT NULL, share_id TEXT NOT NULL DEFAULT '', "
        "uid TEXT NOT NULL REFERENCES claims (uid) ON DELETE CASCADE, "
        "PRIMARY KEY (driver, pool, device, share_id)) WITHOUT ROWID",
        "CREATE INDEX holds_by_claim ON holds (uid)",
    ),
    2: (
        "ALTER TABLE claims ADD COLUMN error TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE claims ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0",
    ),
    # Metadata of the database: which files were merged into it, and whether recover() was called.
    3: ("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",),
    # The amounts of counters and capacity that a hold takes, as JSON; empty where they are not known.
    4: ("ALTER TABLE holds ADD COLUMN takes TEXT NOT NULL DEFAULT ''",),
}
_READ = (
    ("uid, namespace, name, state, boot_id, owner, doc, error, attempts, created, updated", "claims"),
    ("driver, pool, device, share_id, uid, takes", "holds"),
    ("key, value", "meta"),
)


PARTS = ("", "-wal", "-shm")
Inode = tuple[int, int]  # device number and inode number
Inodes = tuple[Inode | None, ...]
"""Inodes of a database, its log and the log's index; None for a file that does not exist."""


class Connection(sqlite3.Connection):
    """``inodes`` are the files that were opened; ``generation`` counts rebuilds of the database, see :class:`RecordDatabase`."""

    inodes: Inodes = (None, None, None)
    generation: int = 1

    def is_named(self, path: Path) -> bool:
        """Whether ``path`` and its companions still name exactly the files that are open here.

        Another instance may have replaced the file, or a program may have removed it or only its log. The next process that opens it would
        then find an older state, or write to another log.
        """
        return inodes_of(path) == self.inodes


def inodes_of(path: Path) -> Inodes:
    """Returns the inodes that the names have now. Raises ``OSError``, except for missing files."""
    text = str(path)
    return tuple(_inode(f"{text}{part}") for part in PARTS)


def _inode(path: str) -> Inode | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (several times in each transaction: a path object costs more than the call)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def is_torn(has: Inodes, named: Inodes) -> bool:
    """Whether only some of an instance's open files still have their names: then the file and the log do not match."""
    return has != named and any(opened == now for opened, now in zip(has, named, strict=True))


def connect(path: Path, wait: float) -> Connection:
    """Opens and migrates a database; the file must exist.

    Raises ``sqlite3.Error`` if it cannot be read, ``OSError`` if it is missing, and :class:`RecordsNewerError` if its schema is too
    new.
    """
    before = inodes_of(path)[0]
    if before is None:
        raise _missing(path)
    if not path.stat().st_size:
        # A database gets its name only when it is complete, so this file was emptied later.
        raise sqlite3.DatabaseError("the file is empty")
    try:
        db = _connect(path, wait)
    except UnicodeDecodeError as e:
        # SQLite quotes text of the file in its errors, and Python cannot decode it if it is not valid text.
        raise sqlite3.DatabaseError(f"its schema is no text: {e.reason}") from None
    except sqlite3.OperationalError as e:
        if inodes_of(path)[0] is None:
            raise _missing(path) from None
        raise explain_error(e, path) from None
    db.inodes = inodes_of(path)
    if db.inodes[0] != before or None in db.inodes:  # another process cannot find a log without a name
        db.close()
        raise _missing(path)
    return db


def _missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "removed, or replaced while it was opened", str(path))


def _connect(path: Path, wait: float) -> Connection:
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        timeout=wait,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
        factory=Connection,
    )
    try:
        db.text_factory = lenient
        db.execute("PRAGMA foreign_keys = ON")
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"journal mode is {mode}: the file system allows no write-ahead log")
        # Each transaction sets its own sync mode, and RecordStore writes the log back between batches.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA journal_size_limit = 1048576")
        if db.execute("PRAGMA user_version").fetchone()[0] < 1:
            raise sqlite3.DatabaseError("the file has no schema")
        try:
            migrate(db, path)
            for columns, table in _READ:
                db.execute(f"SELECT {columns} FROM {table} LIMIT 0")
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise sqlite3.DatabaseError(f"its tables are not those of its schema: {e}") from None
            raise
        if fault := _fault(db):
            raise sqlite3.DatabaseError(fault)
    except BaseException:
        db.close()
        raise
    return db


def is_sound(db: sqlite3.Connection) -> bool:
    """Whether the database can be read completely and is consistent."""
    try:
        return not _fault(db)
    except sqlite3.DatabaseError:
        return False


def _fault(db: sqlite3.Connection) -> str:
    """Returns an inconsistency of the database; empty if there is none.

    ``quick_check`` is not enough: it accepts rows that are out of order. A search misses them, so their devices would seem free.
    """
    found: str = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        return found
    return "a device is held by a claim that has no row" if db.execute("PRAGMA foreign_key_check").fetchone() else ""


def explain_error(e: sqlite3.DatabaseError, path: Path) -> sqlite3.DatabaseError:
    """Returns the cause of an error. It is damage if the file's header is invalid. The caller gives up the connection."""
    unusable = "readonly" in str(e) or "unsupported" in str(e)
    return sqlite3.DatabaseError(f"its header is damaged: {e}") if unusable and is_header_invalid(path) else e


def is_header_invalid(path: Path) -> bool:
    """Whether the header's format version fields have values that no version of SQLite writes.

    SQLite calls such a file "read-only" or "unsupported", though the disk works. Reading the header drops the locks that this process
    has on the file. Source: https://www.sqlite.org/fileformat2.html#the_database_header, and fcntl(2)
    """
    try:
        with path.open("rb") as f:
            header = f.read(48)
    except OSError:
        return False
    return not (set(header[18:20]) <= {1, 2} and header[44:47] == bytes(3) and header[47] in {1, 2, 3, 4})


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Runs the missing migrations, each in a transaction. A schema one version newer is used as it is: migrations only add."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA + 1:
        raise RecordsNewerError(
            f"{path} has schema {version}, this plugin knows {SCHEMA} and can read {SCHEMA + 1}: use a newer plugin"
        )
    for step in range(version + 1, SCHEMA + 1):
        with transaction(db):
            # Another instance may have run the migration while this one waited for the lock.
            if db.execute("PRAGMA user_version").fetchone()[0] < step:
                _step(db, step)


def _step(db: sqlite3.Connection, step: int) -> None:
    for statement in _MIGRATIONS[step]:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {step}")


def make_tables(db: sqlite3.Connection) -> None:
    """Creates all tables inside the caller's transaction."""
    for step in range(1, SCHEMA + 1):
        _step(db, step)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Runs the block in a write transaction: all of it is committed, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        rollback(db)
        raise


def rollback(db: sqlite3.Connection) -> None:
    """Ends a transaction that may have ended already."""
    with contextlib.suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


def sync_file(path: Path) -> None:
    """Syncs a file, or a folder's entries, to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_damage(e: Exception) -> bool:
    """Whether the error comes from the file's content, not from the disk, which may recover."""
    if not isinstance(e, sqlite3.DatabaseError):
        return False
    text = str(e)
    if isinstance(e, sqlite3.OperationalError):
        return any(s in text for s in ("no such table", "no such column", "malformed"))
    return not isinstance(
        e, (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.NotSupportedError, sqlite3.DataError)
    )


def is_busy(e: Exception) -> bool:
    return isinstance(e, sqlite3.OperationalError) and "locked" in str(e)


def as_records_error(e: Exception, path: Path) -> RecordsError:
    """Converts an exception of SQLite or of the file system to an error for operators."""
    if isinstance(e, RecordsError):
        return e
    if is_busy(e):
        return RecordsBusyError(
            f"{path} is locked by another instance of the plugin for too long: delete its pod if it hangs"
        )
    text = printable(e)
    if "disk is full" in text or "No space left" in text:
        return RecordsError(f"{path} cannot be written, the disk is full: free space below the kubelet's root")
    if "readonly" in text or "read-only" in text.lower():
        return RecordsError(f"{path} is read-only: mount the kubelet's root read-write and see its permissions")
    return RecordsError(f"{path} cannot be used: {text}")


lenient = functools.partial(str, encoding="utf-8", errors="replace")
"""Decodes text leniently, so that damaged text of one row does not make the others unreadable. Built in for speed: called per column."""
