"""What the kubelet remembers of a pod between two looks at it, and what it has told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ...kube import KubeClient
from ..event_recorder import EventRecorder
from ..runtime.interface import ContainerRuntime, ContainerState, ContainerStatus, Mount, Role
from .claims import ClaimManager
from .containers import roles
from .pod_status import ContainerView
from .probes import Probes
from .timers import Timers

JSON = dict[str, Any]
_LOST = 255  # the exit code that containerd gives what was running when the machine went down


class Later(Exception):
    """The pod cannot be brought further now; it is looked at again after the pause of its key."""


@dataclass(frozen=True)
class Parts:
    """What a kubelet brings pods up with; ``folder`` is that of all pods."""

    client: KubeClient
    manager: ClaimManager
    runtime: ContainerRuntime
    events: EventRecorder
    folder: Path
    timers: Timers
    probes: Probes


@dataclass
class Pause:
    """Between tries of one thing: ``until`` on the loop's clock, and ``next`` in seconds."""

    until: float = 0.0
    next: float = 0.0


@dataclass
class PodState:
    """All but ``pod`` may be lost in a restart of the kubelet, and ``lost`` tells what went with the machine."""

    pod: JSON  # as last seen: events about a pod that is gone name it
    claims: list[JSON]  # resourceClaimStatuses as first seen: a real kubelet does not look again
    prepared: bool = False
    volumes: dict[str, Mount] = field(default_factory=dict)
    mounts: dict[str, Pause] = field(default_factory=dict)  # by volume
    seen: ContainerView = field(default_factory=ContainerView)
    crashes: dict[str, Pause] = field(default_factory=dict)  # by container
    pulls: dict[str, Pause] = field(default_factory=dict)  # by image
    told: dict[str, str] = field(default_factory=dict)  # reason of an event → its text
    lost: dict[str, ContainerStatus] = field(default_factory=dict)  # by container
    attempts: dict[str, int] = field(default_factory=dict)  # by container: the first of this life
    ending: asyncio.Event = field(default_factory=asyncio.Event)  # somebody deletes it

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    def told_once(self, events: EventRecorder, key: str, type: str, reason: str, text: str) -> None:
        """An event, unless the last one with this key had the same text."""
        if self.told.get(key) != text:
            self.told[key] = text
            events.event(self.pod, "Pod", type, reason, text)


def remembered(pod: JSON, *, runs: bool) -> PodState:
    """A pod that is seen for the first time in this life of the kubelet; ``runs``: its containers outlived the one before."""
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
        # Init containers that have ended run again: what they made went with the sandbox.
        if role is not Role.INIT or "running" in (found.get("state") or {}):
            state.lost[container["name"]] = _lost(found)
    return state


def _lost(status: Mapping[str, Any]) -> ContainerStatus:
    """How a container has ended, as far as its pod's status knows."""
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
        finished_at=_seconds(ended.get("finishedAt") or began),
        exit_code=int(ended.get("exitCode", _LOST)),
        reason=str(ended.get("reason") or "Unknown"),
        message=str(ended.get("message") or ""),
    )


def _seconds(stamp: object) -> float:
    return datetime.fromisoformat(str(stamp)).timestamp() if stamp else 0.0


__all__ = ["Later", "Pause", "PodState", "remembered"]
