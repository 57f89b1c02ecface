"""One pod after the other: prepared, started, restarted, ended, unprepared, told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ApiError
from ...kube import KubeClient
from ..events import EventRecorder
from ..informer import CLAIMS, POD_CLAIM_NAME, PODS, is_finished, words_of
from ..runtime.interface import (
    ContainerError,
    ContainerRuntime,
    ContainerStatus,
    ImagePullError,
    Mount,
    Role,
    Sandbox,
    State,
)
from .claims import ClaimManager, PrepareError
from .containers import ConfigError, config_of, requests_of, roles
from .pod_status import Phase, Seen, Waiting, phase_of, restarts, status_of
from .timers import Timers
from .unsupported import not_run, refusals
from .volumes import MountError, Volumes

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_STEADY = 600.0  # seconds that a container must have run for its pause between restarts to begin anew
_LAST_WORDS = 2.0  # seconds of grace for containers of a pod that is gone already


class Later(Exception):
    """The pod cannot be brought further now; it is looked at again after the pause of its key."""


@dataclass
class PodState:
    """What the kubelet remembers of a pod. All but ``pod`` may be lost in a restart."""

    pod: JSON  # as last seen: events about a pod that is gone name it
    claims: list[JSON]  # resourceClaimStatuses as first seen: a real kubelet does not look again
    prepared: bool = False
    volumes: dict[str, Mount] | None = None
    seen: Seen = field(default_factory=Seen)
    pauses: dict[str, float] = field(default_factory=dict)  # by container
    not_before: dict[str, float] = field(default_factory=dict)  # by container, on the loop's clock
    told: dict[str, str] = field(default_factory=dict)  # reason of an event → its text
    killing: set[str] = field(default_factory=set)


class PodSync:
    """Brings pods of one node to what the API server asks for; :meth:`sync` is called for one pod by one caller at a time.

    Args:
        look_in: has a pod looked at after some seconds.
        health: answers ``allocatedResourcesStatus`` of a pod's container.
    """

    def __init__(
        self,
        client: KubeClient,
        manager: ClaimManager,
        runtime: ContainerRuntime,
        events: EventRecorder,
        folder: Path,
        timers: Timers,
        look_in: Callable[[str, float], None],
        health: Callable[[JSON, Mapping[str, Any], Mapping[str, str]], list[JSON]],
    ) -> None:
        self.client = client
        self.manager = manager
        self.runtime = runtime
        self.events = events
        self.folder = folder
        self.timers = timers
        self.look_in = look_in
        self.health = health
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

    def _state(self, pod: JSON) -> PodState:
        uid = pod["metadata"]["uid"]
        if uid not in self._states:
            statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or []
            self._states[uid] = PodState(pod, statuses)
        return self._states[uid]

    # --- a pod that is to run -------------------------------------------------------------------

    async def _run(self, pod: JSON, state: PodState) -> None:
        uid = pod["metadata"]["uid"]
        statuses = self.runtime.statuses(uid)
        if not statuses and not state.prepared:
            for text in refusals(pod):
                await self._hold(pod, state, "FailedCreatePodSandBox", text)
            for text in not_run(pod):
                self._once(pod, state, text, "Warning", "NotSupported", text)
            await self._prepare(pod, state)
        if state.volumes is None:
            await self._make_volumes(pod, state)
        claims = self._claim_names(pod, state)
        await self._start_in_turn(pod, state, claims)
        statuses = self.runtime.statuses(uid)
        phase = phase_of(pod, statuses)
        if not phase.is_terminal:
            await self._tell(pod, state, phase)
            return
        await self._stop_all(pod, state)
        await self._tell(pod, state, Phase.RUNNING)  # it has finished once its devices are free
        await self._unprepare(uid)
        await self._tell(pod, state, phase)

    async def _prepare(self, pod: JSON, state: PodState) -> None:
        uid = pod["metadata"]["uid"]
        try:
            claims = await self._claims(pod, state)
            await self.manager.prepare(uid, claims)
        except PrepareError as e:
            text = f"Failed to prepare dynamic resources: prepare dynamic resources: {e}"
            await self._hold(pod, state, "FailedPrepareDynamicResources", text)
        state.prepared = True

    def _claim_names(self, pod: JSON, state: PodState) -> dict[str, str]:
        """Name in the pod → ResourceClaim; an entry that needs none is left out.

        Raises :class:`PrepareError` for one that is not made yet.
        """
        out = {}
        made = {s["name"]: s.get("resourceClaimName") for s in state.claims}
        for entry in pod["spec"].get("resourceClaims") or []:
            if direct := entry.get("resourceClaimName"):
                out[entry["name"]] = direct
            elif entry["name"] not in made:
                meta = pod["metadata"]
                raise PrepareError(f'pod "{meta["namespace"]}/{meta["name"]}": ResourceClaim not created yet')
            elif name := made[entry["name"]]:
                out[entry["name"]] = name
        return out

    async def _claims(self, pod: JSON, state: PodState) -> list[JSON]:
        """The pod's claims, allocated and reserved for it. Raises :class:`PrepareError`."""
        meta = pod["metadata"]
        names = list(self._claim_names(pod, state).values())
        if special := ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName"):
            names.append(special)
        templates = {s.get("resourceClaimName") for s in state.claims}
        out = []
        for name in names:
            try:
                claim = await self.client.get(CLAIMS, name, meta["namespace"])
            except ApiError as e:
                raise PrepareError(f"fetch ResourceClaim {name}: {words_of(e)}") from None
            owner = next((o for o in claim["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
            generated = name in templates or POD_CLAIM_NAME in (claim["metadata"].get("annotations") or {})
            if generated and name in templates and (owner is None or owner["uid"] != meta["uid"]):
                where = f"{meta['namespace']}/{name}"
                raise PrepareError(
                    f"ResourceClaim {where} was not created for pod {meta['namespace']}/{meta['name']} (pod is not owner)"
                )
            status = claim.get("status") or {}
            if not any(r["uid"] == meta["uid"] for r in status.get("reservedFor") or []):
                uid = claim["metadata"]["uid"]
                raise PrepareError(
                    f"pod {meta['name']} ({meta['uid']}) is not allowed to use ResourceClaim {name} ({uid})"
                )
            if status.get("allocation") is None:
                raise PrepareError(f"ResourceClaim {name}: not allocated")
            out.append(claim)
        return out

    async def _make_volumes(self, pod: JSON, state: PodState) -> None:
        try:
            state.volumes = await Volumes(self.client, self._folder(pod)).make(pod)
        except MountError as e:
            await self._hold(pod, state, "FailedMount", str(e))

    async def _hold(self, pod: JSON, state: PodState, reason: str, text: str) -> None:
        """Tells why the pod waits, and lets it wait. Raises :class:`Later`."""
        self.events.warn(pod, "Pod", reason, text)
        state.seen.waiting = {c["name"]: Waiting("ContainerCreating") for c, role in roles(pod) if role is Role.MAIN}
        await self._tell(pod, state, Phase.PENDING)
        raise Later(text)

    def _folder(self, pod: JSON) -> Path:
        return self.folder / str(pod["metadata"]["uid"])

    # --- containers -----------------------------------------------------------------------------

    async def _start_in_turn(self, pod: JSON, state: PodState, claims: Mapping[str, str]) -> None:
        """Init containers and sidecars one after the other, then all others."""
        uid = pod["metadata"]["uid"]
        statuses = self.runtime.statuses(uid)
        main_began = any(c["name"] in statuses for c, role in roles(pod) if role is Role.MAIN)
        for container, role in roles(pod):
            status = statuses.get(container["name"])
            if status is not None and status.state is State.RUNNING:
                if role is Role.INIT:
                    return  # the next ones wait for its end
                continue
            if role is Role.INIT and (main_began or (status is not None and status.exit_code == 0)):
                continue
            if status is not None and not restarts(pod, container, role, status.exit_code):
                if role is Role.INIT:
                    return  # the pod has failed
                continue
            started = await self._start(pod, state, container, role, status, claims)
            if role is Role.MAIN:
                continue
            if started is None or (role is Role.INIT and not _ended_well(started)):
                return

    async def _start(
        self,
        pod: JSON,
        state: PodState,
        container: Mapping[str, Any],
        role: Role,
        before: ContainerStatus | None,
        claims: Mapping[str, str],
    ) -> ContainerStatus | None:
        """Starts a container, unless it has to wait; None where it does not run now."""
        name, uid = container["name"], pod["metadata"]["uid"]
        if before is not None and self._waits(pod, state, name, before):
            return None
        wanted = requests_of(pod, container, claims)
        devices = self.manager.cdi_ids(pod["metadata"]["namespace"], wanted)
        attempt = before.attempt + 1 if before else 0
        try:
            config = await config_of(self.client, pod, container, role, attempt, state.volumes or {}, devices)
        except ConfigError as e:
            self._cannot(pod, state, name, "CreateContainerConfigError", str(e))
            return None
        sandbox = Sandbox(
            pod["metadata"]["namespace"],
            pod["metadata"]["name"],
            uid,
            str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63],
            self._folder(pod),
            pod["metadata"].get("annotations") or {},
            bool(pod["spec"].get("hostNetwork")),
            str(pod["spec"].get("restartPolicy") or "Always"),
        )
        try:
            status = await self.runtime.start(sandbox, config)
        except ContainerError as e:
            if not isinstance(e, ImagePullError):
                self._pulled(pod, state, container, attempt)
            self._cannot(pod, state, name, e.reason, str(e))
            return None
        self._pulled(pod, state, container, attempt)
        self.events.event(pod, "Pod", "Normal", "Created", "Container created")
        self.events.event(pod, "Pod", "Normal", "Started", "Container started")
        state.seen.waiting.pop(name, None)
        state.told.pop(f"Failed {name}", None)
        if before:
            state.seen.last[name] = before
        return status

    def _waits(self, pod: JSON, state: PodState, name: str, before: ContainerStatus) -> bool:
        """Whether a container that ended is not to be started yet: its pause doubles with each restart."""
        now = asyncio.get_running_loop().time()
        if name not in state.not_before:
            steady = before.finished_at - before.started_at > _STEADY
            pause = self.timers.crash if steady else state.pauses.get(name, 0.0)
            state.not_before[name] = now + pause
            state.pauses[name] = min(self.timers.longest_crash, pause * 2 or self.timers.crash)
        left = state.not_before[name] - now
        if left <= 0:
            del state.not_before[name]
            return False
        meta = pod["metadata"]
        where = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
        text = f"Back-off restarting failed container {name} in pod {where}"
        state.seen.waiting[name] = Waiting("CrashLoopBackOff", f"back-off: {text}")
        self._once(pod, state, f"BackOff {name} {before.attempt}", "Warning", "BackOff", text)
        self.look_in(meta["uid"], left)
        return True

    def _pulled(self, pod: JSON, state: PodState, container: Mapping[str, Any], attempt: int) -> None:
        text = (
            f'Container image "{container.get("image", "")}" already present on machine and can be accessed by the pod'
        )
        self._once(pod, state, f"Pulled {container['name']} {attempt}", "Normal", "Pulled", text)

    def _cannot(self, pod: JSON, state: PodState, name: str, reason: str, text: str) -> None:
        self._once(pod, state, f"Failed {name}", "Warning", "Failed", f"Error: {text}")
        state.seen.waiting[name] = Waiting(reason, text)
        self.look_in(pod["metadata"]["uid"], self.timers.retry)

    def _once(self, pod: JSON, state: PodState, key: str, type: str, reason: str, text: str) -> None:
        if state.told.get(key) != text:
            state.told[key] = text
            self.events.event(pod, "Pod", type, reason, text)

    async def _stop_all(self, pod: JSON, state: PodState, grace: float | None = None) -> None:
        """Ends all containers: the sidecars last, in reverse order."""
        uid = pod["metadata"]["uid"]
        asked = grace if grace is not None else float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
        statuses = self.runtime.statuses(uid)
        running = [
            (c, r) for c, r in roles(pod) if c["name"] in statuses and statuses[c["name"]].state is State.RUNNING
        ]
        for container, _ in running:
            self._once(
                pod,
                state,
                f"Killing {container['name']}",
                "Normal",
                "Killing",
                f"Stopping container {container['name']}",
            )
        async with asyncio.TaskGroup() as tasks:
            for container, role in running:
                if role is not Role.SIDECAR:
                    tasks.create_task(self.runtime.stop(uid, container["name"], asked))
        for container, role in reversed(running):
            if role is Role.SIDECAR:
                await self.runtime.stop(uid, container["name"], asked)
        state.seen.waiting = {}

    # --- a pod that ends ------------------------------------------------------------------------

    async def _finish(self, pod: JSON, state: PodState) -> None:
        """A pod that has finished, by itself or because somebody said so: it holds nothing any more, its logs stay."""
        await self._stop_all(pod, state)
        await self._unprepare(pod["metadata"]["uid"])

    async def _terminate(self, pod: JSON, state: PodState) -> None:
        meta = pod["metadata"]
        grace = meta.get("deletionGracePeriodSeconds")
        await self._stop_all(pod, state, float(grace) if grace is not None else None)
        if self.manager.uses(meta["uid"]):
            await self._tell(pod, state, None)
            await self._unprepare(meta["uid"])
        statuses = self.runtime.statuses(meta["uid"])
        if not is_finished(pod) and statuses:
            failed = any(s.exit_code for s in statuses.values())
            await self._tell(pod, state, Phase.FAILED if failed else Phase.SUCCEEDED)
        try:
            await self.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace=0)
        except ApiError as e:
            if e.status not in {404, 409}:
                raise
        await self._forget(meta["uid"])

    async def _gone(self, uid: str) -> None:
        """Deleted by force, or while the kubelet was away."""
        state = self._states.get(uid)
        if state is not None:
            await self._stop_all(state.pod, state, _LAST_WORDS)
        else:
            for name in self.runtime.statuses(uid):
                await self.runtime.stop(uid, name, _LAST_WORDS)
        await self._unprepare(uid)
        await self._forget(uid)

    async def _forget(self, uid: str) -> None:
        await self.runtime.remove(uid)
        await asyncio.to_thread(Volumes(self.client, self.folder / uid).remove)
        self._states.pop(uid, None)

    async def _unprepare(self, uid: str) -> None:
        """There is no event for a failure, as in a real kubelet. Raises :class:`Later`."""
        if not self.manager.uses(uid):
            return
        try:
            await self.manager.unprepare(uid)
        except PrepareError as e:
            log.warning("kubelet: pod %s: %s", uid, e)
            raise Later(str(e)) from None

    # --- status ---------------------------------------------------------------------------------

    async def _tell(self, pod: JSON, state: PodState, phase: Phase | None) -> None:
        """Writes the pod's status where it is another. ``phase`` None leaves that as it is."""
        pod = state.pod
        meta = pod["metadata"]
        statuses = self.runtime.statuses(meta["uid"])
        old = pod.get("status") or {}
        shown = phase or Phase(old.get("phase") or "Pending")
        try:
            claims = self._claim_names(pod, state)
        except PrepareError:
            claims = {}
        new = status_of(pod, statuses, state.seen, shown, lambda container: self.health(pod, container, claims))
        ours = {c["type"] for c in new["conditions"]}
        new["conditions"] += [c for c in old.get("conditions") or [] if c.get("type") not in ours]
        new["conditions"].sort(key=lambda c: str(c["type"]))
        known = {key: old.get(key) for key in new}
        known["conditions"] = sorted(old.get("conditions") or [], key=lambda c: str(c.get("type")))
        if known == new:
            return
        body = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "status": new}
        try:
            state.pod = await self.client.patch(PODS, meta["name"], body, meta["namespace"], "status")
        except ApiError as e:
            if e.status == 404:
                return
            if e.status != 409:
                raise
            raise Later("the pod has changed meanwhile") from None


def _version(pod: JSON) -> int:
    """Raises ``ValueError`` for one that is no number: those of Kubernetes are."""
    return int(pod["metadata"]["resourceVersion"])


def _ended_well(status: ContainerStatus) -> bool:
    return status.state is State.EXITED and status.exit_code == 0
