"""Updates the metadata of prepared claims' devices: first in the record, then in the file that containers have mounted.

The record is committed first. A write transaction then updates the file from the record, so no instance writes an older
version over a newer one. If a process dies in between, the next check of the claim's files writes the update.
The generation that a container sees never decreases. Programs in containers are not notified.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Awaitable, Generator
from typing import Any

from ..base.settings import Settings
from ..driver import MetadataUpdate
from ..errors import ClaimBusyError, DraError, MetadataUpdateError, RecordsError, StoppingError, printable
from . import metadata_files
from .claim_files import ClaimFiles
from .inflight import ClaimTasks, Work, as_dra_error
from .record import Record, State
from .store.records import Records
from .store.store import RecordStore
from .transitions import Transitions

log = logging.getLogger(__name__)
_POLL = 0.05  # seconds between checks of a claim that another instance prepares
_EXTRA_WAIT = 5.0  # seconds beyond the timeout until a blocked thread raises: the event loop has probably ended


class MetadataUpdates:
    """Runs the updates of one driver's claims. ``timeout`` is how many seconds an update waits for other work on its claim."""

    def __init__(
        self, store: RecordStore, files: ClaimFiles, transitions: Transitions, tasks: ClaimTasks, settings: Settings
    ) -> None:
        self.store = store
        self.files = files
        self.transitions = transitions
        self.tasks = tasks
        # A prepare may await an update of its own claim. The update must fail before the kubelet's call times out.
        self.timeout = settings.call_timeout / 2
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int

    def open(self) -> None:
        """Call it on the event loop. Until then, updates raise :class:`StoppingError`."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def begin(self, update: MetadataUpdate) -> Awaitable[int]:
        """Starts an update; can be called from any thread.

        If it is called on the event loop's thread, it returns while the update is in flight. On any other thread, it returns when the
        update is complete.
        See ``Driver.update_metadata``.
        """
        if self._loop is None:
            raise StoppingError(
                "update_metadata(): the plugin has not opened its records yet: call it after start() has returned"
            )
        work = self.apply(update)
        try:
            pending = _PendingUpdate(asyncio.run_coroutine_threadsafe(work, self._loop), update)
        except RuntimeError:
            work.close()
            raise StoppingError("update_metadata(): the plugin has stopped") from None
        if threading.get_ident() != self._thread:  # the loop's own thread must not wait for the loop
            pending.wait(self.timeout + _EXTRA_WAIT)
        return pending

    async def apply(self, update: MetadataUpdate) -> int:
        """Applies an update and returns the file's new generation. Raises :class:`DraError`."""
        if self.tasks.ending:
            raise StoppingError("update_metadata(): the plugin is shutting down")
        deadline = time.monotonic() + self.timeout
        task = self.tasks.start(update.uid, Work.TIDY, lambda: self._apply(update, deadline))
        await asyncio.wait({task}, timeout=self.timeout)
        if not task.done():
            raise ClaimBusyError(
                f"claim {printable(update.uid)} has had other work in flight for more than {self.timeout:g} s; its metadata will be "
                "updated when that work has ended: do not await update_metadata() in prepare; pass the metadata to prepared() instead"
            )
        if task.cancelled():
            raise StoppingError("update_metadata(): the plugin is shutting down")
        if error := task.exception():
            raise as_dra_error(error)
        found: int = task.result()
        return found

    async def _apply(self, update: MetadataUpdate, deadline: float) -> int:
        """Runs as the in-flight work of the claim."""
        while True:
            if await self.store.do(lambda records: self._record(records, update)):
                done = await self.store.do(lambda records: self._write(records, update))
                log.info("updated device metadata", extra={"request": update.request, "generation": done})
                return done
            if time.monotonic() > deadline:
                raise ClaimBusyError(
                    f"claim {update.uid} is still being prepared by another instance of the plugin: try again later"
                )
            await asyncio.sleep(_POLL)

    def _record(self, records: Records, update: MetadataUpdate) -> Any:
        """Commits the update to the record. Returns False while another instance prepares the claim."""
        row = self.transitions.readable(records.read(update.uid))
        if row is not None and row.state is State.PREPARING and self.transitions.has_other_owner(row):
            return False
        record = self._prepared(row, update)
        before, fence = record.metadata, record.fence
        record.metadata = metadata_files.updated(record, update)
        if record.metadata is not before:
            records.update(record, fence)
            self.files.note(record)
        return True

    def _write(self, records: Records, update: MetadataUpdate) -> int:
        """Updates the file from the current record, which may include later updates by another instance."""
        record = self._prepared(self.transitions.readable(records.read(update.uid)), update)
        try:
            self.files.put_metadata(record)
        except RecordsError as e:
            raise RecordsError(
                f"metadata of claim {record.shown} is recorded, but its file cannot be written yet; the plugin retries: {e}"
            ) from None
        return metadata_files.generation(record, update.request)

    def _prepared(self, row: Record | None, update: MetadataUpdate) -> Record:
        if row is None or row.state is not State.PREPARED:
            shown = row.shown if row else printable(update.uid)
            raise MetadataUpdateError(f"claim {shown} is not prepared, so it has no metadata to update")
        if not self.transitions.is_prepared(row):
            raise MetadataUpdateError(
                f"claim {row.shown} was prepared before the node was rebooted, or was recovered from the hardware without its "
                f"record: the kubelet "
                "prepares it again before a container starts"
            )
        return row


class _PendingUpdate(Awaitable[int]):
    """An update in flight. It completes also if it is not awaited; in that case, a failure is logged."""

    def __init__(self, done: concurrent.futures.Future[int], update: MetadataUpdate) -> None:
        self._done = done
        self._awaited = False
        self._log_fields = {"claim_uid": update.uid, "request": update.request}
        done.add_done_callback(self._ended)

    def __await__(self) -> Generator[Any, None, int]:
        self._awaited = True
        return asyncio.wrap_future(self._done).__await__()

    def wait(self, seconds: float) -> None:
        """Blocks until the update is complete. Raises the update's exception."""
        self._awaited = True
        try:
            self._done.result(seconds)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            raise StoppingError("update_metadata(): the plugin stopped before the update was complete") from None

    def _ended(self, done: concurrent.futures.Future[int]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, DraError) and not self._awaited:
            log.warning("device metadata is not updated: %s", error, extra=self._log_fields)
