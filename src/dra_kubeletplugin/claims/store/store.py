"""Stores records in a folder; a thread runs each batch of operations as one transaction.

Two processes share the folder during a rolling update. Only data that must survive a power failure is synced. Other data survives
the death of the process. After a power failure the boot id differs, so no recorded response is used (`transitions.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...base.threads import Threads, in_own_thread
from ...devices.pool_state import Held
from ...driver.diagnostics.author_errors import without_frames
from ...errors import DraError, RecordsBusyError, RecordsError
from ..record import Record, Row
from .files import as_records_error
from .folder import ClaimFolder
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


Job = tuple[Operation[Any], Mode]


class RecordStore:
    """The records of one driver. All methods may be called from any task; concurrent calls share transactions.

    ``fault`` is why the records cannot be used; empty if they can. ``repaired`` is set when the folder was opened, and after each repair.
    """

    def __init__(self, folder: ClaimFolder) -> None:
        self.path = folder.path
        self.folder = folder
        self.fault = ""
        self.repaired = asyncio.Event()
        self._thread = Threads(1, "records")
        self._waiting: list[tuple[Job, asyncio.Future[Any]]] = []
        self._idle = asyncio.Event()  # set while the thread has no batch
        self._idle.set()
        self._began = 0.0  # when the current batch began, by time.monotonic()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._repairs = 0

    @property
    def busy_for(self) -> float:
        """Seconds since the current batch began; 0 if there is none."""
        return time.monotonic() - self._began if self._began else 0.0

    async def do(self, operation: Operation[Result], mode: Mode = Mode.WRITE) -> Result:
        """Runs ``operation`` in a transaction. Operations that arrive while another transaction runs share the next one.

        The operation may also change files of its claim; it runs again if the records cannot be written. Its exception undoes only its
        own changes of the records. Cancelling the call does not stop it.

        Raises :class:`RecordsError`, or the exception of the operation.
        """
        if self._closed:
            raise RecordsError("the claim records are closed, because the plugin stops")
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._waiting.append(((operation, mode), future))
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._begin_batch, self._loop)  # with all operations of this pass of the loop
        return await future

    def _begin_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts :meth:`_work` in the thread. Uses callbacks, because code of a driver may cancel all tasks of the loop.

        A thread of its own costs less CPU time in each call than an executor of the loop.
        """
        batch, self._waiting = self._waiting, []
        self._began = time.monotonic()

        def end(results: Sequence[object]) -> None:
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():  # its caller was cancelled
                    continue
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            self._began = 0.0
            if self._waiting:
                self._begin_batch(loop)
            else:
                self._idle.set()

        def work() -> None:
            results = self._work([job for job, _ in batch])
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(end, results)

        self._thread.submit(work)

    async def close(self, timeout: float = 10.0) -> None:
        """Waits up to ``timeout`` seconds for running work, then releases the lock. If the thread hangs, its process keeps the lock."""
        end = time.monotonic() + timeout
        if self.folder.repairs:
            # Restores a file that was just removed: otherwise the next instance would find no records.
            await asyncio.wait([asyncio.ensure_future(self.check_files())], timeout=timeout)
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.1, end - time.monotonic())):
                await self._idle.wait()
                await in_own_thread(self.folder.close)

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
        """Returns each device that some claim has, see :meth:`.Inventory.update`."""
        return await self.do(Records.held_devices, Mode.READ)

    async def recovering(self) -> bool:
        """Whether the driver's ``recover()`` is still due, because records were lost or damaged."""
        return await self.do(lambda records: records.has_meta(RECOVER), Mode.READ)

    async def probe(self) -> None:
        """Tests the disk: writes and syncs as many bytes as a large record has. Clears ``fault`` if that succeeds.

        Raises :class:`RecordsError`.
        """

        def probe(_: Records) -> None:
            try:
                self.folder.probe(_PROBE)
                self._written()
            except OSError as e:
                raise self._failed(e) from None

        await self.do(probe, Mode.READ)

    async def check_files(self) -> None:
        """Detects that files were removed, replaced or overwritten, and repairs them. An error is kept in ``fault``."""

        def check(_: Records) -> None:
            try:
                self.folder.check()
                self._note_repairs()
            except (OSError, RecordsError) as e:
                self._failed(e)

        with contextlib.suppress(RecordsError):
            await self.do(check, Mode.READ)

    # --- in the thread --------------------------------------------------------------------------

    def _work(self, jobs: Sequence[Job]) -> list[object]:
        """Runs the jobs. Reads come before writes: a writer that is stopped must not block them."""
        results: list[object] = [None] * len(jobs)
        for is_read in (True, False):
            chosen = [i for i, (_, mode) in enumerate(jobs) if (mode is Mode.READ) is is_read]
            operations = [jobs[i][0] for i in chosen]
            if not chosen:
                continue
            try:
                if is_read:
                    done = self._read(operations)
                else:
                    done = self._transaction(operations, sync=any(jobs[i][1] is Mode.SYNC for i in chosen))
            except (OSError, RecordsError) as e:
                done = [self._failed(e)] * len(chosen)
            except BaseException as e:  # the callers must not wait for ever
                done = [e] * len(chosen)
            for i, result in zip(chosen, done, strict=True):
                results[i] = result
        return results

    def _read(self, operations: Sequence[Operation[object]]) -> list[object]:
        folder = self.folder
        if not folder.is_current():
            try:
                with folder.locked(_READ_WAIT if folder.repairs else folder.wait):
                    pass
            except RecordsBusyError:
                if not folder.repairs:
                    raise
            self._note_repairs()
        return [_run_operation(folder.records, operation) for operation in operations]

    def _transaction(self, operations: Sequence[Operation[object]], *, sync: bool) -> list[object]:
        """Runs operations and writes their changes. After a disk error, each operation is tried once more, alone.

        An operation decides only from the records that it reads. So it can run again if it is not known whether its changes were
        written.
        """
        try:
            return self._attempt(operations, sync=sync)
        except OSError as e:
            if len(operations) == 1 and e.errno not in {errno.EIO, errno.ENOENT}:
                raise
            log.warning("claim records: %s, trying once more", as_records_error(e, self.path))
        results: list[object] = []
        for operation in operations:
            try:
                results += self._attempt([operation], sync=sync)
            except (OSError, RecordsError) as e:
                results.append(self._failed(e))
        return results

    def _attempt(self, operations: Sequence[Operation[object]], *, sync: bool) -> list[object]:
        with self.folder.locked(self.folder.wait) as records:
            self._note_repairs()
            try:
                results = [_run_operation(records, operation) for operation in operations]
                written = records.changes
                self.folder.commit(sync=sync)
            except BaseException:
                records.undo()
                raise
        if written:  # a read does not show whether the disk is full
            self._written()
        return results

    def _note_repairs(self) -> None:
        if self._repairs != self.folder.repairs:
            self._repairs = self.folder.repairs
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.repaired.set)

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
