"""Runs the probes of containers and decides which containers have started, are ready or must be restarted.

Each probe runs once per period. Its result changes after as many equal outcomes as its threshold.
Source: kubernetes, pkg/kubelet/prober (worker.go, prober.go).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from ..event_recorder import EventRecorder
from ..runtime.interface import (
    ContainerRuntime,
    ContainerState,
    ContainerStatus,
    HandlerAction,
    HandlerOccasion,
    Outcome,
    ProbeResult,
)
from ..work_queue import WorkQueue
from .containers import roles
from .pod_status import ContainerReadiness
from .probe_targets import NoSuchPort, handler_of

log = logging.getLogger(__name__)
_PROBES = (HandlerOccasion.STARTUP, HandlerOccasion.READINESS, HandlerOccasion.LIVENESS)
# results of a probe before its first run
_BEFORE = {HandlerOccasion.STARTUP: None, HandlerOccasion.READINESS: False, HandlerOccasion.LIVENESS: True}
_AT_ONCE = 64  # probes that run at the same time; many, so that hanging probes rarely delay others
_TRIES = 3  # number of attempts if a probe cannot be run


@dataclass(frozen=True)
class _Key:
    uid: str
    container: str
    occasion: HandlerOccasion


@dataclass
class ProbeState:
    """The state of one probe for one attempt of a container. ``good`` is the result by the thresholds; None until it is known."""

    container_id: str
    good: bool | None
    last: bool | None = None
    streak: int = 0  # number of consecutive equal results
    runs: int = 0
    finished: bool = False  # whether this probe of this attempt does not run again

    def record(self, passed: bool, probe: Mapping[str, Any], occasion: HandlerOccasion) -> bool:
        """Records the result of one run. Returns whether ``good`` changed."""
        self.streak = self.streak + 1 if passed is self.last else 1
        self.last = passed
        if self.streak < int(probe.get("successThreshold" if passed else "failureThreshold") or (1 if passed else 3)):
            return False
        changed = self.good is not passed
        self.good = passed
        if occasion is HandlerOccasion.STARTUP or (occasion is HandlerOccasion.LIVENESS and not passed):
            self.finished = True
        return changed


class Probes:
    """The probes of all pods of a node.

    Args:
        changed: called with the UID of a pod when the result of one of its probes changed.
    """

    def __init__(self, runtime: ContainerRuntime, events: EventRecorder, changed: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._events = events
        self._changed = changed
        self._pods: dict[str, JSON] = {}
        self._states: dict[_Key, ProbeState] = {}
        self._reported: set[tuple[_Key, str]] = set()
        self._queue: WorkQueue[_Key] = WorkQueue()

    async def run(self) -> None:
        """Runs the probes. Never returns."""
        await self._queue.work(self._probe, self._failed, _AT_ONCE)

    # --- state --------------------------------------------------------------------------------------------

    def follow(self, pod: JSON) -> None:
        """Starts the probes of the pod's running containers. All runs use the pod of the last call of this method."""
        uid = pod["metadata"]["uid"]
        self._pods[uid] = pod
        statuses = self._runtime.statuses(uid)
        for container, _ in roles(pod):
            status = statuses.get(container["name"])
            if status is None or status.state is not ContainerState.RUNNING:
                continue
            for occasion in _PROBES:
                key = _Key(uid, container["name"], occasion)
                if container.get(occasion.value) and self._state_of(key, status).runs == 0:
                    self._queue.add(key)

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._states = {k: v for k, v in self._states.items() if k.uid != uid}
        self._reported = {(k, text) for k, text in self._reported if k.uid != uid}

    def readiness_of(self, uid: str, container: Mapping[str, Any], status: ContainerStatus) -> ContainerReadiness:
        """Returns whether a container has started and is ready."""
        if status.state is not ContainerState.RUNNING:
            return ContainerReadiness(started=False, ready=False)
        started = self._passed(uid, container, status, HandlerOccasion.STARTUP)
        return ContainerReadiness(started, started and self._passed(uid, container, status, HandlerOccasion.READINESS))

    def failed(self, uid: str, container: Mapping[str, Any], status: ContainerStatus) -> HandlerOccasion | None:
        """Returns the failed probe because of which a running container must be stopped; None if there is none."""
        for occasion in (HandlerOccasion.LIVENESS, HandlerOccasion.STARTUP):
            if container.get(occasion.value):
                state = self._state_of(_Key(uid, container["name"], occasion), status)
                if state.good is False and state.finished:
                    return occasion
        return None

    def _passed(
        self, uid: str, container: Mapping[str, Any], status: ContainerStatus, occasion: HandlerOccasion
    ) -> bool:
        if not container.get(occasion.value):
            return True
        return bool(self._state_of(_Key(uid, container["name"], occasion), status).good)

    def _state_of(self, key: _Key, status: ContainerStatus) -> ProbeState:
        found = self._states.get(key)
        if found is None or found.container_id != status.id:
            found = self._states[key] = ProbeState(status.id, _BEFORE[key.occasion])
        return found

    # --- one probe ----------------------------------------------------------------------------------------

    async def _probe(self, key: _Key) -> None:
        """Runs a probe once if it is due, and queues it again after its period."""
        pod = self._pods.get(key.uid)
        status = self._runtime.statuses(key.uid).get(key.container)
        container = next((c for c, _ in roles(pod) if c["name"] == key.container), None) if pod else None
        probe = (container or {}).get(key.occasion.value)
        if not (pod and container and probe and status and status.state is ContainerState.RUNNING):
            return
        state = self._state_of(key, status)
        deleting = bool(pod["metadata"].get("deletionTimestamp"))
        if state.finished or (deleting and key.occasion is not HandlerOccasion.READINESS):
            return
        if key.occasion is not HandlerOccasion.STARTUP and not self._passed(
            key.uid, container, status, HandlerOccasion.STARTUP
        ):
            return  # readiness and liveness probes begin when the startup probe has passed
        early = status.started_at + float(probe.get("initialDelaySeconds") or 0) - time.time()
        if early > 0:
            self._queue.add_after(key, early)
            return
        started = asyncio.get_running_loop().time()
        outcome = await self._perform(key, pod, container, probe, state)
        self._record_outcome(key, state, outcome, pod, probe)
        if not state.finished:
            spent = asyncio.get_running_loop().time() - started
            self._queue.add_after(key, max(0.0, float(probe.get("periodSeconds") or 10) - spent))

    async def _perform(
        self, key: _Key, pod: JSON, container: Mapping[str, Any], probe: Mapping[str, Any], state: ProbeState
    ) -> Outcome:
        number, state.runs = state.runs, state.runs + 1
        try:
            handler = handler_of(container, probe)
        except NoSuchPort as e:
            return Outcome(ProbeResult.ERROR, str(e))
        annotations = pod["metadata"].get("annotations") or {}
        action = HandlerAction(key.occasion, handler, float(probe.get("timeoutSeconds") or 1), number, annotations)
        for _ in range(_TRIES):
            outcome = await self._runtime.perform(key.uid, key.container, action)
            if outcome.result is not ProbeResult.ERROR:
                break
        return outcome

    def _record_outcome(
        self, key: _Key, state: ProbeState, outcome: Outcome, pod: JSON, probe: Mapping[str, Any]
    ) -> None:
        status = self._runtime.statuses(key.uid).get(key.container)
        if status is None or status.id != state.container_id or status.state is not ContainerState.RUNNING:
            return  # the container ended during the probe
        word = key.occasion.name.capitalize()
        match outcome.result:
            case ProbeResult.UNDEFINED:
                self._report_undefined(key, pod, outcome)
                return
            case ProbeResult.ERROR:
                text = f"{word} probe errored and resulted in unknown state: {outcome.text}"
                self._events.warn(pod, "Pod", "Unhealthy", text)
                return
            case ProbeResult.FAIL:
                self._events.warn(pod, "Pod", "Unhealthy", f"{word} probe failed: {outcome.text}")
        if state.record(outcome.result is ProbeResult.PASS, probe, key.occasion):
            self._changed(key.uid)
            if key.occasion is HandlerOccasion.STARTUP and state.good:
                for then in (HandlerOccasion.READINESS, HandlerOccasion.LIVENESS):
                    self._queue.add(_Key(key.uid, key.container, then))

    def _report_undefined(self, key: _Key, pod: JSON, outcome: Outcome) -> None:
        if (key, outcome.text) in self._reported:
            return
        self._reported.add((key, outcome.text))
        so = "" if key.occasion is HandlerOccasion.LIVENESS else ", so it never counts as ready"
        text = f"the {key.occasion.value} of container {key.container} is not run{so}: {outcome.text}"
        self._events.warn(pod, "Pod", "NotSupported", text)

    def _failed(self, key: _Key, error: Exception) -> None:
        """Logs an internal error. The queue retries the probe."""
        fields = {"container": key.container}
        log.error(
            "kubelet: unexpected exception in a probe: %s: %s", key.occasion.value, error, exc_info=error, extra=fields
        )
