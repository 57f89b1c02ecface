"""In-flight work on claims: at most one operation per claim runs at a time.

A second request for the same work joins the running task. Other work on the claim waits for it. Claims do not wait for each other.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from ..base.telemetry.logs import Fields, log_fields, operation_id, set_log_fields
from ..base.telemetry.metrics import Metrics
from ..errors import DraError, describe

log = logging.getLogger(__name__)


class Work(enum.Enum):
    """A kind of work on a claim. A request for the same kind joins work in flight, if the kind is joinable."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"
    FREE = "free"  # another claim waits for this claim's devices
    TIDY = "tidy"  # reconciling and metadata updates: each run has its own reason, so it does not join work in flight

    @property
    def joinable(self) -> bool:
        return self is not Work.TIDY


class _ClaimTask(msgspec.Struct, frozen=True):
    work: Work
    task: asyncio.Task[Any]


class TaskLog(NamedTuple):
    """The id and the fields of a task's log lines. A call that joins the task logs the task's failure with them."""

    operation: str
    fields: Fields


class ClaimTasks:
    """The tasks that work on claims. They outlive the calls that started them; only :meth:`end` cancels one."""

    def __init__(self, metrics: Metrics) -> None:
        metrics.measure("claims_in_flight", lambda: len(self._last))
        self.ending = False  # True when no new work may start
        self._last: dict[str, _ClaimTask] = {}  # the newest task of each claim; it waits for the task before it
        self._all: set[asyncio.Task[Any]] = set()
        # Kept here, and not in the exception: tasks whose records are written together may fail with the same exception.
        self._logs: WeakKeyDictionary[asyncio.Task[Any], TaskLog] = WeakKeyDictionary()

    def __contains__(self, uid: object) -> bool:
        return uid in self._last

    def prepares(self, uid: str) -> bool:
        """Whether the newest work on a claim is a prepare. Can be called from any thread."""
        last = self._last.get(uid)
        return last is not None and last.work is Work.PREPARE

    @property
    def uids(self) -> list[str]:
        return list(self._last)

    def start(self, uid: str, work: Work, do: Callable[[], Awaitable[Any]]) -> tuple[asyncio.Task[Any], bool]:
        """Returns the task in flight if it does the same ``work`` and can be joined; otherwise a new task, which waits for the task in
        flight.

        Returns:
            The task, and whether the claim had no work in flight.
        """
        before = self._last.get(uid)
        if before and before.work is work and work.joinable:
            return before.task, False

        async def run() -> Any:
            set_log_fields(lambda: {"claim_uid": uid})  # ``do`` adds the claim's name if it knows the name
            if before:
                await asyncio.wait([before.task])
            try:
                return await do()
            except DraError:
                self._logs[task] = TaskLog(operation_id(), log_fields())
                raise

        task = asyncio.create_task(run(), name=f"{work.value} {uid}")
        current = _ClaimTask(work, task)
        self._last[uid] = current
        self._all.add(task)

        def finished(done: asyncio.Task[Any]) -> None:
            self._all.discard(done)
            if self._last.get(uid) is current:
                del self._last[uid]
            if not done.cancelled():
                done.exception()  # retrieved, so that asyncio does not log an exception that no caller awaits

        task.add_done_callback(finished)
        return task, before is None

    def log_of(self, task: asyncio.Task[Any]) -> TaskLog | None:
        """Returns the log context of a task that failed with :class:`DraError`; else None."""
        return self._logs.get(task)

    async def end(self, grace: float) -> None:
        """Waits up to ``grace`` seconds for work in flight, then cancels the remaining work. The next process rolls it back.

        After the cancellation it waits at most one second, also if a driver's method ignores its cancellation.
        """
        self.ending = True
        if self._all:
            log.info("stopping; waiting for claims in flight: %d", len(self._last))
            await asyncio.wait(self._all, timeout=grace)
        unfinished = set(self._all)
        for task in unfinished:
            task.cancel()
        if unfinished:
            _, stuck = await asyncio.wait(unfinished, timeout=1)
            names = ", ".join(sorted(t.get_name() for t in unfinished))
            log.warning(
                "stopped with unfinished claims, which the next start rolls back: %d (%s)", len(unfinished), names
            )
            if stuck:
                log.warning("unfinished work ignores its cancellation: %d claims", len(stuck))


def as_dra_error(e: BaseException) -> DraError:
    """Converts the failure of a task.

    A :class:`DraError` is returned unchanged. Any other exception is a bug in the plugin: it is logged with its traceback, and the
    returned error only describes it.
    """
    if isinstance(e, DraError):
        return e
    log.error("unexpected exception inside the plugin; please report it", exc_info=e)
    return DraError(f"an internal error of the plugin: {describe(e)}")
