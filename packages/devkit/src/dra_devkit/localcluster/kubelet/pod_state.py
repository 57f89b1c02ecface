"""The state of a pod that the kubelet keeps in memory between two syncs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient

from ..event_recorder import EventRecorder
from ..runtime.interface import ContainerRuntime, ContainerState, ContainerStatus, Mount, Role
from .claims import ClaimManager
from .containers import roles
from .pod_status import ContainerView
from .probes import Probes
from .timers import Timers

_LOST = 255  # containerd sets this exit code for a container that was running when the machine stopped


class Later(Exception):
    """The pod cannot make progress now. The work queue retries it after a pause."""


@dataclass(frozen=True)
class Parts:
    """The objects that a kubelet needs to run pods. ``folder`` contains the directories of all pods."""

    client: KubeClient
    manager: ClaimManager
    runtime: ContainerRuntime
    events: EventRecorder
    folder: Path
    timers: Timers
    probes: Probes


@dataclass
class Pause:
    """The pause between attempts. It ends at ``until`` on the event loop's clock; ``next`` is the length of the next pause in seconds."""

    until: float = 0.0
    next: float = 0.0


@dataclass
class PodState:
    """The state of one pod. A restart of the kubelet loses it.

    Attributes:
        lost: containers that ended because the machine stopped, by name.
    """

    pod: JSON  # the newest known version; also after the pod was deleted, for events
    claims: list[JSON]  # resourceClaimStatuses when the pod was first seen; a real kubelet does not read them again
    prepared: bool = False
    volumes: dict[str, Mount] = field(default_factory=dict)
    mounts: dict[str, Pause] = field(default_factory=dict)  # by volume
    seen: ContainerView = field(default_factory=ContainerView)
    crashes: dict[str, Pause] = field(default_factory=dict)  # by container
    pulls: dict[str, Pause] = field(default_factory=dict)  # by image
    event_texts: dict[str, str] = field(default_factory=dict)  # by key of an event: its last text
    lost: dict[str, ContainerStatus] = field(default_factory=dict)  # by container
    # By container: the number of the first attempt in this kubelet process
    attempts: dict[str, int] = field(default_factory=dict)
    ending: asyncio.Event = field(default_factory=asyncio.Event)  # set when the pod is deleted

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    def event_once(self, events: EventRecorder, key: str, type: str, reason: str, text: str) -> None:
        """Writes an event, unless the last event with this key had the same text."""
        if self.event_texts.get(key) != text:
            self.event_texts[key] = text
            events.event(self.pod, "Pod", type, reason, text)


def initial_state(pod: JSON, *, runs: bool) -> PodState:
    """Builds the state of a pod that this kubelet process sees for the first time.

    Args:
        runs: whether the pod's containers still run: True after a restart of the kubelet, False after a reboot.
    """
    status = pod.get("status") or {}
    state = PodState(pod, status.get("resourceClaimStatuses") or [])
    if runs:
        return state
    known = {
        s.get("name"): s
        for s in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    }
    for container, role in roles(pod):
        found = known.get(container["name"]) or {}
        if not found.get("containerID"):
            continue
        state.attempts[container["name"]] = int(found.get("restartCount") or 0) + 1
        # An ended init container must run again, because its files were lost with the sandbox.
        if role is not Role.INIT or "running" in (found.get("state") or {}):
            state.lost[container["name"]] = _lost(found)
    return state


def _lost(status: Mapping[str, Any]) -> ContainerStatus:
    """Builds the status of a container that ended because the machine stopped, from the container's status in the pod.

    For a container that was running, the end time is now, because containerd sets it when it starts and finds no task.
    """
    now = status.get("state") or {}
    ended = now.get("terminated") or ("waiting" in now and (status.get("lastState") or {}).get("terminated")) or {}
    began = ended.get("startedAt") or (now.get("running") or {}).get("startedAt")
    return ContainerStatus(
        str(status["containerID"]),
        str(status["name"]),
        int(status.get("restartCount") or 0),
        ContainerState.EXITED,
        str(status.get("image") or ""),
        _seconds(began),
        finished_at=_seconds(ended.get("finishedAt")) or time.time(),
        exit_code=int(ended.get("exitCode", _LOST)),
        reason=str(ended.get("reason") or "Unknown"),
        message=str(ended.get("message") or ""),
    )


def _seconds(stamp: object) -> float:
    return datetime.fromisoformat(str(stamp)).timestamp() if stamp else 0.0
