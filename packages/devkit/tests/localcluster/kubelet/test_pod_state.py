"""A kubelet's first view of a pod after a machine stop. The end time of a container that was running is the current time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.pod_state import initial_state
from dra_devkit.localcluster.kubelet.pod_status import stamp
from dra_devkit.localcluster.runtime.simulated import SimulatedRuntime

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


async def test_a_container_that_ran_for_a_day_restarts_immediately_after_a_reboot() -> None:
    """A long run resets the backoff, and a kubelet that has not yet restarted the container has no backoff."""
    async with LocalCluster(timers=Timers(crash_loop_backoff=3600.0)) as cluster:
        spec = {"containers": [{"name": "main", "image": "busybox"}]}
        await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
        running_pod = await cluster.wait_running("p")
        runtime = cluster.node.runtime
        assert isinstance(runtime, SimulatedRuntime)
        container = runtime._pods[running_pod["metadata"]["uid"]]["main"]
        container.status = replace(container.status, started_at=container.status.started_at - 86400)
        await cluster.node.kubelet.restart()  # writes the status again

        async def main() -> Any:
            current = await cluster.pod("p")
            assert current is not None
            return current["status"]["containerStatuses"][0]

        async def is_old() -> bool:
            return str((await main())["state"]["running"]["startedAt"]) <= HOURS_AGO

        await cluster.wait("the old time in the status", is_old)
        begin = time.time()
        await cluster.reboot()

        async def restarted_status() -> Any:
            status = await main()
            return status if status["restartCount"] == 1 and "running" in status["state"] else None

        last = (await cluster.wait("the restart", restarted_status))["lastState"]["terminated"]
        assert last["finishedAt"] >= stamp(begin)
