"""Probes and hooks as a kubelet has them, of containers whose answers an annotation says. Upstream: pkg/kubelet/prober."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import Timers
from tests.helpers.objects import pod
from tests.localcluster.kubelet.test_kubelet import Room

JSON = dict[str, Any]
PREFIX = "simulated.dra-kubeletplugin.dev"
ASK = {"exec": {"command": ["true"]}, "periodSeconds": 1}
ONCE = {**ASK, "failureThreshold": 1}


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    timers = Timers(plugin_poll_interval=0.02, slice_wipe_delay=60, pod_sync_backoff=0.05, crash_loop_backoff=0.2)
    async with LocalCluster(("node-1",), timers=timers) as cluster:
        yield Room(cluster)


def container(name: str = "main", **fields: Any) -> JSON:
    return {"name": name, "image": "busybox", "command": ["sleep", "infinity"], **fields}


async def run(room: Room, *containers: JSON, name: str = "p", says: dict[str, str] | None = None, **spec: Any) -> JSON:
    made = pod(name, nodeName="node-1", **{"containers": list(containers), "restartPolicy": "Always", **spec})
    made["metadata"]["annotations"] = {f"{PREFIX}/{k}": v for k, v in (says or {}).items()}
    return (await room.cluster.apply(made))[0]


async def say(room: Room, **says: str) -> None:
    notes = {f"{PREFIX}/{k.replace('_', '-')}": v for k, v in says.items()}
    await room.cluster.client.patch(PODS, "p", {"metadata": {"annotations": notes}}, "default")


async def main(room: Room, name: str = "main") -> JSON:
    found = await room.cluster.pod("p")
    status = (found or {}).get("status") or {}
    every = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return next((s for s in every if s["name"] == name), {"state": {}, "ready": False, "restartCount": 0})


async def condition(room: Room, type: str = "Ready") -> str:
    found = await room.cluster.pod("p")
    return next(
        (str(c["status"]) for c in ((found or {}).get("status") or {}).get("conditions") or [] if c["type"] == type), ""
    )


async def ready(room: Room, wanted: str = "True") -> None:
    async def check() -> bool:
        return await condition(room) == wanted

    await room.until(f"the pod to be ready: {wanted}", check)


async def restarted(room: Room, times: int = 1) -> JSON:
    async def check() -> JSON | None:
        found = await main(room)
        return found if found["restartCount"] >= times else None

    found: JSON = await room.until("a restart", check)
    return found


@pytest.mark.parametrize("probe", ["readinessProbe", "startupProbe"])
async def test_what_nobody_can_probe_runs_and_never_counts_as_ready(room: Room, probe: str) -> None:
    await run(room, container(**{probe: ASK}))
    found = await room.runs()
    await room.told("p", f"NotSupported: the {probe} of container main is not run, so it never counts as ready")
    assert not (await main(room))["ready"]
    assert found["status"]["phase"] == "Running"


async def test_a_pod_is_ready_once_its_probe_reports_it_and_not_when_it_reports_no(room: Room) -> None:
    await run(room, container(readinessProbe=ONCE), says={"readiness-probe": "fail,pass"})
    await room.told("p", "Unhealthy: Readiness probe failed: simulated by annotation")
    await ready(room)
    await say(room, readiness_probe="fail")
    await ready(room, "False")
    assert await condition(room, "ContainersReady") == "False"
    assert (await main(room))["restartCount"] == 0


async def test_a_container_whose_liveness_fails_is_ended_and_started_again(room: Room) -> None:
    await run(room, container(livenessProbe=ONCE), says={"liveness-probe": "pass"})
    await ready(room)
    assert (await main(room))["restartCount"] == 0
    await say(room, liveness_probe="fail")
    found = await restarted(room)
    assert found["lastState"]["terminated"]["exitCode"] == 143
    await room.told("p", "Unhealthy: Liveness probe failed")
    await room.told("p", "Killing: Container main failed liveness probe, will be restarted")


async def test_a_container_that_may_not_restart_fails_with_its_probe(room: Room) -> None:
    await run(room, container(livenessProbe=ONCE), says={"liveness-probe": "fail"}, restartPolicy="Never")
    await room.until("the end", lambda: room.phase("p", "Failed"))
    await room.told("p", "Killing: Container main failed liveness probe")


async def test_a_container_that_is_restarted_again_and_again_by_its_probe_waits_longer_each_time(room: Room) -> None:
    await run(room, container(livenessProbe=ONCE), says={"liveness-probe": "fail"})
    await restarted(room, 2)
    await room.told("p", "BackOff: Back-off restarting failed container main in pod p_default(")


@pytest.mark.full
async def test_nothing_else_is_asked_before_a_container_has_started(room: Room) -> None:
    probes = {"startupProbe": ASK, "livenessProbe": ONCE, "readinessProbe": ASK}
    says = {"startup-probe": "fail", "liveness-probe": "fail", "readiness-probe": "fail"}
    await run(room, container(**probes), says=says)
    await restarted(room)
    told = {e.split(":")[1] for e in room.cluster.events("p") if e.startswith("Unhealthy")}
    assert told == {" Startup probe failed"}
    await say(room, startup_probe="pass")
    await room.told("p", "Unhealthy: Liveness probe failed")
    await room.told("p", "Unhealthy: Readiness probe failed")


async def test_a_container_that_does_not_start_in_time_is_started_again(room: Room) -> None:
    await run(room, container(startupProbe=ONCE), says={"startup-probe": "fail"})
    await restarted(room)
    await room.told("p", "Killing: Container main failed startup probe, will be restarted")
    assert not (await main(room))["started"]


async def test_containers_behind_a_sidecar_wait_until_it_has_started(room: Room) -> None:
    sidecar = container("side", restartPolicy="Always", startupProbe=ASK)
    await run(room, container(), initContainers=[sidecar], says={"startup-probe.side": "fail"})

    async def waits() -> bool:
        found = await main(room)
        return (
            found["state"].get("waiting", {}).get("reason") == "PodInitializing"
            and "running" in (await main(room, "side"))["state"]
        )

    await room.until("the container to wait", waits)
    assert await condition(room, "Initialized") == "False"
    await say(room, **{"startup_probe.side": "pass"})
    await ready(room)


async def test_a_sidecar_that_is_started_again_holds_up_nobody_who_has_begun(room: Room) -> None:
    sidecar = container("side", restartPolicy="Always", startupProbe=ASK)
    found = await run(room, container(), initContainers=[sidecar], says={"startup-probe.side": "pass"})
    await ready(room)
    await say(room, **{"startup-probe.side": "fail"})
    key = f"{PREFIX}/startup-probe.side"
    known = room.kubelet.informers
    await room.until("the kubelet to know", lambda: known.all(PODS)[0]["metadata"]["annotations"][key] == "fail")
    for name in ("side", "main"):
        room.cluster.node.runtime.end(found["metadata"]["uid"], name, 1)
    assert (await restarted(room))["restartCount"] == 1
    assert not (await main(room, "side"))["started"]


async def test_a_port_that_the_container_does_not_name_is_no_answer(room: Room) -> None:
    probe = {**ASK, "httpGet": {"port": "web"}, "exec": None}
    await run(room, container(livenessProbe=probe), says={"liveness-probe": "fail"})
    text = (
        'Unhealthy: Liveness probe errored and resulted in unknown state: strconv.Atoi: parsing "web": invalid syntax'
    )
    await room.told("p", text)
    assert (await main(room))["restartCount"] == 0


async def test_an_annotation_that_cannot_be_read_is_no_answer(room: Room) -> None:
    await run(room, container(readinessProbe=ASK), says={"readiness-probe": "sometimes"})
    await room.told("p", "Readiness probe errored and resulted in unknown state: annotation")
    assert not (await main(room))["ready"]


async def test_a_pod_is_not_ready_before_its_readiness_gates_are_open(room: Room) -> None:
    await run(room, container(), readinessGates=[{"conditionType": "example.com/gate"}])
    await room.runs()

    async def says(text: str) -> bool:
        found = await room.cluster.pod("p")
        assert found is not None
        return any(text in str(c.get("message")) for c in found["status"]["conditions"] if c["type"] == "Ready")

    await room.until("the gate", lambda: says('pod readiness gate "example.com/gate" does not exist.'))
    assert await condition(room, "ContainersReady") == "True"
    found = await room.cluster.pod("p")
    assert found is not None
    for word in ("False", "True"):
        gate = {"type": "example.com/gate", "status": word}
        await room.cluster.client.patch(PODS, "p", {"status": {"conditions": [gate]}}, "default", "status")
        if word == "False":
            await room.until("the gate", lambda: says('"example.com/gate" is not "True", but False'))
    await ready(room)


# --- hooks ------------------------------------------------------------------------------------------------


async def test_a_container_whose_post_start_hook_fails_is_ended_and_started_again(room: Room) -> None:
    hook = {"postStart": {"exec": {"command": ["x"]}}}
    await run(room, container(lifecycle=hook), says={"post-start": "fail"})
    await room.told("p", "FailedPostStartHook: PostStartHook failed")
    await room.told("p", "Killing: FailedPostStartHook")

    async def again() -> bool:
        return bool((await main(room))["restartCount"] >= 2)

    await room.until("restarts", again)
    await say(room, post_start="pass")
    await ready(room)


async def test_a_pod_that_is_deleted_does_not_wait_for_its_post_start_hook(room: Room) -> None:
    await run(room, container(lifecycle={"postStart": {"sleep": {"seconds": 3600}}}))
    await room.told("p", "Started: Container started")
    await room.delete()
    await room.gone()


async def test_a_pre_stop_hook_comes_before_the_end_and_its_failure_is_reported(room: Room) -> None:
    hook = {"preStop": {"exec": {"command": ["x"]}}}
    await run(room, container(lifecycle=hook), says={"pre-stop": "fail"})
    await room.runs()
    await room.delete()
    await room.gone()
    await room.told("p", "FailedPreStopHook")
    told = [e.split(":")[0] for e in room.cluster.events("p")]
    assert told.index("Killing") < told.index("FailedPreStopHook")


async def test_a_pre_stop_hook_has_no_more_than_the_grace(room: Room) -> None:
    await run(room, container(lifecycle={"preStop": {"sleep": {"seconds": 1000}}}), terminationGracePeriodSeconds=1)
    await room.runs()
    async with asyncio.timeout(30):
        await room.delete()
        await room.gone()


# --- images -----------------------------------------------------------------------------------------------


async def test_a_name_that_is_no_image_keeps_its_container_waiting(room: Room) -> None:
    await run(room, {**container(), "image": "UPPER/..::"})
    text = 'Failed to apply default image tag "UPPER/..::": couldn\'t parse image name "UPPER/..::": invalid reference format'
    await room.told("p", f"InspectFailed: {text}")
    await room.told("p", "Failed: Error: InvalidImageName")

    async def waits() -> bool:
        return (await main(room))["state"].get("waiting") == {"reason": "InvalidImageName", "message": text}

    await room.until("the container to wait", waits)
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "busybox"}]
    await room.cluster.client.patch(PODS, "p", image, "default")
    await ready(room)
