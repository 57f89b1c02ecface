"""The whole path of a claim, through real sockets, with a local cluster around the plugin."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.plugins import dial
from dra_devkit.testing import ClaimSpec, Request, node_with
from dra_devkit.testing.pods import claim, pod
from dra_kubeletplugin import Health, PermanentError
from dra_kubeletplugin._proto import (
    health_v1_pb2,
    health_v1_pb2_grpc,
)
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.plugin.grpc.sockets import socket_paths
from dra_kubeletplugin.plugin.node import Plugin
from tests.helpers.drivers import BlockingDriver, HealthReportingDriver, make_toy_class
from tests.helpers.node_steps import NOTHING, allocate, prepare_call, ref, unprepare_call


async def test_a_pod_gets_its_device_and_its_end_leaves_no_state() -> None:
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
async def test_both_versions_respond_to_any_authority_of_the_kubelet(version: str, authority: str) -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        claim_object = await node.claim_of("pod")
        response = await prepare_call(node, ref(claim_object), version=version, authority=authority)
        device = response.claims[claim_object["metadata"]["uid"]].devices[0]
        assert (device.pool_name, device.device_name, list(device.request_names)) == ("node-1", "toy-0", ["device"])
        assert device.cdi_device_ids[0].startswith("k8s.toy.example.com/claim=")


async def test_the_response_to_an_empty_call_is_an_empty_map() -> None:
    async with node_with(make_toy_class()) as node:
        assert not (await prepare_call(node)).claims
        assert not (await unprepare_call(node)).claims


async def test_a_repeated_prepare_returns_the_recorded_response_also_after_a_restart() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        claim_object = await node.claim_of("pod")
        first = await prepare_call(node, ref(claim_object))
        await node.restart()
        assert (await prepare_call(node, ref(claim_object))) == first
        assert [c[0] for c in node.driver.calls] == ["prepare"]


async def test_during_an_outage_prepared_claims_are_returned_from_the_record_and_new_claims_have_an_error() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        claim_object = await node.claim_of("pod")
        with node.cluster.api_outage():
            response = await prepare_call(node, ref(claim_object), ("default", "other", "u-2"))
            assert len(response.claims[claim_object["metadata"]["uid"]].devices) == 1
            assert response.claims["u-2"].error.startswith("API_UNAVAILABLE:")
            unprepared = await unprepare_call(node, ref(claim_object))
            assert unprepared.claims[claim_object["metadata"]["uid"]].error == ""


async def test_one_invalid_claim_of_a_call_does_not_fail_the_other_claims() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        valid_claim = await node.claim_of("pod")
        await node.cluster.apply(claim("pending", ClaimSpec(Request(selectors=["false"]))))
        pending = next(c for c in node.cluster.claims() if c["metadata"]["name"] == "pending")
        replaced = ("default", valid_claim["metadata"]["name"], "another-uid")
        response = await prepare_call(node, ref(valid_claim), ref(pending), replaced, ("default", "missing", "u-m"))
        assert len(response.claims) == 4
        assert len(response.claims[valid_claim["metadata"]["uid"]].devices) == 1
        assert response.claims[pending["metadata"]["uid"]].error.startswith("NOT_ALLOCATED: claim default/pending")
        assert response.claims["another-uid"].error.startswith("REPLACED: claim default/")
        assert response.claims["u-m"].error.startswith("NOT_FOUND: claim default/missing")


async def test_an_exclusive_device_in_a_second_claim_is_refused_with_the_holder() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        first = await node.claim_of("pod")
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-0"}])
        error = (await prepare_call(node, ref(second))).claims[second["metadata"]["uid"]].error
        assert error.startswith("DEVICE_HELD: device toy-0 is still held by claim default/pod-t0-")
        assert first["metadata"]["uid"] in error
        assert [c for c in node.driver.calls if c[1] == second["metadata"]["uid"]] == []


async def test_results_of_other_drivers_are_ignored() -> None:
    async with node_with(make_toy_class()) as node:
        other_claim = await allocate(node, "alien", [{"driver": "other.example.com", "pool": "x", "device": "y"}])
        response = (await prepare_call(node, ref(other_claim))).claims[other_claim["metadata"]["uid"]]
        assert (response.error, list(response.devices)) == ("", [])
        assert node.driver.calls == []
        assert await node.leftovers() == NOTHING


async def test_a_driver_error_becomes_the_pod_s_event_and_a_later_attempt_succeeds() -> None:
    cls = make_toy_class()
    cls.fail = PermanentError("firmware 1.2 is too old for toy-0: flash 1.3 or later")
    async with node_with(cls) as node:
        await node.apply_pod()

        async def find_event() -> str | None:
            return next((e for e in node.cluster.events("pod") if "firmware" in e), None)

        assert "PERMANENT: firmware 1.2 is too old for toy-0" in await node.cluster.wait("the pod's event", find_event)

        async def has_no_leftovers() -> bool:
            return await node.leftovers() == NOTHING

        await node.cluster.wait("a state without leftovers between two attempts", has_no_leftovers)
        cls.fail = None
        await node.cluster.wait_running("pod")


async def test_unprepare_of_an_unknown_claim_succeeds_twice() -> None:
    async with node_with(make_toy_class()) as node:
        for _ in range(2):
            assert (await unprepare_call(node, ("default", "never", "u-1"))).claims["u-1"].error == ""
        assert node.driver.calls == []


async def test_slices_are_created_again_after_the_kubelet_deleted_them() -> None:
    async with node_with(make_toy_class()) as node:
        await node.kubelet.restart()

        async def is_back() -> bool:
            return bool(node.cluster.slices("toy.example.com")) and node.plugin.registration.registered.is_set()

        await node.cluster.wait("the new slices", is_back)
        await node.run_pod()


async def test_the_kubelet_deletes_the_slices_when_the_last_instance_stays_away() -> None:
    async with node_with(make_toy_class(), timers=Timers(slice_wipe_delay=0.2)) as node:
        await node.stop()

        async def are_slices_deleted() -> bool:
            return not node.cluster.slices("toy.example.com")

        await node.cluster.wait("the deletion of the slices", are_slices_deleted)


@pytest.mark.gates("DRADeviceTaints")
async def test_health_reaches_the_stream_and_the_slices_and_unhealthy_devices_are_refused() -> None:
    class UnhealthyToy(HealthReportingDriver):
        pass

    async with node_with(UnhealthyToy, health_interval=0.1) as node:
        async with dial(node.plugin.paths.dra) as channel:
            stream = health_v1_pb2_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
                health_v1_pb2.NodeWatchResourcesRequest()
            )

            async def read_until(*expected: int) -> Any:
                """Reads messages until one has the expected health. A measurement that began before the driver's change
                is also sent.
                """
                async with asyncio.timeout(30):
                    while True:
                        devices = (await stream.read()).devices
                        assert [d.device.device_name for d in devices] == [f"toy-{i}" for i in range(4)]
                        if tuple(d.health for d in devices) == expected:
                            return devices

            await read_until(1, 1, 1, 1)
            UnhealthyToy.report = {"toy-1": Health(False, "x" * 2000)}
            unhealthy = (await read_until(1, 2, 1, 1))[1]
            assert (len(unhealthy.message), unhealthy.message[-3:]) == (1024, "...")
            stream.cancel()

        async def is_tainted() -> bool:
            devices = node.cluster.slices()[0]["spec"]["devices"]
            return any(d.get("taints") for d in devices if d["name"] == "toy-1")

        await node.cluster.wait("the taint", is_tainted)
        claim_object = await allocate(node, "ill", [{"pool": "node-1", "device": "toy-1"}])
        assert (
            (await prepare_call(node, ref(claim_object)))
            .claims[claim_object["metadata"]["uid"]]
            .error.startswith("DEVICE_UNHEALTHY")
        )


def _calls(plugin: Any, method: str) -> float:
    line = f'dra_kubelet_calls_total{{method="{method}"}} '
    lines = [t for t in plugin.metrics.text().decode().splitlines() if t.startswith(line)]
    return float(lines[0].removeprefix(line)) if lines else 0


async def test_two_instances_of_a_rolling_update_prepare_and_unprepare_for_each_other() -> None:
    from dra_kubeletplugin.plugin.node import Plugin

    cls = make_toy_class()
    async with node_with(cls, pod_uid="11111111-1111-4111-8111-111111111111") as node:
        await node.run_pod("old")
        old_plugin = node.plugin
        import dataclasses

        settings = dataclasses.replace(node.settings, pod_uid="22222222-2222-4222-8222-222222222222")
        new_plugin = Plugin(cls(), settings, node.plugin.client.config)
        async with new_plugin.running():
            await new_plugin.ready()
            await node.delete_pod("old")
            await node.run_pod("new")
            assert _calls(new_plugin, "NodePrepareResources") > 0
            assert _calls(new_plugin, "NodeUnprepareResources") > 0
            assert _calls(old_plugin, "NodeUnprepareResources") == 0
            await node.stop()
            assert new_plugin.paths.dra.exists()
            assert new_plugin.paths.registration.exists()
            assert node.cluster.slices()
            await node.delete_pod("new")


async def test_only_v1beta1_kubelets_are_served() -> None:
    async with node_with(make_toy_class()) as node:
        node.kubelet.supported = ("v1beta1.DRAPlugin",)
        await node.kubelet.restart()
        await node.run_pod()
        assert node.kubelet.plugins.newest("toy.example.com").version == "v1beta1.DRAPlugin"


async def test_a_claim_recreated_under_the_same_name_does_not_disturb_the_old_one() -> None:
    async with node_with(make_toy_class()) as node:
        old_claim = await allocate(node, "same", [{"pool": "node-1", "device": "toy-0"}])
        await prepare_call(node, ref(old_claim))
        await node.cluster.client.delete(CLAIMS, "same", "default")
        new_claim = await allocate(node, "same", [{"pool": "node-1", "device": "toy-1"}])
        await prepare_call(node, ref(new_claim))
        await unprepare_call(node, ref(old_claim))
        leftovers = await node.leftovers()
        assert leftovers == {
            "files": [new_claim["metadata"]["uid"]],
            "records": [new_claim["metadata"]["uid"]],
            "held": ["toy-1"],
        }
        spec = json.loads(node.plugin.claims.files.specs.path(new_claim["metadata"]["uid"]).read_text())
        assert spec["kind"] == "k8s.toy.example.com/claim"


@pytest.mark.parametrize("socket_kind", ["registrar", "service"])
async def test_r4_a_socket_that_cannot_be_served_is_an_error(socket_kind: str) -> None:
    async with node_with(make_toy_class()) as node:
        await node.stop()
        paths = socket_paths(node.settings.registry_dir, node.settings.plugin_dir, node.settings.driver_name)
        path = paths.registration if socket_kind == "registrar" else paths.dra
        (path / "in-the-way").mkdir(parents=True)  # no socket can listen there or be renamed to it
        with pytest.raises(DraError, match=re.escape(str(path))):
            async with Plugin(make_toy_class()(), node.settings, node.cluster.config).running():
                pass
