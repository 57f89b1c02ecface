"""Stops a pod's containers: writes events, runs preStop hooks, applies the grace period, and stops sidecars last."""

from __future__ import annotations

import asyncio

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ..event_recorder import EventRecorder
from ..runtime.interface import ContainerRuntime, ContainerState, HandlerOccasion, ProbeResult, Role
from .containers import roles
from .pod_state import PodState
from .probe_targets import run_hook

_MIN_STOP = 2.0  # minimum seconds for a container to stop, even if its preStop hook used up the grace period


class ContainerStopper:
    def __init__(self, runtime: ContainerRuntime, events: EventRecorder) -> None:
        self.runtime = runtime
        self.events = events

    async def end(self, pod: ReadOnlyJSON, state: PodState, container: ReadOnlyJSON, grace: float, why: str) -> None:
        """Stops one running container. The preStop hook and the container's shutdown share ``grace`` seconds."""
        name = container["name"]
        status = self.runtime.statuses(state.uid).get(name)
        if status is None or status.state is not ContainerState.RUNNING:
            return
        state.event_once(self.events, f"Killing {name} {status.id}", "Normal", "Killing", why)
        if grace > 0 and (container.get("lifecycle") or {}).get(HandlerOccasion.PRE_STOP.value):
            clock = asyncio.get_running_loop().time
            started = clock()
            try:
                async with asyncio.timeout(grace):
                    outcome = await run_hook(self.runtime, pod, container, HandlerOccasion.PRE_STOP)
            except TimeoutError:
                outcome = None  # as in a real kubelet, there is no event if the hook takes too long
            if outcome is not None and outcome.result is not ProbeResult.PASS:
                self.events.warn(pod, "Pod", "FailedPreStopHook", "PreStopHook failed")
            grace = max(_MIN_STOP, grace - (clock() - started))
        await self.runtime.stop(state.uid, name, grace)

    async def end_all(self, pod: ReadOnlyJSON, state: PodState, grace: float | None = None) -> None:
        """Stops all containers of a pod, sidecars last and in reverse order, within one grace period.

        Args:
            grace: seconds for all containers together; None for the pod's own grace period.
        """
        clock = asyncio.get_running_loop().time
        given = grace if grace is not None else float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
        until = clock() + given
        statuses = self.runtime.statuses(state.uid)
        running = [
            (c, r)
            for c, r in roles(pod)
            if c["name"] in statuses and statuses[c["name"]].state is ContainerState.RUNNING
        ]
        async with asyncio.TaskGroup() as tasks:
            for container, role in running:
                if role is not Role.SIDECAR:
                    tasks.create_task(self.end(pod, state, container, given, f"Stopping container {container['name']}"))
        for container, role in reversed(running):
            if role is Role.SIDECAR:
                remaining = max(min(given, _MIN_STOP), until - clock())
                await self.end(pod, state, container, remaining, f"Stopping container {container['name']}")
        state.seen.waiting = {}
