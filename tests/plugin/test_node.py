"""The whole way of a claim, through real sockets, with a local cluster around the plugin."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dra_kubeletplugin import Device, Gate, Health, PermanentError, RetryableError
from dra_kubeletplugin._proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
)
from dra_kubeletplugin.claims.batch_window import BatchWindow
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.localcluster.kubelet import Timers
from dra_kubeletplugin.localcluster.kubelet.plugins import dial
from dra_kubeletplugin.plugin.grpc.sockets import socket_paths
from dra_kubeletplugin.plugin.node import Plugin
from dra_kubeletplugin.testing import ClaimSpec, Request, node_with
from dra_kubeletplugin.testing.pods import claim, pod
from tests.helpers.drivers import BlockingDriver, HealthReportingDriver, Toy, make_toy_class
from tests.helpers.waiting import wait_until

NOTHING = {"files": [], "records": [], "held": []}


async def prepare_call(node: Any, *claims: Any, version: str = "v1", authority: str = "localhost") -> Any:
    pb, stub_module = (dra_v1_pb2, dra_v1_pb2_grpc) if version == "v1" else (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc)
    request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace=n, name=m, uid=u) for n, m, u in claims])
    async with dial(node.plugin.paths.dra, authority) as channel:
        return await stub_module.DRAPluginStub(channel).NodePrepareResources(request, timeout=60)


async def settled(node: Any, uid: str, *claims: Any) -> Any:
    """The answer for a claim, asked for again as a kubelet does while it is being worked on."""
    async with asyncio.timeout(30):
        while (answer := (await prepare_call(node, *claims)).claims[uid]).error.startswith("STILL_WORKING"):
            pass
    return answer


async def unprepare_call(node: Any, *claims: Any) -> Any:
    pb = dra_v1_pb2
    request = pb.NodeUnprepareResourcesRequest(claims=[pb.Claim(namespace=n, name=m, uid=u) for n, m, u in claims])
    async with dial(node.plugin.paths.dra) as channel:
        return await dra_v1_pb2_grpc.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=60)


def ref(claim_object: Any) -> tuple[str, str, str]:
    meta = claim_object["metadata"]
    return meta["namespace"], meta["name"], meta["uid"]


async def test_a_pod_gets_its_device_and_leaves_nothing_behind() -> None:
    async with node_with(make_toy_class()) as node:
        running = await node.run_pod(parameters={"colour": "blue"})
        assert node.env(running)["TOY_0"] == "blue"
        assert (await node.leftovers())["held"] == ["toy-0"]
        await node.delete_pod()
        assert await node.leftovers() == NOTHING
        assert node.driver.state == {}


async def test_two_pods_share_a_claim_with_one_prepare_and_one_unprepare() -> None:
    async with node_with(make_toy_class()) as node:
        await node.cluster.apply(claim("shared", ClaimSpec()), pod("a", claims=["shared"]), pod("b", claims=["shared"]))
        await node.cluster.wait_running("a")
        await node.cluster.wait_running("b")
        await node.delete_pod("a")
        assert [c[0] for c in node.driver.calls] == ["prepare"]
        await node.delete_pod("b")
        assert [c[0] for c in node.driver.calls] == ["prepare", "unprepare"]


async def test_plain_methods_run_in_threads_and_claims_do_not_wait_for_each_other() -> None:
    async with node_with(BlockingDriver) as node:
        for i in range(3):
            await node.apply_pod(f"p{i}")
        for i in range(3):
            await node.cluster.wait_running(f"p{i}")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("authority", ["localhost", "/var/lib/kubelet/x.sock", "unix:%2Fx"])
async def test_both_versions_answer_whatever_authority_the_kubelet_sends(version: str, authority: str) -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        answer = await prepare_call(node, ref(found), version=version, authority=authority)
        device = answer.claims[found["metadata"]["uid"]].devices[0]
        assert (device.pool_name, device.device_name, list(device.request_names)) == ("node-1", "toy-0", ["device"])
        assert device.cdi_device_ids[0].startswith("k8s.toy.example.com/claim=")


async def test_empty_calls_are_answered_with_empty_maps() -> None:
    async with node_with(make_toy_class()) as node:
        assert not (await prepare_call(node)).claims
        assert not (await unprepare_call(node)).claims


async def test_a_repeat_is_answered_from_the_record_after_a_restart_too() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        first = await prepare_call(node, ref(found))
        await node.restart()
        assert (await prepare_call(node, ref(found))) == first
        assert [c[0] for c in node.driver.calls] == ["prepare"]


async def test_while_the_api_server_is_away_the_record_alone_answers_and_new_claims_state_why_not() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        with node.cluster.api_outage():
            answer = await prepare_call(node, ref(found), ("default", "other", "u-2"))
            assert len(answer.claims[found["metadata"]["uid"]].devices) == 1
            assert answer.claims["u-2"].error.startswith("API_UNAVAILABLE:")
            unprepared = await unprepare_call(node, ref(found))
            assert unprepared.claims[found["metadata"]["uid"]].error == ""


async def test_one_bad_claim_of_a_call_does_not_fail_the_others() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        good = await node.claim_of("pod")
        await node.cluster.apply(claim("pending", ClaimSpec(Request(selectors=["false"]))))
        pending = next(c for c in node.cluster.claims() if c["metadata"]["name"] == "pending")
        replaced = ("default", good["metadata"]["name"], "another-uid")
        answer = await prepare_call(node, ref(good), ref(pending), replaced, ("default", "missing", "u-m"))
        assert len(answer.claims) == 4
        assert len(answer.claims[good["metadata"]["uid"]].devices) == 1
        assert answer.claims[pending["metadata"]["uid"]].error.startswith("NOT_ALLOCATED: claim default/pending")
        assert answer.claims["another-uid"].error.startswith("REPLACED: claim default/")
        assert answer.claims["u-m"].error.startswith("NOT_FOUND: claim default/missing")


async def test_a_claim_of_another_node_is_refused() -> None:
    async with node_with(make_toy_class()) as node:
        await allocate(node, "elsewhere", [{"pool": "node-2", "device": "toy-0"}])
        found = next(c for c in node.cluster.claims() if c["metadata"]["name"] == "elsewhere")
        answer = await prepare_call(node, ref(found))
        assert answer.claims[found["metadata"]["uid"]].error.startswith("WRONG_NODE:")


async def allocate(node: Any, name: str, results: list[dict[str, Any]]) -> Any:
    """A claim with an allocation of the test's own making."""
    (made,) = await node.cluster.apply(claim(name, ClaimSpec()))
    full = [{"request": "device", "driver": node.settings.driver_name, **r} for r in results]
    consumer = {"apiGroup": "tests.example.com", "resource": "tests", "name": "test", "uid": "test"}
    status = {"allocation": {"devices": {"results": full}}, "reservedFor": [consumer]}
    return await node.cluster.client.update(CLAIMS, {**made, "status": status}, "status")


async def test_an_exclusive_device_in_a_second_claim_is_refused_with_the_holder() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        first = await node.claim_of("pod")
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-0"}])
        error = (await prepare_call(node, ref(second))).claims[second["metadata"]["uid"]].error
        assert error.startswith("DEVICE_HELD: device toy-0 is still held by claim default/pod-t0-")
        assert first["metadata"]["uid"] in error
        assert [c for c in node.driver.calls if c[1] == second["metadata"]["uid"]] == []


@pytest.mark.gates("DRAConsumableCapacity")
async def test_admin_access_and_shares_are_allowed_and_recorded_apart() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        admin = await allocate(node, "admin", [{"pool": "node-1", "device": "toy-0", "adminAccess": True}])
        shares = [
            await allocate(
                node,
                f"share-{i}",
                [{"pool": "node-1", "device": "toy-1", "shareID": f"0000000{i}-0000-4000-8000-000000000000"}],
            )
            for i in range(2)
        ]
        answer = await prepare_call(node, ref(admin), *map(ref, shares))
        assert [c.error for c in answer.claims.values()] == ["", "", ""]
        assert answer.claims[shares[1]["metadata"]["uid"]].devices[0].share_id.startswith("00000001-")
        whole = await allocate(node, "whole", [{"pool": "node-1", "device": "toy-1"}])
        assert (await prepare_call(node, ref(whole))).claims[whole["metadata"]["uid"]].error.startswith("DEVICE_HELD")


async def test_results_of_other_drivers_are_not_ours() -> None:
    async with node_with(make_toy_class()) as node:
        other = await allocate(node, "alien", [{"driver": "other.example.com", "pool": "x", "device": "y"}])
        answer = (await prepare_call(node, ref(other))).claims[other["metadata"]["uid"]]
        assert (answer.error, list(answer.devices)) == ("", [])
        assert node.driver.calls == []
        assert await node.leftovers() == NOTHING


async def test_a_device_that_left_the_inventory_is_refused_before_the_hardware_is_touched() -> None:
    cls = make_toy_class()
    async with node_with(cls) as node:
        gone = await allocate(node, "gone", [{"pool": "node-1", "device": "toy-9"}])
        assert (await prepare_call(node, ref(gone))).claims[gone["metadata"]["uid"]].error.startswith("DEVICE_GONE")
        assert cls.calls == []


async def test_unknown_parameters_are_refused_with_their_path_and_the_nearest_name() -> None:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(parameters={"color": "blue"})

        async def said() -> str | None:
            return next((e for e in node.cluster.events("pod") if "INVALID_CONFIG" in e), None)

        event = await node.cluster.wait("the pod's event", said)
        assert event.startswith(
            "FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: "
        )
        assert "parameters: unknown field 'color', did you mean 'colour'?" in event
        assert "[DRA-E117]" in event


async def test_an_author_s_error_becomes_the_pod_s_event_and_a_later_try_succeeds() -> None:
    cls = make_toy_class()
    cls.fail = PermanentError("firmware 1.2 is too old for toy-0: flash 1.3 or later")
    async with node_with(cls) as node:
        await node.apply_pod()

        async def said() -> str | None:
            return next((e for e in node.cluster.events("pod") if "firmware" in e), None)

        assert "PERMANENT: firmware 1.2 is too old for toy-0" in await node.cluster.wait("the pod's event", said)

        async def nothing_left() -> bool:
            return await node.leftovers() == NOTHING

        await node.cluster.wait("nothing to be left between two tries", nothing_left)
        cls.fail = None
        await node.cluster.wait_running("pod")


async def test_an_unexpected_exception_is_wrapped_with_type_and_message() -> None:
    cls = make_toy_class()
    cls.fail = ZeroDivisionError("by zero")
    async with node_with(cls) as node:
        found = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        error = (await prepare_call(node, ref(found))).claims[found["metadata"]["uid"]].error
        assert error.startswith(
            "DRIVER_FAILED: the driver's prepare raised ZeroDivisionError: by zero (helpers/drivers.py:"
        )
        assert len(error.encode()) <= 1024


async def test_an_unprepare_that_fails_keeps_the_device_held_and_is_repeated() -> None:
    cls = make_toy_class()
    async with node_with(cls) as node:
        await node.run_pod()
        cls.fail_unprepare = RetryableError("the toy is hot")
        deleting = asyncio.create_task(node.delete_pod())

        async def failed() -> bool:
            records = await node.plugin.claims.store.all()
            return bool(records and records[0].attempts)

        await node.cluster.wait("a failed unprepare", failed)
        assert (await node.leftovers())["held"] == ["toy-0"]
        cls.fail_unprepare = None
        await deleting
        assert await node.leftovers() == NOTHING


async def test_unprepare_of_what_was_never_prepared_succeeds_twice() -> None:
    async with node_with(make_toy_class()) as node:
        for _ in range(2):
            assert (await unprepare_call(node, ("default", "never", "u-1"))).claims["u-1"].error == ""
        assert node.driver.calls == []


async def test_slices_come_back_after_the_kubelet_wiped_them() -> None:
    async with node_with(make_toy_class()) as node:
        await node.kubelet.restart()

        async def back() -> bool:
            return bool(node.cluster.slices("toy.example.com")) and node.plugin.registration.registered.is_set()

        await node.cluster.wait("the slices to come back", back)
        await node.run_pod()


async def test_slices_are_wiped_when_the_last_instance_stays_away() -> None:
    async with node_with(make_toy_class(), timers=Timers(slice_wipe_delay=0.2)) as node:
        await node.stop()

        async def gone() -> bool:
            return not node.cluster.slices("toy.example.com")

        await node.cluster.wait("the slices to go", gone)


async def test_a_slice_that_somebody_deletes_is_made_again_at_once() -> None:
    from dra_kubeletplugin.kube.resource import SLICES

    async with node_with(make_toy_class()) as node:
        name = node.cluster.slices()[0]["metadata"]["name"]
        await node.cluster.client.delete(SLICES, name)

        async def back() -> bool:
            return [s["metadata"]["name"] for s in node.cluster.slices()] not in ([], [name])

        await node.cluster.wait("another slice", back)


async def test_a_server_that_drops_fields_is_reported_once_and_not_fought() -> None:
    class Tainted(Toy):
        async def devices(self) -> list[Device]:
            from dra_kubeletplugin import Taint

            return [Device("t", {"index": 0}, taints=[Taint(key="example.com/x")])]

    async with node_with(Tainted) as node:
        node.cluster.api.injected_faults.dropped.add("taints")
        from dra_kubeletplugin.kube.resource import SLICES

        await node.cluster.client.delete(SLICES, node.cluster.slices()[0]["metadata"]["name"])

        async def withheld() -> bool:
            found = node.cluster.slices()
            return bool(found) and not found[0]["spec"].get("devices") and "t" in node.plugin.inventory.rejected

        await node.cluster.wait("the slice without the device that nothing would keep away", withheld)
        status = await node.plugin.published(60)
        assert status.gates_off == {Gate.TAINTS}
        version = node.cluster.api.storage.version
        await node.rescan()
        await node.plugin.published(60)
        slices = node.cluster.slices()
        assert all(int(s["metadata"]["resourceVersion"]) <= version for s in slices)


@pytest.mark.gates("DRADeviceTaints")
async def test_health_reaches_the_stream_and_the_slices_and_refuses_the_sick() -> None:
    class Ill(HealthReportingDriver):
        pass

    async with node_with(Ill, health_interval=0.1) as node:
        async with dial(node.plugin.paths.dra) as channel:
            stream = health_v1_pb2_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
                health_v1_pb2.NodeWatchResourcesRequest()
            )

            async def reported(*wanted: int) -> Any:
                """Each measurement is told, also one that was under way when the driver began to say something else."""
                async with asyncio.timeout(30):
                    while True:
                        devices = (await stream.read()).devices
                        assert [d.device.device_name for d in devices] == [f"toy-{i}" for i in range(4)]
                        if tuple(d.health for d in devices) == wanted:
                            return devices

            await reported(1, 1, 1, 1)
            Ill.report = {"toy-1": Health(False, "x" * 2000)}
            sick = (await reported(1, 2, 1, 1))[1]
            assert (len(sick.message), sick.message[-3:]) == (1024, "...")
            stream.cancel()

        async def tainted() -> bool:
            devices = node.cluster.slices()[0]["spec"]["devices"]
            return any(d.get("taints") for d in devices if d["name"] == "toy-1")

        await node.cluster.wait("the taint", tainted)
        found = await allocate(node, "ill", [{"pool": "node-1", "device": "toy-1"}])
        assert (
            (await prepare_call(node, ref(found))).claims[found["metadata"]["uid"]].error.startswith("DEVICE_UNHEALTHY")
        )


def _calls(plugin: Any, method: str) -> float:
    line = f'dra_kubelet_calls_total{{method="{method}"}} '
    found = [t for t in plugin.metrics.text().decode().splitlines() if t.startswith(line)]
    return float(found[0].removeprefix(line)) if found else 0


async def test_two_instances_of_a_rolling_update_prepare_and_unprepare_for_each_other() -> None:
    from dra_kubeletplugin.plugin.node import Plugin

    cls = make_toy_class()
    async with node_with(cls, pod_uid="11111111-1111-4111-8111-111111111111") as node:
        await node.run_pod("old")
        old_plugin = node.plugin
        import dataclasses

        settings = dataclasses.replace(node.settings, pod_uid="22222222-2222-4222-8222-222222222222")
        new = Plugin(cls(), settings, node.plugin.client.config)
        async with new.running():
            await new.ready()
            await node.delete_pod("old")
            await node.run_pod("new")
            assert _calls(new, "NodePrepareResources") > 0
            assert _calls(new, "NodeUnprepareResources") > 0
            assert _calls(old_plugin, "NodeUnprepareResources") == 0
            await node.stop()
            assert new.paths.dra.exists()
            assert new.paths.registration.exists()
            assert node.cluster.slices()
            await node.delete_pod("new")


async def test_only_v1beta1_kubelets_are_served() -> None:
    async with node_with(make_toy_class()) as node:
        node.kubelet.supported = ("v1beta1.DRAPlugin",)
        await node.kubelet.restart()
        await node.run_pod()
        assert node.kubelet.plugins.newest("toy.example.com").version == "v1beta1.DRAPlugin"


async def test_a_long_prepare_is_answered_in_time_and_the_retry_joins_it() -> None:
    cls = make_toy_class()
    cls.block = asyncio.Event()
    async with node_with(cls, call_timeout=0.2) as node:
        found = await allocate(node, "slow", [{"pool": "node-1", "device": "toy-0"}])
        uid = found["metadata"]["uid"]
        assert (await prepare_call(node, ref(found))).claims[uid].error.startswith("STILL_WORKING")
        cls.block.set()
        assert len((await settled(node, uid, ref(found))).devices) == 1
        assert cls.calls == [("prepare", uid)]


async def test_a_cancelled_call_goes_on_and_the_retry_gets_its_answer() -> None:
    cls = make_toy_class()
    cls.block = asyncio.Event()
    async with node_with(cls) as node:
        found = await allocate(node, "cut", [{"pool": "node-1", "device": "toy-0"}])
        pb = dra_v1_pb2
        request = pb.NodePrepareResourcesRequest(
            claims=[pb.Claim(namespace="default", name="cut", uid=found["metadata"]["uid"])]
        )
        async with dial(node.plugin.paths.dra) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=0.2)
        cls.block.set()
        answer = await prepare_call(node, ref(found))
        assert len(answer.claims[found["metadata"]["uid"]].devices) == 1
        assert len(cls.calls) == 1


async def test_claims_of_a_call_are_read_once_each_and_written_in_two_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchWindow.__init__, "__defaults__", (60.0,))  # before the first: however slow one is
    cls = make_toy_class()
    cls.block = asyncio.Event()
    async with node_with(cls) as node:
        found = [await allocate(node, f"c{i}", [{"pool": "node-1", "device": f"toy-{i}"}]) for i in range(4)]
        read = [("GET", CLAIMS.path("default", f"c{i}")) for i in range(4)]
        store, calls = node.plugin.claims.store, node.cluster.api.injected_faults.calls
        given = 0
        written: list[int] = []
        do, transaction = store.do, store._transaction

        def counting(*args: Any, **more: Any) -> Any:
            nonlocal given
            given += "first" in more  # with a CDI file: the second hop
            return do(*args, **more)

        def counted(operations: Any, *, sync: bool) -> Any:
            written.append(len(operations))
            return transaction(operations, sync=sync)

        monkeypatch.setattr(store, "do", counting)
        monkeypatch.setattr(store, "_transaction", counted)
        calls.clear()
        preparing = asyncio.create_task(prepare_call(node, *map(ref, found)))
        await wait_until(lambda: len(cls.calls) == 4)
        assert written == [4]
        busy = threading.Event()
        held = asyncio.create_task(store.run(lambda: busy.wait(60)))
        cls.block.set()
        await wait_until(
            lambda: given == 4
        )  # while the record thread is busy, all that comes waits for one transaction
        busy.set()
        await asyncio.gather(held, preparing)
        assert written == [4, 4]
        assert sorted(c for c in calls if c in read) == read
        calls.clear()
        written.clear()
        await unprepare_call(node, *map(ref, found))
        assert [c for c in calls if c in read] == []
        assert sum(written) <= 8


async def test_concurrent_calls_for_one_claim_do_the_work_once() -> None:
    cls = make_toy_class()
    cls.delay = 0.05
    async with node_with(cls) as node:
        found = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        answers = await asyncio.gather(*(prepare_call(node, ref(found)) for _ in range(10)))
        assert all(a == answers[0] for a in answers)
        assert len(cls.calls) == 1


async def test_a_claim_recreated_under_the_same_name_does_not_disturb_the_old_one(tmp_path: Path) -> None:
    async with node_with(make_toy_class()) as node:
        old = await allocate(node, "same", [{"pool": "node-1", "device": "toy-0"}])
        await prepare_call(node, ref(old))
        await node.cluster.client.delete(CLAIMS, "same", "default")
        new = await allocate(node, "same", [{"pool": "node-1", "device": "toy-1"}])
        await prepare_call(node, ref(new))
        await unprepare_call(node, ref(old))
        left = await node.leftovers()
        assert left == {"files": [new["metadata"]["uid"]], "records": [new["metadata"]["uid"]], "held": ["toy-1"]}
        spec = json.loads(node.plugin.claims.files.specs.path(new["metadata"]["uid"]).read_text())
        assert spec["kind"] == "k8s.toy.example.com/claim"


@pytest.mark.parametrize("which", ["registrar", "service"])
async def test_r4_a_listener_that_fails_is_reported_and_not_swallowed(which: str) -> None:
    async with node_with(make_toy_class()) as node:
        await node.stop()
        paths = socket_paths(node.settings.registry_dir, node.settings.plugin_dir, node.settings.driver_name)
        path = paths.registration if which == "registrar" else paths.dra
        (path / "in-the-way").mkdir(parents=True)  # nothing can listen there, nor be renamed over it
        with pytest.raises(DraError, match=re.escape(str(path))):
            async with Plugin(make_toy_class()(), node.settings, node.cluster.config).running():
                pass
