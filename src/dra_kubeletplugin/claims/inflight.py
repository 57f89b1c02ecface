"""Work on claims under way: one flight a claim. The same work is joined, other work waits, other claims never do."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..base.telemetry.logs import operation_id
from ..base.telemetry.metrics import Metrics
from ..errors import DraError, describe

log = logging.getLogger(__name__)


class Work(enum.Enum):
    """What is done for a claim. Work is joined by others that ask for the same."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"
    FREE = "free"  # for others, who wait for its devices
    TIDY = "tidy"  # recovery and reconciling: what one pass found is not what another asks for

    @property
    def joinable(self) -> bool:
        return self is not Work.TIDY


@dataclass(frozen=True)
class _ClaimTask:
    work: Work
    task: asyncio.Task[Any]


class ClaimTasks:
    """Flights outlive the calls that began them; only :meth:`end` ends one early."""

    def __init__(self, metrics: Metrics) -> None:
        metrics.measure("in_flight", lambda: len(self._last))
        self.ending = False  # nothing new is to be started
        self._last: dict[str, _ClaimTask] = {}  # the newest of each claim; earlier ones are waited for by it
        self._all: set[asyncio.Task[Any]] = set()

    def __contains__(self, uid: object) -> bool:
        return uid in self._last

    def prepares(self, uid: str) -> bool:
        """Whether a prepare is the last that is under way for a claim. May be asked from any thread."""
        last = self._last.get(uid)
        return last is not None and last.work is Work.PREPARE

    @property
    def uids(self) -> list[str]:
        return list(self._last)

    def start(self, uid: str, work: Work, do: Callable[[], Awaitable[Any]]) -> tuple[asyncio.Task[Any], bool]:
        """The task that does ``work`` for a claim: the one under way, or a new one behind what is.

        The second value is True where nothing was under way for the claim.
        """
        before = self._last.get(uid)
        if before and before.work is work and work.joinable:
            return before.task, False

        async def run() -> Any:
            if before:
                await asyncio.wait([before.task])
            try:
                return await do()
            except DraError as e:
                # Who joins this work is told where its log lines are.
                e.operation = e.operation or operation_id()
                raise

        task = asyncio.create_task(run(), name=f"{work.value} {uid}")
        flight = _ClaimTask(work, task)
        self._last[uid] = flight
        self._all.add(task)

        def landed(done: asyncio.Task[Any]) -> None:
            self._all.discard(done)
            if self._last.get(uid) is flight:
                del self._last[uid]
            if not done.cancelled():
                done.exception()  # retrieved, so that an answer nobody waits for is no warning

        task.add_done_callback(landed)
        return task, before is None

    async def end(self, grace: float) -> None:
        """Waits up to ``grace`` seconds for what is under way, then cancels the rest: the next process undoes it.

        Never takes much longer, also where a driver's method does not let itself be cancelled.
        """
        self.ending = True
        if self._all:
            log.info("stopping: %d claims are being worked on", len(self._last))
            await asyncio.wait(self._all, timeout=grace)
        left = set(self._all)
        for task in left:
            task.cancel()
        if left:
            _, stuck = await asyncio.wait(left, timeout=1)
            names = ", ".join(sorted(t.get_name() for t in left))
            log.warning("%d claims were left unfinished (%s): the next start undoes them", len(left), names)
            if stuck:
                log.warning("%d of them do not let themselves be cancelled", len(stuck))


def as_dra_error(e: BaseException) -> DraError:
    """How a flight failed. Errors pass; what is none is a fault of ours, told without its insides and logged with them."""
    if isinstance(e, DraError):
        return e
    log.error("a fault of the framework", exc_info=e)
    return DraError(f"a fault inside the plugin: {describe(e)}")
