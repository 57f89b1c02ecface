"""One pod after the other: prepared, started, restarted, ended, unprepared, told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import ApiError
from ...kube.resource import PODS
from ...resourceapi.defaulting import now
from ..informer import is_finished
from ..runtime.interface import ContainerStatus, Role
from .admission import AdmissionRefusal
from .claims import PrepareError
from .container_ends import ContainerStopper
from .container_starts import ContainerStarter
from .containers import roles
from .pod_claims import claim_names, usable_claims
from .pod_state import Later, Parts, Pause, PodState, remembered
from .pod_status import PodPhase, WaitingContainer, phase_of, seconds_left, status_of
from .unsupported import refusals
from .volumes import MountError, Volumes

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_TOO_LONG = AdmissionRefusal("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
_LAST_WORDS = 2.0  # seconds of grace for containers of a pod that is gone already


class PodSync:
    """Brings pods of one node to what the API server asks for; :meth:`sync` is called for one pod by one caller at a time.

    Args:
        look_in: has a pod looked at after some seconds.
        health: answers ``allocatedResourcesStatus`` of a pod's container.
        admits: says why the node does not take a pod, None where it does.
    """

    def __init__(
        self,
        parts: Parts,
        look_in: Callable[[str, float], None],
        health: Callable[[JSON, Mapping[str, Any], Mapping[str, str]], list[JSON]],
        admits: Callable[[JSON], Awaitable[AdmissionRefusal | None]],
    ) -> None:
        self.parts = parts
        self.look_in = look_in
        self.health = health
        self.admits = admits
        self.ends = ContainerStopper(parts.runtime, parts.events)
        self.starts = ContainerStarter(parts, self.ends)
        self._states: dict[str, PodState] = {}

    async def sync(self, uid: str, pod: JSON | None) -> None:
        """Raises :class:`Later` where the pod has to be tried again, and whatever a malformed pod leads to."""
        if pod is None:
            await self._gone(uid)
            return
        state = self._state(pod)
        if _version(pod) >= _version(state.pod):
            state.pod = pod
        pod = state.pod  # our own last write may be newer than the informer's copy
        if pod["metadata"].get("deletionTimestamp"):
            await self._terminate(pod, state)
        elif is_finished(pod):
            await self._finish(pod, state)
        else:
            await self._run(pod, state)

    def notice(self, pod: JSON) -> None:
        """Tells what is under way for a pod that somebody deletes it."""
        state = self._states.get(pod["metadata"]["uid"])
        if state is not None and pod["metadata"].get("deletionTimestamp"):
            state.ending.set()

    def _state(self, pod: JSON) -> PodState:
        uid = pod["metadata"]["uid"]
        if uid not in self._states:
            self._states[uid] = remembered(pod, runs=bool(self.parts.runtime.statuses(uid)))
        return self._states[uid]

    def _statuses(self, state: PodState) -> dict[str, ContainerStatus]:
        """Of the containers, those included that went with the machine and have not started again."""
        return {**state.lost, **self.parts.runtime.statuses(state.uid)}

    # --- a pod that is to run -------------------------------------------------------------------

    async def _run(self, pod: JSON, state: PodState) -> None:
        uid = pod["metadata"]["uid"]
        left = seconds_left(pod)
        if left is not None and left <= 0:
            await self._end(pod, state, _TOO_LONG)
            return
        if left is not None:
            self.look_in(uid, left)
        if not phase_of(pod, self._statuses(state)).is_terminal:
            await self._bring_up(pod, state)
        phase = phase_of(pod, self._statuses(state))
        if not phase.is_terminal:
            await self._tell(pod, state, phase)
            return
        await self.ends.end_all(pod, state)
        await self._tell(pod, state, PodPhase.RUNNING)  # it has finished once its devices are free
        await self._unprepare(uid)
        await self._tell(pod, state, phase)

    async def _bring_up(self, pod: JSON, state: PodState) -> None:
        if not self.parts.runtime.statuses(state.uid) and not state.prepared:
            if refused := await self.admits(pod):
                await self._refuse(pod, refused)
                raise Later(refused.message)
            for text in refusals(pod):
                await self._hold(pod, state, "FailedCreatePodSandBox", text)
            await self._prepare(pod, state)
        again = await self._make_volumes(pod, state)
        if again is not None:
            self.look_in(state.uid, again)
            return
        self.parts.probes.follow(pod)
        again = await self.starts.bring_up(pod, state, claim_names(pod, state.claims))
        if again is not None:
            self.look_in(state.uid, again)

    async def _end(self, pod: JSON, state: PodState, why: AdmissionRefusal) -> None:
        """A pod that may not run on. It has failed once its devices are free."""
        state.told_once(self.parts.events, why.reason, "Normal", why.reason, why.message)
        await self.ends.end_all(pod, state)
        await self._unprepare(pod["metadata"]["uid"])
        await self._tell(pod, state, PodPhase.FAILED, why)

    async def _refuse(self, pod: JSON, refused: AdmissionRefusal) -> None:
        """The pod has failed, and is not tried again."""
        meta = pod["metadata"]
        status = {"phase": "Failed", "reason": refused.reason, "message": f"Pod was rejected: {refused.message}"}
        body = {"metadata": {"uid": meta["uid"]}, "status": {**status, "startTime": now()}}
        try:
            await self.parts.client.patch(PODS, meta["name"], body, meta["namespace"], "status")
        except ApiError as e:
            if e.status != 404:
                raise
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
        groups = self.parts.manager.ways.shares_groups
        return await usable_claims(self.parts.client, pod, state.claims, groups=groups)

    async def _make_volumes(self, pod: JSON, state: PodState) -> float | None:
        """Each volume by itself, with a pause that doubles while it fails: seconds until the next try, None once all are there."""
        volumes = Volumes(self.parts.client, self._folder(pod))
        pauses = []
        for volume in pod["spec"].get("volumes") or []:
            name = volume["name"]
            if name in state.volumes:
                continue
            pause = state.mounts.setdefault(name, Pause())
            left = pause.until - asyncio.get_running_loop().time()
            if left <= 0:
                try:
                    state.volumes[name] = await volumes.make(pod, volume)
                    continue
                except MountError as e:
                    self.parts.events.warn(pod, "Pod", "FailedMount", str(e))
                timers = self.parts.timers
                left = pause.next = min(timers.longest_mount, pause.next * 2 or timers.mount)
                pause.until = asyncio.get_running_loop().time() + left
            pauses.append(left)
        if pauses and not self.parts.runtime.statuses(state.uid):
            self._waits(pod, state)
        return min(pauses, default=None)

    async def _hold(self, pod: JSON, state: PodState, reason: str, text: str) -> None:
        """Tells why the pod waits, and lets it wait. Raises :class:`Later`."""
        self.parts.events.warn(pod, "Pod", reason, text)
        self._waits(pod, state)
        await self._tell(pod, state, PodPhase.PENDING)
        raise Later(text)

    def _waits(self, pod: JSON, state: PodState) -> None:
        state.seen.waiting = {
            c["name"]: WaitingContainer("ContainerCreating") for c, role in roles(pod) if role is Role.MAIN
        }

    def _folder(self, pod: JSON) -> Path:
        return self.parts.folder / str(pod["metadata"]["uid"])

    # --- a pod that ends ------------------------------------------------------------------------

    async def _finish(self, pod: JSON, state: PodState) -> None:
        """A pod that has finished, by itself or because somebody said so: it holds nothing any more, its logs stay."""
        await self.ends.end_all(pod, state)
        await self._unprepare(pod["metadata"]["uid"])

    async def _terminate(self, pod: JSON, state: PodState) -> None:
        meta = pod["metadata"]
        self.parts.probes.follow(pod)
        grace = meta.get("deletionGracePeriodSeconds")
        await self.ends.end_all(pod, state, float(grace) if grace is not None else None)
        if self.parts.manager.uses(meta["uid"]):
            await self._tell(pod, state, None)
            await self._unprepare(meta["uid"])
        statuses = self._statuses(state)
        if not is_finished(pod) and statuses:
            failed = any(s.exit_code for s in statuses.values())
            await self._tell(pod, state, PodPhase.FAILED if failed else PodPhase.SUCCEEDED)
        try:
            await self.parts.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace=0)
        except ApiError as e:
            if e.status not in {404, 409}:
                raise
        await self._forget(meta["uid"])

    async def _gone(self, uid: str) -> None:
        """Deleted by force, or while the kubelet was away."""
        state = self._states.get(uid)
        if state is not None:
            await self.ends.end_all(state.pod, state, _LAST_WORDS)
        else:
            for name in self.parts.runtime.statuses(uid):
                await self.parts.runtime.stop(uid, name, _LAST_WORDS)
        await self._unprepare(uid)
        await self._forget(uid)

    async def _forget(self, uid: str) -> None:
        self.parts.probes.forget(uid)
        await self.parts.runtime.remove(uid)
        await asyncio.to_thread(Volumes(self.parts.client, self.parts.folder / uid).remove)
        self._states.pop(uid, None)

    async def _unprepare(self, uid: str) -> None:
        """There is no event for a failure, as in a real kubelet. Raises :class:`Later`."""
        if not self.parts.manager.uses(uid):
            return
        try:
            await self.parts.manager.unprepare(uid)
        except PrepareError as e:
            log.warning("kubelet: pod %s: %s", uid, e)
            raise Later(str(e)) from None

    # --- status ---------------------------------------------------------------------------------

    async def _tell(
        self, pod: JSON, state: PodState, phase: PodPhase | None, why: AdmissionRefusal | None = None
    ) -> None:
        """Writes the pod's status where it is another. ``phase`` None leaves that as it is."""
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
            lambda container, status: self.parts.probes.vital(state.uid, container, status),
        )
        if why is not None:
            new |= {"reason": why.reason, "message": why.message}
        ours = {c["type"] for c in new["conditions"]}
        new["conditions"] += [c for c in old.get("conditions") or [] if c.get("type") not in ours]
        new["conditions"].sort(key=lambda c: str(c["type"]))
        known = {key: old.get(key) for key in new}
        known["conditions"] = sorted(old.get("conditions") or [], key=lambda c: str(c.get("type")))
        if known == new:
            return
        body = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "status": new}
        try:
            state.pod = await self.parts.client.patch(PODS, meta["name"], body, meta["namespace"], "status")
        except ApiError as e:
            if e.status == 404:
                return
            if e.status != 409:
                raise
            raise Later("the pod has changed meanwhile") from None


def _version(pod: JSON) -> int:
    """Raises ``ValueError`` for one that is no number: those of Kubernetes are."""
    return int(pod["metadata"]["resourceVersion"])


__all__ = ["PodSync"]
