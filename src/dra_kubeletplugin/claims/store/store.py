"""The records, in one SQLite database: write-ahead log, one transaction for a whole batch of operations, in one thread.

Two processes share the file during a rolling update. Exclusive use of a device is a constraint of the database itself. Only what
a power failure must not take is synced; the rest survives the death of the process, and after a power failure the boot id is
another, so that whatever is on record is undone and prepared afresh. Source: https://www.sqlite.org/wal.html
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
from .schema import Connection, as_records_error, explained, is_busy, is_damage, rollback

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


class FollowUp(NamedTuple):
    """What is done at one go in the thread of the records: ``first``, before the transaction; the operation; ``then``, after it.

    ``first`` and ``then`` are for files. What one of them raises is the job's answer: after ``first`` nothing else is done, after
    ``then`` the operation is. ``then`` is given the operation's result, and answers the job's, or a job that goes on from there:
    in a transaction of its own, with those that the rest of the batch goes on with.
    """

    operation: Operation[Any] | None = None
    mode: Mode = Mode.WRITE
    first: Callable[[], Any] | None = None
    then: Callable[[Any], Any] | None = None


class RecordStore:
    """Records of one driver. All methods may be called from any task; they are gathered into transactions.

    ``fault`` says why the records cannot be used, empty when they can; ``opened`` is set each time that the file was opened.
    """

    def __init__(self, keeper: RecordDatabase) -> None:
        self.path = keeper.path
        self.driver = keeper.specs.driver
        self.keeper = keeper
        self.fault = ""
        self.opened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._db: Connection | None = None
        self._damage: Exception | None = None
        self._batcher: Batcher[FollowUp] = Batcher("records", self._work, self._write_back)

    @property
    def transactions(self) -> int:
        """Batches so far, each one transaction, or two where reads and writes came together."""
        return self._batcher.batches

    async def do(
        self,
        operation: Operation[Result],
        mode: Mode = Mode.WRITE,
        *,
        first: Callable[[], object] | None = None,
        then: Callable[[Result], Result | FollowUp] | None = None,
    ) -> Result:
        """Runs ``operation`` in a transaction with others; its exception rolls back only its own part. See :class:`FollowUp`.

        Raises :class:`RecordsError`, or what the operation, ``first`` or ``then`` raises.
        """
        self._loop = asyncio.get_running_loop()
        result: Result = await self._batcher.submit(FollowUp(operation, mode, first, then))
        return result

    async def aside(self, work: Callable[[], Result]) -> Result:
        """Runs ``work``, which is about files and not about records, in the same thread: in order with what came before."""
        result: Result = await self._batcher.submit(FollowUp(first=work))
        return result

    async def close(self, timeout: float = 10.0) -> None:
        """Waits up to ``timeout`` seconds for what is under way."""
        end = time.monotonic() + timeout
        if self._db is not None:
            # A file that was removed just now comes back: the next instance would find nothing.
            await asyncio.wait([asyncio.ensure_future(self.look())], timeout=timeout)
        await self._batcher.close(max(0.0, end - time.monotonic()), self._drop)

    # --- questions ------------------------------------------------------------------------------

    async def get(self, uid: str) -> rows.Row | None:
        return await self.do(lambda db: rows.read(db, uid), Mode.READ)

    async def everything(self) -> list[rows.Row]:
        """Every record, readable or not, oldest first."""
        return await self.do(rows.read_all, Mode.READ)

    async def all(self) -> list[Record]:
        """Every record that can be read, oldest first."""
        return [r for r in await self.everything() if isinstance(r, Record)]

    async def unreadable(self) -> list[UnreadableRecord]:
        return [r for r in await self.everything() if isinstance(r, UnreadableRecord)]

    async def held(self) -> Held:
        """Each device that some claim has, see :meth:`Inventory.update`."""
        return await self.do(lambda db: rows.held_devices(db, self.driver), Mode.READ)

    async def prepared(self) -> int:
        """How many claims are prepared."""
        return await self.do(rows.count_prepared, Mode.READ)

    async def recovering(self) -> bool:
        """Whether the driver has still to say what its hardware knows, because the database was made anew."""
        return await self.do(lambda db: rows.has_meta(db, RECOVER), Mode.READ)

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
        if self._db is not None and self._db.is_named(self.path):
            return self._db
        # The old one stays open until the new one is: it may be the last that knows what a removed file had.
        db = self.keeper.open(self._damage, self._db)
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
            self.keeper.close(db)

    def _work(self, jobs: Sequence[FollowUp]) -> list[object]:
        """Reads first, in a transaction of their own: a writer that is stopped must not hold them up."""
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
        if further := [(i, job) for i, job in enumerate(results) if isinstance(job, FollowUp)]:
            for (i, _), result in zip(further, self._work([job for _, job in further]), strict=True):
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
            results = _all(db, operations)
            db.execute("COMMIT")
        except BaseException:
            rollback(db)
            raise
        if write and not db.is_named(self.path) and not self.keeper.restore(db):
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
            if db.is_named(self.path):
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
        if self._db is None or self._db.is_named(self.path):
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


def _caught(work: Callable[[], object]) -> object:
    """What ``work`` answers or raises."""
    try:
        return work()
    except Exception as e:
        return e


def _all(db: sqlite3.Connection, operations: Sequence[Operation[object]]) -> list[object]:
    """Each operation's result, or the exception that rolled back its own part and no other.

    That is rare, so only then each is run once more, behind a savepoint of its own. Faults of the database itself fail all.
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
    """What an operation answers, or the exception that concerns it alone."""
    try:
        return operation(db)
    except UnicodeDecodeError as e:  # of SQLite's own message, which quotes a damaged schema
        raise sqlite3.DatabaseError(f"its schema is no text: {e.reason}") from None
    except Exception as e:
        if isinstance(e, sqlite3.Error) and not isinstance(e, sqlite3.IntegrityError):
            raise
        # An error of a claim goes without its traceback: the frames keep the claim, in cycles with the list of results.
        return without_frames(e) if isinstance(e, DraError) else e


__all__ = ["FollowUp", "Mode", "RecordStore"]
