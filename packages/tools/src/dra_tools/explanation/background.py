"""Explains pods for a live display in the background: in a thread, one pod at a time.

While a pod on the screen is not explained yet, the work uses at most half of one core. Renewing reasons uses at most a 50th of one
core.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from dra_devkit.scheduling.framework import pod_info
from dra_devkit.scheduling.framework.claim_cache import is_allocated
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.errors import ApiError, clip, describe
from dra_kubeletplugin.kube.resource import CLAIMS, PODS

from ..reader import with_events
from ..scheduler_view import SchedulerView
from ..snapshot import Snapshot
from ..usage.rows import PodReason, PodRow
from ..waiting_pods import is_reported_in_events
from ..watcher import ClusterWatcher
from .cluster_reasons import claim_name, entries
from .explain import explain, explain_pod
from .model import Explanation

_REST = 1.0  # seconds of rest for each second of work on a pod without a reason
_LONG_REST = 49.0  # the same, after a reason was renewed, or if no pod had to be explained
_PAUSE = 0.2  # minimum seconds of rest
_OLD = 5.0  # seconds after which a pod is explained again if the cluster changed
_NEW_EVENTS = 30.0  # the same, if only events may have changed, because they are not watched
_VIEW_AGE = 40.0  # seconds for which a view is used, for each second that it took to build it
_FIRST = 60.0  # timeout in seconds for the first read of all objects
_MAX_REASONS = 1000  # maximum number of reasons that are kept
_SPEC_FIELDS_NOT_IN_KEY = {"resourceClaims", "containers", "initContainers", "volumes"}


@dataclass(frozen=True)
class _Found:
    line: PodReason
    version: int  # version of the cluster
    at: float  # monotonic time at which the reason was found


class BackgroundExplainer:
    """Finds the reasons of the pods that :meth:`show` set last, while :meth:`run` runs. ``lines`` maps a pod's UID to its reason."""

    def __init__(self, follower: ClusterWatcher) -> None:
        self.lines: dict[str, PodReason] = {}
        self.version = 0
        """Grows with each change of ``lines``."""
        self._follower = follower
        self._found: dict[str, _Found] = {}  # keys are results of _group_key, or UIDs
        self._shown: tuple[PodRow, ...] = ()
        self._claims: Mapping[tuple[str, str], ReadOnlyJSON] = {}
        self._claims_of = -1  # version of the cluster for which _claims was built
        self._view: SchedulerView | None = None
        # Version of the cluster for which _view was built, and the monotonic time at which it was built
        self._view_version, self._view_time = -1, 0.0
        self._view_cost, self._view_pods = 0.0, frozenset[str]()  # the seconds that it took, and the UIDs of its pods
        self._lock = asyncio.Lock()

    def show(self, pods: Iterable[PodRow]) -> None:
        """Sets the pods that are on the screen."""
        self._shown = tuple(pods)

    async def run(self) -> None:
        """Finds reasons. Never ends."""
        await self._wait_listed()
        while True:
            started = time.monotonic()
            keys = {pod.uid: self._group_key(pod) for pod in self._shown}
            pod = self._next(keys, started)
            rest = _REST if pod is not None and self._of(pod.uid, keys) is None else _LONG_REST
            if pod is not None:
                await self._explain(pod, keys[pod.uid])
            self._update_lines(keys)
            await asyncio.sleep(max(_PAUSE, rest * (time.monotonic() - started)))

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

    async def _line(self, pod: PodRow) -> PodReason:
        """Returns the summary of a pod's explanation. It tries no changes, and it reuses one scheduler view for several pods."""
        async with self._lock:
            if self._view is None or (self._view_version != self._follower.version and self._is_old(pod)):
                snapshot, started = self._follower.snapshot(), time.monotonic()
                self._view_version, self._view_pods = self._follower.version, frozenset(self._follower.objects(PODS))
                self._view = await asyncio.to_thread(SchedulerView, snapshot)
                self._view_time, self._view_cost = started, time.monotonic() - started
            obj = self._follower.objects(PODS).get(pod.uid)
            if obj is None:
                return PodReason("the pod no longer exists")
            view = self._view.with_snapshot(await self._with_events(self._view.snapshot, pod))
            found = await asyncio.to_thread(explain_pod, view, pod_info.read(dict(obj)), changes=False)
            return PodReason(clip(found.summary), found.reported)

    def _is_old(self, pod: PodRow) -> bool:
        """Returns whether the view is too old for the pod: after 5 s if it lacks the pod, else after a time that grows with its cost."""
        age = time.monotonic() - self._view_time
        return age > _OLD and (pod.uid not in self._view_pods or age > _VIEW_AGE * self._view_cost)

    async def _with_events(self, snapshot: Snapshot, pod: PodRow) -> Snapshot:
        """Adds events to the snapshot for a pod whose cause may be only in events."""
        obj = self._follower.objects(PODS).get(pod.uid)
        if obj is not None and is_reported_in_events(pod_info.read(dict(obj))):
            try:
                return await with_events(self._follower.client, snapshot, pod.namespace, pod.uid)
            except ApiError:  # the display shows that the API server does not respond; explain without events
                pass
        return snapshot

    def _next(self, keys: Mapping[str, str], now: float) -> PodRow | None:
        """Returns the next pod to explain: a pod without a reason, else the pod with the oldest reason that may have changed."""
        known = [(self._of(pod.uid, keys), pod) for pod in self._shown]
        if fresh := next((pod for found, pod in known if found is None), None):
            return fresh
        due = [
            (found.at, pod)
            for found, pod in known
            if found is not None and now - found.at > self._renewed_after(pod, found)
        ]
        return min(due, key=lambda d: d[0])[1] if due else None

    def _renewed_after(self, pod: PodRow, found: _Found) -> float:
        if found.version != self._follower.version:
            return _OLD
        return _NEW_EVENTS if pod.node else float("inf")

    async def _explain(self, pod: PodRow, key: str) -> None:
        """Finds the reason of a pod. Stores it for all pods with the key; if it names the pod or its claims, for this pod only."""
        version = self._follower.version
        try:
            line = await self._line(pod)
        except Exception as e:  # one pod that cannot be explained must not end the display of the other pods
            line = PodReason(f"the pod cannot be explained: {describe(e)}")
        own = any(name in line.text for name in (pod.name, *self._claim_names(pod)))
        if own:  # valid for this pod only
            self._found.pop(key, None)
        self._found[pod.uid if own else key] = _Found(line, version, time.monotonic())
        if not own and key != pod.uid:
            self._found.pop(pod.uid, None)

    def _of(self, uid: str, keys: Mapping[str, str]) -> _Found | None:
        return self._found.get(keys[uid]) or self._found.get(uid)

    def _update_lines(self, keys: Mapping[str, str]) -> None:
        lines = dict(self.lines)
        for uid in keys:
            if found := self._of(uid, keys):
                lines[uid] = found.line
        # Each change of a waiting pod may add a reason, so memory needs a limit.
        if max(len(lines), len(self._found)) > _MAX_REASONS:
            lines = {uid: line for uid, line in lines.items() if uid in keys}
            kept = {*keys, *keys.values()}
            self._found = {key: found for key, found in self._found.items() if key in kept}
        if lines != self.lines:
            self.lines = lines
            self.version += 1

    # --- pods of one template -------------------------------------------------------------------

    def _group_key(self, pod: PodRow) -> str:
        """Returns a key that is equal for pods that a scheduler treats alike, so that only one of them is explained."""
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
        parts = [
            pod.namespace,
            obj["metadata"].get("labels"),
            {k: v for k, v in spec.items() if k not in _SPEC_FIELDS_NOT_IN_KEY},
            [(c.get("resources"), c.get("ports")) for k in ("initContainers", "containers") for c in spec.get(k) or []],
            [claim["spec"] for claim in wants if claim is not None],
        ]
        return msgspec.json.encode(parts).decode()

    def _claim_names(self, pod: PodRow) -> list[str]:
        obj = self._follower.objects(PODS).get(pod.uid)
        if obj is None:
            return []
        info = pod_info.read(dict(obj))
        return [name for entry in entries(info) if (name := claim_name(info, entry))]
