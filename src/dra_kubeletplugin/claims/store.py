"""The records, in one SQLite database: write-ahead log, one transaction for a whole batch of operations.

Two processes share the file during a rolling update. Exclusive use of a device is a constraint of the database itself. Only what
a power failure must not take is synced; the rest survives the death of the process, and after a power failure the boot id is
another, so that whatever is on record is undone and prepared afresh. Source: https://www.sqlite.org/wal.html
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import RecordsBusyError, RecordsError
from ..inventory import Held
from . import rows
from .batch import Batcher
from .judge import RECOVER
from .keeper import Keeper
from .record import Record, Unreadable
from .schema import Connection, as_records_error, explained, identity_of, is_busy, is_damage, rollback

log = logging.getLogger(__name__)
_LOG_SIZE = 1 << 20  # bytes of write-ahead log that are written back when nobody waits
_PROBE = 32 * 1024  # characters
_TRIES = 5  # how often a file that goes elsewhere is followed in one call

Result = TypeVar("Result")
Operation = Callable[[sqlite3.Connection], Result]


class Mode(enum.Enum):
    READ = enum.auto()
    WRITE = enum.auto()  # survives the process
    SYNC = enum.auto()  # survives a power failure too


class Store:
    """Records of one driver. All methods may be called from any task; they are gathered into transactions.

    ``fault`` says why the records cannot be used, empty when they can; ``opened`` is set each time that the file was opened.
    """

    def __init__(self, keeper: Keeper) -> None:
        self.path = keeper.path
        self.driver = keeper.specs.driver
        self.keeper = keeper
        self.fault = ""
        self.opened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._db: Connection | None = None
        self._damage: Exception | None = None
        self._batcher: Batcher[tuple[Operation[object], Mode]] = Batcher("records", self._work, self._write_back)

    @property
    def transactions(self) -> int:
        """Batches so far, each one transaction, or two where reads and writes came together."""
        return self._batcher.batches

    async def do(self, operation: Operation[Result], mode: Mode = Mode.WRITE) -> Result:
        """Runs ``operation`` in a transaction with others; its exception rolls back only its own part.

        Raises :class:`RecordsError`, or what the operation raises.
        """
        self._loop = asyncio.get_running_loop()
        result: Result = await self._batcher.submit((operation, mode))
        return result

    async def close(self, timeout: float = 10.0) -> None:
        """Waits up to ``timeout`` seconds for what is under way."""
        if self._db is not None:
            # A file that was removed just now comes back: the next instance would find nothing.
            await asyncio.wait([asyncio.ensure_future(self.look())], timeout=timeout)
        await self._batcher.close(timeout)
        if self._db is not None:
            self._drop()

    # --- questions ------------------------------------------------------------------------------

    async def get(self, uid: str) -> rows.Row | None:
        return await self.do(lambda db: rows.read(db, uid), Mode.READ)

    async def all(self) -> list[Record]:
        """Every record that can be read, oldest first."""
        return [r for r in await self.do(rows.read_all, Mode.READ) if isinstance(r, Record)]

    async def unreadable(self) -> list[Unreadable]:
        return [r for r in await self.do(rows.read_all, Mode.READ) if isinstance(r, Unreadable)]

    async def held(self) -> Held:
        """Each device that some claim has, see :meth:`Inventory.update`."""
        return await self.do(lambda db: rows.held_devices(db, self.driver), Mode.READ)

    async def prepared(self) -> int:
        """How many claims are prepared."""
        return await self.do(rows.count_prepared, Mode.READ)

    async def recovering(self) -> bool:
        """Whether the driver has still to say what its hardware knows, because the database was made anew."""
        return bool(await self.do(lambda db: rows.get_meta(db, RECOVER), Mode.READ))

    async def probe(self) -> None:
        """A synced write of a large record's size: tells, and clears ``fault``, where the disk has room again.

        Raises :class:`RecordsError`.
        """
        await self.do(lambda db: rows.set_meta(db, "probe", f"{time.time():<{_PROBE}}"), Mode.SYNC)

    async def look(self) -> None:
        """Notices that the file was removed, replaced or overwritten, and puts it right. An error is kept as ``fault``."""
        with contextlib.suppress(RecordsError):
            await self.do(_read_afresh, Mode.READ)

    # --- in the thread --------------------------------------------------------------------------

    def _open(self) -> Connection:
        if self._db is not None and self._is_named(self._db):
            return self._db
        # The old one stays open until the new one is: it may be the last that knows what a removed file had.
        db = self.keeper.open(self._damage, self._db)
        self._drop()
        self._db, self._damage = db, None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.opened.set)
        return db

    def _is_named(self, db: Connection) -> bool:
        """The name decides, not the open file: another instance may have replaced it, or somebody may have removed it."""
        try:
            return identity_of(self.path) == db.file
        except FileNotFoundError:
            return False

    def _drop(self) -> None:
        db, self._db = self._db, None
        with contextlib.suppress(sqlite3.Error):
            if db is not None:
                db.close()

    def _work(self, items: Sequence[tuple[Operation[object], Mode]]) -> list[object]:
        """Reads first, in a transaction of their own: a writer that is stopped must not hold them up."""
        results: list[object] = [None] * len(items)
        for modes in ({Mode.READ}, {Mode.WRITE, Mode.SYNC}):
            chosen = [i for i, (_, mode) in enumerate(items) if mode in modes]
            if chosen:
                synced = any(items[i][1] is Mode.SYNC for i in chosen)
                done = self._transaction([items[i][0] for i in chosen], write=Mode.WRITE in modes, synced=synced)
                for i, result in zip(chosen, done, strict=True):
                    results[i] = result
        return results

    def _transaction(self, operations: Sequence[Operation[object]], *, write: bool, synced: bool) -> list[object]:
        """Once more on a connection of its own where the first shows damage, which opening mends, or a passing disk error.

        Every operation judges by what it reads, so it may be run again where it is not known whether it was committed.
        """
        try:
            try:
                return self._attempt(operations, write=write, synced=synced)
            except sqlite3.DatabaseError as error:
                e = explained(error, self.path)
                if not self._may_pass(e):
                    raise
                log.warning("claim records: %s, trying once more", as_records_error(e, self.path))
                self._give_up(e)
                return self._attempt(operations, write=write, synced=synced)
        except Exception as e:
            return [self._failed(e)] * len(operations)

    @staticmethod
    def _may_pass(e: sqlite3.DatabaseError) -> bool:
        return is_damage(e) or "disk I/O error" in str(e)

    def _attempt(self, operations: Sequence[Operation[object]], *, write: bool, synced: bool) -> list[object]:
        db = self._begin(write=write, synced=synced)
        changes = db.total_changes
        try:
            results = [_one(db, operation) for operation in operations]
            db.execute("COMMIT")
        except BaseException:
            rollback(db)
            raise
        if write and not self._is_named(db) and not self.keeper.restore(db):
            # Another instance set our file aside, perhaps before it saw this: who asks again finds what is true.
            raise RecordsBusyError(
                f"{self.path} was replaced by another instance of the plugin: the kubelet tries again"
            )
        if self.fault and db.total_changes != changes:  # reading proves nothing about a full disk
            log.info("claim records can be written again")
            self.fault = ""
        return results

    def _begin(self, *, write: bool, synced: bool) -> Connection:
        for _ in range(_TRIES):
            db = self._open()
            if not write:
                db.execute("BEGIN")
                return db
            db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            if self._is_named(db):
                return db
            rollback(db)  # it lost its name while we waited for the lock
        raise RecordsBusyError(
            f"{self.path} is replaced again and again: see what else writes below the kubelet's root"
        )

    def _failed(self, e: Exception) -> RecordsError:
        error = as_records_error(e, self.path)
        if self._db is not None:
            rollback(self._db)
        if isinstance(e, sqlite3.Error) and not is_busy(e):
            self._give_up(e)
        if not isinstance(error, RecordsBusyError):
            if self.fault != str(error):
                log.error("claim records: %s", error)
            self.fault = str(error)
        return error

    def _give_up(self, e: sqlite3.Error) -> None:
        """The next use opens anew, and repairs where that shows damage. What a removed file had is not let go of."""
        if self.path.exists():
            self._drop()
            self._damage = e if is_damage(e) else None

    def _write_back(self) -> None:
        """Moves a long log into the database, which syncs both, when nobody waits for it."""
        try:
            if self._db is not None and self.path.with_name(f"{self.path.name}-wal").stat().st_size > _LOG_SIZE:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, OSError) as e:
            log.debug("the log is not written back: %s", e)


def _read_afresh(db: sqlite3.Connection) -> None:
    """An open database reads what it knows from memory, and would tell of damage with the next claim only: it forgets that first.

    Nobody else in this process may open the file: closing it would drop all locks that the process has on it, so that another
    instance, when it ends, takes the log away from under us. Source: https://www.sqlite.org/howtocorrupt.html, 2.2

    Raises ``sqlite3.DatabaseError``.
    """
    db.execute("PRAGMA shrink_memory")
    rows.count_prepared(db)


def _one(db: sqlite3.Connection, operation: Operation[object]) -> object:
    """One operation behind a savepoint. Faults of the database itself fail the whole batch."""
    db.execute("SAVEPOINT one")
    try:
        result = operation(db)
    except UnicodeDecodeError as e:  # of SQLite's own message, which quotes a damaged schema
        raise sqlite3.DatabaseError(f"its schema is no text: {e.reason}") from None
    except Exception as e:
        if isinstance(e, sqlite3.Error) and not isinstance(e, sqlite3.IntegrityError):
            raise
        db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
        return e
    db.execute("RELEASE one")
    return result


__all__ = ["Mode", "Store"]
