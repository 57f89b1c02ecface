"""Retries of rollbacks that failed: when the next one is due, and which failures are logged.

The pause doubles with each failure. A call of the kubelet for the claim, or for another claim that needs its devices, does not
wait for the pause. Each distinct text about a claim is logged once until the claim is rolled back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

from ..base.backoff import Backoff
from ..base.telemetry.log_once import LogOnce
from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..errors import DraError, StoppingError
from .record import Record, State
from .waits import Waits

log = logging.getLogger(__name__)


class RollbackRetries:
    """The failed rollbacks of one process. All methods are called on the event loop."""

    def __init__(self, metrics: Metrics, waits: Waits) -> None:
        metrics.measure("rollbacks_failing", lambda: len(self.due))
        self._waits = waits
        self.due: dict[str, float] = {}
        """When each claim is tried next, by UID: in seconds of ``time.monotonic()``; infinite during a try."""
        self._failures: dict[str, int] = {}
        self._logged = LogOnce()

    def failed(self, uid: str, attempts: int = 0) -> float:
        """Schedules the next try.

        Args:
            uid: the claim's UID.
            attempts: the failures that the claim's record counts, including failures in earlier processes.

        Returns:
            The pause in seconds.
        """
        self._failures[uid] = max(self._failures.get(uid, 0) + 1, attempts)
        pause = Backoff(*self._waits.rollback_retries, failures=self._failures[uid]).delay()
        self.due[uid] = time.monotonic() + pause
        return pause

    def done(self, uid: str) -> None:
        """Forgets a claim that is rolled back, or has nothing to roll back."""
        self.due.pop(uid, None)
        self._failures.pop(uid, None)
        self._logged.forget(uid)

    def log(
        self, uid: str, message: str, *values: object, level: int = logging.ERROR, claim: Record | None = None
    ) -> None:
        """Logs ``message`` unless it was logged for this claim before.

        Args:
            uid: the claim's UID.
            message: the constant text, with a ``%s`` for each of ``values``.
            claim: the claim's record; needed for the log fields if the current task works on another claim.
        """
        if self._logged.is_new(uid, message % values):
            log.log(level, message, *values, extra=claim_fields(claim) if claim else {"claim_uid": uid})

    async def run(self, roll_back: Callable[[str], Awaitable[bool]]) -> None:
        """Tries rollbacks again when they are due. Never returns.

        Args:
            roll_back: rolls back the claim with this UID and calls :meth:`done`. It raises :class:`DraError` if that fails.
        """

        async def try_again(uid: str) -> None:
            try:
                await roll_back(uid)
            except StoppingError:
                pass  # the next process rolls it back
            except DraError as e:
                if self.due.get(uid) == math.inf:  # it failed before the rollback began
                    self.log(uid, "cannot roll back claim: %s", e)
                    self.failed(uid)

        async with asyncio.TaskGroup() as tasks:
            while True:
                for uid, due in self.due.items():
                    if due <= time.monotonic():
                        self.due[uid] = math.inf
                        tasks.create_task(try_again(uid), name=f"roll back {uid}")
                await asyncio.sleep(self._waits.rollback_check)


def retry_note(record: Record) -> str:
    """Returns how often the rollback of a claim failed and when it is tried next; empty if no rollback has failed."""
    if record.state is not State.UNPREPARING or not record.error:
        return ""
    tries = f"tried {record.attempts} time{'s' * (record.attempts != 1)}"
    if record.retry_at is None:
        return tries
    return f"{tries}, next in {max(0, round(record.retry_at - time.time()))} s"
