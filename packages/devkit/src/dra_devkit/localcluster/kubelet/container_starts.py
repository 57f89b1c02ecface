"""Starts a pod's containers in order, restarts ended containers, and records why a container does not start."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ..runtime.interface import (
    ContainerError,
    ContainerState,
    ContainerStatus,
    HandlerOccasion,
    ImagePullError,
    Outcome,
    ProbeResult,
    Role,
    Sandbox,
)
from . import image_names
from .container_ends import ContainerStopper
from .containers import ConfigError, config_of, requests_of, roles
from .pod_state import Later, Parts, Pause, PodState
from .pod_status import WaitingContainer, allows_next_start, restarts
from .probe_targets import run_hook

_STEADY = 600.0  # seconds; if a container ran longer, it restarts after the shortest pause
_KILLED = 137


class ContainerStarter:
    def __init__(self, parts: Parts, ends: ContainerStopper) -> None:
        self.parts = parts
        self.ends = ends

    async def bring_up(self, pod: ReadOnlyJSON, state: PodState, claims: Mapping[str, str]) -> float | None:
        """Starts init containers and sidecars one after the other, then all other containers.

        Returns:
            Seconds until the next attempt, or None if no attempt is due.

        Raises:
            Later: the pod was deleted while its containers were started.
        """
        pauses: list[float] = []
        began = self.parts.runtime.statuses(state.uid)
        main_began = any(c["name"] in began for c, role in roles(pod) if role is Role.MAIN)
        for container, role in roles(pod):
            status = await self._current_status(pod, state, container, role)
            if role is Role.INIT and main_began:
                continue
            if status is None or status.state is ContainerState.EXITED:
                if role is Role.INIT and status is not None and not status.exit_code:
                    continue
                if status is not None and not restarts(pod, container, role, status.exit_code):
                    if role is Role.INIT:
                        break  # the pod has failed
                    continue
                wait, status = await self._start(pod, state, container, role, status, claims)
                if wait is not None:
                    pauses.append(wait)
            readiness_of = functools.partial(self.parts.probes.readiness_of, state.uid)
            if (
                role is not Role.MAIN
                and not main_began
                and not allows_next_start(container, role, status, readiness_of)
            ):
                break  # the next containers wait until this init container succeeded or this sidecar started
        return min(pauses, default=None)

    async def _current_status(
        self, pod: ReadOnlyJSON, state: PodState, container: ReadOnlyJSON, role: Role
    ) -> ContainerStatus | None:
        """Returns the container's current status. Stops the container first if its probe failed."""
        name = container["name"]
        status = self.parts.runtime.statuses(state.uid).get(name) or state.lost.get(name)
        if status is None or status.state is not ContainerState.RUNNING:
            return status
        occasion = self.parts.probes.failed(state.uid, container, status)
        if occasion is None:
            return status
        again = restarts(pod, container, role, _KILLED)
        word = "liveness" if occasion is HandlerOccasion.LIVENESS else "startup"
        why = f"Container {name} failed {word} probe" + (", will be restarted" if again else "")
        grace = container[occasion.value].get("terminationGracePeriodSeconds")
        grace = grace if grace is not None else pod["spec"].get("terminationGracePeriodSeconds")
        await self.ends.end(pod, state, container, float(grace or 0), why)
        return self.parts.runtime.statuses(state.uid).get(name)

    async def _start(
        self,
        pod: ReadOnlyJSON,
        state: PodState,
        container: ReadOnlyJSON,
        role: Role,
        before: ContainerStatus | None,
        claims: Mapping[str, str],
    ) -> tuple[float | None, ContainerStatus | None]:
        """Starts a container unless it has to wait.

        Returns:
            The seconds until the next attempt, or None if no attempt is due; and the status of the container, or None if it
            was not created.
        """
        name, uid = container["name"], state.uid
        if before is not None and (remaining := self._crash_pause(pod, state, name, before)) > 0:
            return remaining, None
        image = str(container.get("image") or "")
        if wrong := image_names.fault(image):
            return self._bad_name(state, name, image, wrong), None
        if (remaining := self._pull_paused(state, name, image)) > 0:
            return remaining, None
        wanted = requests_of(pod, container, claims)
        devices = self.parts.manager.cdi_ids(pod["metadata"]["namespace"], wanted)
        attempt = before.attempt + 1 if before else state.attempts.get(name, 0)
        try:
            config = await config_of(self.parts.client, pod, container, role, attempt, state.volumes, devices)
        except ConfigError as e:
            return self._report_waiting(state, name, "CreateContainerConfigError", str(e)), None
        try:
            status = await self.parts.runtime.start(self._sandbox(pod), config)
        except ImagePullError as e:
            return self._not_pulled(state, name, image, str(e)), None
        except ContainerError as e:
            self._pulled(state, name, image, attempt)
            created = self.parts.runtime.statuses(uid).get(name)
            if created is None or created.attempt != attempt:
                return self._report_waiting(state, name, e.reason, str(e)), None
            return self._not_started(pod, state, container, role, before, created), created
        self._pulled(state, name, image, attempt)
        self._created(pod, state, name, before)
        self.parts.events.event(pod, "Pod", "Normal", "Started", "Container started")
        if not await self._after_start(pod, state, container):
            return 0.0, None
        self.parts.probes.follow(state.pod)
        return None, self.parts.runtime.statuses(uid).get(name, status)

    def _created(self, pod: ReadOnlyJSON, state: PodState, name: str, before: ContainerStatus | None) -> None:
        self.parts.events.event(pod, "Pod", "Normal", "Created", "Container created")
        state.seen.waiting.pop(name, None)
        state.event_texts.pop(f"Failed {name}", None)
        state.lost.pop(name, None)
        if before:
            state.seen.last[name] = before

    def _not_started(
        self,
        pod: ReadOnlyJSON,
        state: PodState,
        container: ReadOnlyJSON,
        role: Role,
        before: ContainerStatus | None,
        created: ContainerStatus,
    ) -> float | None:
        """Records a container that was created, but whose process could not be started.

        Returns:
            Seconds until the next attempt, or None if the container is not restarted.
        """
        name = container["name"]
        self._created(pod, state, name, before)
        self.parts.events.warn(pod, "Pod", "Failed", f"Error: {created.message}")
        if not restarts(pod, container, role, created.exit_code):
            return None
        state.seen.waiting[name] = WaitingContainer("RunContainerError", created.message)
        return self.parts.timers.pod_sync_backoff

    def _sandbox(self, pod: ReadOnlyJSON) -> Sandbox:
        meta, spec = pod["metadata"], pod["spec"]
        return Sandbox(
            meta["namespace"],
            meta["name"],
            meta["uid"],
            str(spec.get("hostname") or meta["name"])[:63],
            self.parts.folder / str(meta["uid"]),
            meta.get("annotations") or {},
            bool(spec.get("hostNetwork")),
            str(spec.get("restartPolicy") or "Always"),
        )

    async def _after_start(self, pod: ReadOnlyJSON, state: PodState, container: ReadOnlyJSON) -> bool:
        """Runs the container's postStart hook, and stops the container if the hook fails.

        Returns:
            Whether the hook succeeded.

        Raises:
            Later: the pod was deleted while the hook ran.
        """
        name = container["name"]
        hook = asyncio.ensure_future(run_hook(self.parts.runtime, pod, container, HandlerOccasion.POST_START))
        ending = asyncio.ensure_future(state.ending.wait())
        try:
            await asyncio.wait({hook, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not hook.done():
                raise Later("the pod is deleted while a postStart hook runs")
            outcome: Outcome | None = hook.result()
        finally:
            hook.cancel()
            ending.cancel()
            await asyncio.gather(hook, ending, return_exceptions=True)
        if outcome is None or outcome.result is ProbeResult.PASS:
            return True
        self.parts.events.warn(pod, "Pod", "FailedPostStartHook", "PostStartHook failed")
        grace = float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
        await self.ends.end(pod, state, container, grace, "FailedPostStartHook")
        state.seen.waiting[name] = WaitingContainer("PostStartHookError", outcome.text)
        return False

    # --- waiting containers -------------------------------------------------------------------------------

    def _crash_pause(self, pod: ReadOnlyJSON, state: PodState, name: str, before: ContainerStatus) -> float:
        """Returns the seconds until an ended container may restart. The pause doubles with each restart."""
        steady = before.started_at > 0 and before.finished_at - before.started_at > _STEADY
        pause = state.crashes.setdefault(name, Pause())
        # 0 before the first restart of the container in this kubelet process
        shortest = min(pause.next, self.parts.timers.crash_loop_backoff)
        remaining = self._remaining(pause, shortest if steady else pause.next)
        if remaining <= 0:
            return 0.0
        meta = pod["metadata"]
        where = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
        text = f"Back-off restarting failed container {name} in pod {where}"
        state.seen.waiting[name] = WaitingContainer("CrashLoopBackOff", f"back-off: {text}")
        state.event_once(self.parts.events, f"BackOff {name} {before.attempt}", "Warning", "BackOff", text)
        return remaining

    def _remaining(self, pause: Pause, seconds: float) -> float:
        """Returns the remaining seconds of a pause. Starts the pause if it has not started.

        Returns 0 when the pause is over; the next pause is then twice as long.
        """
        now = asyncio.get_running_loop().time()
        if pause.until == 0:
            pause.until = now + seconds
            pause.next = min(
                self.parts.timers.crash_loop_backoff_max, seconds * 2 or self.parts.timers.crash_loop_backoff
            )
        if (remaining := pause.until - now) > 0:
            return remaining
        pause.until = 0.0
        return 0.0

    def _bad_name(self, state: PodState, name: str, image: str, wrong: str) -> float:
        text = f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {wrong}'
        state.event_once(self.parts.events, f"Inspect {name}", "Warning", "InspectFailed", text)
        state.event_once(self.parts.events, f"Failed {name}", "Warning", "Failed", "Error: InvalidImageName")
        state.seen.waiting[name] = WaitingContainer("InvalidImageName", text)
        # The name stays invalid until the image in the pod changes, and this change triggers a sync.
        return self.parts.timers.crash_loop_backoff_max

    def _not_pulled(self, state: PodState, name: str, image: str, why: str) -> float:
        pause = state.pulls.setdefault(image, Pause(next=self.parts.timers.crash_loop_backoff))
        text = f'Failed to pull image "{image}": {why}'
        self.parts.events.warn(state.pod, "Pod", "Failed", text)
        self.parts.events.warn(state.pod, "Pod", "Failed", "Error: ErrImagePull")
        state.seen.waiting[name] = WaitingContainer("ErrImagePull", why)
        return min(self.parts.timers.pod_sync_backoff, self._remaining(pause, pause.next))

    def _pull_paused(self, state: PodState, name: str, image: str) -> float:
        pause = state.pulls.get(image)
        if pause is None or pause.until == 0 or (remaining := self._remaining(pause, 0)) <= 0:
            return 0.0
        text = f'Back-off pulling image "{image}"'
        before = state.seen.waiting.get(name)
        if before is not None and before.reason == "ErrImagePull":
            why = f"{text}: {before.reason}: {before.message}"
            state.seen.waiting[name] = WaitingContainer("ImagePullBackOff", why)
            self.parts.events.event(state.pod, "Pod", "Normal", "BackOff", text)
            self.parts.events.warn(state.pod, "Pod", "Failed", "Error: ImagePullBackOff")
        return remaining

    def _pulled(self, state: PodState, name: str, image: str, attempt: int) -> None:
        text = f'Container image "{image}" already present on machine and can be accessed by the pod'
        state.event_once(self.parts.events, f"Pulled {name} {attempt}", "Normal", "Pulled", text)
        state.pulls.pop(image, None)

    def _report_waiting(self, state: PodState, name: str, reason: str, text: str) -> float:
        state.event_once(self.parts.events, f"Failed {name}", "Warning", "Failed", f"Error: {text}")
        state.seen.waiting[name] = WaitingContainer(reason, text)
        return self.parts.timers.pod_sync_backoff
