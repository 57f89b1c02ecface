"""The lifecycle of a pod on its node: order of containers, restarts, claims, events. Upstream: test/e2e/dra, kubelet_pods_test.go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_kubeletplugin._proto import podresources_v1_pb2 as pb
from dra_kubeletplugin._proto import podresources_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.decoding import as_json
from dra_kubeletplugin.kube.reflector import Reflector
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS
from packages.devkit.tests.localcluster.kubelet.harness import KubeletHarness
from tests.helpers.objects import pod


@pytest.fixture
async def harness() -> AsyncIterator[KubeletHarness]:
    timers = Timers(plugin_poll_interval=0.02, slice_wipe_delay=60, pod_sync_backoff=0.05, crash_loop_backoff=0.2)
    async with LocalCluster(("node-1",), timers=timers) as cluster:
        yield KubeletHarness(cluster)


def end_container(harness: KubeletHarness, pod_object: JSON, container: str = "main", code: int = 0) -> None:
    harness.cluster.node.runtime.end(pod_object["metadata"]["uid"], container, code)


async def wait_for_phase(harness: KubeletHarness, phase: str, name: str = "p") -> JSON:
    pod_object: JSON = await harness.wait_until(f"{name} to be {phase}", lambda: harness.phase(name, phase))
    return pod_object


async def create_bound_pod(harness: KubeletHarness, name: str = "p", **spec: Any) -> JSON:
    return (await harness.cluster.apply(pod(name, nodeName="node-1", **spec)))[0]


# --- claims -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3])
async def test_a_finished_pod_is_unprepared_and_its_devices_are_released(harness: KubeletHarness, code: int) -> None:
    """C5: the job story of KEP-4381. The API shows the pod as finished only after its devices are released."""
    async with harness.plugin() as plugin:
        await harness.run()
        pod_object = await harness.wait_until_running()
        plugin.gate.clear()
        end_container(harness, pod_object, code=code)
        await harness.wait_until("the unprepare call", lambda: plugin.count("unprepare"))
        assert (await harness.wait_until_running())["status"]["containerStatuses"][0]["state"]["terminated"][
            "exitCode"
        ] == code
        plugin.gate.set()
        done = await wait_for_phase(harness, "Failed" if code else "Succeeded")
        assert harness.kubelet.manager.claims == {}

        async def is_released() -> bool:
            current = await harness.cluster.client.get(CLAIMS, "p-c", "default")
            return "reservedFor" not in current["status"]

        await harness.wait_until("the reservation to end", is_released)
        reasons = {c["type"]: c.get("reason") for c in done["status"]["conditions"]}
        assert reasons["Ready"] == ("PodFailed" if code else "PodCompleted")
        await harness.delete()
        await harness.wait_until_deleted()
        assert plugin.count("unprepare") == 1


async def test_the_kubelet_stops_and_unprepares_a_pod_that_another_client_marked_failed(
    harness: KubeletHarness,
) -> None:
    async with harness.plugin() as plugin:
        await harness.run()
        await harness.wait_until_running()
        body = {"status": {"phase": "Failed", "reason": "Evicted"}}
        await harness.cluster.client.patch(PODS, "p", body, "default", "status")
        await harness.wait_until("the unprepare call", lambda: plugin.count("unprepare"))
        await harness.wait_for_event("p", "Killing: Stopping container main")


async def test_a_force_deleted_pod_is_unprepared(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        await harness.run()
        await harness.wait_until_running()
        await harness.delete(grace=0)
        await harness.wait_until("the unprepare call", lambda: plugin.count("unprepare") == 1)


async def test_a_new_claim_waits_for_the_old_claim_of_the_same_name(harness: KubeletHarness) -> None:
    """A new pod is created after a forced deletion. The event contains the UID of the old claim."""
    async with harness.plugin() as plugin:
        await harness.run()
        await harness.wait_until_running()
        old = await harness.cluster.client.get(CLAIMS, "p-c", "default")
        plugin.error = "not yet"
        await harness.delete(grace=0)
        await harness.wait_until("a call", lambda: plugin.count("unprepare"))
        await harness.cluster.client.delete(CLAIMS, "p-c", "default")
        await harness.run()
        text = f"old ResourceClaim with same name p-c and different UID {old['metadata']['uid']} still exists"
        await harness.wait_for_event("p", text)
        plugin.error = ""
        await harness.wait_until_running()


async def test_a_claim_that_no_container_uses_is_prepared(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        await harness.run(used=False)
        await harness.wait_until_running()
        assert plugin.count("prepare") == 1


async def test_a_shared_claim_is_prepared_once_and_unprepared_with_its_last_pod(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        await harness.run("one", shared="both")
        await harness.run("two", shared="both")
        await harness.wait_until_running("one")
        await harness.wait_until_running("two")
        assert plugin.count("prepare") == 1
        await harness.delete("one")
        await harness.wait_until_deleted("one")
        assert plugin.count("unprepare") == 0
        await harness.delete("two")
        await harness.wait_until_deleted("two")
        assert plugin.count("unprepare") == 1


async def test_an_unresolvable_cdi_device_is_reported_and_prepare_is_not_repeated(harness: KubeletHarness) -> None:
    plugin = harness.plugin()
    plugin.cdi = ("vendor.example.com/gpu=none",)
    async with plugin:
        await harness.run()
        text = "CDI device injection failed: unresolvable CDI devices vendor.example.com/gpu=none"
        await harness.wait_for_event("p", f"Failed: Error: failed to create containerd container: {text}")
        await harness.assert_pending()
        (harness.cluster.node.cdi_root / "late.json").write_text(
            '{"cdiVersion": "0.6.0", "kind": "vendor.example.com/gpu", "devices": [{"name": "none", "containerEdits": '
            '{"env": ["GPU=late"]}}]}'
        )
        pod_object = await harness.wait_until_running()
        assert plugin.count("prepare") == 1
        env = harness.cluster.node.runtime.spec(pod_object["metadata"]["uid"], "main")["process"]["env"]
        assert "GPU=late" in env


async def test_pod_resources_lists_the_devices_of_each_container(harness: KubeletHarness) -> None:
    """The PodResources socket: List and Get."""
    plugin = harness.plugin()
    plugin.share_ids = ("one",)
    async with plugin:
        await harness.run()
        pod_object = await harness.wait_until_running()
        path = harness.cluster.node.kubelet_root / "pod-resources" / "kubelet.sock"
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = pb_grpc.PodResourcesListerStub(channel)
            [listed] = (await stub.List(pb.ListPodResourcesRequest())).pod_resources
            request = pb.GetPodResourcesRequest(pod_name="p", pod_namespace="default")
            assert (await stub.Get(request)).pod_resources == listed
            [container] = listed.containers
            [resource] = container.dynamic_resources
            [device] = resource.claim_resources
            assert (listed.name, container.name, resource.claim_name) == ("p", "main", "p-c")
            device_id = (device.driver_name, device.pool_name, device.device_name, device.share_id)
            assert device_id == (plugin.driver, "node-1", "d0", "one")
            end_container(harness, pod_object)
            await wait_for_phase(harness, "Succeeded")
            with pytest.raises(grpc.aio.AioRpcError, match="pod q in namespace default not found"):
                await stub.Get(pb.GetPodResourcesRequest(pod_name="q", pod_namespace="default"))


# --- containers -------------------------------------------------------------------------------------


async def test_init_containers_and_sidecars_start_in_order_and_sidecars_end_last(harness: KubeletHarness) -> None:
    init = [
        {"name": "first", "image": "i"},
        {"name": "side", "image": "i", "restartPolicy": "Always"},
        {"name": "second", "image": "i"},
    ]
    await create_bound_pod(harness, initContainers=init, terminationGracePeriodSeconds=0)
    pod_object = await harness.wait_until_running()
    statuses = harness.cluster.node.runtime.statuses(pod_object["metadata"]["uid"])
    assert list(statuses) == ["first", "side", "second", "main"]
    states = {s["name"]: next(iter(s["state"])) for s in pod_object["status"]["initContainerStatuses"]}
    assert states == {"first": "terminated", "side": "running", "second": "terminated"}
    assert all(s["ready"] for s in pod_object["status"]["initContainerStatuses"])
    end_container(harness, pod_object)
    done = await wait_for_phase(harness, "Succeeded")
    assert "terminated" in done["status"]["initContainerStatuses"][1]["state"]


async def test_a_sidecar_restarts_under_every_restart_policy(harness: KubeletHarness) -> None:
    runtime = harness.cluster.node.runtime
    await create_bound_pod(harness, "p", initContainers=[{"name": "side", "image": "i", "restartPolicy": "Always"}])
    pod_object = await harness.wait_until_running()
    runtime.end(pod_object["metadata"]["uid"], "side", 1)

    async def restarted() -> bool:
        status = runtime.statuses(pod_object["metadata"]["uid"])["side"]
        return status.attempt >= 1 and status.state.value == "running"

    await harness.wait_until("the sidecar to run again", restarted)
    assert runtime.statuses(pod_object["metadata"]["uid"])["main"].attempt == 0


@pytest.mark.parametrize(
    ("policy", "code", "restarts"),
    [("Always", 0, True), ("OnFailure", 1, True), ("OnFailure", 0, False), ("Never", 1, False)],
)
async def test_a_container_restarts_according_to_the_restart_policy(
    harness: KubeletHarness, policy: str, code: int, restarts: bool
) -> None:
    await create_bound_pod(harness, restartPolicy=policy)
    pod_object = await harness.wait_until_running()
    end_container(harness, pod_object, code=code)
    if not restarts:
        await wait_for_phase(harness, "Failed" if code else "Succeeded")
        return

    async def restarted() -> JSON | None:
        current = await harness.wait_until_running()
        [status] = current["status"]["containerStatuses"]
        return status if status["restartCount"] == 1 and "running" in status["state"] else None

    status = await harness.wait_until("a restart", restarted)
    assert status["lastState"]["terminated"]["exitCode"] == code


async def test_a_container_that_keeps_failing_is_restarted_with_backoff(harness: KubeletHarness) -> None:
    await create_bound_pod(harness, restartPolicy="Always")
    runtime = harness.cluster.node.runtime
    pod_object = await harness.wait_until_running()

    is_watching = asyncio.Event()

    async def wait_for_backoff() -> None:
        """Watches every status that is written. Polling could miss a short backoff."""
        async for event in Reflector(harness.cluster.client, PODS).events():
            if event.type == "SYNCED":
                is_watching.set()
                continue
            statuses = as_json(event.encoded).get("status", {}).get("containerStatuses") or []
            if any(s["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff" for s in statuses):
                return

    backoff = asyncio.create_task(wait_for_backoff())
    await is_watching.wait()
    for attempt in range(2):
        await harness.wait_until(
            "the attempt", lambda n=attempt: runtime.statuses(pod_object["metadata"]["uid"])["main"].attempt == n
        )
        end_container(harness, pod_object, code=1)
    await asyncio.wait_for(backoff, 30)
    await harness.wait_for_event("p", "BackOff: Back-off restarting failed container main in pod p_default(")
    await harness.wait_until(
        "the third attempt", lambda: runtime.statuses(pod_object["metadata"]["uid"])["main"].attempt == 2
    )


async def test_a_pod_has_the_condition_simulated(harness: KubeletHarness) -> None:
    await create_bound_pod(harness)
    pod_object = await harness.wait_until_running()
    statuses = {c["type"]: c["status"] for c in pod_object["status"]["conditions"]}
    assert statuses["dra-kubeletplugin.dev/Simulated"] == statuses["Ready"] == statuses["PodScheduled"] == "True"


async def test_environment_and_volumes_come_from_the_sources_in_the_manifest(harness: KubeletHarness) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"key": "value"}}
    env: list[JSON] = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "key"}}},
        {"name": "BOTH", "value": "$(POD)-$(KEY)-$(NONE)-$$(POD)"},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
    ]
    container = {
        "name": "main",
        "image": "i",
        "command": ["sleep", "infinity"],
        "env": env,
        "envFrom": [{"configMapRef": {"name": "cm"}}],
    }
    container |= {"resources": {"limits": {"cpu": "1500m"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    await harness.cluster.apply(config)
    await create_bound_pod(harness, containers=[container], volumes=[{"name": "v", "configMap": {"name": "cm"}}])
    pod_object = await harness.wait_until_running()
    spec = harness.cluster.node.runtime.spec(pod_object["metadata"]["uid"], "main")
    variables = dict(e.split("=", 1) for e in spec["process"]["env"])
    assert {k: variables[k] for k in ("key", "POD", "KEY", "BOTH", "CPU")} == {
        "key": "value", "POD": "p", "KEY": "value", "BOTH": "p-value-$(NONE)-$(POD)", "CPU": "1500",
    }  # fmt: skip
    [mount] = [m for m in spec["mounts"] if m["destination"] == "/v"]
    assert (Path(mount["source"]) / "key").read_text() == "value"


_EMPTY: JSON = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "empty"}}
_NO_KEY = [{"key": "none", "path": "p"}]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}}, "seccompProfile x"),
        ({"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}}}, "appArmorProfile x"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "SysctlForbidden"),
        ({"hostname": "h" * 60, "subdomain": "s", "setHostnameAsFQDN": True}, "64 characters is the max"),
        ({"volumes": [{"name": "v", "emptyDir": {"medium": "HugePages"}}]}, "the medium HugePages"),
        (
            {"volumes": [{"name": "v", "configMap": {"name": "empty", "items": _NO_KEY}}]},
            "non-existent config key: none",
        ),
    ],
)
async def test_a_pod_that_a_real_node_rejects_does_not_run(harness: KubeletHarness, spec: JSON, message: str) -> None:
    await harness.cluster.apply(_EMPTY)
    await create_bound_pod(harness, **spec)
    await harness.wait_for_event("p", message)
    pod_object = await harness.cluster.pod("p")
    assert pod_object is not None
    assert pod_object["status"]["phase"] in {"Pending", "Failed"}


async def test_optional_items_of_a_volume_may_be_missing(harness: KubeletHarness) -> None:
    await harness.cluster.apply({**_EMPTY, "data": {"there": "x"}})
    items = [*_NO_KEY, {"key": "there", "path": "q"}]
    await create_bound_pod(
        harness, volumes=[{"name": "v", "configMap": {"name": "empty", "items": items, "optional": True}}]
    )
    await harness.wait_until_running()


async def test_a_container_without_limits_sees_the_allocatable_resources_of_its_node(harness: KubeletHarness) -> None:
    node = {"status": {"allocatable": {"cpu": "3500m", "memory": "2Gi"}}}
    await harness.cluster.client.patch(NODES, "node-1", node, sub="status")

    def field_ref(resource: str) -> JSON:
        return {"resourceFieldRef": {"resource": resource, "containerName": "main"}}

    names = ("limits.cpu", "limits.memory", "requests.cpu")
    env = [{"name": name.replace(".", "_"), "valueFrom": field_ref(name)} for name in names]
    files = [{"path": name, **field_ref(name)} for name in names]
    volume = {"name": "v", "downwardAPI": {"items": files}}
    container = {"name": "main", "image": "i", "command": ["sleep", "infinity"], "env": env}
    container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    await create_bound_pod(harness, containers=[container], volumes=[volume])
    pod_object = await harness.wait_until_running()
    spec = harness.cluster.node.runtime.spec(pod_object["metadata"]["uid"], "main")
    variables = dict(e.split("=", 1) for e in spec["process"]["env"])
    [mount] = [m for m in spec["mounts"] if m["destination"] == "/v"]
    for name, value in zip(names, ("4", str(2 << 30), "0"), strict=True):
        assert variables[name.replace(".", "_")] == value
        assert (Path(mount["source"]) / name).read_text() == value


async def test_a_missing_or_unsupported_source_keeps_the_pod_pending_with_an_event(harness: KubeletHarness) -> None:
    claim_volume = {"name": "v", "persistentVolumeClaim": {"claimName": "x"}}
    await create_bound_pod(harness, "disk", volumes=[claim_volume])
    await harness.wait_for_event(
        "disk", "volumes of type persistentVolumeClaim are not implemented by the local cluster"
    )
    await create_bound_pod(harness, "config", volumes=[{"name": "v", "configMap": {"name": "none"}}])
    await harness.wait_for_event(
        "config", 'FailedMount: MountVolume.SetUp failed for volume "v" : configmap "none" not found'
    )
    source = {"secretKeyRef": {"name": "none", "key": "k"}}
    await create_bound_pod(
        harness, "env", containers=[{"name": "main", "image": "i", "env": [{"name": "A", "valueFrom": source}]}]
    )
    await harness.wait_for_event("env", 'Failed: Error: secret "none" not found')
    for name in ("disk", "config", "env"):
        await harness.assert_pending(name)


async def test_a_directly_bound_pod_without_a_free_host_port_is_rejected(harness: KubeletHarness) -> None:
    container = {"name": "main", "image": "busybox", "ports": [{"containerPort": 80, "hostPort": 80}]}
    await create_bound_pod(harness, "first", containers=[{**container, "command": ["sleep", "infinity"]}])
    await harness.wait_until_running("first")
    pod_object = await create_bound_pod(harness, "second", containers=[container])
    failed = await wait_for_phase(harness, "Failed", "second")
    text = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    assert (failed["status"]["reason"], failed["status"]["message"]) == ("NodePorts", f"Pod was rejected: {text}")
    await harness.wait_for_event("second", f"NodePorts: {text}")
    assert harness.cluster.node.runtime.statuses(pod_object["metadata"]["uid"]) == {}
    await harness.kubelet.restart()
    await harness.delete("first")
    await harness.wait_until_deleted("first")
    await create_bound_pod(harness, "third", containers=[{**container, "command": ["sleep", "infinity"]}])
    await harness.wait_until_running("third")


async def test_a_pod_past_its_active_deadline_is_ended_and_unprepared(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        await harness.run(restartPolicy="Always")
        await harness.wait_until_running()  # the deadline starts only now, because the start of the pod may take long
        await harness.cluster.client.patch(PODS, "p", {"spec": {"activeDeadlineSeconds": 1}}, "default")
        failed = await wait_for_phase(harness, "Failed")
        status = failed["status"]
        text = "Pod was active on the node longer than the specified deadline"
        assert (status["reason"], status["message"]) == ("DeadlineExceeded", text)
        assert "terminated" in status["containerStatuses"][0]["state"]
        assert plugin.count("unprepare") == 1


@pytest.mark.parametrize(("kind", "type_name"), [("Directory", "directory"), ("CharDevice", "character device")])
async def test_a_host_path_of_the_wrong_type_keeps_the_pod_pending(
    harness: KubeletHarness, tmp_path: Path, kind: str, type_name: str
) -> None:
    (tmp_path / "file").write_text("")
    volumes = [{"name": "v", "hostPath": {"path": str(tmp_path / "file"), "type": kind}}]
    await create_bound_pod(harness, volumes=volumes)
    text = f'MountVolume.SetUp failed for volume "v" : hostPath type check failed: {tmp_path}/file is not a {type_name}'
    await harness.wait_for_event("p", f"FailedMount: {text}")
    await harness.assert_pending()


async def test_the_host_paths_of_a_plugins_simulated_pod_are_folders_of_its_node(harness: KubeletHarness) -> None:
    """So the chart of a driver runs on a machine without a kubelet."""
    paths = ("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins")
    volumes = [{"name": f"v{i}", "hostPath": {"path": p, "type": "Directory"}} for i, p in enumerate(paths)]
    mounts = [{"name": v["name"], "mountPath": v["hostPath"]["path"]} for v in volumes]
    container = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"], "volumeMounts": mounts}
    await create_bound_pod(harness, containers=[container], volumes=volumes)
    await harness.wait_until_running()


async def test_a_container_that_violates_run_as_non_root_does_not_start(harness: KubeletHarness) -> None:
    await create_bound_pod(harness, securityContext={"runAsNonRoot": True, "runAsUser": 0})
    await harness.wait_for_event("p", "container's runAsUser breaks non-root policy")
    await harness.assert_pending()


async def test_a_restart_rule_for_an_exit_code_overrides_the_restart_policy(harness: KubeletHarness) -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    container = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"]}
    await create_bound_pod(harness, containers=[{**container, "restartPolicy": "Never", "restartPolicyRules": [rule]}])
    end_container(harness, await harness.wait_until_running(), code=42)

    async def has_restarted() -> bool:
        pod_object = await harness.cluster.pod("p")
        return bool(pod_object and pod_object["status"]["containerStatuses"][0]["restartCount"] == 1)

    await harness.wait_until("the restart", has_restarted)
    end_container(harness, await harness.wait_until_running(), code=1)
    await wait_for_phase(harness, "Failed")


# --- restarts of the cluster and of nodes -----------------------------------------------------------


async def _wait_for_attempt(harness: KubeletHarness, number: int) -> JSON:
    async def check() -> JSON | None:
        pod_object = await harness.cluster.pod("p")
        status = next(iter((pod_object or {}).get("status", {}).get("containerStatuses") or []), {})
        return status if status.get("restartCount") == number and "running" in status["state"] else None

    pod_object: JSON = await harness.wait_until(f"attempt {number}", check)
    return pod_object


async def test_restart_counts_survive_a_cluster_restart_and_a_node_reboot(tmp_path: Path) -> None:
    timers = Timers(plugin_poll_interval=0.02, pod_sync_backoff=0.05, crash_loop_backoff=0.05)
    async with LocalCluster(("node-1",), state=tmp_path, timers=timers) as cluster:
        harness = KubeletHarness(cluster)
        pod_object = await create_bound_pod(harness, restartPolicy="Always")
        await _wait_for_attempt(harness, 0)
        end_container(harness, pod_object, code=1)
        await _wait_for_attempt(harness, 1)
    async with LocalCluster(("node-1",), state=tmp_path, timers=timers) as cluster:
        harness = KubeletHarness(cluster)
        last = (await _wait_for_attempt(harness, 2))["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (255, "Unknown")
        await cluster.reboot()
        await _wait_for_attempt(harness, 3)


@pytest.mark.parametrize(("policy", "expected_phase"), [("Never", "Failed"), ("OnFailure", "Running")])
async def test_a_container_that_ran_at_machine_shutdown_has_failed(
    tmp_path: Path, policy: str, expected_phase: str
) -> None:
    """A container that may not restart fails its pod. A container that ended with exit code 0 keeps this state."""
    containers = [{"name": name, "image": "busybox", "command": ["sleep", "infinity"]} for name in ("main", "other")]
    async with LocalCluster(("node-1",), state=tmp_path) as cluster:
        harness = KubeletHarness(cluster)
        pod_object = await create_bound_pod(harness, restartPolicy=policy, containers=containers)
        await harness.wait_until_running()
        end_container(harness, pod_object, "other")

        async def other_has_ended() -> bool:
            current = await cluster.pod("p")
            return bool(current and "terminated" in current["status"]["containerStatuses"][1]["state"])

        await harness.wait_until("the other container to end", other_has_ended)
    async with LocalCluster(("node-1",), state=tmp_path) as cluster:
        harness = KubeletHarness(cluster)

        async def is_settled() -> JSON | None:
            current = await cluster.pod("p")
            main = current["status"]["containerStatuses"][0] if current else {}
            return current if current and (main.get("restartCount") or "terminated" in main["state"]) else None

        current = await harness.wait_until("the pod to settle", is_settled)
        current = await wait_for_phase(harness, expected_phase)
        main, other = current["status"]["containerStatuses"]
        assert other["state"]["terminated"]["exitCode"] == 0
        assert other["restartCount"] == 0
        if policy == "Never":
            assert main["state"]["terminated"]["reason"] == "Unknown"
