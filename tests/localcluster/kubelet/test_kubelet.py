"""Requirements on a kubelet from upstream's test/e2e_node/dra_test.go. Ids (R1, P3 ...) as in reference/kubernetes-tests.md."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dra_kubeletplugin.kube.errors import ConflictError
from dra_kubeletplugin.kube.resource import CLAIMS, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import LocalKubelet, Timers
from dra_kubeletplugin.resourceapi.defaulting import now
from dra_kubeletplugin.resourceapi.kubernetes_releases import Features
from tests.helpers.fake_plugin import ConnectionCounter, FakePlugin
from tests.helpers.objects import DRIVER, claim, pod, slice_of

JSON = dict[str, Any]
OTHER = "other.example.com"
TIMERS = Timers(plugin_poll_interval=0.02, slice_wipe_delay=0.4, pod_sync_backoff=0.05, health_retry_delay=0.05)
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


class KubeletHarness:
    """A cluster with one node, and the steps of the tests."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    @property
    def kubelet(self) -> LocalKubelet:
        return self.cluster.node.kubelet

    def plugin(self, driver: str = DRIVER, **options: Any) -> FakePlugin:
        return FakePlugin(self.cluster.node.kubelet_root, driver, **options)

    async def wait_until(self, description: str, check: Callable[[], Any]) -> Any:
        async def evaluate() -> Any:
            result = check()
            return await result if isinstance(result, Awaitable) else result

        try:
            return await self.cluster.wait(description, evaluate)
        except TimeoutError as e:
            raise AssertionError(f"{e}; {self.cluster.events()[-12:]}") from None

    async def run(self, name: str = "p", *drivers: str, shared: str = "", **spec: Any) -> JSON:
        """Creates a pod bound to the node, with a claim that is already allocated: one device of each driver."""
        claim_name = shared or f"{name}-c"
        created = await self.cluster.apply(pod(name, claims=[claim_name], nodeName="node-1", **spec))
        applied_claim = await self.cluster.apply(claim(claim_name))
        results = [{"request": "device", "driver": d, "pool": "node-1", "device": "d0"} for d in drivers or (DRIVER,)]
        consumer = {"resource": "pods", "name": name, "uid": created[0]["metadata"]["uid"]}
        allocated = {"allocation": {"devices": {"results": results}, "allocationTimestamp": now()}}

        async def reserve() -> bool:
            """Reserves the claim for the pod. The claim controller may reserve it first."""
            current = await self.cluster.client.get(CLAIMS, claim_name, "default")
            status = allocated | (current["status"] or {})
            consumers = status.get("reservedFor") or []
            if consumer in consumers:
                return True
            status["reservedFor"] = [*consumers, consumer]
            try:
                await self.cluster.client.update(CLAIMS, {**current, "status": status}, "status")
            except ConflictError:
                return False
            return True

        await self.cluster.wait(f"{claim_name} to be reserved for {name}", reserve)
        assert applied_claim
        return created[0]

    async def wait_until_running(self, name: str = "p") -> JSON:
        running: JSON = await self.wait_until(f"{name} to run", lambda: self.phase(name, "Running"))
        return running

    async def phase(self, name: str, phase: str) -> JSON | None:
        current = await self.cluster.pod(name)
        return current if current and current["status"].get("phase") == phase else None

    async def delete(self, name: str = "p", grace: int | None = None) -> None:
        await self.cluster.client.delete(PODS, name, "default", grace=grace)

    async def wait_until_deleted(self, name: str = "p") -> None:
        async def check() -> bool:
            return await self.cluster.pod(name) is None

        await self.wait_until(f"{name} to be deleted", check)

    async def wait_for_event(self, name: str, text: str) -> None:
        await self.wait_until(
            f"{text!r} in an event of {name}", lambda: any(text in e for e in self.cluster.events(name))
        )

    async def assert_pending(self, name: str = "p") -> None:
        current = await self.cluster.pod(name)
        assert current is not None
        assert current["status"]["phase"] == "Pending"

    async def hold_next_retry(self, plugin: FakePlugin, method: str) -> int:
        """Waits for a failed call and then for the next call, which the plugin holds until its gate is set.

        Returns how many calls the plugin has received. It receives no further call while it holds this one.
        """
        await self.wait_until("a first call", lambda: plugin.count(method))
        plugin.gate.clear()
        failed_calls = plugin.count(method)
        await self.wait_until("the next call", lambda: plugin.count(method) > failed_calls)
        return plugin.count(method)

    async def wait_until_registered(self, driver: str = DRIVER) -> None:
        await self.wait_until(f"{driver} to be registered", lambda: self.kubelet.plugins.is_connected(driver))

    async def slices(self) -> list[str]:
        return sorted(s["metadata"]["name"] for s in self.cluster.slices())

    async def health(self, name: str = "p") -> list[Any]:
        current = await self.cluster.pod(name)
        assert current is not None
        [status] = current["status"].get("containerStatuses") or [{}]
        entries = status.get("allocatedResourcesStatus") or []
        return [(e["name"], r["resourceID"], r["health"]) for e in entries for r in e["resources"]]

    async def wait_for_health(self, health: str, name: str = "p") -> None:
        async def check() -> bool:
            return {h for _, _, h in await self.health(name)} == {health}

        await self.wait_until(f"{name} to be {health}", check)


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
