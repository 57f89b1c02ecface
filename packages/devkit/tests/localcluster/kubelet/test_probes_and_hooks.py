"""Probes and hooks of the kubelet. An annotation sets the results of a simulated container. Upstream: pkg/kubelet/prober."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import PODS
from packages.devkit.tests.localcluster.kubelet.harness import KubeletHarness
from tests.helpers.objects import pod

PREFIX = "simulated.dra-kubeletplugin.dev"
PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 1}
PROBE_ONCE = {**PROBE, "failureThreshold": 1}


@pytest.fixture
async def harness() -> AsyncIterator[KubeletHarness]:
    timers = Timers(plugin_poll_interval=0.02, slice_wipe_delay=60, pod_sync_backoff=0.05, crash_loop_backoff=0.2)
    async with LocalCluster(("node-1",), timers=timers) as cluster:
        yield KubeletHarness(cluster)


def container(name: str = "main", **fields: Any) -> JSON:
    return {"name": name, "image": "busybox", "command": ["sleep", "infinity"], **fields}


async def create_pod(
    harness: KubeletHarness, *containers: JSON, name: str = "p", results: dict[str, str] | None = None, **spec: Any
) -> JSON:
    body = pod(name, nodeName="node-1", **{"containers": list(containers), "restartPolicy": "Always", **spec})
    body["metadata"]["annotations"] = {f"{PREFIX}/{k}": v for k, v in (results or {}).items()}
    return (await harness.cluster.apply(body))[0]


async def annotate(harness: KubeletHarness, **results: str) -> None:
    annotations = {f"{PREFIX}/{k.replace('_', '-')}": v for k, v in results.items()}
    await harness.cluster.client.patch(PODS, "p", {"metadata": {"annotations": annotations}}, "default")


async def container_status(harness: KubeletHarness, name: str = "main") -> JSON:
    pod_object = await harness.cluster.pod("p")
    status = (pod_object or {}).get("status") or {}
    statuses = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return next((s for s in statuses if s["name"] == name), {"state": {}, "ready": False, "restartCount": 0})


async def condition_status(harness: KubeletHarness, type: str = "Ready") -> str:
    pod_object = await harness.cluster.pod("p")
    return next(
        (
            str(c["status"])
            for c in ((pod_object or {}).get("status") or {}).get("conditions") or []
            if c["type"] == type
        ),
        "",
    )


async def wait_for_ready(harness: KubeletHarness, status: str = "True") -> None:
    async def check() -> bool:
        return await condition_status(harness) == status

    await harness.wait_until(f"the pod to be ready: {status}", check)


async def wait_for_restarts(harness: KubeletHarness, times: int = 1) -> JSON:
    async def check() -> JSON | None:
        status = await container_status(harness)
        return status if status["restartCount"] >= times else None

    status: JSON = await harness.wait_until("a restart", check)
    return status


@pytest.mark.parametrize("probe", ["readinessProbe", "startupProbe"])
async def test_a_container_with_an_unsupported_probe_runs_but_is_never_ready(
    harness: KubeletHarness, probe: str
) -> None:
    await create_pod(harness, container(**{probe: PROBE}))
    pod_object = await harness.wait_until_running()
    await harness.wait_for_event(
        "p", f"NotSupported: the {probe} of container main is not run, so it never counts as ready"
    )
    assert not (await container_status(harness))["ready"]
    assert pod_object["status"]["phase"] == "Running"


async def test_the_readiness_probe_decides_whether_a_pod_is_ready(harness: KubeletHarness) -> None:
    await create_pod(harness, container(readinessProbe=PROBE_ONCE), results={"readiness-probe": "fail,pass"})
    await harness.wait_for_event("p", "Unhealthy: Readiness probe failed: simulated by annotation")
    await wait_for_ready(harness)
    await annotate(harness, readiness_probe="fail")
    await wait_for_ready(harness, "False")
    assert await condition_status(harness, "ContainersReady") == "False"
    assert (await container_status(harness))["restartCount"] == 0


async def test_a_container_restarts_after_its_liveness_probe_fails(harness: KubeletHarness) -> None:
    await create_pod(harness, container(livenessProbe=PROBE_ONCE), results={"liveness-probe": "pass"})
    await wait_for_ready(harness)
    assert (await container_status(harness))["restartCount"] == 0
    await annotate(harness, liveness_probe="fail")
    status = await wait_for_restarts(harness)
    assert status["lastState"]["terminated"]["exitCode"] == 143
    await harness.wait_for_event("p", "Unhealthy: Liveness probe failed")
    await harness.wait_for_event("p", "Killing: Container main failed liveness probe, will be restarted")


async def test_a_container_that_may_not_restart_fails_after_its_liveness_probe_fails(harness: KubeletHarness) -> None:
    await create_pod(
        harness, container(livenessProbe=PROBE_ONCE), results={"liveness-probe": "fail"}, restartPolicy="Never"
    )
    await harness.wait_until("the failure", lambda: harness.phase("p", "Failed"))
    await harness.wait_for_event("p", "Killing: Container main failed liveness probe")


async def test_repeated_liveness_failures_restart_the_container_with_backoff(harness: KubeletHarness) -> None:
    await create_pod(harness, container(livenessProbe=PROBE_ONCE), results={"liveness-probe": "fail"})
    await wait_for_restarts(harness, 2)
    await harness.wait_for_event("p", "BackOff: Back-off restarting failed container main in pod p_default(")


@pytest.mark.full
async def test_no_other_probe_runs_before_the_startup_probe_succeeds(harness: KubeletHarness) -> None:
    probes = {"startupProbe": PROBE, "livenessProbe": PROBE_ONCE, "readinessProbe": PROBE}
    results = {"startup-probe": "fail", "liveness-probe": "fail", "readiness-probe": "fail"}
    await create_pod(harness, container(**probes), results=results)
    await wait_for_restarts(harness)
    await harness.wait_for_event("p", "Unhealthy: Startup probe failed")
    messages = {e.split(":")[1] for e in harness.cluster.events("p") if e.startswith("Unhealthy")}
    assert messages == {" Startup probe failed"}
    await annotate(harness, startup_probe="pass")
    await harness.wait_for_event("p", "Unhealthy: Liveness probe failed")
    await harness.wait_for_event("p", "Unhealthy: Readiness probe failed")


async def test_a_container_restarts_after_its_startup_probe_fails(harness: KubeletHarness) -> None:
    await create_pod(harness, container(startupProbe=PROBE_ONCE), results={"startup-probe": "fail"})
    await wait_for_restarts(harness)
    await harness.wait_for_event("p", "Killing: Container main failed startup probe, will be restarted")
    assert not (await container_status(harness))["started"]


async def test_containers_wait_until_the_sidecar_has_started(harness: KubeletHarness) -> None:
    sidecar = container("side", restartPolicy="Always", startupProbe=PROBE)
    await create_pod(harness, container(), initContainers=[sidecar], results={"startup-probe.side": "fail"})

    async def is_waiting() -> bool:
        status = await container_status(harness)
        return (
            status["state"].get("waiting", {}).get("reason") == "PodInitializing"
            and "running" in (await container_status(harness, "side"))["state"]
        )

    await harness.wait_until("the container to wait", is_waiting)
    assert await condition_status(harness, "Initialized") == "False"
    await annotate(harness, **{"startup_probe.side": "pass"})
    await wait_for_ready(harness)


async def test_a_restarted_sidecar_does_not_delay_running_containers(harness: KubeletHarness) -> None:
    sidecar = container("side", restartPolicy="Always", startupProbe=PROBE)
    pod_object = await create_pod(
        harness, container(), initContainers=[sidecar], results={"startup-probe.side": "pass"}
    )
    await wait_for_ready(harness)
    await annotate(harness, **{"startup-probe.side": "fail"})
    key = f"{PREFIX}/startup-probe.side"
    informers = harness.kubelet.informers
    await harness.wait_until(
        "the annotation in the informer", lambda: informers.all(PODS)[0]["metadata"]["annotations"][key] == "fail"
    )
    for name in ("side", "main"):
        harness.cluster.node.runtime.end(pod_object["metadata"]["uid"], name, 1)
    assert (await wait_for_restarts(harness))["restartCount"] == 1
    assert not (await container_status(harness, "side"))["started"]


async def test_a_probe_of_an_unknown_port_has_an_unknown_result(harness: KubeletHarness) -> None:
    probe = {**PROBE, "httpGet": {"port": "web"}, "exec": None}
    await create_pod(harness, container(livenessProbe=probe), results={"liveness-probe": "fail"})
    text = (
        'Unhealthy: Liveness probe errored and resulted in unknown state: strconv.Atoi: parsing "web": invalid syntax'
    )
    await harness.wait_for_event("p", text)
    assert (await container_status(harness))["restartCount"] == 0


async def test_an_invalid_annotation_has_an_unknown_result(harness: KubeletHarness) -> None:
    await create_pod(harness, container(readinessProbe=PROBE), results={"readiness-probe": "sometimes"})
    await harness.wait_for_event("p", "Readiness probe errored and resulted in unknown state: annotation")
    assert not (await container_status(harness))["ready"]


async def test_a_pod_is_not_ready_before_its_readiness_gates_are_true(harness: KubeletHarness) -> None:
    await create_pod(harness, container(), readinessGates=[{"conditionType": "example.com/gate"}])
    await harness.wait_until_running()

    async def ready_message_contains(text: str) -> bool:
        pod_object = await harness.cluster.pod("p")
        assert pod_object is not None
        return any(text in str(c.get("message")) for c in pod_object["status"]["conditions"] if c["type"] == "Ready")

    await harness.wait_until(
        "the gate", lambda: ready_message_contains('pod readiness gate "example.com/gate" does not exist.')
    )
    assert await condition_status(harness, "ContainersReady") == "True"
    pod_object = await harness.cluster.pod("p")
    assert pod_object is not None
    for status in ("False", "True"):
        gate = {"type": "example.com/gate", "status": status}
        await harness.cluster.client.patch(PODS, "p", {"status": {"conditions": [gate]}}, "default", "status")
        if status == "False":
            await harness.wait_until(
                "the gate", lambda: ready_message_contains('"example.com/gate" is not "True", but False')
            )
    await wait_for_ready(harness)


# --- hooks ------------------------------------------------------------------------------------------------


async def test_a_container_restarts_after_its_post_start_hook_fails(harness: KubeletHarness) -> None:
    hook = {"postStart": {"exec": {"command": ["x"]}}}
    await create_pod(harness, container(lifecycle=hook), results={"post-start": "fail"})
    await harness.wait_for_event("p", "FailedPostStartHook: PostStartHook failed")
    await harness.wait_for_event("p", "Killing: FailedPostStartHook")

    async def has_restarted() -> bool:
        return bool((await container_status(harness))["restartCount"] >= 2)

    await harness.wait_until("restarts", has_restarted)
    await annotate(harness, post_start="pass")
    await wait_for_ready(harness)


async def test_a_pod_that_is_deleted_does_not_wait_for_its_post_start_hook(harness: KubeletHarness) -> None:
    await create_pod(harness, container(lifecycle={"postStart": {"sleep": {"seconds": 3600}}}))
    await harness.wait_for_event("p", "Started: Container started")
    await harness.delete()
    await harness.wait_until_deleted()


async def test_a_pre_stop_hook_runs_before_the_container_ends_and_reports_its_failure(harness: KubeletHarness) -> None:
    hook = {"preStop": {"exec": {"command": ["x"]}}}
    await create_pod(harness, container(lifecycle=hook), results={"pre-stop": "fail"})
    await harness.wait_until_running()
    await harness.delete()
    await harness.wait_until_deleted()
    await harness.wait_for_event("p", "FailedPreStopHook")
    reasons = [e.split(":")[0] for e in harness.cluster.events("p")]
    assert reasons.index("Killing") < reasons.index("FailedPreStopHook")


async def test_a_pre_stop_hook_ends_with_the_grace_period(harness: KubeletHarness) -> None:
    await create_pod(
        harness, container(lifecycle={"preStop": {"sleep": {"seconds": 1000}}}), terminationGracePeriodSeconds=1
    )
    await harness.wait_until_running()
    async with asyncio.timeout(30):
        await harness.delete()
        await harness.wait_until_deleted()


# --- images -----------------------------------------------------------------------------------------------


async def test_an_invalid_image_name_keeps_its_container_waiting(harness: KubeletHarness) -> None:
    await create_pod(harness, {**container(), "image": "UPPER/..::"})
    text = 'Failed to apply default image tag "UPPER/..::": couldn\'t parse image name "UPPER/..::": invalid reference format'
    await harness.wait_for_event("p", f"InspectFailed: {text}")
    await harness.wait_for_event("p", "Failed: Error: InvalidImageName")

    async def is_waiting() -> bool:
        return (await container_status(harness))["state"].get("waiting") == {
            "reason": "InvalidImageName",
            "message": text,
        }

    await harness.wait_until("the container to wait", is_waiting)
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "busybox"}]
    await harness.cluster.client.patch(PODS, "p", image, "default")
    await wait_for_ready(harness)
