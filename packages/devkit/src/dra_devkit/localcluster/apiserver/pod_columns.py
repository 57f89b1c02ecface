"""The row that `kubectl get pods` prints for a pod. Source: kubernetes, pkg/printers/internalversion, printPod."""

from __future__ import annotations

from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import ReadOnlyJSON


@dataclass(frozen=True)
class PodRow:
    """The cells of one pod.

    Attributes:
        restarted: the time of the last restart; empty if there was none.
        gates: fulfilled and total readiness gates, like 1/2; empty if there are none.
    """

    ready: str
    status: str
    restarts: int
    restarted: str
    gates: str


@dataclass
class _Count:
    ready: int = 0
    restarts: int = 0
    restarted: str = ""

    def add(self, status: ReadOnlyJSON) -> None:
        self.restarts += int(status.get("restartCount") or 0)
        ended = _state(status, "lastState").get("terminated") or {}
        self.restarted = max(self.restarted, str(ended.get("finishedAt") or ""))


def pod_row(pod: ReadOnlyJSON) -> PodRow:
    """Returns a pod's row. The status comes from the first unfinished init container, or from the containers, or is the phase."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    conditions = {c.get("type"): c for c in (status.get("conditions") or [])}
    inits = {c.get("name"): c for c in (spec.get("initContainers") or [])}
    sidecars = {name for name, c in inits.items() if c.get("restartPolicy") == "Always"}
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    all_inits, sidecar_count = _Count(), _Count()
    starting = ""
    for i, found in enumerate(status.get("initContainerStatuses") or []):
        all_inits.add(found)
        if found.get("name") in sidecars:
            sidecar_count.add(found)
        ended, waiting = _state(found).get("terminated"), _state(found).get("waiting") or {}
        if ended and not ended.get("exitCode"):
            continue
        if found.get("name") in sidecars and found.get("started"):
            sidecar_count.ready += bool(found.get("ready"))
            continue
        if ended:
            starting = f"Init:{_termination_reason(ended)}"
        elif waiting.get("reason") not in {None, "", "PodInitializing"}:
            starting = f"Init:{waiting['reason']}"
        else:
            starting = f"Init:{i}/{len(inits)}"
        break
    count = all_inits
    count.ready = sidecar_count.ready
    if not starting or conditions.get("Initialized", {}).get("status") == "True":
        count = sidecar_count
        reason = _of_containers((status.get("containerStatuses") or []), count, starting or reason)
        if reason == "Completed" and any(_runs(s) for s in (status.get("containerStatuses") or [])):
            reason = "Running" if conditions.get("Ready", {}).get("status") == "True" else "NotReady"
    else:
        reason = starting
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in {"Succeeded", "Failed"}:
            reason = "Terminating"
    total = len(spec.get("containers") or []) + len(sidecars)
    gates = [
        conditions.get(g.get("conditionType"), {}).get("status") == "True" for g in (spec.get("readinessGates") or [])
    ]
    shown = f"{sum(gates)}/{len(gates)}" if gates else ""
    return PodRow(f"{count.ready}/{total}", reason, count.restarts, count.restarted, shown)


def _of_containers(statuses: list[ReadOnlyJSON], count: _Count, reason: str) -> str:
    for status in reversed(statuses):
        count.add(status)
        ended, waiting = _state(status).get("terminated"), _state(status).get("waiting") or {}
        if waiting.get("reason"):
            reason = str(waiting["reason"])
        elif ended:
            reason = _termination_reason(ended)
        elif _runs(status):
            count.ready += 1
    return reason


def _runs(status: ReadOnlyJSON) -> bool:
    return bool(status.get("ready")) and _state(status).get("running") is not None


def _termination_reason(ended: ReadOnlyJSON) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _state(status: ReadOnlyJSON, field: str = "state") -> ReadOnlyJSON:
    return status.get(field) or {}
