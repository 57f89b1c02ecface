"""A pod's status from what its containers do: phase, conditions, container statuses, health of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from ...resources.defaults import now
from ..runtime.interface import ContainerStatus, Role, State
from .containers import roles
from .unsupported import may_be_ready

JSON = dict[str, Any]
SIMULATED = "dra-kubeletplugin.dev/Simulated"  # a condition of pods of which nothing really runs


class Phase(Enum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_terminal(self) -> bool:
        return self in {Phase.SUCCEEDED, Phase.FAILED}


@dataclass
class Waiting:
    """Why a container does not run now."""

    reason: str
    message: str = ""


@dataclass
class Seen:
    """What is known of a pod's containers beside the runtime's own word.

    Args:
        waiting: by container.
        last: the attempt before, by container.
    """

    waiting: dict[str, Waiting] = field(default_factory=dict)
    last: dict[str, ContainerStatus] = field(default_factory=dict)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def restarts(pod: Mapping[str, Any], container: Mapping[str, Any], role: Role, exit_code: int) -> bool:
    """Whether a container that ended is started again."""
    policy = container.get("restartPolicy") if role is not Role.INIT else None
    policy = policy or pod["spec"].get("restartPolicy", "Always")
    if role is Role.INIT:
        return exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def phase_of(pod: Mapping[str, Any], statuses: Mapping[str, ContainerStatus]) -> Phase:
    """By the rules of the kubelet: sidecars never keep a pod from finishing."""
    ended, failed, running, missing = 0, 0, 0, 0
    for container, role in roles(pod):
        status = statuses.get(container["name"])
        if role is Role.SIDECAR:
            continue
        if role is Role.INIT:
            if status is None or status.state is State.RUNNING:
                missing += 1
            elif status.exit_code:
                if not restarts(pod, container, role, status.exit_code):
                    return Phase.FAILED
                missing += 1
            continue
        if status is None:
            missing += 1
        elif status.state is State.RUNNING or restarts(pod, container, role, status.exit_code):
            running += 1
        else:
            ended += 1
            failed += bool(status.exit_code)
    if missing:
        return Phase.PENDING
    if running:
        return Phase.RUNNING
    return Phase.FAILED if failed else Phase.SUCCEEDED


def status_of(
    pod: Mapping[str, Any],
    statuses: Mapping[str, ContainerStatus],
    seen: Seen,
    phase: Phase,
    health: Callable[[Mapping[str, Any]], list[JSON]],
) -> JSON:
    """``status`` as the kubelet writes it; ``health`` answers a container's ``allocatedResourcesStatus``."""
    all_roles = roles(pod)
    # An init container that ended well, or a sidecar that runs, is done with.
    initialized = all(_is_past(statuses.get(c["name"]), role) for c, role in all_roles if role is not Role.MAIN)
    out: JSON = {"phase": phase.value}
    for key, wanted in (("initContainerStatuses", {Role.INIT, Role.SIDECAR}), ("containerStatuses", {Role.MAIN})):
        found = [
            _container(c, role, statuses.get(c["name"]), seen, health, ready=initialized or role is not Role.MAIN)
            for c, role in all_roles
            if role in wanted
        ]
        if found:
            out[key] = found
    ready = phase is Phase.RUNNING and all(s["ready"] for s in out["containerStatuses"])
    ready = ready and all(s["ready"] for s in out.get("initContainerStatuses", []))
    why = "PodCompleted" if phase is Phase.SUCCEEDED else "PodFailed" if phase is Phase.FAILED else "ContainersNotReady"
    not_ready = [s["name"] for s in out["containerStatuses"] if not s["ready"]]
    waits = {"reason": why}
    if why == "ContainersNotReady":
        waits["message"] = f"containers with unready status: [{' '.join(not_ready)}]"
    conditions = [
        _condition(pod, "PodReadyToStartContainers", bool(statuses) and not phase.is_terminal),
        _condition(pod, "Initialized", initialized or phase is Phase.SUCCEEDED, {"reason": "ContainersNotInitialized"}),
        _condition(pod, "Ready", ready, waits),
        _condition(pod, "ContainersReady", ready, waits),
    ]
    if any(s.simulated for s in statuses.values()):
        text = "containers are simulated: nothing of this pod really runs"
        conditions.append({**_condition(pod, SIMULATED, True), "reason": "NoRuntime", "message": text})
    known = {c.get("type") for c in (pod.get("status") or {}).get("conditions") or []}
    if "PodScheduled" not in known:
        conditions.append(_condition(pod, "PodScheduled", True))  # bound by hand
    out["conditions"] = conditions
    out["startTime"] = (pod.get("status") or {}).get("startTime") or now()
    out["hostIP"] = "127.0.0.1"
    out["hostIPs"] = [{"ip": "127.0.0.1"}]
    return out


def _is_past(status: ContainerStatus | None, role: Role) -> bool:
    if status is None:
        return False
    return (
        status.state is State.RUNNING if role is Role.SIDECAR else status.state is State.EXITED and not status.exit_code
    )


def _condition(pod: Mapping[str, Any], type: str, value: bool, otherwise: Mapping[str, str] | None = None) -> JSON:
    """With the time of the last change kept, where it is none."""
    word = "True" if value else "False"
    before: Mapping[str, Any] = next(
        (c for c in (pod.get("status") or {}).get("conditions") or [] if c.get("type") == type), {}
    )
    since = before.get("lastTransitionTime") if before.get("status") == word else None
    return {"type": type, "status": word, "lastTransitionTime": since or now(), **({} if value else otherwise or {})}


def _container(
    container: Mapping[str, Any],
    role: Role,
    status: ContainerStatus | None,
    seen: Seen,
    health: Callable[[Mapping[str, Any]], list[JSON]],
    *,
    ready: bool,
) -> JSON:
    name = container["name"]
    out: JSON = {"name": name, "image": container.get("image", ""), "imageID": "", "restartCount": 0}
    if status is not None:
        out |= {"restartCount": status.attempt, "containerID": status.id}
    waiting = seen.waiting.get(name)
    if waiting or status is None:
        default = Waiting("ContainerCreating" if ready else "PodInitializing")
        told = waiting or default
        out["state"] = {"waiting": {"reason": told.reason, **({"message": told.message} if told.message else {})}}
        out["ready"] = out["started"] = False
        last = status or seen.last.get(name)
    else:
        out["state"] = _state(status)
        runs = status.state is State.RUNNING
        out["started"] = runs
        ended_well = status.state is State.EXITED and not status.exit_code
        out["ready"] = ended_well if role is Role.INIT else runs and may_be_ready(container)
        last = seen.last.get(name)
    out["lastState"] = _state(last) if last and last.state is State.EXITED else {}
    if found := health(container):
        out["allocatedResourcesStatus"] = found
    return out


def _state(status: ContainerStatus) -> JSON:
    if status.state is State.RUNNING:
        return {"running": {"startedAt": stamp(status.started_at)}}
    ended = {
        "exitCode": status.exit_code,
        "reason": status.reason or ("Error" if status.exit_code else "Completed"),
        "startedAt": stamp(status.started_at),
        "finishedAt": stamp(status.finished_at),
        "containerID": status.id,
    }
    return {"terminated": ended | ({"message": status.message} if status.message else {})}
