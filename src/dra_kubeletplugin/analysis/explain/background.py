"""Explanations of pods while somebody looks: beside the event loop, one at a time, and in a bounded share of the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...errors import ApiError, clip, describe
from ...kube.resource import CLAIMS, PODS
from ...resourceapi.usage.rows import PodRow
from ...scheduling.framework import pod_info
from ...scheduling.framework.claim_cache import is_allocated
from ..reader import with_events
from ..scheduler_view import SchedulerView
from ..snapshot import Snapshot
from ..watcher import ClusterWatcher
from .cluster_reasons import claim_name, entries
from .explain import explain, explain_pod
from .model import Explanation

JSON = Mapping[str, Any]
_REST = 4.0  # for a second of explaining so many seconds of rest: at most a fifth of one core
_PAUSE = 0.2  # seconds, at least
_OLD = 5.0  # seconds after which what changed meanwhile is looked at again
_MOST = 1000  # reasons that are kept
_NOT_SCHEDULED_BY = {"resourceClaims", "containers", "initContainers", "volumes"}


@dataclass(frozen=True)
class _Found:
    line: str
    version: int  # of the cluster
    at: float  # monotonic


class BackgroundExplainer:
    """While :meth:`run` runs, ``lines`` gets the reasons of the pods that :meth:`show` named last, by UID."""

    def __init__(self, follower: ClusterWatcher) -> None:
        self.lines: dict[str, str] = {}
        self.version = 0
        """Grows with each change of ``lines``."""
        self._follower = follower
        self._found: dict[str, _Found] = {}  # by likeness
        self._shown: tuple[PodRow, ...] = ()
        self._claims: Mapping[tuple[str, str], JSON] = {}
        self._claims_of = -1  # the version of the cluster
        self._scene: SchedulerView | None = None
        self._scene_of, self._scene_at = -1, 0.0  # the version of the cluster, and when
        self._turn = asyncio.Lock()

    def show(self, pods: Iterable[PodRow]) -> None:
        """These are on the screen."""
        self._shown = tuple(pods)

    async def run(self) -> None:
        """Never ends."""
        while True:
            started = time.monotonic()
            likes = {pod.uid: self._likeness(pod) for pod in self._shown}
            pod = self._next(likes, started)
            if pod is not None:
                await self._look(pod, likes[pod.uid])
            self._tell(likes)
            await asyncio.sleep(max(_PAUSE, _REST * (time.monotonic() - started)))

    async def whole(self, pod: PodRow) -> Explanation:
        """As `dra explain` has it, of now. Raises :class:`QuestionError` where the pod is no longer there."""
        async with self._turn:
            snapshot = await self._with_events(self._follower.snapshot(), pod)
            return await asyncio.to_thread(explain, snapshot, f"pod/{pod.name}", pod.namespace)

    async def _line(self, pod: PodRow) -> str:
        """The summary of it: what would be enough is not tried, and the scene serves several pods."""
        async with self._turn:
            if self._scene is None or (
                self._scene_of != self._follower.version and time.monotonic() - self._scene_at > _OLD
            ):
                snapshot = self._follower.snapshot()
                self._scene_of, self._scene_at = self._follower.version, time.monotonic()
                self._scene = await asyncio.to_thread(SchedulerView, snapshot)
            obj = self._follower.objects(PODS).get(pod.uid)
            if obj is None:
                return "it is no longer there"
            scene = self._scene.seen_with(await self._with_events(self._scene.snapshot, pod))
            found = await asyncio.to_thread(explain_pod, scene, pod_info.read(dict(obj)), changes=False)
            return clip(found.summary)

    async def _with_events(self, snapshot: Snapshot, pod: PodRow) -> Snapshot:
        """What the kubelet says is in events alone."""
        if pod.node:
            try:
                return await with_events(self._follower.client, snapshot, pod.namespace, pod.uid)
            except ApiError:  # the server is away, which is shown: what is known is explained
                pass
        return snapshot

    def _next(self, likes: Mapping[str, str], now: float) -> PodRow | None:
        """Whom nothing was said of yet; else the one whose reason is oldest, where the cluster has changed since."""
        known = [(self._of(pod.uid, likes), pod) for pod in self._shown]
        if fresh := next((pod for found, pod in known if found is None), None):
            return fresh
        due = [
            (found.at, pod)
            for found, pod in known
            if found is not None and found.version != self._follower.version and now - found.at > _OLD
        ]
        return min(due, key=lambda d: d[0])[1] if due else None

    async def _look(self, pod: PodRow, like: str) -> None:
        version = self._follower.version
        try:
            line = await self._line(pod)
        except Exception as e:  # a pod that cannot be explained must not end what is shown of all others
            line = f"this could not be explained: {describe(e)}"
        own = any(name in line for name in (pod.name, *self._claim_names(pod)))
        if own:  # what names the pod, or a claim of it, is true of this one alone
            self._found.pop(like, None)
        self._found[pod.uid if own else like] = _Found(line, version, time.monotonic())
        if not own and like != pod.uid:
            self._found.pop(pod.uid, None)

    def _of(self, uid: str, likes: Mapping[str, str]) -> _Found | None:
        return self._found.get(likes[uid]) or self._found.get(uid)

    def _tell(self, likes: Mapping[str, str]) -> None:
        lines = dict(self.lines)
        for uid in likes:
            if found := self._of(uid, likes):
                lines[uid] = found.line
        if max(len(lines), len(self._found)) > _MOST:  # a pod that waits may change for ever
            lines = {uid: line for uid, line in lines.items() if uid in likes}
            kept = {*likes, *likes.values()}
            self._found = {key: found for key, found in self._found.items() if key in kept}
        if lines != self.lines:
            self.lines = lines
            self.version += 1

    # --- pods of one template -------------------------------------------------------------------

    def _likeness(self, pod: PodRow) -> str:
        """The same for pods that a scheduler would treat alike: their reason is looked for once."""
        obj = self._follower.objects(PODS).get(pod.uid)
        if obj is None or pod.node:
            return pod.uid
        if self._claims_of != self._follower.version:
            self._claims_of = self._follower.version
            claims = self._follower.objects(CLAIMS).values()
            self._claims = {(c["metadata"]["namespace"], c["metadata"]["name"]): c for c in claims}
        wants = [self._claims.get((pod.namespace, name)) for name in self._claim_names(pod)]
        if any(claim is None or is_allocated(claim) for claim in wants):
            return pod.uid
        spec = obj["spec"]
        said = [
            pod.namespace,
            obj["metadata"].get("labels"),
            {k: v for k, v in spec.items() if k not in _NOT_SCHEDULED_BY},
            [(c.get("resources"), c.get("ports")) for k in ("initContainers", "containers") for c in spec.get(k) or []],
            [claim["spec"] for claim in wants if claim is not None],
        ]
        return msgspec.json.encode(said).decode()

    def _claim_names(self, pod: PodRow) -> list[str]:
        obj = self._follower.objects(PODS).get(pod.uid)
        if obj is None:
            return []
        info = pod_info.read(dict(obj))
        return [name for entry in entries(info) if (name := claim_name(info, entry))]


__all__ = ["BackgroundExplainer"]
