"""Rolling updates of DaemonSets with ``maxSurge``: the new pod of a node becomes available before the old one is deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.controllers.workloads import DAEMON_SETS, is_ready
from dra_devkit.localcluster.kubelet import Timers
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.errors import InvalidError
from dra_kubeletplugin.kube.resource import PODS
from tests.helpers.workloads import pods, wait_for_status, workload

PROBE = "simulated.dra-kubeletplugin.dev/readiness-probe"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1", "node-2", "node-3"), timers=Timers(pod_sync_backoff=0.1)) as cluster:
        yield cluster


def daemon_set(surge: Any = 1, unavailable: Any = 0, *, probe: str = "pass", image: str = "one", **spec: Any) -> JSON:
    rolling = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    out = workload("apps/v1", "DaemonSet", "agent", image=image, updateStrategy=rolling, **spec)
    template = out["spec"]["template"]
    template["metadata"]["annotations"] = {PROBE: probe}
    template["spec"]["terminationGracePeriodSeconds"] = 0
    template["spec"]["containers"][0]["readinessProbe"] = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    return out


async def update(cluster: LocalCluster, changed: JSON) -> None:
    await cluster.client.patch(DAEMON_SETS, "agent", {"spec": {"template": changed["spec"]["template"]}}, "default")


async def with_image(cluster: LocalCluster, image: str) -> list[JSON]:
    return [p for p in await pods(cluster) if p["spec"]["containers"][0]["image"] == image]


async def wait_for_images(cluster: LocalCluster, wanted: dict[str, int]) -> None:
    async def found() -> bool:
        scheduled = [p for p in await pods(cluster) if p["spec"].get("nodeName")]
        return Counter(p["spec"]["containers"][0]["image"] for p in scheduled) == wanted

    await cluster.wait(f"scheduled pods with the images {wanted}", found)


async def make_ready(cluster: LocalCluster, pod: JSON) -> None:
    await cluster.client.patch(PODS, pod["metadata"]["name"], {"metadata": {"annotations": {PROBE: "pass"}}}, "default")


async def test_one_node_after_the_other_has_two_pods_until_the_new_one_is_ready(cluster: LocalCluster) -> None:
    await cluster.apply(daemon_set())
    await wait_for_status(cluster, DAEMON_SETS, "agent", lambda s: s.get("numberReady") == 3)
    await update(cluster, daemon_set(image="two", probe="fail"))
    for updated in range(3):
        await wait_for_images(cluster, {"one": 3 - updated, "two": updated + 1})
        (new,) = [p for p in await with_image(cluster, "two") if not is_ready(p)]
        nodes = {p["spec"]["nodeName"] for p in await with_image(cluster, "one") if is_ready(p)}
        assert len(nodes) == 3 - updated and new["spec"]["nodeName"] in nodes
        served = {p["spec"]["nodeName"] for p in await pods(cluster) if is_ready(p)}
        assert len(served) == 3, "each node has a ready pod"
        await make_ready(cluster, new)
    done = await wait_for_status(cluster, DAEMON_SETS, "agent", lambda s: s.get("updatedNumberScheduled") == 3)
    assert done["status"]["numberAvailable"] == 3
    assert {p["spec"]["nodeName"] for p in await pods(cluster)} == {"node-1", "node-2", "node-3"}


async def test_a_percentage_is_rounded_up(cluster: LocalCluster) -> None:
    await cluster.apply(daemon_set("34%", "0%"))
    await wait_for_status(cluster, DAEMON_SETS, "agent", lambda s: s.get("numberReady") == 3)
    await update(cluster, daemon_set(image="two", probe="fail"))
    await wait_for_images(cluster, {"one": 3, "two": 2})


async def test_unready_pods_are_replaced_on_all_nodes_at_once(cluster: LocalCluster) -> None:
    await cluster.apply(daemon_set(probe="fail"))
    await wait_for_images(cluster, {"one": 3})
    await update(cluster, daemon_set(image="two", probe="fail"))
    await wait_for_images(cluster, {"two": 3})


async def test_an_update_that_is_rolled_back_deletes_the_new_pod(cluster: LocalCluster) -> None:
    await cluster.apply(daemon_set())
    await wait_for_status(cluster, DAEMON_SETS, "agent", lambda s: s.get("numberReady") == 3)
    before = {p["metadata"]["uid"] for p in await pods(cluster)}
    await update(cluster, daemon_set(image="two", probe="fail"))
    await wait_for_images(cluster, {"one": 3, "two": 1})
    await update(cluster, daemon_set())
    await wait_for_images(cluster, {"one": 3})
    assert {p["metadata"]["uid"] for p in await pods(cluster)} == before


async def test_the_old_pod_stays_until_the_new_one_is_ready_for_min_ready_seconds(cluster: LocalCluster) -> None:
    await cluster.apply(daemon_set(minReadySeconds=1))
    await wait_for_status(cluster, DAEMON_SETS, "agent", lambda s: s.get("numberAvailable") == 3)
    long = {"spec": {"minReadySeconds": 3600, "template": daemon_set(image="two")["spec"]["template"]}}
    await cluster.client.patch(DAEMON_SETS, "agent", long, "default")
    # With 3600 seconds no old pod is available either, so each is replaced; but none is deleted before its successor is available.
    await wait_for_images(cluster, {"one": 3, "two": 3})

    async def all_ready() -> bool:
        return all(map(is_ready, await pods(cluster)))

    await cluster.wait("ready pods", all_ready)
    assert len(await with_image(cluster, "one")) == 3
    await cluster.client.patch(DAEMON_SETS, "agent", {"spec": {"minReadySeconds": 0}}, "default")
    await wait_for_images(cluster, {"two": 3})


@pytest.mark.parametrize(
    ("surge", "unavailable", "error"),
    [
        (
            1,
            1,
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
        ),
        ("10%", "5%", "may not be set when maxUnavailable is non-zero"),
        (0, "0%", "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"),
    ],
)
async def test_exactly_one_limit_is_positive(surge: Any, unavailable: Any, error: str, cluster: LocalCluster) -> None:
    with pytest.raises(InvalidError) as e:
        await cluster.client.create(DAEMON_SETS, daemon_set(surge, unavailable), "default")
    assert error in str(e.value)
