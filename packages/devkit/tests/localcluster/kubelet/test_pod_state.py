"""A kubelet's first view of a pod after a machine stop. The end time of a container that was running is the current time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dra_devkit.localcluster.kubelet.pod_state import initial_state
from dra_devkit.localcluster.kubelet.pod_status import stamp

HOURS_AGO = stamp(time.time() - 7200)


def pod(state: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    status = {"name": "main", "containerID": "x://1", "restartCount": 2, "state": state, "lastState": last or {}}
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "1"},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"containerStatuses": [status]},
    }


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_container_that_ended_before_keeps_its_times(is_waiting: bool) -> None:
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "startedAt": HOURS_AGO, "finishedAt": HOURS_AGO}}
    status_pod = pod({"waiting": {"reason": "CrashLoopBackOff"}}, ended) if is_waiting else pod(ended)
    lost = initial_state(status_pod, runs=False).lost["main"]
    assert (stamp(lost.started_at), stamp(lost.finished_at), lost.exit_code) == (HOURS_AGO, HOURS_AGO, 3)


def test_a_container_that_was_running_gets_the_current_time_as_its_end() -> None:
    before = time.time()
    lost = initial_state(pod({"running": {"startedAt": HOURS_AGO}}), runs=False).lost["main"]
    assert before <= lost.finished_at <= time.time()
    assert (stamp(lost.started_at), lost.exit_code, lost.reason) == (HOURS_AGO, 255, "Unknown")
