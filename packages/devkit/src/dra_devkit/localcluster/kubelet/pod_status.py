"""Builds a pod's status from its containers: phase, conditions, container statuses and device health."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.defaulting import now

from ..runtime.interface import ContainerState, ContainerStatus, Role
from .containers import roles
from .fields import NODE_ADDRESS

SIMULATED = "dra-kubeletplugin.dev/Simulated"  # a condition of pods whose containers are simulated


class PodPhase(Enum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_terminal(self) -> bool:
        return self in {PodPhase.SUCCEEDED, PodPhase.FAILED}


@dataclass
class WaitingContainer:
    """The reason and the message of a container that waits."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class ContainerReadiness:
    """The result of a container's probes."""

    started: bool
    ready: bool


@dataclass
class ContainerView:
    """The state of a pod's containers that the kubelet knows and the runtime does not report.

    Args:
        waiting: the reason why a container waits, by container.
        last: the status of a container's previous attempt, by container.
    """

    waiting: dict[str, WaitingContainer] = field(default_factory=dict)
    last: dict[str, ContainerStatus] = field(default_factory=dict)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def restarts(pod: Mapping[str, Any], container: Mapping[str, Any], role: Role, exit_code: int) -> bool:
    """Returns whether an ended container must be started again."""
    if any(_applies(rule, exit_code) for rule in container.get("restartPolicyRules") or []):
        return True
    policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy", "Always")
    if role is Role.INIT:
        return exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _applies(rule: Mapping[str, Any], exit_code: int) -> bool:
    """Returns whether a restart rule matches the exit code. ``Restart`` is the only action of a rule (KEP-5307)."""
    codes = rule.get("exitCodes") or {}
    return (exit_code in (codes.get("values") or [])) == (codes.get("operator") == "In")


def seconds_left(pod: Mapping[str, Any]) -> float | None:
    """Returns the seconds until the pod exceeds its active deadline; None if it has no deadline or has not started."""
    limit, since = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    if limit is None or not since:
        return None
    started = datetime.fromisoformat(str(since))
    return float((started - datetime.now(UTC)).total_seconds() + limit)


def phase_of(pod: Mapping[str, Any], statuses: Mapping[str, ContainerStatus]) -> PodPhase:
    """Returns the pod's phase by the kubelet's rules. Sidecars do not keep a pod from finishing."""
    ended, failed, running, missing = 0, 0, 0, 0
    for container, role in roles(pod):
        status = statuses.get(container["name"])
        if role is Role.SIDECAR:
            continue
        if role is Role.INIT:
            if status is None or status.state is ContainerState.RUNNING:
                missing += 1
            elif status.exit_code:
                if not restarts(pod, container, role, status.exit_code):
                    return PodPhase.FAILED
                missing += 1
            continue
        if status is None:
            missing += 1
        elif status.state is ContainerState.RUNNING or restarts(pod, container, role, status.exit_code):
            running += 1
        else:
            ended += 1
            failed += bool(status.exit_code)
    if missing:
        return PodPhase.PENDING
    if running:
        return PodPhase.RUNNING
    return PodPhase.FAILED if failed else PodPhase.SUCCEEDED


_NOT_READY = {PodPhase.SUCCEEDED: "PodCompleted", PodPhase.FAILED: "PodFailed"}  # reasons of terminal phases


def status_of(
    pod: Mapping[str, Any],
    statuses: Mapping[str, ContainerStatus],
    seen: ContainerView,
    phase: PodPhase,
    health: Callable[[Mapping[str, Any]], list[JSON]],
    readiness_of: Callable[[Mapping[str, Any], ContainerStatus], ContainerReadiness],
) -> JSON:
    """Builds ``status`` as the kubelet writes it.

    Args:
        seen: waiting reasons and previous attempts of the containers.
        health: returns a container's ``allocatedResourcesStatus``.
        readiness_of: returns whether a container has started and is ready.
    """
    all_roles = roles(pod)
    initialized = all(
        allows_next_start(c, role, statuses.get(c["name"]), readiness_of)
        for c, role in all_roles
        if role is not Role.MAIN
    )
    out: JSON = {"phase": phase.value}
    for key, wanted in (("initContainerStatuses", {Role.INIT, Role.SIDECAR}), ("containerStatuses", {Role.MAIN})):
        found = [
            _container(
                c,
                role,
                statuses.get(c["name"]),
                seen,
                health,
                readiness_of,
                initialized=initialized or role is not Role.MAIN,
            )
            for c, role in all_roles
            if role in wanted
        ]
        if found:
            out[key] = found
    out["conditions"] = _conditions(pod, phase, out, initialized=initialized, started=bool(statuses))
    if any(c.simulated for c in statuses.values()):
        text = "containers are simulated: nothing of this pod really runs"
        out["conditions"].append({**_condition(pod, SIMULATED, True), "reason": "NoRuntime", "message": text})
    out["startTime"] = (pod.get("status") or {}).get("startTime") or now()
    out["hostIP"], out["hostIPs"] = NODE_ADDRESS, [{"ip": NODE_ADDRESS}]
    if pod["spec"].get(
        "hostNetwork"
    ):  # without hostNetwork, a pod has no reachable address, because there is no pod network
        out["podIP"], out["podIPs"] = NODE_ADDRESS, [{"ip": NODE_ADDRESS}]
    return out


def _conditions(
    pod: Mapping[str, Any], phase: PodPhase, containers: JSON, *, initialized: bool, started: bool
) -> list[JSON]:
    """Builds the pod's conditions. ``containers`` is a pod status that contains the statuses of the containers."""
    main = containers["containerStatuses"]
    ready = phase is PodPhase.RUNNING and all(s["ready"] for s in [*main, *containers.get("initContainerStatuses", [])])
    waits = {"reason": _NOT_READY.get(phase, "ContainersNotReady")}
    if phase not in _NOT_READY:
        not_ready = [s["name"] for s in main if not s["ready"]]
        waits["message"] = f"containers with unready status: [{' '.join(not_ready)}]"
    gates = _gates(pod)
    not_yet = waits if not ready else {"reason": "ReadinessGatesNotReady", "message": ", ".join(gates)}
    conditions = [
        _condition(pod, "PodReadyToStartContainers", started and not phase.is_terminal),
        _condition(
            pod, "Initialized", initialized or phase is PodPhase.SUCCEEDED, {"reason": "ContainersNotInitialized"}
        ),
        _condition(pod, "Ready", ready and not gates, not_yet),
        _condition(pod, "ContainersReady", ready, waits),
    ]
    known = {c.get("type") for c in (pod.get("status") or {}).get("conditions") or []}
    if "PodScheduled" not in known:
        # If a user bound the pod without the scheduler, the condition is not set yet.
        conditions.append(_condition(pod, "PodScheduled", True))
    return conditions


def _gates(pod: Mapping[str, Any]) -> list[str]:
    """Returns a message for each readiness gate that is not "True" yet. Source: KEP-580."""
    known = {c.get("type"): c.get("status") for c in (pod.get("status") or {}).get("conditions") or []}
    out = []
    for gate in pod["spec"].get("readinessGates") or []:
        name = gate["conditionType"]
        if name not in known:
            out.append(f'corresponding condition of pod readiness gate "{name}" does not exist.')
        elif known[name] != "True":
            out.append(f'the status of pod readiness gate "{name}" is not "True", but {known[name]}')
    return out


def allows_next_start(
    container: Mapping[str, Any],
    role: Role,
    status: ContainerStatus | None,
    readiness_of: Callable[[Mapping[str, Any], ContainerStatus], ContainerReadiness],
) -> bool:
    """Returns whether the next container may start: this init container has succeeded, or this sidecar has started."""
    if status is None:
        return False
    if role is Role.SIDECAR:
        return readiness_of(container, status).started
    return status.state is ContainerState.EXITED and not status.exit_code


def _condition(pod: Mapping[str, Any], type: str, value: bool, otherwise: Mapping[str, str] | None = None) -> JSON:
    """Builds a condition. Keeps the time of the last transition if the status did not change."""
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
    seen: ContainerView,
    health: Callable[[Mapping[str, Any]], list[JSON]],
    readiness_of: Callable[[Mapping[str, Any], ContainerStatus], ContainerReadiness],
    *,
    initialized: bool,
) -> JSON:
    name = container["name"]
    out: JSON = {"name": name, "image": container.get("image", ""), "imageID": "", "restartCount": 0}
    if status is not None:
        out |= {"restartCount": status.attempt, "containerID": status.id}
    waiting = seen.waiting.get(name)
    if waiting or status is None:
        default = WaitingContainer("ContainerCreating" if initialized else "PodInitializing")
        shown = waiting or default
        out["state"] = {"waiting": {"reason": shown.reason, **({"message": shown.message} if shown.message else {})}}
        out["ready"] = out["started"] = False
        last = status or seen.last.get(name)
    else:
        out["state"] = _state(status)
        readiness = readiness_of(container, status)
        ended_well = status.state is ContainerState.EXITED and not status.exit_code
        out["started"] = readiness.started
        out["ready"] = ended_well if role is Role.INIT else readiness.ready
        last = seen.last.get(name)
    out["lastState"] = _state(last) if last and last.state is ContainerState.EXITED else {}
    if found := health(container):
        out["allocatedResourcesStatus"] = found
    return out


def _state(status: ContainerStatus) -> JSON:
    if status.state is ContainerState.RUNNING:
        return {"running": {"startedAt": stamp(status.started_at)}}
    ended = {
        "exitCode": status.exit_code,
        "reason": status.reason or ("Error" if status.exit_code else "Completed"),
        "startedAt": stamp(status.started_at),
        "finishedAt": stamp(status.finished_at),
        "containerID": status.id,
    }
    return {"terminated": ended | ({"message": status.message} if status.message else {})}
