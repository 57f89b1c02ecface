"""Explains pods for a live display in the background, in a thread.

While a pod on the screen is not explained yet, the work uses at most half of one core on average. Renewing reasons uses at most a 50th
of one core.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from dra_devkit.scheduling.framework import pod_info
from dra_kubeletplugin.errors import ApiError, clip, describe
from dra_kubeletplugin.kube.resource import PODS

from ..reader import with_events
from ..scheduler_view import SchedulerView
from ..snapshot import Snapshot
from ..usage.rows import PodReason, PodRow
from ..waiting_pods import is_reported_in_events
from ..watcher import ClusterWatcher
from .explain import explain, explain_pod
from .model import Explanation

_REST = 1.0  # seconds of rest for each second of work, while a pod has no reason
_LONG_REST = 49.0  # the same, before reasons are renewed
_PAUSE = 0.2  # seconds between two looks at the screen
_OLD = 5.0  # minimum seconds after which reasons are renewed if the cluster changed
_NEW_EVENTS = 30.0  # the same, if only events may have changed, because they are not watched
_FIRST = 60.0  # timeout in seconds for the first read of all objects
_MAX_REASONS = 1000  # maximum number of reasons that are kept


class BackgroundExplainer:
    """Finds the reasons of the pods that :meth:`show` set last, while :meth:`run` runs. ``lines`` maps a pod's UID to its reason."""

    def __init__(self, follower: ClusterWatcher) -> None:
        self.lines: dict[str, PodReason] = {}
        self.version = 0
        """Grows with each change of ``lines``."""
        self._follower = follower
        self._shown: tuple[PodRow, ...] = ()
        self._lock = asyncio.Lock()

    def show(self, pods: Iterable[PodRow]) -> None:
        """Sets the pods that are on the screen."""
        self._shown = tuple(pods)

    async def run(self) -> None:
        """Finds reasons: of the pods without a reason, or else of all pods on the screen once they may have changed. Never ends."""
        await self._wait_listed()
        version, renewed, ended, cost = -1, 0.0, 0.0, 0.0
        while True:
            await asyncio.sleep(_PAUSE)
            now, changed = time.monotonic(), self._follower.version != version
            is_due = now - renewed > max(_OLD if changed else _NEW_EVENTS, _LONG_REST * cost)
            new = [p for p in self._shown if p.uid not in self.lines]
            old = [p for p in self._shown if is_due and p.uid in self.lines and (changed or p.node)]
            if not (new or old) or now - ended < _REST * cost:
                continue
            if is_due:
                version, renewed = self._follower.version, now
            await self._explain([*new, *old])
            ended = time.monotonic()
            cost = ended - now

    async def full_explanation(self, pod: PodRow) -> Explanation:
        """Explains a pod in full, like `dra explain`.

        Raises:
            QuestionError: the pod no longer exists.
        """
        await self._wait_listed()
        async with self._lock:
            snapshot = await self._with_events(self._follower.snapshot(), pod)
            return await asyncio.to_thread(explain, snapshot, f"pod/{pod.name}", pod.namespace)

    async def _wait_listed(self) -> None:
        """Waits until running pods are known, because nodes look emptier without them.

        Waits at most one minute. After that, the snapshot names the kinds that are not read yet as gaps.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST):
                await self._follower.wait_listed()

    async def _explain(self, pods: Iterable[PodRow]) -> None:
        """Finds the reasons of some pods, with one scheduler view for all of them."""
        view = await asyncio.to_thread(SchedulerView, self._follower.snapshot())
        for pod in pods:
            try:
                async with self._lock:
                    line = await self._line(view, pod)
            except Exception as e:  # one pod that cannot be explained must not end the display of the other pods
                line = PodReason(f"the pod cannot be explained: {describe(e)}")
            if self.lines.get(pod.uid) != line:
                self.lines = {**self.lines, pod.uid: line}
                self.version += 1
        # Pods come and go, so memory needs a limit.
        if len(self.lines) > _MAX_REASONS:
            shown = {p.uid for p in self._shown}
            self.lines = {uid: line for uid, line in self.lines.items() if uid in shown}

    async def _line(self, view: SchedulerView, pod: PodRow) -> PodReason:
        """Returns the summary of a pod's explanation. It tries no changes."""
        obj = self._follower.objects(PODS).get(pod.uid)
        if obj is None:
            return PodReason("the pod no longer exists")
        view = view.with_snapshot(await self._with_events(view.snapshot, pod))
        found = await asyncio.to_thread(explain_pod, view, pod_info.read(dict(obj)), changes=False)
        return PodReason(clip(found.summary), found.reported)

    async def _with_events(self, snapshot: Snapshot, pod: PodRow) -> Snapshot:
        """Adds events to the snapshot for a pod whose cause may be only in events."""
        obj = self._follower.objects(PODS).get(pod.uid)
        if obj is not None and is_reported_in_events(pod_info.read(dict(obj))):
            try:
                return await with_events(self._follower.client, snapshot, pod.namespace, pod.uid)
            except ApiError:  # the display shows that the API server does not respond; explain without events
                pass
        return snapshot
