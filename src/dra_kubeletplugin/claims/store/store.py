"""Stores records in a journal; one thread runs each batch of operations as one write.

Two processes share the journal during a rolling update. Only data that must survive a power failure is synced. Other data survives
the death of the process. After a power failure the boot id differs, so all recorded claims are rolled back and prepared again.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ...devices.pool_state import Held
from ...driver.diagnostics.author_errors import without_frames
from ...errors import DraError, RecordsBusyError, RecordsError
from ..record import Record, Row
from .batch import Batcher
from .journal import Journal, as_records_error
from .records import RECOVER, Records

log = logging.getLogger(__name__)
_PROBE = 32 * 1024  # bytes
_READ_WAIT = 0.1  # seconds that a read waits for a writer; it then uses the records in memory

Result = TypeVar("Result")
Operation = Callable[[Records], Result]


class Mode(enum.Enum):
    READ = enum.auto()
    WRITE = enum.auto()  # survives the process
    SYNC = enum.auto()  # survives a power failure too


class RecordJob(NamedTuple):
    """A job of the record thread: ``first`` before the transaction, the operation, and ``then`` after the transaction.

    ``first`` and ``then`` work on files. If ``first`` or ``then`` raises, the exception is the job's result. If ``first`` raises, the
    rest of the job does not run. If ``then`` raises, the operation is already committed. ``then`` gets the operation's result. It
    returns the job's result, or another job. Such jobs of a batch run together in a later transaction.
    """

    operation: Operation[Any] | None = None
    mode: Mode = Mode.WRITE
    first: Callable[[], Any] | None = None
    then: Callable[[Any], Any] | None = None


class RecordStore:
    """The records of one driver. All methods may be called from any task; concurrent calls share transactions.

    ``fault`` is why the records cannot be used; empty if they can. ``opened`` is set each time a file was opened.
    """

    def __init__(self, journal: Journal) -> None:
        self.path = journal.path
        self.journal = journal
        self.fault = ""
        self.opened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loads = 0
        self._batcher: Batcher[RecordJob] = Batcher("records", self._work, self._compact)

    @property
    def transactions(self) -> int:
        """The number of batches so far. Each is at most one write."""
        return self._batcher.batches

    async def do(
        self,
        operation: Operation[Result],
        mode: Mode = Mode.WRITE,
        *,
        first: Callable[[], object] | None = None,
        then: Callable[[Result], Result | RecordJob] | None = None,
    ) -> Result:
        """Runs ``operation`` in a transaction, which concurrent calls share. Its exception undoes only its own changes. See
        :class:`RecordJob`.

        Raises :class:`RecordsError`, or the exception of the operation, ``first`` or ``then``.
        """
        self._loop = asyncio.get_running_loop()
        result: Result = await self._batcher.submit(RecordJob(operation, mode, first, then))
        return result

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs ``work``, which uses files and not records, in the record thread, after all earlier jobs."""
        result: Result = await self._batcher.submit(RecordJob(first=work))
        return result

    async def close(self, timeout: float = 10.0) -> None:
        """Waits up to ``timeout`` seconds for running work, then closes the journal."""
        end = time.monotonic() + timeout
        if self.journal.file is not None:
            # Restores a file that was just removed: otherwise the next instance would find no records.
            await asyncio.wait([asyncio.ensure_future(self.check_file())], timeout=timeout)
        await self._batcher.close(max(0.0, end - time.monotonic()), self.journal.close)

    # --- queries --------------------------------------------------------------------------------

    async def get(self, uid: str) -> Row | None:
        return await self.do(lambda records: records.read(uid), Mode.READ)

    async def everything(self) -> list[Row]:
        """Returns every record, readable or not, oldest first."""
        return await self.do(Records.read_all, Mode.READ)

    async def all(self) -> list[Record]:
        """Returns every readable record, oldest first."""
        return [r for r in await self.everything() if isinstance(r, Record)]

    async def held(self) -> Held:
        """Returns each device that some claim has, see :meth:`Inventory.update`."""
        return await self.do(Records.held_devices, Mode.READ)

    async def prepared(self) -> int:
        """Returns the number of prepared claims."""
        return await self.do(Records.count_prepared, Mode.READ)

    async def recovering(self) -> bool:
        """Whether the driver's ``recover()`` is still due, because the journal was repaired."""
        return await self.do(lambda records: records.has_meta(RECOVER), Mode.READ)

    async def probe(self) -> None:
        """Tests the disk: writes and syncs as many bytes as a large record has. Clears ``fault`` if that succeeds.

        Raises :class:`RecordsError`.
        """

        def probe() -> None:
            try:
                with self.journal.locked(self.journal.wait) as file:
                    file.append(bytes(_PROBE), sync=True, keep=False)
                self._written()
            except OSError as e:
                raise self._failed(e) from None

        await self.run(probe)

    async def check_file(self) -> None:
        """Detects that the file was removed, replaced or overwritten, and repairs it. An error is kept in ``fault``."""

        def check() -> None:
            try:
                self.journal.check()
                self._note_loads()
            except (OSError, RecordsError) as e:
                self._failed(e)

        with contextlib.suppress(RecordsError):
            await self.run(check)

    # --- in the thread --------------------------------------------------------------------------

    def _work(self, jobs: Sequence[RecordJob]) -> list[object]:
        """Runs the jobs. Reads come first: a writer that is stopped must not block them."""
        results: list[object] = [_caught(job.first) if job.first else None for job in jobs]
        runnable = [i for i, job in enumerate(jobs) if job.operation and not isinstance(results[i], BaseException)]
        for write in (False, True):
            chosen = [i for i in runnable if (jobs[i].mode is not Mode.READ) is write]
            if chosen:
                operations = [op for i in chosen if (op := jobs[i].operation)]
                sync = any(jobs[i].mode is Mode.SYNC for i in chosen)
                try:
                    done = self._transaction(operations, sync=sync) if write else self._read(operations)
                except (OSError, RecordsError) as e:
                    done = [self._failed(e)] * len(chosen)
                for i, result in zip(chosen, done, strict=True):
                    results[i] = result
        for i in runnable:
            then, result = jobs[i].then, results[i]
            if then and not isinstance(result, BaseException):
                results[i] = _caught(functools.partial(then, result))
        if follow_ups := [(i, job) for i, job in enumerate(results) if isinstance(job, RecordJob)]:
            for (i, _), result in zip(follow_ups, self._work([job for _, job in follow_ups]), strict=True):
                results[i] = result
        return results

    def _read(self, operations: Sequence[Operation[object]]) -> list[object]:
        journal = self.journal
        if not journal.is_current():
            # Takes the lock: otherwise it could read lines that another instance has appended and then removes after a failed write.
            try:
                with journal.locked(_READ_WAIT if journal.file else journal.wait, write=False):
                    pass
            except RecordsBusyError:
                if journal.file is None:
                    raise
            self._note_loads()
        assert journal.file
        return [_run_operation(journal.file.records, operation) for operation in operations]

    def _transaction(self, operations: Sequence[Operation[object]], *, sync: bool) -> list[object]:
        """Runs operations and writes their changes; tries once more after a passing disk error.

        An operation decides only from the records that it reads. So it can run again if it is not known whether its changes were
        written.
        """
        try:
            return self._attempt(operations, sync=sync)
        except OSError as e:
            if e.errno != errno.EIO:
                raise
            log.warning("claim records: %s, trying once more", as_records_error(e, self.path))
            return self._attempt(operations, sync=sync)

    def _attempt(self, operations: Sequence[Operation[object]], *, sync: bool) -> list[object]:
        with self.journal.locked(self.journal.wait) as file:
            self._note_loads()
            try:
                results = [_run_operation(file.records, operation) for operation in operations]
                written = file.records.changes
                self.journal.commit(sync=sync)
            except BaseException:
                file.records.undo()
                raise
        if written:  # a read does not show whether the disk is full
            self._written()
        return results

    def _note_loads(self) -> None:
        if self._loads != self.journal.loads:
            self._loads = self.journal.loads
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.opened.set)

    def _written(self) -> None:
        if self.fault:
            log.info("claim records can be written again")
            self.fault = ""

    def _failed(self, e: Exception) -> RecordsError:
        error = as_records_error(e, self.path)
        if not isinstance(error, RecordsBusyError):
            if self.fault != str(error):
                log.error("claim records: %s", error)
            self.fault = str(error)
        return error

    def _compact(self) -> None:
        """Compacts a long journal while no call waits for it."""
        try:
            self.journal.compact()
        except (OSError, RecordsError) as e:
            log.debug("the journal is not compacted: %s", e)


def _caught(work: Callable[[], object]) -> object:
    """Returns the result of ``work``, or its exception."""
    try:
        return work()
    except Exception as e:
        return e


def _run_operation(records: Records, operation: Operation[object]) -> object:
    """Returns an operation's result. If the operation raises, undoes only its changes and returns the exception.

    Returns a claim's error without its traceback: the frames of the traceback and the list of results form a reference cycle that
    keeps the claim in memory.
    """
    before = records.changes
    try:
        return operation(records)
    except Exception as e:
        records.undo(before)
        return without_frames(e) if isinstance(e, DraError) else e
