"""Work on claims under way: one flight a claim. The same work is joined, the opposite waits, other claims never do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..errors import DraError
from ..observe.log import operation_id
from ..observe.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Flight:
    kind: str
    task: asyncio.Task[Any]


class Flights:
    """Flights outlive the calls that began them; only :meth:`end` ends one early."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._under_way: dict[str, _Flight] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._under_way

    @property
    def uids(self) -> list[str]:
        return list(self._under_way)

    def start(self, uid: str, kind: str, work: Callable[[], Awaitable[Any]]) -> tuple[asyncio.Task[Any], bool]:
        """The task that does ``kind`` for a claim: the one under way, or a new one behind the opposite.

        The second value is True where nothing was under way for the claim.
        """
        before = self._under_way.get(uid)
        if before and before.kind == kind:
            return before.task, False

        async def run() -> Any:
            if before:
                await asyncio.wait([before.task])
            try:
                return await work()
            except DraError as e:
                # Who joins this work is told where its log lines are.
                e.operation = e.operation or operation_id()
                raise

        task = asyncio.create_task(run(), name=f"{kind} {uid}")
        flight = _Flight(kind, task)
        self._under_way[uid] = flight

        def landed(done: asyncio.Task[Any]) -> None:
            if self._under_way.get(uid) is flight:
                del self._under_way[uid]
            self._count()
            if not done.cancelled():
                done.exception()  # retrieved, so that an answer nobody waits for is no warning

        task.add_done_callback(landed)
        self._count()
        return task, before is None

    def _count(self) -> None:
        self.metrics.set("in_flight", len(self._under_way))

    async def end(self, grace: float) -> None:
        """Waits up to ``grace`` seconds for what is under way, then cancels the rest: the next process undoes it."""
        if self._under_way:
            log.info("stopping: %d claims are being worked on", len(self._under_way))
            await asyncio.wait([f.task for f in self._under_way.values()], timeout=grace)
        left = [f.task for f in self._under_way.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if left:
            log.warning("%d claims were left unfinished: the next start undoes them", len(left))
