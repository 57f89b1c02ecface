"""What upstream's test/e2e_node/dra_test.go holds a kubelet to. Ids (R1, P3 ...) as in reference/kubernetes-tests.md."""

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
    """The plugin serves elsewhere than it says, and the proxy stands where it says."""
    seen, real = plugin.endpoint, plugin.endpoint.with_name("real.sock")
    plugin.endpoint = real
    await plugin.serve()
    plugin.endpoint = seen
    async with ConnectionCounter(seen, real) as proxy:
        await plugin.register()
        yield proxy
        await plugin.unregister()
        plugin.endpoint = real
        await plugin.stop()


class Room:
    """A cluster of one node, and what tests do with it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    @property
    def kubelet(self) -> LocalKubelet:
        return self.cluster.node.kubelet

    def plugin(self, driver: str = DRIVER, **how: Any) -> FakePlugin:
        return FakePlugin(self.cluster.node.kubelet_root, driver, **how)

    async def until(self, what: str, check: Callable[[], Any]) -> Any:
        async def ask() -> Any:
            found = check()
            return await found if isinstance(found, Awaitable) else found

        try:
            return await self.cluster.wait(what, ask)
        except TimeoutError as e:
            raise AssertionError(f"{e}; {self.cluster.events()[-12:]}") from None

    async def run(self, name: str = "p", *drivers: str, shared: str = "", **spec: Any) -> JSON:
        """A pod bound by hand, with a claim that is allocated by hand: one device of each driver."""
        claim_name = shared or f"{name}-c"
        made = await self.cluster.apply(pod(name, claims=[claim_name], nodeName="node-1", **spec))
        known = await self.cluster.apply(claim(claim_name))
        results = [{"request": "device", "driver": d, "pool": "node-1", "device": "d0"} for d in drivers or (DRIVER,)]
        me = {"resource": "pods", "name": name, "uid": made[0]["metadata"]["uid"]}
        allocated = {"allocation": {"devices": {"results": results}, "allocationTimestamp": now()}}

        async def reserved() -> bool:
            """The claim controller reserves what is allocated for a pod that has a node, and may be first."""
            found = await self.cluster.client.get(CLAIMS, claim_name, "default")
            status = allocated | (found["status"] or {})
            consumers = status.get("reservedFor") or []
            if me in consumers:
                return True
            status["reservedFor"] = [*consumers, me]
            try:
                await self.cluster.client.update(CLAIMS, {**found, "status": status}, "status")
            except ConflictError:
                return False
            return True

        await self.cluster.wait(f"{claim_name} to be reserved for {name}", reserved)
        assert known
        return made[0]

    async def runs(self, name: str = "p") -> JSON:
        found: JSON = await self.until(f"{name} to run", lambda: self.phase(name, "Running"))
        return found

    async def phase(self, name: str, phase: str) -> JSON | None:
        found = await self.cluster.pod(name)
        return found if found and found["status"].get("phase") == phase else None

    async def delete(self, name: str = "p", grace: int | None = None) -> None:
        await self.cluster.client.delete(PODS, name, "default", grace=grace)

    async def gone(self, name: str = "p") -> None:
        async def check() -> bool:
            return await self.cluster.pod(name) is None

        await self.until(f"{name} to go", check)

    async def told(self, name: str, text: str) -> None:
        await self.until(f"{text!r} about {name}", lambda: any(text in e for e in self.cluster.events(name)))

    async def waits(self, name: str = "p") -> None:
        found = await self.cluster.pod(name)
        assert found is not None
        assert found["status"]["phase"] == "Pending"

    async def try_under_way(self, plugin: FakePlugin, method: str) -> int:
        """After one that failed, a try which the plugin holds until its gate is set; no other comes meanwhile. Answers how many there were."""
        await self.until("a try", lambda: plugin.count(method))
        plugin.gate.clear()
        failed = plugin.count(method)
        await self.until("the next", lambda: plugin.count(method) > failed)
        return plugin.count(method)

    async def registered(self, driver: str = DRIVER) -> None:
        await self.until(f"{driver} to be registered", lambda: self.kubelet.plugins.is_connected(driver))

    async def slices(self) -> list[str]:
        return sorted(s["metadata"]["name"] for s in self.cluster.slices())

    async def health(self, name: str = "p") -> list[Any]:
        found = await self.cluster.pod(name)
        assert found is not None
        [status] = found["status"].get("containerStatuses") or [{}]
        entries = status.get("allocatedResourcesStatus") or []
        return [(e["name"], r["resourceID"], r["health"]) for e in entries for r in e["resources"]]

    async def healthy(self, health: str, name: str = "p") -> None:
        async def check() -> bool:
            return {h for _, _, h in await self.health(name)} == {health}

        await self.until(f"{name} to be {health}", check)


@pytest.fixture
async def room(request: pytest.FixtureRequest) -> AsyncIterator[Room]:
    """On the usual release, or on the one that a test asks for, or with other timers."""
    asked = getattr(request, "param", "")
    release, timers = (asked, TIMERS) if isinstance(asked, str) else ("", asked)
    async with LocalCluster(("node-1",), timers=timers, features=Features.of(release)) as cluster:
        yield Room(cluster)


HEALTH_V1 = pytest.mark.parametrize("room", ["1.37"], indirect=True)
"""On the first release whose kubelet knows v1 of the health service."""


# --- registration -----------------------------------------------------------------------------------


async def test_r1_a_plugin_is_registered_again_after_a_kubelet_restart(room: Room) -> None:
    async with room.plugin() as plugin:
        await room.until("the plugin to be told", lambda: plugin.statuses == [(True, "")])
        await room.kubelet.restart()
        await room.until("the plugin to be told again", lambda: plugin.statuses == [(True, "")] * 2)
        await room.registered()


async def test_r2_a_plugin_is_registered_again_after_its_own_restart(room: Room) -> None:
    for _ in range(2):
        async with room.plugin() as plugin:
            await room.until("the registration", lambda plugin=plugin: plugin.statuses == [(True, "")])
        await room.until("the end", lambda: not room.kubelet.plugins.is_connected(DRIVER))


async def test_r3_a_registration_that_fails_at_first_succeeds_in_the_end(room: Room) -> None:
    plugin = room.plugin()
    plugin.info_failures = 2
    async with plugin:
        await room.registered()
        assert plugin.info_failures == 0


@HEALTH_V1
async def test_r5_all_calls_to_a_service_use_one_connection_health_included(room: Room) -> None:
    plugin = room.plugin(health=("v1.DRAResourceHealth",))
    async with behind_a_proxy(plugin) as proxy:
        await room.run()
        await room.runs()
        await room.healthy("Healthy")
        await room.delete()
        await room.gone()
        assert (plugin.count("prepare"), plugin.count("unprepare"), sum(plugin.streams.values())) == (1, 1, 1)
        assert proxy.accepted == 1


async def test_r6_a_service_may_begin_to_listen_after_its_registration(room: Room) -> None:
    plugin = room.plugin()
    await plugin.register()
    await room.until("the registration", lambda: plugin.statuses == [(True, "")])
    await room.run()
    await room.told("p", "NodePrepareResources: rpc error: code = Unavailable")
    await plugin.serve()
    await room.runs()
    await plugin.__aexit__()


@LAYOUTS
async def test_r7_all_works_after_the_service_reconnects_and_slices_are_wiped_meanwhile(
    room: Room, common: bool
) -> None:
    plugin = room.plugin(common=common)
    async with plugin:
        await room.registered()
        await room.cluster.apply(slice_of("node-1", ["d0"]))
        await room.run()
        await room.runs()
        await plugin.stop()
        await room.until("the slices to go", lambda: not room.cluster.slices())
        await plugin.serve()
        await room.registered()
        await room.delete()
        await room.gone()
        assert plugin.count("unprepare") == 1


# --- pods -------------------------------------------------------------------------------------------


async def test_p1_a_pod_made_while_the_kubelet_is_down_starts_when_it_is_back(room: Room) -> None:
    async with room.plugin():
        await room.kubelet.stop()
        await room.run()
        await room.kubelet.restart()
        await room.runs()


@pytest.mark.parametrize("room", [dataclasses.replace(TIMERS, call_timeout=0.5)], indirect=True, ids=["short calls"])
async def test_p2_a_pod_stays_pending_while_prepare_times_out(room: Room) -> None:
    async with room.plugin() as plugin:
        plugin.gate.clear()
        await room.run()
        await room.told("p", "NodePrepareResources: rpc error: code = DeadlineExceeded")
        await room.waits()
        plugin.gate.set()
        await room.runs()


async def test_p3_a_pod_runs_when_prepare_fails_and_then_succeeds(room: Room) -> None:
    async with room.plugin() as plugin:
        plugin.error = "no such luck"
        await room.run()
        text = "prepare dynamic resources: NodePrepareResources failed for ResourceClaim p-c: no such luck"
        await room.told("p", f"FailedPrepareDynamicResources: Failed to prepare dynamic resources: {text}")
        await room.waits()
        plugin.error = ""
        await room.runs()


async def test_p4_a_pod_goes_when_unprepare_fails_and_then_succeeds(room: Room) -> None:
    async with room.plugin() as plugin:
        await room.run()
        await room.runs()
        plugin.error = "in use"
        await room.delete()
        await room.until("two tries", lambda: plugin.count("unprepare") >= 2)
        found = await room.runs()
        assert "terminated" in found["status"]["containerStatuses"][0]["state"]
        plugin.error = ""
        await room.gone()
        assert not [e for e in room.cluster.events("p") if "in use" in e]


@pytest.mark.parametrize("method", ["prepare", "unprepare"], ids=["P5", "P6"])
async def test_p5_p6_a_call_that_fails_is_repeated_after_a_kubelet_restart(room: Room, method: str) -> None:
    async with room.plugin() as plugin:
        if method == "prepare":
            plugin.error = "later"
        await room.run()
        if method == "unprepare":
            await room.runs()
            plugin.error = "later"
            await room.delete()
        before = await room.try_under_way(plugin, method)
        await room.kubelet.stop()
        plugin.error = ""
        plugin.gate.set()
        await room.kubelet.restart()
        await (room.runs() if method == "prepare" else room.gone())
        assert plugin.count(method) == before + 1


@pytest.mark.parametrize("restarted", [False, True], ids=["P7", "P8"])
async def test_p7_p8_unprepare_is_called_for_a_deleted_pod_also_after_a_kubelet_restart(
    room: Room, restarted: bool
) -> None:
    async with room.plugin() as plugin:
        await room.run()
        await room.runs()
        if restarted:
            await room.kubelet.stop()
        await room.delete(grace=0 if restarted else None)
        if restarted:
            await room.kubelet.restart()
        await room.until("the unprepare", lambda: plugin.count("unprepare") == 1)
        await room.gone()
        await room.until("the claim to be forgotten", lambda: room.kubelet.manager.claims == {})


async def test_p9_prepare_is_not_called_after_a_kubelet_restart_for_a_pod_deleted_meanwhile(room: Room) -> None:
    async with room.plugin() as plugin:
        plugin.error = "later"
        await room.run()
        before = await room.try_under_way(plugin, "prepare")
        await room.kubelet.stop()
        await room.delete(grace=0)
        plugin.error = ""
        plugin.gate.set()
        await room.kubelet.restart()
        await room.until("the unprepare", lambda: plugin.count("unprepare"))
        assert plugin.count("prepare") == before


# --- two drivers in one pod -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def two(room: Room) -> AsyncIterator[tuple[FakePlugin, FakePlugin]]:
    async with room.plugin() as one, room.plugin(OTHER) as other:
        await room.registered()
        await room.registered(OTHER)
        yield one, other


async def test_d1_d2_both_drivers_are_called_and_counted_in_dra_resource_claims_in_use(room: Room) -> None:
    async with two(room) as (one, other):
        await room.run("p", DRIVER, OTHER)
        await room.runs()
        assert room.kubelet.manager.in_use() == {"<any>": 1, DRIVER: 1, OTHER: 1}
        assert f'dra_resource_claims_in_use{{driver_name="{OTHER}"}} 1' in room.kubelet.metrics()
        await room.delete()
        await room.gone()
        assert (
            [one.count(m) for m in ("prepare", "unprepare")]
            == [other.count(m) for m in ("prepare", "unprepare")]
            == [1, 1]
        )
        assert room.kubelet.manager.in_use() == {"<any>": 0}
        assert 'dra_resource_claims_in_use{driver_name="<any>"} 0' in room.kubelet.metrics()


async def test_d3_a_pod_runs_when_one_of_two_drivers_fails_at_first(room: Room) -> None:
    async with two(room) as (one, other):
        other.error = "not yet"
        await room.run("p", DRIVER, OTHER)
        await room.told("p", "not yet")
        await room.waits()
        other.error = ""
        await room.runs()
        assert one.count("prepare") == 1


async def test_d4_a_pod_goes_when_one_of_two_drivers_fails_to_unprepare_at_first(room: Room) -> None:
    async with two(room) as (one, other):
        await room.run("p", DRIVER, OTHER)
        await room.runs()
        one.error = "not yet"
        await room.delete()
        await room.until("two tries", lambda: one.count("unprepare") >= 2)
        one.error = ""
        await room.gone()
        assert other.count("unprepare") == 1


@pytest.mark.parametrize("method", ["prepare", "unprepare"], ids=["D5", "D6"])
async def test_d5_d6_a_call_in_progress_while_the_kubelet_restarts_is_repeated(room: Room, method: str) -> None:
    async with two(room) as (one, other):
        if method == "prepare":
            other.gate.clear()
        await room.run("p", DRIVER, OTHER)
        if method == "unprepare":
            await room.runs()
            other.gate.clear()
            await room.delete()
        await room.until("a call", lambda: other.count(method))
        await room.kubelet.stop()
        other.gate.set()
        await room.kubelet.restart()
        await (room.runs() if method == "prepare" else room.gone())
        assert one.count(method) >= 1
        assert other.count(method) >= 2


# --- slices -----------------------------------------------------------------------------------------


async def test_s1_slices_of_this_node_go_at_kubelet_start_and_those_of_others_stay(room: Room) -> None:
    await room.cluster.apply(slice_of("node-1", ["d0"]), slice_of("node-2", ["d0"]))
    await room.kubelet.restart()
    assert await room.slices() == ["s-node-2"]


@LAYOUTS
@pytest.mark.parametrize("how", ["unregistered", "stopped"], ids=["S2", "S3"])
async def test_s2_s3_slices_go_after_a_plugin_is_unregistered_or_stops(room: Room, how: str, common: bool) -> None:
    async with room.plugin(common=common) as plugin:
        await room.registered()
        await room.cluster.apply(slice_of("node-1", ["d0"]), slice_of("node-1", ["x"], OTHER, "s-other"))
        await plugin.unregister()
        if how == "stopped":
            await plugin.stop()
        await room.until("the slices to go", lambda: len(room.cluster.slices()) == 1)
        assert await room.slices() == ["s-other"]


async def test_s4_slices_go_when_a_plugin_stops_to_answer(room: Room) -> None:
    async with room.plugin() as plugin:
        await room.registered()
        await room.cluster.apply(slice_of("node-1", ["d0"]))
        await plugin.stop()  # the registration stays
        await room.until("the slices to go", lambda: not room.cluster.slices())


@LAYOUTS
async def test_s5_slices_stay_as_they_are_when_a_plugin_restarts_quickly(common: bool) -> None:
    async with LocalCluster(("node-1",), timers=Timers(plugin_poll_interval=0.02, slice_wipe_delay=60.0)) as cluster:
        room = Room(cluster)
        async with room.plugin(common=common):
            await room.registered()
            await cluster.apply(slice_of("node-1", ["d0"]))
            before = cluster.slices()
        await room.until("the end", lambda: not room.kubelet.plugins.is_connected(DRIVER))
        async with room.plugin(common=common):
            await room.registered()
            assert cluster.slices() == before


# --- health -----------------------------------------------------------------------------------------

BOTH = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


async def test_h1_a_change_of_health_shows_in_the_status_of_the_pod(room: Room) -> None:
    async with room.plugin(health=BOTH) as plugin:
        await room.run()
        await room.runs()
        await room.healthy("Healthy")
        assert await room.health() == [("claim:c0", f"{DRIVER}/node-1/d0", "Healthy")]
        plugin.say(2)
        await room.healthy("Unhealthy")
        plugin.say(1)
        await room.healthy("Healthy")


async def test_h2_health_is_unknown_while_the_plugin_is_away_and_known_again_after_its_restart(room: Room) -> None:
    async with room.plugin(health=BOTH):
        await room.run()
        await room.runs()
        await room.healthy("Healthy")
    await room.healthy("Unknown")
    async with room.plugin(health=BOTH):
        await room.healthy("Healthy")


async def test_h3_calls_and_health_recover_after_their_connection_drops(room: Room) -> None:
    plugin = room.plugin(health=BOTH)
    async with behind_a_proxy(plugin) as proxy:
        await room.run()
        await room.runs()
        await room.healthy("Healthy")
        proxy.cut()
        await room.until("another stream", lambda: sum(plugin.streams.values()) >= 2)
        await room.healthy("Healthy")
        await room.run("second")
        await room.runs("second")


async def test_h4_pods_are_prepared_while_health_streams(room: Room) -> None:
    async with room.plugin(health=BOTH) as plugin:
        for name in ("a", "b", "c"):
            await room.run(name)
        for name in ("a", "b", "c"):
            await room.runs(name)
            await room.healthy("Healthy", name)
        assert plugin.count("prepare") == 3


async def test_h5_health_is_not_shown_where_the_gate_is_off(room: Room) -> None:
    room.kubelet.behavior = dataclasses.replace(room.kubelet.behavior, health=(), health_unadvertised=False)
    await room.kubelet.restart()
    async with room.plugin(health=BOTH) as plugin:
        await room.run()
        await room.runs()
        assert await room.health() == []
        assert not plugin.streams


@pytest.mark.parametrize("shares", [("",), ("one",), ("one", "two")], ids=["none", "one", "the same device twice"])
async def test_h6_devices_show_with_their_shares(room: Room, shares: tuple[str, ...]) -> None:
    plugin = room.plugin(health=BOTH)
    plugin.share_ids = shares
    async with plugin:
        await room.run()
        await room.runs()
        await room.healthy("Healthy")
        ids = [resource for _, resource, _ in await room.health()]
        assert ids == [f"{DRIVER}/node-1/d0" + (f"/{s}" if s else "") for s in shares]


@HEALTH_V1
@pytest.mark.parametrize("services", [BOTH, BOTH[1:], BOTH[:1]], ids=["both", "only v1alpha1", "only v1"])
async def test_h7_there_is_one_stream_of_the_newest_version_that_both_sides_know(
    room: Room, services: tuple[str, ...]
) -> None:
    async with room.plugin(health=services) as plugin:
        await room.run()
        await room.runs()
        await room.healthy("Healthy")
        assert plugin.streams == {services[0]: 1}


async def test_a_report_that_is_not_refreshed_in_its_time_becomes_unknown(room: Room) -> None:
    plugin = room.plugin(health=BOTH)
    plugin.health_timeout = 1
    async with plugin:
        await room.run()
        await room.runs()
        await room.healthy("Unknown")
