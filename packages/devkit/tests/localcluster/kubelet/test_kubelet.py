"""Requirements on a kubelet from upstream's test/e2e_node/dra_test.go. Ids (R1, P3 ...) as in reference/kubernetes-tests.md."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from packages.devkit.tests.localcluster.kubelet.harness import TIMERS, KubeletHarness
from tests.helpers.fake_plugin import ConnectionCounter, FakePlugin
from tests.helpers.objects import DRIVER, slice_of

OTHER = "other.example.com"
LAYOUTS = pytest.mark.parametrize("common", [False, True], ids=["two sockets", "one common socket"])


@contextlib.asynccontextmanager
async def behind_a_proxy(plugin: FakePlugin) -> AsyncIterator[ConnectionCounter]:
    """Starts a plugin that serves on another socket than it registers; a proxy listens on the registered socket."""
    registered_endpoint, served_endpoint = plugin.endpoint, plugin.endpoint.with_name("real.sock")
    plugin.endpoint = served_endpoint
    await plugin.serve()
    plugin.endpoint = registered_endpoint
    async with ConnectionCounter(registered_endpoint, served_endpoint) as proxy:
        await plugin.register()
        yield proxy
        await plugin.unregister()
        plugin.endpoint = served_endpoint
        await plugin.stop()


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[KubeletHarness]:
    """Starts a cluster: the default release, or the release or the timers of the parametrized test."""
    param = getattr(request, "param", "")
    release, timers = (param, TIMERS) if isinstance(param, str) else ("", param)
    async with LocalCluster(("node-1",), timers=timers, features=Features.of(release)) as cluster:
        yield KubeletHarness(cluster)


HEALTH_V1 = pytest.mark.parametrize("harness", ["1.37"], indirect=True)
"""On the first release whose kubelet supports v1 of the health service."""


# --- registration -----------------------------------------------------------------------------------


async def test_r1_a_plugin_is_registered_again_after_a_kubelet_restart(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        await harness.wait_until("the registration status", lambda: plugin.statuses == [(True, "")])
        await harness.kubelet.restart()
        await harness.wait_until("the second registration status", lambda: plugin.statuses == [(True, "")] * 2)
        await harness.wait_until_registered()


async def test_r2_a_plugin_is_registered_again_after_its_own_restart(harness: KubeletHarness) -> None:
    for _ in range(2):
        async with harness.plugin() as plugin:
            await harness.wait_until("the registration", lambda plugin=plugin: plugin.statuses == [(True, "")])
        await harness.wait_until("the disconnection", lambda: not harness.kubelet.plugins.is_connected(DRIVER))


async def test_r3_the_kubelet_retries_a_failed_registration(harness: KubeletHarness) -> None:
    plugin = harness.plugin()
    plugin.info_failures = 2
    async with plugin:
        await harness.wait_until_registered()
        assert plugin.info_failures == 0


@HEALTH_V1
async def test_r5_all_calls_and_health_streams_of_a_service_use_one_connection(harness: KubeletHarness) -> None:
    plugin = harness.plugin(health=("v1.DRAResourceHealth",))
    async with behind_a_proxy(plugin) as proxy:
        await harness.run()
        await harness.wait_until_running()
        await harness.wait_for_health("Healthy")
        await harness.delete()
        await harness.wait_until_deleted()
        assert (plugin.count("prepare"), plugin.count("unprepare"), sum(plugin.streams.values())) == (1, 1, 1)
        assert proxy.accepted == 1


async def test_r6_a_service_may_start_to_listen_after_its_registration(harness: KubeletHarness) -> None:
    plugin = harness.plugin()
    await plugin.register()
    await harness.wait_until("the registration", lambda: plugin.statuses == [(True, "")])
    await harness.run()
    await harness.wait_for_event("p", "NodePrepareResources: rpc error: code = Unavailable")
    await plugin.serve()
    await harness.wait_until_running()
    await plugin.__aexit__()


@LAYOUTS
async def test_r7_a_pod_is_unprepared_after_a_service_restart_that_wiped_the_slices(
    harness: KubeletHarness, common: bool
) -> None:
    plugin = harness.plugin(common=common)
    async with plugin:
        await harness.wait_until_registered()
        await harness.cluster.apply(slice_of("node-1", ["d0"]))
        await harness.run()
        await harness.wait_until_running()
        await plugin.stop()
        await harness.wait_until("the deletion of the slices", lambda: not harness.cluster.slices())
        await plugin.serve()
        await harness.wait_until_registered()
        await harness.delete()
        await harness.wait_until_deleted()
        assert plugin.count("unprepare") == 1


# --- pods -------------------------------------------------------------------------------------------


async def test_p1_a_pod_created_while_the_kubelet_is_down_starts_after_the_kubelet_restarts(
    harness: KubeletHarness,
) -> None:
    async with harness.plugin():
        await harness.kubelet.stop()
        await harness.run()
        await harness.kubelet.restart()
        await harness.wait_until_running()


@pytest.mark.parametrize("harness", [dataclasses.replace(TIMERS, call_timeout=0.5)], indirect=True, ids=["short calls"])
async def test_p2_a_pod_stays_pending_while_prepare_times_out(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        plugin.gate.clear()
        await harness.run()
        await harness.wait_for_event("p", "NodePrepareResources: rpc error: code = DeadlineExceeded")
        await harness.assert_pending()
        plugin.gate.set()
        await harness.wait_until_running()


async def test_p3_a_pod_runs_when_prepare_fails_and_then_succeeds(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        plugin.error = "no such luck"
        await harness.run()
        text = "prepare dynamic resources: NodePrepareResources failed for ResourceClaim p-c: no such luck"
        await harness.wait_for_event("p", f"FailedPrepareDynamicResources: Failed to prepare dynamic resources: {text}")
        await harness.assert_pending()
        plugin.error = ""
        await harness.wait_until_running()


async def test_p4_a_pod_is_deleted_when_unprepare_fails_and_then_succeeds(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        await harness.run()
        await harness.wait_until_running()
        plugin.error = "in use"
        await harness.delete()
        await harness.wait_until("two calls", lambda: plugin.count("unprepare") >= 2)
        running = await harness.wait_until_running()
        assert "terminated" in running["status"]["containerStatuses"][0]["state"]
        plugin.error = ""
        await harness.wait_until_deleted()
        assert not [e for e in harness.cluster.events("p") if "in use" in e]


@pytest.mark.parametrize("method", ["prepare", "unprepare"], ids=["P5", "P6"])
async def test_p5_p6_a_call_that_fails_is_repeated_after_a_kubelet_restart(
    harness: KubeletHarness, method: str
) -> None:
    async with harness.plugin() as plugin:
        if method == "prepare":
            plugin.error = "later"
        await harness.run()
        if method == "unprepare":
            await harness.wait_until_running()
            plugin.error = "later"
            await harness.delete()
        before = await harness.hold_next_retry(plugin, method)
        await harness.kubelet.stop()
        plugin.error = ""
        plugin.gate.set()
        await harness.kubelet.restart()
        await (harness.wait_until_running() if method == "prepare" else harness.wait_until_deleted())
        assert plugin.count(method) == before + 1


@pytest.mark.parametrize("restarted", [False, True], ids=["P7", "P8"])
async def test_p7_p8_the_kubelet_unprepares_a_deleted_pod_even_after_a_restart(
    harness: KubeletHarness, restarted: bool
) -> None:
    async with harness.plugin() as plugin:
        await harness.run()
        await harness.wait_until_running()
        if restarted:
            await harness.kubelet.stop()
        await harness.delete(grace=0 if restarted else None)
        if restarted:
            await harness.kubelet.restart()
        await harness.wait_until("the unprepare call", lambda: plugin.count("unprepare") == 1)
        await harness.wait_until_deleted()
        await harness.wait_until(
            "the removal of the claim from the checkpoint", lambda: harness.kubelet.manager.claims == {}
        )


async def test_p9_prepare_is_not_called_for_a_pod_deleted_during_a_kubelet_restart(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        plugin.error = "later"
        await harness.run()
        before = await harness.hold_next_retry(plugin, "prepare")
        await harness.kubelet.stop()
        await harness.delete(grace=0)
        plugin.error = ""
        plugin.gate.set()
        await harness.kubelet.restart()
        await harness.wait_until("the unprepare call", lambda: plugin.count("unprepare"))
        assert plugin.count("prepare") == before


# --- two drivers in one pod -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def two_plugins(harness: KubeletHarness) -> AsyncIterator[tuple[FakePlugin, FakePlugin]]:
    async with harness.plugin() as first, harness.plugin(OTHER) as second:
        await harness.wait_until_registered()
        await harness.wait_until_registered(OTHER)
        yield first, second


async def test_d1_d2_both_drivers_are_called_and_counted_in_dra_resource_claims_in_use(harness: KubeletHarness) -> None:
    async with two_plugins(harness) as (first, second):
        await harness.run("p", DRIVER, OTHER)
        await harness.wait_until_running()
        assert harness.kubelet.manager.in_use() == {"<any>": 1, DRIVER: 1, OTHER: 1}
        assert f'dra_resource_claims_in_use{{driver_name="{OTHER}"}} 1' in harness.kubelet.metrics()
        await harness.delete()
        await harness.wait_until_deleted()
        assert (
            [first.count(m) for m in ("prepare", "unprepare")]
            == [second.count(m) for m in ("prepare", "unprepare")]
            == [1, 1]
        )
        assert harness.kubelet.manager.in_use() == {"<any>": 0}
        assert 'dra_resource_claims_in_use{driver_name="<any>"} 0' in harness.kubelet.metrics()


async def test_d3_a_pod_runs_after_one_of_two_drivers_fails_once(harness: KubeletHarness) -> None:
    async with two_plugins(harness) as (first, second):
        second.error = "not yet"
        await harness.run("p", DRIVER, OTHER)
        await harness.wait_for_event("p", "not yet")
        await harness.assert_pending()
        second.error = ""
        await harness.wait_until_running()
        assert first.count("prepare") == 1


async def test_d4_a_pod_is_deleted_after_one_of_two_drivers_fails_to_unprepare_once(harness: KubeletHarness) -> None:
    async with two_plugins(harness) as (first, second):
        await harness.run("p", DRIVER, OTHER)
        await harness.wait_until_running()
        first.error = "not yet"
        await harness.delete()
        await harness.wait_until("two calls", lambda: first.count("unprepare") >= 2)
        first.error = ""
        await harness.wait_until_deleted()
        assert second.count("unprepare") == 1


@pytest.mark.parametrize("method", ["prepare", "unprepare"], ids=["D5", "D6"])
async def test_d5_d6_the_kubelet_repeats_a_call_interrupted_by_its_restart(
    harness: KubeletHarness, method: str
) -> None:
    async with two_plugins(harness) as (first, second):
        if method == "prepare":
            second.gate.clear()
        await harness.run("p", DRIVER, OTHER)
        if method == "unprepare":
            await harness.wait_until_running()
            second.gate.clear()
            await harness.delete()
        await harness.wait_until("a call", lambda: second.count(method))
        await harness.kubelet.stop()
        second.gate.set()
        await harness.kubelet.restart()
        await (harness.wait_until_running() if method == "prepare" else harness.wait_until_deleted())
        assert first.count(method) >= 1
        assert second.count(method) >= 2


# --- slices -----------------------------------------------------------------------------------------


async def test_s1_the_kubelet_deletes_only_slices_of_its_own_node_at_start(harness: KubeletHarness) -> None:
    await harness.cluster.apply(slice_of("node-1", ["d0"]), slice_of("node-2", ["d0"]))
    await harness.kubelet.restart()
    assert await harness.slices() == ["s-node-2"]


@LAYOUTS
@pytest.mark.parametrize("event", ["unregistered", "stopped"], ids=["S2", "S3"])
async def test_s2_s3_the_kubelet_deletes_slices_after_a_plugin_is_unregistered_or_stops(
    harness: KubeletHarness, event: str, common: bool
) -> None:
    async with harness.plugin(common=common) as plugin:
        await harness.wait_until_registered()
        await harness.cluster.apply(slice_of("node-1", ["d0"]), slice_of("node-1", ["x"], OTHER, "s-other"))
        await plugin.unregister()
        if event == "stopped":
            await plugin.stop()
        await harness.wait_until("the deletion of the slices", lambda: len(harness.cluster.slices()) == 1)
        assert await harness.slices() == ["s-other"]


async def test_s4_the_kubelet_deletes_slices_of_a_plugin_that_stops_responding(harness: KubeletHarness) -> None:
    async with harness.plugin() as plugin:
        await harness.wait_until_registered()
        await harness.cluster.apply(slice_of("node-1", ["d0"]))
        await plugin.stop()  # the registration socket still serves
        await harness.wait_until("the deletion of the slices", lambda: not harness.cluster.slices())


@LAYOUTS
async def test_s5_slices_are_unchanged_after_a_quick_plugin_restart(common: bool) -> None:
    async with LocalCluster(("node-1",), timers=Timers(plugin_poll_interval=0.02, slice_wipe_delay=60.0)) as cluster:
        harness = KubeletHarness(cluster)
        async with harness.plugin(common=common):
            await harness.wait_until_registered()
            await cluster.apply(slice_of("node-1", ["d0"]))
            before = cluster.slices()
        await harness.wait_until("the disconnection", lambda: not harness.kubelet.plugins.is_connected(DRIVER))
        async with harness.plugin(common=common):
            await harness.wait_until_registered()
            assert cluster.slices() == before


# --- health -----------------------------------------------------------------------------------------

BOTH = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


async def test_h1_the_pod_status_shows_a_change_of_health(harness: KubeletHarness) -> None:
    async with harness.plugin(health=BOTH) as plugin:
        await harness.run()
        await harness.wait_until_running()
        await harness.wait_for_health("Healthy")
        assert await harness.health() == [("claim:c0", f"{DRIVER}/node-1/d0", "Healthy")]
        plugin.send_health(2)
        await harness.wait_for_health("Unhealthy")
        plugin.send_health(1)
        await harness.wait_for_health("Healthy")


async def test_h2_health_is_unknown_until_the_plugin_restarts(harness: KubeletHarness) -> None:
    async with harness.plugin(health=BOTH):
        await harness.run()
        await harness.wait_until_running()
        await harness.wait_for_health("Healthy")
    await harness.wait_for_health("Unknown")
    async with harness.plugin(health=BOTH):
        await harness.wait_for_health("Healthy")


async def test_h3_calls_and_health_recover_after_their_connection_drops(harness: KubeletHarness) -> None:
    plugin = harness.plugin(health=BOTH)
    async with behind_a_proxy(plugin) as proxy:
        await harness.run()
        await harness.wait_until_running()
        await harness.wait_for_health("Healthy")
        proxy.cut()
        await harness.wait_until("another stream", lambda: sum(plugin.streams.values()) >= 2)
        await harness.wait_for_health("Healthy")
        await harness.run("second")
        await harness.wait_until_running("second")


async def test_h4_pods_are_prepared_while_health_streams(harness: KubeletHarness) -> None:
    async with harness.plugin(health=BOTH) as plugin:
        for name in ("a", "b", "c"):
            await harness.run(name)
        for name in ("a", "b", "c"):
            await harness.wait_until_running(name)
            await harness.wait_for_health("Healthy", name)
        assert plugin.count("prepare") == 3


async def test_h5_the_pod_status_has_no_health_when_the_gate_is_off(harness: KubeletHarness) -> None:
    harness.kubelet.behavior = dataclasses.replace(harness.kubelet.behavior, health=(), health_unadvertised=False)
    await harness.kubelet.restart()
    async with harness.plugin(health=BOTH) as plugin:
        await harness.run()
        await harness.wait_until_running()
        assert await harness.health() == []
        assert not plugin.streams


@pytest.mark.parametrize("shares", [("",), ("one",), ("one", "two")], ids=["none", "one", "the same device twice"])
async def test_h6_the_pod_status_shows_devices_with_their_shares(
    harness: KubeletHarness, shares: tuple[str, ...]
) -> None:
    plugin = harness.plugin(health=BOTH)
    plugin.share_ids = shares
    async with plugin:
        await harness.run()
        await harness.wait_until_running()
        await harness.wait_for_health("Healthy")
        ids = [resource for _, resource, _ in await harness.health()]
        assert ids == [f"{DRIVER}/node-1/d0" + (f"/{s}" if s else "") for s in shares]


@HEALTH_V1
@pytest.mark.parametrize("services", [BOTH, BOTH[1:], BOTH[:1]], ids=["both", "only v1alpha1", "only v1"])
async def test_h7_the_kubelet_opens_one_stream_of_the_newest_common_version(
    harness: KubeletHarness, services: tuple[str, ...]
) -> None:
    async with harness.plugin(health=services) as plugin:
        await harness.run()
        await harness.wait_until_running()
        await harness.wait_for_health("Healthy")
        assert plugin.streams == {services[0]: 1}


async def test_health_becomes_unknown_after_the_timeout_of_a_report(harness: KubeletHarness) -> None:
    plugin = harness.plugin(health=BOTH)
    plugin.health_timeout = 1
    async with plugin:
        await harness.run()
        await harness.wait_until_running()
        await harness.wait_for_health("Unknown")
