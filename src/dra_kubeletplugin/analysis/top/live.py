"""An overview that stays true: followed by watches, made anew at most once a second, with the reasons of the pods that are shown."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from ...errors import printable
from ...kube import KubeClient
from ...resourceapi.usage.rows import Overview
from ...resourceapi.usage.usage import UsageCounter
from ..explain.background import BackgroundExplainer
from ..snapshot import Gap
from ..watcher import ClusterWatcher
from .overview import overview

EVERY = 1.0  # seconds between two that are made
_FIRST = 60.0  # seconds for the first look at everything


class LiveOverview:
    """Args:
    node: whose devices; of all nodes where it is empty.
    namespace: what is tried alone where a list of all namespaces is refused.
    """

    def __init__(self, client: KubeClient, node: str = "", namespace: str = "") -> None:
        self.follower = ClusterWatcher(client, namespace)
        self.reasons = BackgroundExplainer(self.follower)
        self._node = node
        self._tallier = UsageCounter()
        self._made: Overview | None = None
        # The versions that it was made of, and what could not be read.
        self._of: tuple[int, int, tuple[Gap, ...]] = (-1, -1, ())
        self._next = 0.0  # monotonic

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Inside, everything is read or refused, or has had a minute for it.

        Raises :class:`QuestionError` where the cluster has no DRA, :class:`ApiError` where it does not answer.
        """
        await self.follower.start()
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(job()) for job in (self.follower.run, self.reasons.run)]
            try:
                with contextlib.suppress(TimeoutError):  # what is there by then is shown, and why there is no more
                    async with asyncio.timeout(_FIRST):
                        await self.follower.looked()
                yield
            finally:
                for job in jobs:
                    job.cancel()

    def current(self) -> Overview:
        """The same object as long as nothing has changed that can be seen."""
        now = time.monotonic()
        versions = (self.follower.version, self.reasons.version, self.follower.gaps)
        if self._made is None or (versions != self._of and now >= self._next):
            found = overview(self.follower.snapshot(), self._node, self.reasons.lines, self._tallier)
            self._made = replace(found, notes=(*found.notes, *self.follower.notes), at=time.time())
            self._of, self._next = versions, now + EVERY
        away, since = self.follower.away
        if bool(away) is not bool(self._made.away):
            told = f"{printable(away)} (since {time.strftime('%H:%M:%S', time.localtime(since))})" if away else ""
            self._made = replace(self._made, away=told)
        return self._made


__all__ = ["LiveOverview"]
