"""Syncs the pods of a node: prepares claims, starts and stops containers, unprepares claims, and writes the status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.errors import ConflictError, NotFoundError
from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.resourceapi.defaulting import now

from ...scheduling.framework.pod_info import is_finished
from ..runtime.interface import ContainerStatus, Role
from .admission import AdmissionRefusal
from .claims import PrepareError
from .container_ends import ContainerStopper
from .container_starts import ContainerStarter
from .containers import roles
from .pod_claims import claim_names, usable_claims
from .pod_state import Later, Parts, Pause, PodState, initial_state
from .pod_status import PodPhase, WaitingContainer, phase_of, seconds_left, status_of
from .unsupported import refusals
from .volumes import MountError, Volumes

log = logging.getLogger(__name__)
_TOO_LONG = AdmissionRefusal("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
_DELETED_GRACE = 2.0  # grace period in seconds for containers of a pod that is already deleted


class PodSync:
    """Makes the containers and claims of one node match the pods in the API server.

    The caller must not run two calls of :meth:`sync` for the same pod at the same time.

    Args:
        queue_after: queues a pod's UID for a sync after some seconds.
        health: returns ``allocatedResourcesStatus`` of a pod's container.
        admits: returns the node's refusal of a pod, or None if the node admits the pod.
    """

    def __init__(
        self,
        parts: Parts,
        queue_after: Callable[[str, float], None],
        health: Callable[[JSON, Mapping[str, Any], Mapping[str, str]], list[JSON]],
        admits: Callable[[JSON], Awaitable[AdmissionRefusal | None]],
    ) -> None:
        self.parts = parts
        self.queue_after = queue_after
        self.health = health
        self.admits = admits
        self.ends = ContainerStopper(parts.runtime, parts.events)
        self.starts = ContainerStarter(parts, self.ends)
        self._states: dict[str, PodState] = {}

    async def sync(self, uid: str, pod: JSON | None) -> None:
        """Syncs one pod. ``pod`` is None if the pod was deleted.

        Raises:
            Later: the pod must be retried.
            Exception: the pod is malformed.
        """
        if pod is None:
            await self._clean_up(uid)
            return
        state = self._state(pod)
        if _version(pod) >= _version(state.pod):
            state.pod = pod
        pod = state.pod  # the result of the kubelet's last write may be newer than the informer's copy
        if pod["metadata"].get("deletionTimestamp"):
            await self._terminate(pod, state)
        elif is_finished(pod):
            await self._finish(pod, state)
        else:
            await self._run(pod, state)

    def notice(self, pod: JSON) -> None:
        """Stops running work on a pod, for example a postStart hook, if the pod is being deleted."""
        state = self._states.get(pod["metadata"]["uid"])
        if state is not None and pod["metadata"].get("deletionTimestamp"):
            state.ending.set()

    def _state(self, pod: JSON) -> PodState:
        uid = pod["metadata"]["uid"]
        if uid not in self._states:
            self._states[uid] = initial_state(pod, runs=bool(self.parts.runtime.statuses(uid)))
        return self._states[uid]

    def _statuses(self, state: PodState) -> dict[str, ContainerStatus]:
        """Returns the status of each container. Containers that ended because the machine stopped are included until they start again."""
        return {**state.lost, **self.parts.runtime.statuses(state.uid)}

    # --- pods to run ----------------------------------------------------------------------------

    async def _run(self, pod: JSON, state: PodState) -> None:
        uid = pod["metadata"]["uid"]
        remaining = seconds_left(pod)
        if remaining is not None and remaining <= 0:
            await self._fail(pod, state, _TOO_LONG)
            return
        if remaining is not None:
            self.queue_after(uid, remaining)
        if not phase_of(pod, self._statuses(state)).is_terminal:
            await self._bring_up(pod, state)
        phase = phase_of(pod, self._statuses(state))
        if not phase.is_terminal:
            await self._write_status(pod, state, phase)
            return
        await self.ends.end_all(pod, state)
        # The phase becomes terminal only after the claims are unprepared.
        await self._write_status(pod, state, PodPhase.RUNNING)
        await self._unprepare(uid)
        await self._write_status(pod, state, phase)

    async def _bring_up(self, pod: JSON, state: PodState) -> None:
        if not self.parts.runtime.statuses(state.uid) and not state.prepared:
            if refused := await self.admits(pod):
                await self._refuse(pod, refused)
                raise Later(refused.message)
            for text in refusals(pod):
                await self._hold(pod, state, "FailedCreatePodSandBox", text)
            await self._prepare(pod, state)
        delay = await self._make_volumes(pod, state)
        if delay is not None:
            self.queue_after(state.uid, delay)
            return
        self.parts.probes.follow(pod)
        delay = await self.starts.bring_up(pod, state, claim_names(pod, state.claims))
        if delay is not None:
            self.queue_after(state.uid, delay)

    async def _fail(self, pod: JSON, state: PodState, why: AdmissionRefusal) -> None:
        """Stops a pod that exceeded a limit. Its phase becomes Failed after its claims are unprepared."""
        state.event_once(self.parts.events, why.reason, "Normal", why.reason, why.message)
        await self.ends.end_all(pod, state)
        await self._unprepare(pod["metadata"]["uid"])
        await self._write_status(pod, state, PodPhase.FAILED, why)

    async def _refuse(self, pod: JSON, refused: AdmissionRefusal) -> None:
        """Sets the pod's phase to Failed. The kubelet does not retry the pod."""
        meta = pod["metadata"]
        status = {"phase": "Failed", "reason": refused.reason, "message": f"Pod was rejected: {refused.message}"}
        body = {"metadata": {"uid": meta["uid"]}, "status": {**status, "startTime": now()}}
        with contextlib.suppress(NotFoundError):
            await self.parts.client.patch(PODS, meta["name"], body, meta["namespace"], "status")
        self.parts.events.warn(pod, "Pod", refused.reason, refused.message)

    async def _prepare(self, pod: JSON, state: PodState) -> None:
        uid = pod["metadata"]["uid"]
        try:
            await self.parts.manager.prepare(uid, await self._claims(pod, state))
        except PrepareError as e:
            text = f"Failed to prepare dynamic resources: prepare dynamic resources: {e}"
            await self._hold(pod, state, "FailedPrepareDynamicResources", text)
        state.prepared = True

    async def _claims(self, pod: JSON, state: PodState) -> list[JSON]:
        groups = self.parts.manager.behavior.shares_groups
        return await usable_claims(self.parts.client, pod, state.claims, groups=groups)

    async def _make_volumes(self, pod: JSON, state: PodState) -> float | None:
        """Sets up the pod's volumes. Retries each failed volume after a pause, which doubles each time.

        Returns:
            Seconds until the next attempt, or None if all volumes are ready.
        """
        volumes = Volumes(self.parts.client, self._folder(pod), self.parts.runtime)
        pauses = []
        for volume in volumes.wanted(pod):
            name = volume["name"]
            if name in state.volumes:
                continue
            pause = state.mounts.setdefault(name, Pause())
            remaining = pause.until - asyncio.get_running_loop().time()
            if remaining <= 0:
                try:
                    state.volumes[name] = await volumes.make(pod, volume)
                    continue
                except MountError as e:
                    self.parts.events.warn(pod, "Pod", "FailedMount", str(e))
                timers = self.parts.timers
                remaining = pause.next = min(timers.mount_backoff_max, pause.next * 2 or timers.mount_backoff)
                pause.until = asyncio.get_running_loop().time() + remaining
            pauses.append(remaining)
        if pauses and not self.parts.runtime.statuses(state.uid):
            self._set_waiting(pod, state)
        return min(pauses, default=None)

    async def _hold(self, pod: JSON, state: PodState, reason: str, text: str) -> None:
        """Reports why the pod waits, as an event and in the status.

        Raises:
            Later: always.
        """
        self.parts.events.warn(pod, "Pod", reason, text)
        self._set_waiting(pod, state)
        await self._write_status(pod, state, PodPhase.PENDING)
        raise Later(text)

    def _set_waiting(self, pod: JSON, state: PodState) -> None:
        state.seen.waiting = {
            c["name"]: WaitingContainer("ContainerCreating") for c, role in roles(pod) if role is Role.MAIN
        }

    def _folder(self, pod: JSON) -> Path:
        return self.parts.folder / str(pod["metadata"]["uid"])

    # --- pods that end --------------------------------------------------------------------------

    async def _finish(self, pod: JSON, state: PodState) -> None:
        """Unprepares the claims of a finished pod. Keeps its logs."""
        await self.ends.end_all(pod, state)
        await self._unprepare(pod["metadata"]["uid"])

    async def _terminate(self, pod: JSON, state: PodState) -> None:
        """Stops the containers of a deleted pod, unprepares its claims, and then removes the pod from the API server.

        If a claim cannot be unprepared, the pod stays, and the work queue tries again.
        """
        meta = pod["metadata"]
        self.parts.probes.follow(pod)
        grace = meta.get("deletionGracePeriodSeconds")
        await self.ends.end_all(pod, state, float(grace) if grace is not None else None)
        if self.parts.manager.uses(meta["uid"]):
            await self._write_status(pod, state, None)
            await self._unprepare(meta["uid"])
        statuses = self._statuses(state)
        if not is_finished(pod) and statuses:
            failed = any(s.exit_code for s in statuses.values())
            await self._write_status(pod, state, PodPhase.FAILED if failed else PodPhase.SUCCEEDED)
        with contextlib.suppress(NotFoundError, ConflictError):
            await self.parts.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace=0)
        await self._forget(meta["uid"])

    async def _clean_up(self, uid: str) -> None:
        """Cleans up a pod that was deleted by force, or while the kubelet was down."""
        state = self._states.get(uid)
        if state is not None:
            await self.ends.end_all(state.pod, state, _DELETED_GRACE)
        else:
            for name in self.parts.runtime.statuses(uid):
                await self.parts.runtime.stop(uid, name, _DELETED_GRACE)
        await self._unprepare(uid)
        await self._forget(uid)

    async def _forget(self, uid: str) -> None:
        self.parts.probes.forget(uid)
        await self.parts.runtime.remove(uid)
        await asyncio.to_thread(Volumes(self.parts.client, self.parts.folder / uid, self.parts.runtime).remove)
        self._states.pop(uid, None)

    async def _unprepare(self, uid: str) -> None:
        """Unprepares the pod's claims. There is no event for a failure, as in a real kubelet.

        Raises:
            Later: a claim could not be unprepared.
        """
        if not self.parts.manager.uses(uid):
            return
        try:
            await self.parts.manager.unprepare(uid)
        except PrepareError as e:
            log.warning("kubelet: cannot sync pod: %s", e, extra={"pod_uid": uid})
            raise Later(str(e)) from None

    # --- status ---------------------------------------------------------------------------------

    async def _write_status(
        self, pod: JSON, state: PodState, phase: PodPhase | None, why: AdmissionRefusal | None = None
    ) -> None:
        """Writes the pod's status if it changed.

        Args:
            phase: the new phase; None keeps the current phase.
            why: reason and message for the status.
        """
        pod = state.pod
        meta = pod["metadata"]
        old = pod.get("status") or {}
        shown = phase or PodPhase(old.get("phase") or "Pending")
        try:
            claims = claim_names(pod, state.claims)
        except PrepareError:
            claims = {}
        new = status_of(
            pod,
            self._statuses(state),
            state.seen,
            shown,
            lambda container: self.health(pod, container, claims),
            lambda container, status: self.parts.probes.readiness_of(state.uid, container, status),
        )
        if why is not None:
            new |= {"reason": why.reason, "message": why.message}
        own_types = {c["type"] for c in new["conditions"]}
        new["conditions"] += [c for c in old.get("conditions") or [] if c.get("type") not in own_types]
        new["conditions"].sort(key=lambda c: str(c["type"]))
        known = {key: old.get(key) for key in new}
        known["conditions"] = sorted(old.get("conditions") or [], key=lambda c: str(c.get("type")))
        if known == new:
            return
        body = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "status": new}
        try:
            state.pod = await self.parts.client.patch(PODS, meta["name"], body, meta["namespace"], "status")
        except NotFoundError:
            return
        except ConflictError:
            raise Later("the pod has changed meanwhile") from None


def _version(pod: JSON) -> int:
    """Returns the pod's resource version as a number.

    Raises:
        ValueError: it is not a number.
    """
    return int(pod["metadata"]["resourceVersion"])
