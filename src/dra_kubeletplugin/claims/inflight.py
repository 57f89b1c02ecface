"""In-flight work on claims: at most one operation per claim runs at a time.

A second request for the same work joins the running task. Other work on the claim waits for it. Claims do not wait for each other.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ..base.telemetry.logs import set_log_fields
from ..base.telemetry.metrics import Metrics
from ..base.wakeup import is_set_within
from ..errors import DraError, describe

log = logging.getLogger(__name__)


class Work(enum.Enum):
    """A kind of work on a claim. A request joins work of the same kind in flight, except for ``TIDY``."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"
    FREE = "free"  # another claim waits for this claim's devices
    TIDY = "tidy"  # reconciling and metadata updates: each run has its own reason, so it does not join work in flight


class ClaimTasks:
    """The tasks that work on claims. They outlive the calls that started them; only :meth:`end` cancels one."""

    def __init__(self, metrics: Metrics) -> None:
        metrics.measure("claims_in_flight", lambda: len(self._last))
        self.ending = False  # True when no new work may start
        # The newest task of each claim; it waits for the task before it.
        self._last: dict[str, tuple[Work, asyncio.Task[Any]]] = {}
        self._all: set[asyncio.Task[Any]] = set()

    def __contains__(self, uid: object) -> bool:
        return uid in self._last

    @property
    def uids(self) -> list[str]:
        return list(self._last)

    def prepares(self, uid: str) -> bool:
        """Whether the newest work on a claim is a prepare. Can be called from any thread."""
        last = self._last.get(uid)
        return last is not None and last[0] is Work.PREPARE

    def start(self, uid: str, work: Work, do: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Returns the task in flight if the request joins it; otherwise a new task, which waits for the task in flight."""
        before = self._last.get(uid)
        if before and before[0] is work and work is not Work.TIDY:
            return before[1]

        async def run() -> Any:
            set_log_fields(lambda: {"claim_uid": uid})  # ``do`` adds the claim's name if it knows the name
            if before:
                await asyncio.wait([before[1]])
            return await do()

        task = asyncio.create_task(run(), name=f"{work.value} {uid}")
        self._last[uid] = current = (work, task)
        self._all.add(task)

        def finished(done: asyncio.Task[Any]) -> None:
            self._all.discard(done)
            if self._last.get(uid) is current:
                del self._last[uid]
            if not done.cancelled():
                done.exception()  # retrieved, so that asyncio does not log an exception that no caller awaits

        task.add_done_callback(finished)
        return task

    async def end(self, grace: float) -> None:
        """Waits up to ``grace`` seconds for work in flight, then cancels the remaining work. The next process rolls it back.

        After the cancellation it waits at most one second, also if a driver's method ignores its cancellation.
        """
        self.ending = True
        if self._all:
            log.info("stopping; waiting for claims in flight: %d", len(self._last))
            await asyncio.wait(self._all, timeout=grace)
        if unfinished := set(self._all):
            for task in unfinished:
                task.cancel()
            _, stuck = await asyncio.wait(unfinished, timeout=1)
            names = ", ".join(sorted(t.get_name() for t in unfinished))
            log.warning(
                "stopped with unfinished claims, which the next start rolls back: %d (%s)", len(unfinished), names
            )
            if stuck:
                log.warning("unfinished work ignores its cancellation: %d claims", len(stuck))


class BatchWindow:
    """Lets the claims of one call reach the record thread together, so that their records are one write.

    It opens when each claim waits or has left, or ``max_wait`` seconds after the first one began to wait.
    """

    def __init__(self, uids: Iterable[str], max_wait: float) -> None:
        self._missing = set(uids)
        self._max_wait = max_wait
        self._open = asyncio.Event()

    def leave(self, uid: str) -> None:
        self._missing.discard(uid)
        if not self._missing:
            self._open.set()

    async def wait(self, uid: str) -> None:
        self.leave(uid)
        await is_set_within(self._open, self._max_wait)
        self._open.set()


def as_dra_error(e: BaseException) -> DraError:
    """Converts the failure of a task.

    A :class:`DraError` is returned unchanged. Any other exception is a bug in the plugin: it is logged with its traceback, and the
    returned error only describes it.
    """
    if isinstance(e, DraError):
        return e
    log.error("unexpected exception inside the plugin; please report it", exc_info=e)
    return DraError(f"an internal error of the plugin: {describe(e)}")
