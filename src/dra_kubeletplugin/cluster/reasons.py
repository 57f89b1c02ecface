"""Explanations of pods while somebody looks: beside the event loop, one at a time, and in a bounded share of the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import ApiError, QuestionError
from ..overview.rows import PodRow
from .answers import Explanation
from .explaining import explain
from .following import Follower
from .reading import with_events

_REST = 4.0  # for a second of explaining so many seconds of rest: at most a fifth of one core
_PAUSE = 0.2  # seconds, at least
_OLD = 5.0  # seconds after which what changed meanwhile is looked at again


@dataclass(frozen=True)
class _Found:
    line: str
    version: int  # of the cluster
    at: float  # monotonic


class Reasons:
    """While :meth:`run` runs, ``lines`` gets the reasons of the pods that :meth:`show` named last, by UID."""

    def __init__(self, follower: Follower) -> None:
        self.lines: dict[str, str] = {}
        self.version = 0
        """Grows with each change of ``lines``."""
        self._follower = follower
        self._found: dict[str, _Found] = {}
        self._shown: tuple[PodRow, ...] = ()
        self._turn = asyncio.Lock()

    def show(self, pods: Iterable[PodRow]) -> None:
        """These are on the screen; what was said of others is forgotten once they are no longer there."""
        self._shown = tuple(pods)

    async def run(self) -> None:
        """Never ends."""
        while True:
            started = time.monotonic()
            pod = self._next(started)
            if pod is not None:
                await self._look(pod)
            await asyncio.sleep(max(_PAUSE, _REST * (time.monotonic() - started)))

    async def whole(self, pod: PodRow) -> Explanation:
        """As `dra explain` has it, of now. Raises :class:`QuestionError` where the pod is no longer there."""
        async with self._turn:
            snapshot = self._follower.snapshot()
            if pod.node:  # what the kubelet says is in events alone
                try:
                    snapshot = await with_events(self._follower.client, snapshot, pod.namespace, pod.uid)
                except ApiError:  # the server is away, which is shown: what is known is explained
                    pass
            return await asyncio.to_thread(explain, snapshot, f"pod/{pod.name}", pod.namespace)

    def _next(self, now: float) -> PodRow | None:
        """Whom nothing was said of yet; else the one whose reason is oldest, where the cluster has changed since."""
        shown = self._shown
        if fresh := next((p for p in shown if p.uid not in self._found), None):
            return fresh
        due = [
            (f.at, p)
            for p in shown
            if (f := self._found[p.uid]).version != self._follower.version and now - f.at > _OLD
        ]
        return min(due, key=lambda d: d[0])[1] if due else None

    async def _look(self, pod: PodRow) -> None:
        version = self._follower.version
        try:
            line = (await self.whole(pod)).summary
        except QuestionError as e:
            line = str(e)
        self._found[pod.uid] = _Found(line, version, time.monotonic())
        if self.lines.get(pod.uid) != line:
            self.lines[pod.uid] = line
            self.version += 1
        if len(self._found) > 4 * len(self._shown) + 100:
            kept = {p.uid for p in self._shown}
            self._found = {u: f for u, f in self._found.items() if u in kept}
            self.lines = {u: line for u, line in self.lines.items() if u in kept}


__all__ = ["Reasons"]
