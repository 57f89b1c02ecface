"""The behavior of the kubelet in each Kubernetes release."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from packages.devkit.tests.localcluster.kubelet.harness import TIMERS, KubeletHarness
from tests.helpers.fake_plugin import HEALTHY, UNHEALTHY
from tests.helpers.objects import DRIVER, claim, device_class, pod, slice_of


@contextlib.asynccontextmanager
async def harness_of(release: str) -> AsyncIterator[KubeletHarness]:
    async with LocalCluster(timers=TIMERS, features=Features.of(release)) as cluster:
        yield KubeletHarness(cluster)


@pytest.mark.parametrize(
    ("release", "streams"),
    [("1.34", None), ("1.35", None), ("1.36", "v1alpha1.DRAResourceHealth"), ("1.37", "v1.DRAResourceHealth")],
)
async def test_health_is_requested_in_the_version_of_the_release(release: str, streams: str | None) -> None:
    async with (
        harness_of(release) as harness,
        harness.plugin(health=("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")) as plugin,
    ):
        await harness.run()
        await harness.wait_until_running()
        if streams:
            await harness.wait_for_health("Healthy")
            assert plugin.streams == {streams: 1}
        else:
            assert await harness.health() == []
            assert not plugin.streams


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_the_status_of_a_pod_has_no_health_of_an_extended_resource(release: str) -> None:
    """kubernetes/kubernetes#139939, #140060."""
    service = "v1.DRAResourceHealth" if Features.of(release).is_at_least("1.37") else "v1alpha1.DRAResourceHealth"
    async with harness_of(release) as harness, harness.plugin(health=(service,)) as plugin:
        cards = device_class()
        cards["spec"]["extendedResourceName"] = f"{DRIVER}/card"
        await harness.cluster.apply(cards, slice_of("node-1", ["d0", "d1"]), claim("c"))
        body = pod("p", claims=["c"])
        body["spec"]["containers"][0]["resources"]["limits"] = {f"{DRIVER}/card": "1"}
        await harness.cluster.apply(body)
        running = await harness.wait_until_running("p")
        assert running["status"]["extendedResourceClaimStatus"]
        for health, shown in ((HEALTHY, "Healthy"), (UNHEALTHY, "Unhealthy")):
            plugin.send_health(health)

            async def reported(shown: str = shown) -> list[Any]:
                found = await harness.health()
                return found if shown in {h for *_, h in found} else []

            assert [name for name, *_ in await harness.wait_until(shown, reported)] == ["claim:c0"]


async def test_only_1_36_repeats_health_requests_to_a_plugin_without_the_service() -> None:
    for release in ("1.36", "1.37"):
        async with harness_of(release) as harness, harness.plugin():
            await harness.wait_until_registered()
            streams = harness.kubelet.health.streams
            if release == "1.36":
                await harness.wait_until("a third request", lambda streams=streams: sum(streams.values()) >= 3)
            else:
                await harness.run()
                await harness.wait_until_running()
                assert not streams


@pytest.mark.parametrize(("release", "unprepared"), [("1.36", 1), ("1.37", 0)])
async def test_the_deletion_of_a_pod_without_a_reservation_unprepares_the_claim_until_1_37(
    release: str, unprepared: int
) -> None:
    """kubernetes/kubernetes#140212."""
    async with harness_of(release) as harness, harness.plugin() as plugin:
        await harness.run("user", shared="c")
        await harness.wait_until_running("user")
        await harness.cluster.apply(pod("stranger", claims=["c", "missing"], nodeName="node-1"))
        await harness.wait_for_event("stranger", "fetch ResourceClaim missing")
        await harness.delete("stranger")
        await harness.wait_until_deleted("stranger")
        assert plugin.count("unprepare") == unprepared


async def test_a_finished_pod_does_not_unprepare_a_shared_claim_in_1_36() -> None:
    async with harness_of("1.36") as harness, harness.plugin() as plugin:
        await harness.run("user", shared="c")
        await harness.run("first", shared="c")
        await harness.wait_until_running("user")
        first = await harness.wait_until_running("first")
        harness.cluster.node.runtime.end(first["metadata"]["uid"], "main")
        await harness.wait_until("the end of the pod", lambda: harness.phase("first", "Succeeded"))
        await harness.delete("first")
        await harness.wait_until_deleted("first")
        assert plugin.count("unprepare") == 0


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_a_retry_repeats_all_drivers_and_duplicates_devices_until_1_37(release: str) -> None:
    """kubernetes/kubernetes#140274. The kubelet stops after the first driver has responded and while the second driver is working."""
    async with harness_of(release) as harness, harness.plugin() as first, harness.plugin("zz.example.com") as second:
        second.gate.clear()
        await harness.run("p", DRIVER, "zz.example.com")
        await harness.wait_until("a call of the second driver", lambda: second.count("prepare"))
        await harness.kubelet.stop()
        assert first.count("prepare") == 1
        second.gate.set()
        await harness.kubelet.restart()
        await harness.wait_until_running()
        assert first.count("prepare") == 2
        info = next(iter(harness.kubelet.manager.claims.values()))
        assert len(info.devices[DRIVER]) == (2 if release == "1.36" else 1)


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_a_new_pod_prepares_a_claim_again_during_its_unprepare_since_1_37(release: str) -> None:
    """kubernetes/kubernetes#140527."""
    async with harness_of(release) as harness, harness.plugin() as plugin:
        await harness.run("first", shared="c")
        await harness.wait_until_running("first")
        await harness.run("second", shared="c", schedulingGates=None)
        await harness.wait_until_running("second")
        await harness.delete("second")
        await harness.wait_until_deleted("second")
        prepared = plugin.count("prepare")
        plugin.gate.clear()
        [info] = harness.kubelet.manager.claims.values()
        await harness.delete("first")
        await harness.wait_until("the unprepare call", lambda: plugin.count("unprepare") == 1)
        await harness.run("third", shared="c")
        if release == "1.36":
            await harness.wait_until("the claim to have the third pod", lambda: len(info.pods) == 2)
        plugin.gate.set()
        if Features.of(release).is_at_least("1.37"):
            await harness.wait_until_running("third")
            assert plugin.count("prepare") == prepared + 1
        else:
            await harness.wait_until_deleted("first")
            assert plugin.count("prepare") == prepared
