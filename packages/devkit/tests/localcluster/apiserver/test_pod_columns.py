"""The columns of `kubectl get pods`, by the rules of the Kubernetes printer. Upstream: printers_test.go, TestPrintPod."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.localcluster.apiserver.pod_columns import pod_row
from dra_kubeletplugin.base.json_types import JSON

RUNNING: JSON = {"state": {"running": {}}, "ready": True, "started": True}
DONE: JSON = {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
FAILED: JSON = {"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}


def waiting(reason: str) -> JSON:
    return {"state": {"waiting": {"reason": reason}}}


def pod(*main: JSON, init: tuple[JSON, ...] = (), side: int = 0, is_deleted: bool = False, **status: Any) -> JSON:
    """Returns a pod. The first ``side`` init containers are sidecars."""
    policy = [{"restartPolicy": "Always"} if i < side else {} for i in range(len(init))]
    spec = {
        "containers": [{"name": f"m{i}"} for i in range(len(main))],
        "initContainers": [{"name": f"i{i}", **fields} for i, fields in enumerate(policy)],
    }
    container_statuses = {
        "containerStatuses": [{"name": f"m{i}", **s} for i, s in enumerate(main)],
        "initContainerStatuses": [{"name": f"i{i}", **s} for i, s in enumerate(init)],
    }
    meta = {"name": "p"} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if is_deleted else {})
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", **container_statuses, **status}}


def true_condition(type: str) -> list[JSON]:
    return [{"type": type, "status": "True"}]


@pytest.mark.parametrize(
    ("pod_object", "ready", "status"),
    [
        (pod(RUNNING, RUNNING), "2/2", "Running"),
        (pod(RUNNING, FAILED), "1/2", "Error"),
        (pod(waiting("ContainerCreating"), phase="Pending"), "0/1", "ContainerCreating"),
        (pod(waiting("CrashLoopBackOff")), "0/1", "CrashLoopBackOff"),
        (pod(DONE, phase="Succeeded"), "0/1", "Completed"),
        (pod(DONE, RUNNING), "1/2", "NotReady"),
        (pod(DONE, RUNNING, conditions=true_condition("Ready")), "1/2", "Running"),
        (pod({"state": {"terminated": {"exitCode": 3}}}), "0/1", "ExitCode:3"),
        (pod({"state": {"terminated": {"exitCode": 137, "signal": 9}}}), "0/1", "Signal:9"),
        (pod(RUNNING, is_deleted=True), "1/1", "Terminating"),
        (pod(DONE, is_deleted=True, phase="Succeeded"), "0/1", "Completed"),
        (pod(RUNNING, is_deleted=True, reason="NodeLost"), "1/1", "Unknown"),
        (pod(phase="Failed", reason="Evicted"), "0/0", "Evicted"),
        (pod({"state": {}}, phase="Pending"), "0/1", "Pending"),
        (pod({"state": {}}, conditions=[{"type": "PodScheduled", "reason": "SchedulingGated"}]), "0/1", "SchedulingGated"),
        (pod(waiting("PodInitializing"), init=(DONE, RUNNING, {"state": {}}), phase="Pending"), "0/1", "Init:1/3"),
        (pod(waiting("PodInitializing"), init=(FAILED,), phase="Pending"), "0/1", "Init:Error"),
        (pod(waiting("PodInitializing"), init=(waiting("CrashLoopBackOff"),)), "0/1", "Init:CrashLoopBackOff"),
        (pod(waiting("PodInitializing"), init=(waiting("PodInitializing"),)), "0/1", "Init:0/1"),
        (pod(waiting("PodInitializing"), init=({"state": {"terminated": {"exitCode": 2}}},)), "0/1", "Init:ExitCode:2"),
        (pod(waiting("PodInitializing"), init=(DONE,), phase="Pending"), "0/1", "PodInitializing"),
        (pod(RUNNING, init=(RUNNING,), side=1), "2/2", "Running"),
        (pod(waiting("PodInitializing"), init=({"state": {"running": {}}},), side=1), "0/2", "Init:0/1"),
    ],
)  # fmt: skip
def test_the_columns_ready_and_status_match_kubernetes(pod_object: JSON, ready: str, status: str) -> None:
    row = pod_row(pod_object)
    assert (row.ready, row.status) == (ready, status)


def restarted(count: int, finished_at: str) -> JSON:
    return {"restartCount": count, "lastState": {"terminated": {"finishedAt": finished_at}}}


def test_restarts_count_init_containers_only_during_initialization() -> None:
    side, main = restarted(2, "2026-01-02T00:00:00Z"), restarted(3, "2026-01-03T00:00:00Z")
    starting = pod(waiting("PodInitializing"), init=({**RUNNING, **side}, {**FAILED, **main}), side=1)
    assert (pod_row(starting).restarts, pod_row(starting).restarted) == (5, "2026-01-03T00:00:00Z")
    initialized = pod({**RUNNING, **side}, init=({**RUNNING, **side}, {**DONE, **main}), side=1)
    assert (pod_row(initialized).restarts, pod_row(initialized).restarted) == (4, "2026-01-02T00:00:00Z")


def test_readiness_gates_show_the_number_of_true_conditions() -> None:
    pod_object = pod(RUNNING, conditions=[*true_condition("a"), {"type": "b", "status": "False"}])
    assert pod_row(pod_object).gates == ""
    pod_object["spec"]["readinessGates"] = [{"conditionType": t} for t in ("a", "b", "c")]
    assert pod_row(pod_object).gates == "1/3"
