"""A NoExecute taint on a device deletes the pods that use it (KEP-5055); behaviours 20 and 21 of scheduler-behaviour.md."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import CLAIMS, PODS, SLICES
from dra_kubeletplugin.resourceapi.defaulting import now
from tests.helpers.objects import DRIVER, claim, device_class, pod, slice_of

BAD = {"key": "toy.example.com/bad", "value": "v", "effect": "NoExecute"}


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(()) as cluster:
        await cluster.apply(device_class(), slice_of("node-1", ["d0", "d1"]))
        yield cluster


async def allocate(cluster: LocalCluster, device: str, *pods: str, **result: Any) -> list[JSON]:
    """Allocates a device to a claim and binds pods to a node directly, so the tests do not depend on the scheduler."""
    created = await cluster.apply(claim(), *(pod(name, claims=["c"], nodeName="node-1") for name in pods))
    results = [{"request": "device", "driver": DRIVER, "pool": "node-1", "device": device, **result}]
    consumers = [{"resource": "pods", "name": p["metadata"]["name"], "uid": p["metadata"]["uid"]} for p in created[1:]]
    status = {"allocation": {"devices": {"results": results}, "allocationTimestamp": now()}, "reservedFor": consumers}
    await cluster.client.update(CLAIMS, {**created[0], "status": status}, "status")
    return created[1:]


async def taint(cluster: LocalCluster, *taints: JSON) -> None:
    spec = {"devices": [{"name": "d0"} | ({"taints": list(taints)} if taints else {}), {"name": "d1"}]}
    await cluster.client.patch(SLICES, "s-node-1", {"spec": spec})


async def wait_until_deleting(cluster: LocalCluster, *names: str) -> None:
    async def check() -> bool:
        current = [await cluster.pod(name) for name in names]
        return all(p is None or bool(p["metadata"].get("deletionTimestamp")) for p in current)

    await cluster.wait(f"{names} to be deleted", check)


async def test_all_pods_of_a_claim_with_a_tainted_device_are_deleted(cluster: LocalCluster) -> None:
    await allocate(cluster, "d0", "one", "two")
    await taint(cluster, BAD)
    await wait_until_deleting(cluster, "one", "two")
    for name in ("one", "two"):

        async def has_event(name: str = name) -> bool:
            return "DeviceTaintManagerEviction: Marking for deletion" in cluster.events(name)

        await cluster.wait("the event", has_event)
        evicted = await cluster.client.get(PODS, name, "default")
        conditions = {c["type"]: (c["status"], c.get("reason")) for c in evicted["status"]["conditions"]}
        assert conditions["DisruptionTarget"] == ("True", "DeletionByDeviceTaintManager")


async def test_the_end_of_toleration_seconds_deletes_the_pod(cluster: LocalCluster) -> None:
    await allocate(cluster, "d0", "p", tolerations=[{"operator": "Exists", "tolerationSeconds": 2}])
    began = time.monotonic()
    await taint(cluster, BAD)
    await wait_until_deleting(cluster, "p")
    assert time.monotonic() - began >= 0.9  # timestamps have a resolution of one second


async def test_a_finished_pod_is_not_deleted(cluster: LocalCluster) -> None:
    await allocate(cluster, "d0", "done", "runs")
    await cluster.client.patch(PODS, "done", {"status": {"phase": "Succeeded"}}, "default", "status")
    await taint(cluster, BAD)
    await wait_until_deleting(cluster, "runs")
    current = await cluster.pod("done")
    assert current is not None
    assert not current["metadata"].get("deletionTimestamp")
