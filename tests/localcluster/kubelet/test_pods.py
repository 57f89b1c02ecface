"""How a pod lives and ends on its node: order, restarts, claims, what it is told. Upstream: test/e2e/dra, kubelet_pods_test.go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dra_kubeletplugin._proto import podresources_v1_pb2 as pb
from dra_kubeletplugin._proto import podresources_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.kube.reflector import Reflector
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import Timers
from tests.helpers.objects import claim, device_class, pod
from tests.localcluster.kubelet.test_kubelet import Room

JSON = dict[str, Any]


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    timers = Timers(plugin_poll_interval=0.02, slice_wipe_delay=60, pod_sync_backoff=0.05, crash_loop_backoff=0.2)
    async with LocalCluster(("node-1",), timers=timers) as cluster:
        yield Room(cluster)


def end(room: Room, found: JSON, container: str = "main", code: int = 0) -> None:
    room.cluster.node.runtime.end(found["metadata"]["uid"], container, code)


async def phase(room: Room, wanted: str, name: str = "p") -> JSON:
    found: JSON = await room.until(f"{name} to be {wanted}", lambda: room.phase(name, wanted))
    return found


async def bound(room: Room, name: str = "p", **spec: Any) -> JSON:
    return (await room.cluster.apply(pod(name, nodeName="node-1", **spec)))[0]


# --- claims -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3])
async def test_a_finished_pod_is_unprepared_and_its_devices_are_free(room: Room, code: int) -> None:
    """C5: the job story of KEP-4381. The pod has finished for all others once its devices are free."""
    async with room.plugin() as plugin:
        await room.run()
        found = await room.runs()
        plugin.gate.clear()
        end(room, found, code=code)
        await room.until("the unprepare", lambda: plugin.count("unprepare"))
        assert (await room.runs())["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code
        plugin.gate.set()
        done = await phase(room, "Failed" if code else "Succeeded")
        assert room.kubelet.manager.claims == {}

        async def free() -> bool:
            held = await room.cluster.client.get(CLAIMS, "p-c", "default")
            return "reservedFor" not in held["status"]

        await room.until("the reservation to end", free)
        told = {c["type"]: c.get("reason") for c in done["status"]["conditions"]}
        assert told["Ready"] == ("PodFailed" if code else "PodCompleted")
        await room.delete()
        await room.gone()
        assert plugin.count("unprepare") == 1


async def test_a_pod_that_somebody_else_ended_is_stopped_and_unprepared(room: Room) -> None:
    async with room.plugin() as plugin:
        await room.run()
        await room.runs()
        body = {"status": {"phase": "Failed", "reason": "Evicted"}}
        await room.cluster.client.patch(PODS, "p", body, "default", "status")
        await room.until("the unprepare", lambda: plugin.count("unprepare"))
        await room.told("p", "Killing: Stopping container main")


async def test_a_force_deleted_pod_is_unprepared(room: Room) -> None:
    async with room.plugin() as plugin:
        await room.run()
        await room.runs()
        await room.delete(grace=0)
        await room.until("the unprepare", lambda: plugin.count("unprepare") == 1)


async def test_a_claim_of_the_same_name_waits_for_the_old_one_and_is_reported_its_uid(room: Room) -> None:
    """A new pod after a forced deletion: the event names the old UID."""
    async with room.plugin() as plugin:
        await room.run()
        await room.runs()
        old = await room.cluster.client.get(CLAIMS, "p-c", "default")
        plugin.error = "not yet"
        await room.delete(grace=0)
        await room.until("a try", lambda: plugin.count("unprepare"))
        await room.cluster.client.delete(CLAIMS, "p-c", "default")
        await room.run()
        text = f"old ResourceClaim with same name p-c and different UID {old['metadata']['uid']} still exists"
        await room.told("p", text)
        plugin.error = ""
        await room.runs()


async def test_a_claim_that_no_container_uses_is_prepared_all_the_same(room: Room) -> None:
    async with room.plugin() as plugin:
        await room.run(used=False)
        await room.runs()
        assert plugin.count("prepare") == 1


async def test_two_pods_that_share_a_claim_are_prepared_once_and_unprepared_with_the_last(room: Room) -> None:
    async with room.plugin() as plugin:
        await room.run("one", shared="both")
        await room.run("two", shared="both")
        await room.runs("one")
        await room.runs("two")
        assert plugin.count("prepare") == 1
        await room.delete("one")
        await room.gone("one")
        assert plugin.count("unprepare") == 0
        await room.delete("two")
        await room.gone("two")
        assert plugin.count("unprepare") == 1


async def test_a_pod_bound_by_hand_with_a_template_waits_in_the_words_of_the_kubelet(room: Room) -> None:
    await room.cluster.apply(
        device_class(), pod("p", templates=["t"], nodeName="node-1")
    )  # else the claim may be there first
    text = 'prepare dynamic resources: pod "default/p": ResourceClaim not created yet'
    await room.told("p", f"FailedPrepareDynamicResources: Failed to prepare dynamic resources: {text}")
    await room.waits()


async def test_a_pod_without_its_claim_or_its_reservation_or_its_driver_waits_and_reports_it(room: Room) -> None:
    """Behaviour 28: the kubelet's own words."""
    await room.cluster.apply(device_class(), pod("missing", claims=["none"], nodeName="node-1"))
    await room.told("missing", 'fetch ResourceClaim none: resourceclaims.resource.k8s.io "none" not found')
    made = await room.cluster.apply(claim("c"), pod("unreserved", claims=["c"], nodeName="node-1"))
    uids = [m["metadata"]["uid"] for m in made]
    await room.told("unreserved", f"pod unreserved ({uids[1]}) is not allowed to use ResourceClaim c ({uids[0]})")
    await room.run("unserved", "none.example.com")
    await room.told("unserved", "prepare dynamic resources: DRA driver none.example.com is not registered")
    for name in ("missing", "unreserved", "unserved"):
        await room.waits(name)


async def test_a_cdi_device_that_resolves_to_nothing_is_reported_and_prepare_is_not_repeated(room: Room) -> None:
    plugin = room.plugin()
    plugin.cdi = ("vendor.example.com/gpu=none",)
    async with plugin:
        await room.run()
        text = "CDI device injection failed: unresolvable CDI devices vendor.example.com/gpu=none"
        await room.told("p", f"Failed: Error: failed to create containerd container: {text}")
        await room.waits()
        (room.cluster.node.cdi_root / "late.json").write_text(
            '{"cdiVersion": "0.6.0", "kind": "vendor.example.com/gpu", "devices": [{"name": "none", "containerEdits": '
            '{"env": ["GPU=late"]}}]}'
        )
        found = await room.runs()
        assert plugin.count("prepare") == 1
        env = room.cluster.node.runtime.spec(found["metadata"]["uid"], "main")["process"]["env"]
        assert "GPU=late" in env


async def test_a_monitoring_agent_learns_which_container_has_which_devices(room: Room) -> None:
    """The PodResources socket: List and Get."""
    plugin = room.plugin()
    plugin.share_ids = ("one",)
    async with plugin:
        await room.run()
        found = await room.runs()
        path = room.cluster.node.kubelet_root / "pod-resources" / "kubelet.sock"
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = pb_grpc.PodResourcesListerStub(channel)
            [listed] = (await stub.List(pb.ListPodResourcesRequest())).pod_resources
            asked = pb.GetPodResourcesRequest(pod_name="p", pod_namespace="default")
            assert (await stub.Get(asked)).pod_resources == listed
            [container] = listed.containers
            [resource] = container.dynamic_resources
            [device] = resource.claim_resources
            assert (listed.name, container.name, resource.claim_name) == ("p", "main", "p-c")
            told = (device.driver_name, device.pool_name, device.device_name, device.share_id)
            assert told == (plugin.driver, "node-1", "d0", "one")
            end(room, found)
            await phase(room, "Succeeded")
            with pytest.raises(grpc.aio.AioRpcError, match="pod q in namespace default not found"):
                await stub.Get(pb.GetPodResourcesRequest(pod_name="q", pod_namespace="default"))


# --- containers -------------------------------------------------------------------------------------


async def test_init_containers_and_sidecars_start_in_their_order_and_sidecars_end_last(room: Room) -> None:
    init = [
        {"name": "first", "image": "i"},
        {"name": "side", "image": "i", "restartPolicy": "Always"},
        {"name": "second", "image": "i"},
    ]
    await bound(room, initContainers=init, terminationGracePeriodSeconds=0)
    found = await room.runs()
    statuses = room.cluster.node.runtime.statuses(found["metadata"]["uid"])
    assert list(statuses) == ["first", "side", "second", "main"]
    shown = {s["name"]: next(iter(s["state"])) for s in found["status"]["initContainerStatuses"]}
    assert shown == {"first": "terminated", "side": "running", "second": "terminated"}
    assert all(s["ready"] for s in found["status"]["initContainerStatuses"])
    end(room, found)
    done = await phase(room, "Succeeded")
    assert "terminated" in done["status"]["initContainerStatuses"][1]["state"]


async def test_a_sidecar_that_ends_is_started_again_whatever_the_policy_of_its_pod(room: Room) -> None:
    runtime = room.cluster.node.runtime
    await bound(room, "p", initContainers=[{"name": "side", "image": "i", "restartPolicy": "Always"}])
    found = await room.runs()
    runtime.end(found["metadata"]["uid"], "side", 1)

    async def restarted() -> bool:
        status = runtime.statuses(found["metadata"]["uid"])["side"]
        return status.attempt >= 1 and status.state.value == "running"

    await room.until("the sidecar to run again", restarted)
    assert runtime.statuses(found["metadata"]["uid"])["main"].attempt == 0


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("OnFailure", 1, True), ("OnFailure", 0, False), ("Never", 1, False)],
)
async def test_a_container_that_ends_is_restarted_as_its_pod_states(
    room: Room, policy: str, code: int, again: bool
) -> None:
    await bound(room, restartPolicy=policy)
    found = await room.runs()
    end(room, found, code=code)
    if not again:
        await phase(room, "Failed" if code else "Succeeded")
        return

    async def restarted() -> JSON | None:
        seen = await room.runs()
        [status] = seen["status"]["containerStatuses"]
        return status if status["restartCount"] == 1 and "running" in status["state"] else None

    status = await room.until("a restart", restarted)
    assert status["lastState"]["terminated"]["exitCode"] == code


async def test_a_container_that_ends_again_and_again_is_restarted_with_growing_pauses(room: Room) -> None:
    await bound(room, restartPolicy="Always")
    runtime = room.cluster.node.runtime
    found = await room.runs()

    followed = asyncio.Event()

    async def paused() -> None:
        """Each status that was written is told: one that is seen by chance may be over between two looks."""
        async for event in Reflector(room.cluster.client, PODS).events():
            if event.type == "SYNCED":
                followed.set()
            statuses = event.object.get("status", {}).get("containerStatuses") or []
            if any(s["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff" for s in statuses):
                return

    pause = asyncio.create_task(paused())
    await followed.wait()
    for attempt in range(2):
        await room.until(
            "the attempt", lambda n=attempt: runtime.statuses(found["metadata"]["uid"])["main"].attempt == n
        )
        end(room, found, code=1)
    await asyncio.wait_for(pause, 30)
    await room.told("p", "BackOff: Back-off restarting failed container main in pod p_default(")
    await room.until("the third", lambda: runtime.statuses(found["metadata"]["uid"])["main"].attempt == 2)


async def test_a_pod_reports_that_it_is_simulated(room: Room) -> None:
    await bound(room)
    found = await room.runs()
    told = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert told["dra-kubeletplugin.dev/Simulated"] == told["Ready"] == told["PodScheduled"] == "True"


async def test_environment_and_volumes_come_from_where_the_manifest_states(room: Room) -> None:
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
    await room.cluster.apply(config)
    await bound(room, containers=[container], volumes=[{"name": "v", "configMap": {"name": "cm"}}])
    found = await room.runs()
    spec = room.cluster.node.runtime.spec(found["metadata"]["uid"], "main")
    seen = dict(e.split("=", 1) for e in spec["process"]["env"])
    assert {k: seen[k] for k in ("key", "POD", "KEY", "BOTH", "CPU")} == {
        "key": "value", "POD": "p", "KEY": "value", "BOTH": "p-value-$(NONE)-$(POD)", "CPU": "1500",
    }  # fmt: skip
    [mount] = [m for m in spec["mounts"] if m["destination"] == "/v"]
    assert (Path(mount["source"]) / "key").read_text() == "value"


_EMPTY: JSON = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "empty"}}
_NO_KEY = [{"key": "none", "path": "p"}]


@pytest.mark.parametrize(
    ("spec", "says"),
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
async def test_what_a_real_node_would_not_run_does_not_run_here(room: Room, spec: JSON, says: str) -> None:
    await room.cluster.apply(_EMPTY)
    await bound(room, **spec)
    await room.told("p", says)
    found = await room.cluster.pod("p")
    assert found is not None
    assert found["status"]["phase"] in {"Pending", "Failed"}


async def test_what_is_optional_of_a_volume_may_be_missing(room: Room) -> None:
    await room.cluster.apply({**_EMPTY, "data": {"there": "x"}})
    items = [*_NO_KEY, {"key": "there", "path": "q"}]
    await bound(room, volumes=[{"name": "v", "configMap": {"name": "empty", "items": items, "optional": True}}])
    await room.runs()


async def test_a_container_without_limits_may_have_all_that_its_node_gives(room: Room) -> None:
    node = {"status": {"allocatable": {"cpu": "3500m", "memory": "2Gi"}}}
    await room.cluster.client.patch(NODES, "node-1", node, sub="status")

    def of(resource: str) -> JSON:
        return {"resourceFieldRef": {"resource": resource, "containerName": "main"}}

    names = ("limits.cpu", "limits.memory", "requests.cpu")
    env = [{"name": name.replace(".", "_"), "valueFrom": of(name)} for name in names]
    files = [{"path": name, **of(name)} for name in names]
    volume = {"name": "v", "downwardAPI": {"items": files}}
    container = {"name": "main", "image": "i", "command": ["sleep", "infinity"], "env": env}
    container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    await bound(room, containers=[container], volumes=[volume])
    found = await room.runs()
    spec = room.cluster.node.runtime.spec(found["metadata"]["uid"], "main")
    seen = dict(e.split("=", 1) for e in spec["process"]["env"])
    [mount] = [m for m in spec["mounts"] if m["destination"] == "/v"]
    for name, value in zip(names, ("4", str(2 << 30), "0"), strict=True):
        assert seen[name.replace(".", "_")] == value
        assert (Path(mount["source"]) / name).read_text() == value


async def test_what_is_missing_or_not_implemented_leaves_a_pod_pending_with_a_sentence(room: Room) -> None:
    claim_volume = {"name": "v", "persistentVolumeClaim": {"claimName": "x"}}
    await bound(room, "disk", volumes=[claim_volume])
    await room.told("disk", "volumes of type persistentVolumeClaim are not implemented by the local cluster")
    await bound(room, "config", volumes=[{"name": "v", "configMap": {"name": "none"}}])
    await room.told("config", 'FailedMount: MountVolume.SetUp failed for volume "v" : configmap "none" not found')
    source = {"secretKeyRef": {"name": "none", "key": "k"}}
    await bound(room, "env", containers=[{"name": "main", "image": "i", "env": [{"name": "A", "valueFrom": source}]}])
    await room.told("env", 'Failed: Error: secret "none" not found')
    for name in ("disk", "config", "env"):
        await room.waits(name)


async def test_a_pod_bound_by_hand_that_the_node_has_no_room_for_fails_and_nothing_of_it_starts(room: Room) -> None:
    taking = {"name": "main", "image": "busybox", "ports": [{"containerPort": 80, "hostPort": 80}]}
    await bound(room, "first", containers=[{**taking, "command": ["sleep", "infinity"]}])
    await room.runs("first")
    found = await bound(room, "second", containers=[taking])
    failed = await phase(room, "Failed", "second")
    text = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    assert (failed["status"]["reason"], failed["status"]["message"]) == ("NodePorts", f"Pod was rejected: {text}")
    await room.told("second", f"NodePorts: {text}")
    assert room.cluster.node.runtime.statuses(found["metadata"]["uid"]) == {}
    await room.kubelet.restart()
    await room.delete("first")
    await room.gone("first")
    await bound(room, "third", containers=[{**taking, "command": ["sleep", "infinity"]}])
    await room.runs("third")


async def test_a_pod_that_is_active_for_too_long_is_ended_and_unprepared(room: Room) -> None:
    async with room.plugin() as plugin:
        await room.run(restartPolicy="Always")
        await room.runs()  # only then: it may take its time
        await room.cluster.client.patch(PODS, "p", {"spec": {"activeDeadlineSeconds": 1}}, "default")
        failed = await phase(room, "Failed")
        status = failed["status"]
        text = "Pod was active on the node longer than the specified deadline"
        assert (status["reason"], status["message"]) == ("DeadlineExceeded", text)
        assert "terminated" in status["containerStatuses"][0]["state"]
        assert plugin.count("unprepare") == 1


@pytest.mark.parametrize(("kind", "what"), [("Directory", "directory"), ("CharDevice", "character device")])
async def test_a_host_path_of_another_type_keeps_the_pod_waiting(
    room: Room, tmp_path: Path, kind: str, what: str
) -> None:
    (tmp_path / "file").write_text("")
    volumes = [{"name": "v", "hostPath": {"path": str(tmp_path / "file"), "type": kind}}]
    await bound(room, volumes=volumes)
    text = f'MountVolume.SetUp failed for volume "v" : hostPath type check failed: {tmp_path}/file is not a {what}'
    await room.told("p", f"FailedMount: {text}")
    await room.waits()


async def test_a_container_that_must_not_be_root_and_is_does_not_start(room: Room) -> None:
    await bound(room, securityContext={"runAsNonRoot": True, "runAsUser": 0})
    await room.told("p", "container's runAsUser breaks non-root policy")
    await room.waits()


async def test_a_container_with_a_rule_for_its_exit_code_restarts_where_its_policy_would_not(room: Room) -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    container = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"]}
    await bound(room, containers=[{**container, "restartPolicy": "Never", "restartPolicyRules": [rule]}])
    end(room, await room.runs(), code=42)

    async def again() -> bool:
        found = await room.cluster.pod("p")
        return bool(found and found["status"]["containerStatuses"][0]["restartCount"] == 1)

    await room.until("the restart", again)
    end(room, await room.runs(), code=1)
    await phase(room, "Failed")


# --- another life of the machine --------------------------------------------------------------------


async def _attempt(room: Room, number: int) -> JSON:
    async def check() -> JSON | None:
        found = await room.cluster.pod("p")
        status = next(iter((found or {}).get("status", {}).get("containerStatuses") or []), {})
        return status if status.get("restartCount") == number and "running" in status["state"] else None

    found: JSON = await room.until(f"attempt {number}", check)
    return found


async def test_restarts_go_on_being_counted_when_the_cluster_comes_back_or_a_node_reboots(tmp_path: Path) -> None:
    timers = Timers(plugin_poll_interval=0.02, pod_sync_backoff=0.05, crash_loop_backoff=0.05)
    async with LocalCluster(("node-1",), state=tmp_path, timers=timers) as cluster:
        room = Room(cluster)
        found = await bound(room, restartPolicy="Always")
        await _attempt(room, 0)
        end(room, found, code=1)
        await _attempt(room, 1)
    async with LocalCluster(("node-1",), state=tmp_path, timers=timers) as cluster:
        room = Room(cluster)
        last = (await _attempt(room, 2))["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (255, "Unknown")
        await cluster.reboot()
        await _attempt(room, 3)


@pytest.mark.parametrize(("policy", "wanted"), [("Never", "Failed"), ("OnFailure", "Running")])
async def test_what_ran_when_the_machine_went_down_has_failed(tmp_path: Path, policy: str, wanted: str) -> None:
    """One that may not be started again has failed with its pod; one that had ended well stays so."""
    containers = [{"name": name, "image": "busybox", "command": ["sleep", "infinity"]} for name in ("main", "other")]
    async with LocalCluster(("node-1",), state=tmp_path) as cluster:
        room = Room(cluster)
        found = await bound(room, restartPolicy=policy, containers=containers)
        await room.runs()
        end(room, found, "other")

        async def one() -> bool:
            now = await cluster.pod("p")
            return bool(now and "terminated" in now["status"]["containerStatuses"][1]["state"])

        await room.until("the other container to end", one)
    async with LocalCluster(("node-1",), state=tmp_path) as cluster:
        room = Room(cluster)

        async def settled() -> JSON | None:
            now = await cluster.pod("p")
            main = now["status"]["containerStatuses"][0] if now else {}
            return now if now and (main.get("restartCount") or "terminated" in main["state"]) else None

        now = await room.until("the pod to settle", settled)
        now = await phase(room, wanted)
        main, other = now["status"]["containerStatuses"]
        assert other["state"]["terminated"]["exitCode"] == 0
        assert other["restartCount"] == 0
        if policy == "Never":
            assert main["state"]["terminated"]["reason"] == "Unknown"
