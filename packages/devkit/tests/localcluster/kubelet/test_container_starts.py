"""Reasons why a container does not start: a missing program, an impossible mount, a missing volume."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.controllers.workloads import JOBS
from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.containers import config_of
from dra_devkit.localcluster.runtime import simulated
from dra_devkit.localcluster.runtime.interface import Role
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import CONFIG_MAPS, EVENTS, NODES
from packages.devkit.tests.localcluster.kubelet.harness import KubeletHarness
from tests.helpers.objects import pod
from tests.helpers.workloads import wait_for_status, workload

START_ERROR = 'exec: "nowhere": executable file not found in $PATH'
BAD = {"name": "main", "image": "busybox", "command": ["nowhere"]}
GOOD = {"name": "good", "image": "busybox", "command": ["sleep", "infinity"]}


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeletHarness]:
    def unstartable(spec: JSON) -> str:
        return START_ERROR if spec["process"]["args"] == ["nowhere"] else ""

    monkeypatch.setattr(simulated, "_unmountable", unstartable)
    timers = Timers(pod_sync_backoff=0.05, crash_loop_backoff=0.2, mount_backoff=0.05, mount_backoff_max=0.4)
    async with LocalCluster(("node-1",), timers=timers) as cluster:
        yield KubeletHarness(cluster)


def bound_pod(**spec: Any) -> JSON:
    return pod("p", nodeName="node-1", **spec)


@pytest.mark.parametrize("field", ["containers", "initContainers"])
async def test_a_pod_that_never_restarts_fails_with_a_start_error(harness: KubeletHarness, field: str) -> None:
    others = {"containers": [GOOD]} if field == "initContainers" else {}
    await harness.cluster.apply(bound_pod(restartPolicy="Never", **others | {field: [BAD]}))
    pod_object = await harness.wait_until("p to fail", lambda: harness.phase("p", "Failed"))
    [status] = pod_object["status"]["initContainerStatuses" if field == "initContainers" else "containerStatuses"]
    ended = status["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (128, "StartError", START_ERROR)
    assert (ended["startedAt"], status["restartCount"], status["ready"]) == ("1970-01-01T00:00:00Z", 0, False)
    await harness.wait_for_event("p", f"Failed: Error: {START_ERROR}")


async def test_a_container_with_a_start_error_is_terminated_while_another_runs(harness: KubeletHarness) -> None:
    await harness.cluster.apply(bound_pod(restartPolicy="Never", containers=[BAD, GOOD]))

    pod_object = await harness.wait_until_running()
    bad, good = (s["state"] for s in pod_object["status"]["containerStatuses"])
    assert (bad["terminated"]["reason"], list(good)) == ("StartError", ["running"])


async def test_a_container_with_a_start_error_restarts_with_backoff(harness: KubeletHarness) -> None:
    await harness.cluster.apply(bound_pod(restartPolicy="OnFailure", containers=[BAD]))

    async def has_restarted() -> JSON | None:
        pod_object = await harness.cluster.pod("p")
        [status] = ((pod_object or {}).get("status") or {}).get("containerStatuses") or [{}]
        return status if status.get("restartCount", 0) >= 2 else None

    status = await harness.wait_until("two restarts", has_restarted)
    assert status["state"]["waiting"]["reason"] in {"RunContainerError", "CrashLoopBackOff"}
    assert status["lastState"]["terminated"]["exitCode"] == 128


async def test_a_job_counts_a_pod_with_a_start_error(harness: KubeletHarness) -> None:
    job = workload("batch/v1", "Job", "job", restart="Never", backoffLimit=0)
    job["spec"]["template"]["spec"]["containers"] = [BAD]
    await harness.cluster.apply(job)
    failed = await wait_for_status(
        harness.cluster, JOBS, "job", lambda s: any(c["type"] == "Failed" for c in s.get("conditions", []))
    )
    assert failed["status"]["failed"] == 1
    assert [c["reason"] for c in failed["status"]["conditions"]] == ["BackoffLimitExceeded"] * 2


async def failed_mounts(harness: KubeletHarness, volume: str) -> int:
    """Returns the number of failed mounts of a volume of the pod p, from its events."""
    events = (await harness.cluster.client.list(EVENTS, "default"))["items"]
    events_of_volume = [e for e in events if e["reason"] == "FailedMount" and f'volume "{volume}"' in e["message"]]
    return sum(e["count"] for e in events_of_volume)


@pytest.mark.full
async def test_the_mount_of_a_missing_volume_is_retried_with_exponential_backoff(harness: KubeletHarness) -> None:
    """Each volume has its own backoff. Source: pkg/util/goroutinemap/exponentialbackoff, from 0.5 s to 2 min 2 s there."""
    began = time.monotonic()
    volumes = [{"name": name, "configMap": {"name": name}} for name in ("one", "two")]
    await harness.cluster.apply(bound_pod(volumes=volumes))

    async def has_failed_often() -> bool:
        return await failed_mounts(harness, "one") >= 5

    await harness.wait_until("five failed mounts", has_failed_often)
    assert time.monotonic() - began >= 0.05 + 0.1 + 0.2 + 0.4
    assert await failed_mounts(harness, "two") >= 4
    pod_object = await harness.cluster.pod("p")
    assert pod_object is not None
    assert pod_object["status"]["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    await harness.cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "one"}, "data": {}}, "default")

    async def has_more_failures(volume: str, count: int) -> bool:
        return await failed_mounts(harness, volume) > count

    for _ in range(2):  # at the end of the first round the existing volume is mounted
        first_failures, second_failures = await failed_mounts(harness, "one"), await failed_mounts(harness, "two")
        await harness.wait_until(
            "more failed mounts of the second volume",
            lambda second_failures=second_failures: has_more_failures("two", second_failures + 1),
        )
    assert await failed_mounts(harness, "one") == first_failures
    await harness.cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "two"}, "data": {}}, "default")
    await harness.wait_until_running()


async def test_only_a_pod_with_host_network_has_an_address(harness: KubeletHarness) -> None:
    """The local cluster has no pod network, so an address of a pod would not be reachable."""
    await harness.cluster.apply(bound_pod(hostNetwork=True, containers=[GOOD]), pod("own", nodeName="node-1"))
    [address] = [
        a["address"]
        for a in (await harness.cluster.client.get(NODES, "node-1"))["status"]["addresses"]
        if a["type"] == "InternalIP"
    ]
    status = (await harness.wait_until_running())["status"]
    assert (status["podIP"], status["podIPs"], status["hostIP"]) == (address, [{"ip": address}], address)
    status = (await harness.wait_until_running("own"))["status"]
    assert ("podIP" in status, status["hostIPs"]) == (False, [{"ip": address}])


@pytest.mark.parametrize(
    ("used", "cpu"),
    [
        ({"mapping": [{"name": "cpu", "quantity": "2"}], "overhead": [{"name": "cpu", "perContainer": "500m"}]}, 3500),
        ({"resources": {"cpu": "2"}}, 1000),
    ],
)
async def test_the_cpus_of_its_devices_raise_the_limit_of_a_container_since_1_37(
    used: JSON, cpu: int, harness: KubeletHarness
) -> None:
    body = pod("p")
    body["status"] = {
        "nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c", "containers": ["main"], **used}]
    }
    [container] = body["spec"]["containers"]
    for limits, expected in (({"cpu": "1"}, cpu), ({}, 0)):
        container["resources"] = {"limits": limits}
        config = await config_of(harness.cluster.client, body, container, Role.MAIN, 0, {}, [])
        assert (config.limits.cpu, config.limits.memory) == (expected, 0)
