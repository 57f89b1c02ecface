"""An overview of a cluster, kept current by watches, with reasons for the pods on the screen.

It is rebuilt at most once a second, and in a large cluster more rarely, so that it takes at most a 25th of one core.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from dra_kubeletplugin.errors import printable
from dra_kubeletplugin.kube import KubeClient

from ..explanation.background import BackgroundExplainer
from ..snapshot import Gap
from ..unevaluated.objects import parts_of_slice
from ..usage.rows import Overview
from ..usage.usage import ObjectCache, UsageCounter
from ..watcher import ClusterWatcher
from .overview import overview

EVERY = 1.0  # minimum seconds between two rebuilds
_REST = 24.0  # seconds without a rebuild for each second of CPU time of the last one
_FIRST = 60.0  # timeout in seconds for the first read of all objects


class LiveOverview:
    """A live overview.

    Args:
        node: show the devices of this node; empty for all nodes.
        namespace: read this namespace only if a list of all namespaces is refused.
        pods_of: show the waiting pods of this namespace; empty for all namespaces.
    """

    def __init__(self, client: KubeClient, node: str = "", namespace: str = "", pods_of: str = "") -> None:
        self.follower = ClusterWatcher(client, namespace)
        self.reasons = BackgroundExplainer(self.follower)
        self._node = node
        self._pods_of = pods_of
        self._counter = UsageCounter()
        self._parts = ObjectCache(parts_of_slice)
        self._made: Overview | None = None
        # The versions from which _made was built, and the gaps at that time.
        self._of: tuple[int, int, tuple[Gap, ...]] = (-1, -1, ())
        self._next = 0.0  # monotonic time before which _made is not rebuilt

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watches the cluster inside the context. The context begins when every kind that rows show was read or refused, or after a minute.

        Raises:
            QuestionError: the cluster has no DRA.
            ApiError: the API server failed or could not be reached.
        """
        await self.follower.start()
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(job()) for job in (self.follower.run, self.reasons.run)]
            try:
                with contextlib.suppress(TimeoutError):  # `gaps` has the kinds that were not read in time
                    async with asyncio.timeout(_FIRST):
                        await self.follower.wait_devices()
                yield
            finally:
                for job in jobs:
                    job.cancel()

    def rest(self, used: float) -> None:
        """Delays the next rebuild, because the last rebuild and its display took ``used`` seconds of CPU time."""
        self._next = max(self._next, time.monotonic() + _REST * used)

    def current(self) -> Overview:
        """Returns the overview. It is the same object until something visible changes."""
        now = time.monotonic()
        versions = (self.follower.version, self.reasons.version, self.follower.gaps)
        if self._made is None or (versions != self._of and now >= self._next):
            snapshot, reasons = self.follower.snapshot(), self.reasons.lines
            found = overview(snapshot, self._node, reasons, self._counter, self._pods_of, self._parts)
            self._made = replace(found, notes=(*found.notes, *self.follower.notes), at=time.time())
            self._of, self._next = versions, now + EVERY
        fault, since = self.follower.unavailable
        if bool(fault) is not bool(self._made.unavailable):
            text = f"{printable(fault)} (since {time.strftime('%H:%M:%S', time.localtime(since))})" if fault else ""
            self._made = replace(self._made, unavailable=text)
        return self._made
