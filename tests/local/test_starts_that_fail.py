"""Containers that are created and cannot be started: a program that is not there, a mount that no kernel makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.local.cluster import LocalCluster
from dra_kubeletplugin.local.controllers.workloads import JOBS
from dra_kubeletplugin.local.kubelet import Timers
from dra_kubeletplugin.local.runtime import simulated

from .objects import pod
from .test_kubelet_behaviours import Room
from .test_workloads import until, workload

JSON = dict[str, Any]
WHY = 'exec: "nowhere": executable file not found in $PATH'
BAD = {"name": "main", "image": "busybox", "command": ["nowhere"]}
GOOD = {"name": "good", "image": "busybox", "command": ["sleep", "infinity"]}


@pytest.fixture
async def room(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    def unstartable(spec: JSON) -> str:
        return WHY if spec["process"]["args"] == ["nowhere"] else ""

    monkeypatch.setattr(simulated, "_unmountable", unstartable)
    async with LocalCluster(("node-1",), timers=Timers(retry=0.05, crash=0.2)) as cluster:
        yield Room(cluster)


def bound(**spec: Any) -> JSON:
    return pod("p", nodeName="node-1", **spec)


@pytest.mark.parametrize("field", ["containers", "initContainers"])
async def test_a_pod_that_never_restarts_has_failed_with_its_start(room: Room, field: str) -> None:
    others = {"containers": [GOOD]} if field == "initContainers" else {}
    await room.cluster.apply(bound(restartPolicy="Never", **others | {field: [BAD]}))
    found = await room.until("p to fail", lambda: room.phase("p", "Failed"))
    [status] = found["status"]["initContainerStatuses" if field == "initContainers" else "containerStatuses"]
    ended = status["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (128, "StartError", WHY)
    assert (ended["startedAt"], status["restartCount"], status["ready"]) == ("1970-01-01T00:00:00Z", 0, False)
    await room.told("p", f"Failed: Error: {WHY}")


async def test_beside_one_that_runs_it_has_ended_and_does_not_wait(room: Room) -> None:
    await room.cluster.apply(bound(restartPolicy="Never", containers=[BAD, GOOD]))

    found = await room.runs()
    bad, good = (s["state"] for s in found["status"]["containerStatuses"])
    assert (bad["terminated"]["reason"], list(good)) == ("StartError", ["running"])


async def test_a_pod_that_restarts_is_tried_again_with_a_pause_and_counts(room: Room) -> None:
    await room.cluster.apply(bound(restartPolicy="OnFailure", containers=[BAD]))

    async def again() -> JSON | None:
        found = await room.cluster.pod("p")
        [status] = ((found or {}).get("status") or {}).get("containerStatuses") or [{}]
        return status if status.get("restartCount", 0) >= 2 else None

    status = await room.until("two restarts", again)
    assert status["state"]["waiting"]["reason"] in {"RunContainerError", "CrashLoopBackOff"}
    assert status["lastState"]["terminated"]["exitCode"] == 128


async def test_a_job_counts_it(room: Room) -> None:
    made = workload("batch/v1", "Job", "job", restart="Never", backoffLimit=0)
    made["spec"]["template"]["spec"]["containers"] = [BAD]
    await room.cluster.apply(made)
    found = await until(
        room.cluster, JOBS, "job", lambda s: any(c["type"] == "Failed" for c in s.get("conditions", []))
    )
    assert found["status"]["failed"] == 1
    assert [c["reason"] for c in found["status"]["conditions"]] == ["BackoffLimitExceeded"] * 2
