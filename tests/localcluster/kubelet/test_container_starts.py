"""What keeps a pod from starting: a program that is not there, a mount that no kernel makes, a volume that is missing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube.resource import CONFIG_MAPS, EVENTS, NODES
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.controllers.workloads import JOBS
from dra_kubeletplugin.localcluster.kubelet import Timers
from dra_kubeletplugin.localcluster.runtime import simulated
from tests.helpers.objects import pod
from tests.localcluster.controllers.test_workloads import until, workload
from tests.localcluster.kubelet.test_kubelet import Room

JSON = dict[str, Any]
WHY = 'exec: "nowhere": executable file not found in $PATH'
BAD = {"name": "main", "image": "busybox", "command": ["nowhere"]}
GOOD = {"name": "good", "image": "busybox", "command": ["sleep", "infinity"]}


@pytest.fixture
async def room(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    def unstartable(spec: JSON) -> str:
        return WHY if spec["process"]["args"] == ["nowhere"] else ""

    monkeypatch.setattr(simulated, "_unmountable", unstartable)
    timers = Timers(pod_sync_backoff=0.05, crash_loop_backoff=0.2, mount_backoff=0.05, mount_backoff_max=0.4)
    async with LocalCluster(("node-1",), timers=timers) as cluster:
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


async def failures(room: Room, volume: str) -> int:
    """Tries to mount a volume that the pod p was told of."""
    events = (await room.cluster.client.list(EVENTS, "default"))["items"]
    about = [e for e in events if e["reason"] == "FailedMount" and f'volume "{volume}"' in e["message"]]
    return sum(e["count"] for e in about)


@pytest.mark.full
async def test_a_volume_that_cannot_be_mounted_is_tried_again_with_a_pause_that_doubles(room: Room) -> None:
    """Each volume by itself. Source: pkg/util/goroutinemap/exponentialbackoff, from 0.5 s to 2 min 2 s there."""
    began = time.monotonic()
    volumes = [{"name": name, "configMap": {"name": name}} for name in ("one", "two")]
    await room.cluster.apply(bound(volumes=volumes))

    async def tried() -> bool:
        return await failures(room, "one") >= 5

    await room.until("five tries", tried)
    assert time.monotonic() - began >= 0.05 + 0.1 + 0.2 + 0.4
    assert await failures(room, "two") >= 4
    found = await room.cluster.pod("p")
    assert found is not None
    assert found["status"]["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    await room.cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "one"}, "data": {}}, "default")

    async def more(volume: str, than: int) -> bool:
        return await failures(room, volume) > than

    for _ in range(2):  # by the end of the first the volume that is there has been mounted
        ended, seen = await failures(room, "one"), await failures(room, "two")
        await room.until("the other to be tried", lambda seen=seen: more("two", seen + 1))
    assert await failures(room, "one") == ended
    await room.cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "two"}, "data": {}}, "default")
    await room.runs()


async def test_a_pod_in_the_network_of_its_node_has_the_address_of_the_node_and_others_have_none(room: Room) -> None:
    """There is no pod network: an address at which nobody answers would be none."""
    await room.cluster.apply(bound(hostNetwork=True, containers=[GOOD]), pod("own", nodeName="node-1"))
    [address] = [
        a["address"]
        for a in (await room.cluster.client.get(NODES, "node-1"))["status"]["addresses"]
        if a["type"] == "InternalIP"
    ]
    status = (await room.runs())["status"]
    assert (status["podIP"], status["podIPs"], status["hostIP"]) == (address, [{"ip": address}], address)
    status = (await room.runs("own"))["status"]
    assert ("podIP" in status, status["hostIPs"]) == (False, [{"ip": address}])
