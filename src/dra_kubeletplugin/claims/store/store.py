"""Stores records in one SQLite database with a write-ahead log; one thread runs each batch of operations as one transaction.

Two processes share the file during a rolling update. A constraint of the database ensures that a device has one holder.
Only data that must survive a power failure is synced. Other data survives the death of the process. After a power failure the
boot id differs, so all recorded claims are rolled back and prepared again. Source: https://www.sqlite.org/wal.html
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ...devices.inventory import Held
from ...driver.diagnostics.author_errors import without_frames
from ...errors import DraError, RecordsBusyError, RecordsError
from ..record import Record, UnreadableRecord
from ..transitions import RECOVER
from . import rows
from .batch import Batcher
from .database import RecordDatabase
from .schema import Connection, as_records_error, explain_error, is_busy, is_damage, rollback

log = logging.getLogger(__name__)
_LOG_SIZE = 1 << 20  # bytes of write-ahead log that are written back while no call waits
_PROBE = 32 * 1024  # characters
_TRIES = 5  # how often one call opens the database again because the file was replaced

Result = TypeVar("Result")
Operation = Callable[[sqlite3.Connection], Result]


class Mode(enum.Enum):
    READ = enum.auto()
    WRITE = enum.auto()  # survives the process
    SYNC = enum.auto()  # survives a power failure too


class FollowUp(NamedTuple):
    """A job of the record thread: ``first`` before the transaction, the operation, and ``then`` after the transaction.

    ``first`` and ``then`` work on files. An exception of either is the job's result. After one in ``first`` nothing else runs; after
    one in ``then`` the operation is already committed. ``then`` gets the operation's result. It returns the job's result, or another
    job, which runs in a later transaction together with such jobs of the same batch.
    """

    operation: Operation[Any] | None = None
    mode: Mode = Mode.WRITE
    first: Callable[[], Any] | None = None
    then: Callable[[Any], Any] | None = None


class RecordStore:
    """The records of one driver. All methods may be called from any task; concurrent calls share transactions.

    ``fault`` is why the records cannot be used; empty if they can. ``opened`` is set each time the file was opened.
    """

    def __init__(self, database: RecordDatabase) -> None:
        self.path = database.path
        self.driver = database.specs.driver
        self.database = database
        self.fault = ""
        self.opened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._db: Connection | None = None
        self._damage: Exception | None = None
        self._batcher: Batcher[FollowUp] = Batcher("records", self._work, self._write_back)

    @property
    def transactions(self) -> int:
        """The number of batches so far. Each is one transaction, or two if it has reads and writes."""
        return self._batcher.batches

    async def do(
        self,
        operation: Operation[Result],
        mode: Mode = Mode.WRITE,
        *,
        first: Callable[[], object] | None = None,
        then: Callable[[Result], Result | FollowUp] | None = None,
    ) -> Result:
        """Runs ``operation`` in a transaction with others; its exception rolls back only its own changes. See :class:`FollowUp`.

        Raises :class:`RecordsError`, or the exception of the operation, ``first`` or ``then``.
        """
        self._loop = asyncio.get_running_loop()
        result: Result = await self._batcher.submit(FollowUp(operation, mode, first, then))
        return result

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs ``work``, which uses files and not records, in the record thread, after all earlier jobs."""
        result: Result = await self._batcher.submit(FollowUp(first=work))
        return result

    async def close(self, timeout: float = 10.0) -> None:
        """Waits up to ``timeout`` seconds for running work, then closes the database."""
        end = time.monotonic() + timeout
        if self._db is not None:
            # Restores a file that was just removed: otherwise the next instance would find no records.
            await asyncio.wait([asyncio.ensure_future(self.check_file())], timeout=timeout)
        await self._batcher.close(max(0.0, end - time.monotonic()), self._drop)

    # --- queries --------------------------------------------------------------------------------

    async def get(self, uid: str) -> rows.Row | None:
        return await self.do(lambda db: rows.read(db, uid), Mode.READ)

    async def everything(self) -> list[rows.Row]:
        """Returns every row, readable or not, oldest first."""
        return await self.do(rows.read_all, Mode.READ)

    async def all(self) -> list[Record]:
        """Returns every readable record, oldest first."""
        return [r for r in await self.everything() if isinstance(r, Record)]

    async def unreadable(self) -> list[UnreadableRecord]:
        return [r for r in await self.everything() if isinstance(r, UnreadableRecord)]

    async def held(self) -> Held:
        """Returns each device that some claim has, see :meth:`Inventory.update`."""
        return await self.do(lambda db: rows.held_devices(db, self.driver), Mode.READ)

    async def prepared(self) -> int:
        """Returns the number of prepared claims."""
        return await self.do(rows.count_prepared, Mode.READ)

    async def recovering(self) -> bool:
        """Whether the driver's ``recover()`` is still due, because the database was rebuilt."""
        return await self.do(lambda db: rows.has_meta(db, RECOVER), Mode.READ)

    async def probe(self) -> None:
        """Writes and syncs as much as a large record. Clears ``fault`` if the disk has space again.

        Raises :class:`RecordsError`.
        """
        await self.do(lambda db: rows.set_meta(db, "probe", f"{time.time():<{_PROBE}}"), Mode.SYNC)

    async def check_file(self) -> None:
        """Detects that the file was removed, replaced or overwritten, and repairs it. An error is kept in ``fault``."""
        with contextlib.suppress(RecordsError):
            await self.do(_read_afresh, Mode.READ)

    # --- in the thread --------------------------------------------------------------------------

    def _open(self) -> Connection:
        if self._db is not None and self._db.is_named(self.path):
            return self._db
        # The old connection stays open until the new one is: it may have the only copy of a removed file.
        db = self.database.open(self._damage, self._db)
        old, self._db, self._damage = self._db, db, None
        if old is not None:
            with contextlib.suppress(sqlite3.Error):
                old.close()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.opened.set)
        return db

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            self.database.close(db)

    def _work(self, jobs: Sequence[FollowUp]) -> list[object]:
        """Runs the jobs. Reads have a transaction of their own and come first: a writer that is stopped must not block them."""
        results: list[object] = [_caught(job.first) if job.first else None for job in jobs]
        left = [i for i, job in enumerate(jobs) if job.operation and not isinstance(results[i], BaseException)]
        for write in (False, True):
            chosen = [i for i in left if (jobs[i].mode is not Mode.READ) is write]
            if chosen:
                synced = any(jobs[i].mode is Mode.SYNC for i in chosen)
                done = self._transaction([op for i in chosen if (op := jobs[i].operation)], write=write, synced=synced)
                for i, result in zip(chosen, done, strict=True):
                    results[i] = result
        for i in left:
            then, result = jobs[i].then, results[i]
            if then and not isinstance(result, BaseException):
                results[i] = _caught(functools.partial(then, result))
        if follow_ups := [(i, job) for i, job in enumerate(results) if isinstance(job, FollowUp)]:
            for (i, _), result in zip(follow_ups, self._work([job for _, job in follow_ups]), strict=True):
                results[i] = result
        return results

    def _transaction(self, operations: Sequence[Operation[object]], *, write: bool, synced: bool) -> list[object]:
        """Runs operations; retries once with a new connection after damage, which opening repairs, or a passing disk error.

        Operations decide from the rows that they read, so they can run again if it is not known whether they were committed.
        """
        try:
            try:
                return self._attempt(operations, write=write, synced=synced)
            except sqlite3.DatabaseError as error:
                e = explain_error(error, self.path)
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
            results = _all(db, operations)
            db.execute("COMMIT")
        except BaseException:
            rollback(db)
            raise
        if write and not db.is_named(self.path) and not self.database.restore(db):
            # Another instance set this file aside, perhaps before it saw this write. A retry finds the true state.
            raise RecordsBusyError(
                f"{self.path} was replaced by another instance of the plugin: the kubelet tries again"
            )
        if self.fault and db.total_changes != changes:  # a read does not show whether the disk is full
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
            if db.is_named(self.path):
                return db
            rollback(db)  # the file lost its name while this process waited for the lock
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
        """Closes the connection, so that the next use opens the file again and repairs damage. Keeps the only copy of a removed file."""
        if self._db is None or self._db.is_named(self.path):
            self._drop()
            self._damage = e if is_damage(e) else None

    def _write_back(self) -> None:
        """Writes a long log back into the database, which syncs both, while no call waits for it."""
        try:
            if self._db is not None and self.path.with_name(f"{self.path.name}-wal").stat().st_size > _LOG_SIZE:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, OSError) as e:
            log.debug("the log is not written back: %s", e)


def _read_afresh(db: sqlite3.Connection) -> None:
    """Reads from the file instead of SQLite's cache: otherwise damage would go unnoticed until the next claim.

    No other code of this process may open the file: closing it drops all locks that the process has on it. Another instance that ends
    then removes the log while it is in use. Source: https://www.sqlite.org/howtocorrupt.html, 2.2

    Raises ``sqlite3.DatabaseError``.
    """
    db.execute("PRAGMA shrink_memory")
    rows.count_prepared(db)


def _caught(work: Callable[[], object]) -> object:
    """Returns the result of ``work``, or its exception."""
    try:
        return work()
    except Exception as e:
        return e


def _all(db: sqlite3.Connection, operations: Sequence[Operation[object]]) -> list[object]:
    """Returns each operation's result, or the exception that rolled back its own changes and no other.

    Failures are rare, so savepoints for single operations are used only in a second run. Errors of the database itself fail all.
    """
    db.execute("SAVEPOINT batch")
    out: list[object] = []
    for operation in operations:
        before = db.total_changes
        result = _one(db, operation)
        if isinstance(result, Exception) and db.total_changes != before:
            db.execute("ROLLBACK TO batch")
            return [_saved(db, operation) for operation in operations]
        out.append(result)
    return out


def _saved(db: sqlite3.Connection, operation: Operation[object]) -> object:
    db.execute("SAVEPOINT one")
    result = _one(db, operation)
    if isinstance(result, Exception):
        db.execute("ROLLBACK TO one")
    db.execute("RELEASE one")
    return result


def _one(db: sqlite3.Connection, operation: Operation[object]) -> object:
    """Returns an operation's result, or the exception that concerns it alone."""
    try:
        return operation(db)
    except UnicodeDecodeError as e:  # from SQLite's own message, which quotes a damaged schema
        raise sqlite3.DatabaseError(f"its schema is no text: {e.reason}") from None
    except Exception as e:
        if isinstance(e, sqlite3.Error) and not isinstance(e, sqlite3.IntegrityError):
            raise
        # An error of a claim goes without its traceback, whose frames reference the claim in cycles with the list of results.
        return without_frames(e) if isinstance(e, DraError) else e


__all__ = ["FollowUp", "Mode", "RecordStore"]
