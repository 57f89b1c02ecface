"""Probes of containers: asked in their rhythm, judged by their thresholds. Who is ready, who has started, who is to be restarted.

Source: kubernetes, pkg/kubelet/prober (worker.go, prober.go), whose rules and words these are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
from .pod_status import ContainerVitals
from .probe_targets import NoSuchPort, handler_of

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_PROBES = (HandlerOccasion.STARTUP, HandlerOccasion.READINESS, HandlerOccasion.LIVENESS)
_WORDS = {
    HandlerOccasion.STARTUP: "Startup",
    HandlerOccasion.READINESS: "Readiness",
    HandlerOccasion.LIVENESS: "Liveness",
}
_BEFORE = {
    HandlerOccasion.STARTUP: None,
    HandlerOccasion.READINESS: False,
    HandlerOccasion.LIVENESS: True,
}  # any probe has said anything
_AT_ONCE = 64  # a probe that hangs holds up few others
_TRIES = 3  # of a probe that cannot be carried out


@dataclass(frozen=True)
class _Key:
    uid: str
    container: str
    occasion: HandlerOccasion


@dataclass
class ProbeVerdict:
    """Of one probe of one attempt of a container. ``good`` is None until it is known."""

    container_id: str
    good: bool | None
    last: bool | None = None
    run: int = 0  # of equal answers
    asked: int = 0
    held: bool = False  # nothing more is asked of this attempt

    def answered(self, passed: bool, probe: Mapping[str, Any], occasion: HandlerOccasion) -> bool:
        """Takes an answer; whether the judgement has changed."""
        self.run = self.run + 1 if passed is self.last else 1
        self.last = passed
        if self.run < int(probe.get("successThreshold" if passed else "failureThreshold") or (1 if passed else 3)):
            return False
        changed = self.good is not passed
        self.good = passed
        if occasion is HandlerOccasion.STARTUP or (occasion is HandlerOccasion.LIVENESS and not passed):
            self.held = True
        return changed


class Probes:
    """The probes of all pods of a node.

    Args:
        changed: told the UID of a pod of which a judgement has changed.
    """

    def __init__(self, runtime: ContainerRuntime, events: EventRecorder, changed: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._events = events
        self._changed = changed
        self._pods: dict[str, JSON] = {}
        self._judged: dict[_Key, ProbeVerdict] = {}
        self._told: set[tuple[_Key, str]] = set()
        self._queue: WorkQueue[_Key] = WorkQueue()

    async def run(self) -> None:
        """Never returns."""
        await self._queue.work(self._look, self._failed, _AT_ONCE)

    # --- what is known ------------------------------------------------------------------------------------

    def follow(self, pod: JSON) -> None:
        """Has a pod's containers probed that run, by what its specification and annotations say now."""
        uid = pod["metadata"]["uid"]
        self._pods[uid] = pod
        statuses = self._runtime.statuses(uid)
        for container, _ in roles(pod):
            status = statuses.get(container["name"])
            if status is None or status.state is not ContainerState.RUNNING:
                continue
            for occasion in _PROBES:
                key = _Key(uid, container["name"], occasion)
                if container.get(occasion.value) and self._of(key, status).asked == 0:
                    self._queue.add(key)

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._judged = {k: v for k, v in self._judged.items() if k.uid != uid}
        self._told = {(k, text) for k, text in self._told if k.uid != uid}

    def vital(self, uid: str, container: Mapping[str, Any], status: ContainerStatus) -> ContainerVitals:
        """Whether a container that runs has started, and is ready."""
        if status.state is not ContainerState.RUNNING:
            return ContainerVitals(started=False, ready=False)
        good = {o: self._good(uid, container, status, o) for o in (HandlerOccasion.STARTUP, HandlerOccasion.READINESS)}
        return ContainerVitals(
            good[HandlerOccasion.STARTUP], good[HandlerOccasion.STARTUP] and good[HandlerOccasion.READINESS]
        )

    def failed(self, uid: str, container: Mapping[str, Any], status: ContainerStatus) -> HandlerOccasion | None:
        """The probe for whose sake a container that runs has to be ended."""
        for occasion in (HandlerOccasion.LIVENESS, HandlerOccasion.STARTUP):
            if container.get(occasion.value):
                judged = self._of(_Key(uid, container["name"], occasion), status)
                if judged.good is False and judged.held:
                    return occasion
        return None

    def _good(self, uid: str, container: Mapping[str, Any], status: ContainerStatus, occasion: HandlerOccasion) -> bool:
        if not container.get(occasion.value):
            return True
        return bool(self._of(_Key(uid, container["name"], occasion), status).good)

    def _of(self, key: _Key, status: ContainerStatus) -> ProbeVerdict:
        found = self._judged.get(key)
        if found is None or found.container_id != status.id:
            found = self._judged[key] = ProbeVerdict(status.id, _BEFORE[key.occasion])
        return found

    # --- one probe ----------------------------------------------------------------------------------------

    async def _look(self, key: _Key) -> None:
        """Asks once, if it is time to, and again after the period."""
        pod = self._pods.get(key.uid)
        status = self._runtime.statuses(key.uid).get(key.container)
        container = next((c for c, _ in roles(pod) if c["name"] == key.container), None) if pod else None
        probe = (container or {}).get(key.occasion.value)
        if (
            pod is None
            or container is None
            or not probe
            or status is None
            or status.state is not ContainerState.RUNNING
        ):
            return
        judged = self._of(key, status)
        if judged.held or (pod["metadata"].get("deletionTimestamp") and key.occasion is not HandlerOccasion.READINESS):
            return
        if key.occasion is not HandlerOccasion.STARTUP and not self._good(
            key.uid, container, status, HandlerOccasion.STARTUP
        ):
            return  # begins once the container has started
        early = status.started_at + float(probe.get("initialDelaySeconds") or 0) - time.time()
        if early > 0:
            self._queue.add_after(key, early)
            return
        begun = asyncio.get_running_loop().time()
        outcome = await self._ask(key, pod, container, probe, judged)
        self._take(key, judged, outcome, pod, probe)
        if not judged.held:
            spent = asyncio.get_running_loop().time() - begun
            self._queue.add_after(key, max(0.0, float(probe.get("periodSeconds") or 10) - spent))

    async def _ask(
        self, key: _Key, pod: JSON, container: Mapping[str, Any], probe: Mapping[str, Any], judged: ProbeVerdict
    ) -> Outcome:
        number, judged.asked = judged.asked, judged.asked + 1
        try:
            handler = handler_of(container, probe)
        except NoSuchPort as e:
            return Outcome(ProbeResult.ERROR, str(e))
        annotations = pod["metadata"].get("annotations") or {}
        action = HandlerAction(key.occasion, handler, float(probe.get("timeoutSeconds") or 1), number, annotations)
        for _ in range(_TRIES):
            outcome = await self._runtime.perform(key.uid, key.container, action)
            if outcome.verdict is not ProbeResult.ERROR:
                break
        return outcome

    def _take(self, key: _Key, judged: ProbeVerdict, outcome: Outcome, pod: JSON, probe: Mapping[str, Any]) -> None:
        status = self._runtime.statuses(key.uid).get(key.container)
        if status is None or status.id != judged.container_id or status.state is not ContainerState.RUNNING:
            return  # it was asked of a container that has ended meanwhile
        word = _WORDS[key.occasion]
        match outcome.verdict:
            case ProbeResult.NOBODY:
                self._nobody(key, pod, outcome)
                return
            case ProbeResult.ERROR:
                text = f"{word} probe errored and resulted in unknown state: {outcome.text}"
                self._events.warn(pod, "Pod", "Unhealthy", text)
                return
            case ProbeResult.FAIL:
                self._events.warn(pod, "Pod", "Unhealthy", f"{word} probe failed: {outcome.text}")
        if judged.answered(outcome.verdict is ProbeResult.PASS, probe, key.occasion):
            self._changed(key.uid)
            if key.occasion is HandlerOccasion.STARTUP and judged.good:
                for then in (HandlerOccasion.READINESS, HandlerOccasion.LIVENESS):
                    self._queue.add(_Key(key.uid, key.container, then))

    def _nobody(self, key: _Key, pod: JSON, outcome: Outcome) -> None:
        if (key, outcome.text) in self._told:
            return
        self._told.add((key, outcome.text))
        so = "" if key.occasion is HandlerOccasion.LIVENESS else ", so it never counts as ready"
        text = f"the {key.occasion.value} of container {key.container} is not run{so}: {outcome.text}"
        self._events.warn(pod, "Pod", "NotSupported", text)

    def _failed(self, key: _Key, error: Exception) -> None:
        """A fault of our own: the probe is tried again."""
        log.error("kubelet: %s of %s: %s", key.occasion.value, key.container, error, exc_info=error)


__all__ = ["ProbeVerdict", "Probes"]
