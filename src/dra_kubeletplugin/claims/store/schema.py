"""The record database's tables: made, migrated, opened. Nothing here decides what a missing or damaged file means."""

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
    # What the database knows of itself: which files were merged into it, and whether the driver was asked.
    3: ("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",),
    # What a hold takes of counters and capacity, as JSON; empty where nobody knows.
    4: ("ALTER TABLE holds ADD COLUMN takes TEXT NOT NULL DEFAULT ''",),
}
_READ = (
    ("uid, namespace, name, state, boot_id, owner, doc, error, attempts, created, updated", "claims"),
    ("driver, pool, device, share_id, uid, takes", "holds"),
    ("key, value", "meta"),
)


PARTS = ("", "-wal", "-shm")
Inode = tuple[int, int]  # with the device
Inodes = tuple[Inode | None, ...]
"""Of a database, its log and the log's index; None for one that has no name."""


class Connection(sqlite3.Connection):
    """``inodes`` are of what was opened; ``generation`` counts how often the database was written anew, see :class:`Keeper`."""

    inodes: Inodes = (None, None, None)
    generation: int = 1

    def is_named(self, path: Path) -> bool:
        """Whether ``path`` and its companions stand for what is open here, and for nothing else.

        The names decide: another instance may have replaced the file, somebody may have removed it, or its log alone, and who
        opens it next would find an older state, or write a log that is not ours.
        """
        return inodes_of(path) == self.inodes


def inodes_of(path: Path) -> Inodes:
    """What the names stand for now. Raises ``OSError`` but where there is nothing."""
    text = str(path)
    return tuple(_inode(f"{text}{part}") for part in PARTS)


def _inode(path: str) -> Inode | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (several times in each transaction: a path object costs more than the call)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def is_torn(has: Inodes, named: Inodes) -> bool:
    """Whether of the files that somebody has open some have the name, and others not: file and log do not belong together."""
    return has != named and any(mine == now for mine, now in zip(has, named, strict=True))


def connect(path: Path, wait: float) -> Connection:
    """An open, migrated database; the file must be there.

    Raises ``sqlite3.Error`` where it cannot be read, ``OSError`` where it is missing, :class:`RecordsNewerError` where it is
    too new.
    """
    before = inodes_of(path)[0]
    if before is None:
        raise _missing(path)
    if not path.stat().st_size:
        # A database gets its name only when it is whole: this one was emptied.
        raise sqlite3.DatabaseError("the file is empty")
    try:
        db = _connect(path, wait)
    except UnicodeDecodeError as e:
        # SQLite quotes the file's own text in its errors, and Python cannot decode what is none.
        raise sqlite3.DatabaseError(f"its schema is no text: {e.reason}") from None
    except sqlite3.OperationalError as e:
        if inodes_of(path)[0] is None:
            raise _missing(path) from None
        raise explained(e, path) from None
    db.inodes = inodes_of(path)
    if db.inodes[0] != before or None in db.inodes:  # a log without a name is one that nobody else will find
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
        # Syncs are asked for by transaction, and the log is written back between batches: see Store.
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
    """Whether all of it can be read and fits together."""
    try:
        return not _fault(db)
    except sqlite3.DatabaseError:
        return False


def _fault(db: sqlite3.Connection) -> str:
    """What does not fit together; empty where all does.

    Not ``quick_check``, which takes rows out of order for sound: a search does not find them, and their devices would be free.
    """
    found: str = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        return found
    return "a device is held by a claim that has no row" if db.execute("PRAGMA foreign_key_check").fetchone() else ""


def explained(e: sqlite3.DatabaseError, path: Path) -> sqlite3.DatabaseError:
    """An error of a file that can be read or written no more: damage, where its header is at fault. Its connection is given up."""
    odd = "readonly" in str(e) or "unsupported" in str(e)
    return sqlite3.DatabaseError(f"its header is damaged: {e}") if odd and is_header_odd(path) else e


def is_header_odd(path: Path) -> bool:
    """Whether the bytes that say which versions of SQLite may write and read the file have a value that none has.

    Such a file is "read-only" or "unsupported", and no disk is to blame. Looking drops the locks that this process has on the
    file. Source: https://www.sqlite.org/fileformat2.html#the_database_header, and fcntl(2)
    """
    try:
        with path.open("rb") as f:
            header = f.read(48)
    except OSError:
        return False
    return not (set(header[18:20]) <= {1, 2} and header[44:47] == bytes(3) and header[47] in {1, 2, 3, 4})


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Step by step, each in a transaction. A database one version newer is used as it is: steps only ever add."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA + 1:
        raise RecordsNewerError(
            f"{path} has schema {version}, this plugin knows {SCHEMA} and can read {SCHEMA + 1}: use a newer plugin"
        )
    for step in range(version + 1, SCHEMA + 1):
        with transaction(db):
            # Another instance may have done it while we waited.
            if db.execute("PRAGMA user_version").fetchone()[0] < step:
                _step(db, step)


def _step(db: sqlite3.Connection, step: int) -> None:
    for statement in _MIGRATIONS[step]:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {step}")


def make_tables(db: sqlite3.Connection) -> None:
    """All of them, inside the caller's transaction."""
    for step in range(1, SCHEMA + 1):
        _step(db, step)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """A write transaction, whole or not at all."""
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
    """Brings a file, or a folder's entries, to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_damage(e: Exception) -> bool:
    """Whether the file's content is at fault, and not the disk below it, which may recover."""
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
    """What an exception of SQLite or of the file system means to an operator."""
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
"""How text is read: that of a damaged row is no reason to lose the others. Not a function of ours: called for every column."""
