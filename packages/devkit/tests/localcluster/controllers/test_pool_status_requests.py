"""ResourcePoolStatusRequests report the devices of a driver's pools (KEP-5677), with the examples of the proposal."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import CLAIMS, NAMESPACES
from dra_kubeletplugin.resourceapi.defaulting import now
from tests.helpers.objects import DRIVER, claim, slice_of

GATE = "DRAResourcePoolStatus"
REQUESTS = Resource("resource.k8s.io", "v1alpha3", "resourcepoolstatusrequests")
ADMIN_ACCESS = {"resource.kubernetes.io/admin-access": "true"}
NOTHING_USED = {"allocatedDevices": 0, "unavailableDevices": 0}


@contextlib.asynccontextmanager
async def running(release: str, *gates: str, **config: bool) -> AsyncIterator[LocalCluster]:
    versions = {"resource.k8s.io/v1alpha3": True, **{f"resource.k8s.io/{v}": on for v, on in config.items()}}
    features = Features.of(release, dict.fromkeys((GATE, *gates), True), versions)
    async with LocalCluster((), features=features) as cluster:
        yield cluster


def request(name: str = "check", driver: str = DRIVER, **spec: Any) -> JSON:
    head = {"apiVersion": REQUESTS.api_version, "kind": "ResourcePoolStatusRequest", "metadata": {"name": name}}
    return {**head, "spec": {"driver": driver, **spec}}


def pool(name: str, devices: Iterable[JSON | str], **spec: Any) -> JSON:
    found = slice_of(name, list(devices))
    return {**found, "spec": {**found["spec"], **spec}}


async def allocate(cluster: LocalCluster, pool_name: str, *devices: str, name: str = "", **result: Any) -> None:
    """Allocates devices to a claim directly, so that the test chooses them."""
    [created] = await cluster.apply(claim(name or f"{pool_name}-{devices[0]}"))
    head = {"request": "device", "driver": DRIVER, "pool": pool_name}
    results = [{**head, "device": device, **result} for device in devices]
    status = {"allocation": {"devices": {"results": results}, "allocationTimestamp": now()}}
    await cluster.client.update(CLAIMS, {**created, "status": status}, "status")


def share() -> str:
    return str(uuid.uuid4())


async def completed(cluster: LocalCluster, name: str = "check") -> JSON:
    async def check() -> JSON | None:
        return (await cluster.client.get(REQUESTS, name)).get("status")

    status: JSON = await cluster.wait(f"the status of {name}", check)
    return status


async def pools_of(cluster: LocalCluster, **spec: Any) -> dict[str, JSON]:
    await cluster.apply(request(**spec))
    return {pool["poolName"]: pool for pool in (await completed(cluster)).get("pools", [])}


async def until_pools(cluster: LocalCluster, expected: dict[str, JSON]) -> None:
    """Creates requests until one contains these fields: the controller's caches may be older than the last write."""
    number = iter(range(1000))

    async def check() -> bool:
        name = f"check-{next(number)}"
        await cluster.apply(request(name))
        pools = {pool["poolName"]: pool for pool in (await completed(cluster, name)).get("pools", [])}
        return all(expected[p].items() <= pools.get(p, {}).items() for p in expected)

    await cluster.wait(f"a status with {expected}", check)


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_an_administrator_sees_the_free_devices_of_each_pool_of_a_driver(release: str) -> None:
    async with running(release) as cluster:
        four = ["d0", "d1", "d2", "d3"]
        await cluster.apply(slice_of("node-2", four), slice_of("node-1", four))
        await cluster.apply(slice_of("node-1", four, driver="other.example.com", name="other"))
        await allocate(cluster, "node-1", "d0", "d1", "d2")
        await allocate(cluster, "node-2", "d3")
        common = {
            "driver": DRIVER,
            "generation": 1,
            "resourceSliceCount": 1,
            "totalDevices": 4,
            "unavailableDevices": 0,
        }
        first = {**common, "poolName": "node-1", "nodeName": "node-1", "allocatedDevices": 3, "availableDevices": 1}
        second = {**common, "poolName": "node-2", "nodeName": "node-2", "allocatedDevices": 1, "availableDevices": 3}
        await until_pools(cluster, {"node-1": first, "node-2": second})
        await cluster.apply(request())
        status = await completed(cluster)
        assert (status["poolCount"], status["pools"]) == (2, [first, second])
        [condition] = status["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "Complete",
            "True",
            "CalculationComplete",
        )
        assert condition["message"] == "Calculated status for 2 pools"


async def test_a_request_selects_one_pool_or_the_first_pools_up_to_its_limit() -> None:
    async with running("1.36") as cluster:
        await cluster.apply(*(slice_of(f"node-{i}", ["d"]) for i in range(3)))
        await until_pools(cluster, {f"node-{i}": NOTHING_USED for i in range(3)})
        await cluster.apply(
            request("one", poolName="node-1"), request("two", limit=2), request("none", "x.example.com")
        )
        assert [p["poolName"] for p in (await completed(cluster, "one"))["pools"]] == ["node-1"]
        truncated = await completed(cluster, "two")
        assert (truncated["poolCount"], [p["poolName"] for p in truncated["pools"]]) == (3, ["node-0", "node-1"])
        nothing = await completed(cluster, "none")
        assert (nothing["poolCount"], "pools" in nothing) == (0, False)


async def test_1_36_counts_each_allocation_and_1_37_each_device_in_use() -> None:
    for release, allocated in (("1.36", 4), ("1.37", 1)):
        async with running(release) as cluster:
            await cluster.client.patch(NAMESPACES, "default", {"metadata": {"labels": ADMIN_ACCESS}})
            await cluster.apply(pool("node-1", [{"name": "d0", "allowMultipleAllocations": True}, "d1", "d2"]))
            await allocate(cluster, "node-1", "d0", name="a", shareID=share())
            await allocate(cluster, "node-1", "d0", name="b", shareID=share())
            await allocate(cluster, "node-1", "d1", "d2", name="observer", adminAccess=True)
            available = max(0, 3 - allocated)
            await until_pools(cluster, {"node-1": {"allocatedDevices": allocated, "availableDevices": available}})


async def test_1_37_counts_devices_with_taints_of_the_driver_and_of_rules_as_unavailable() -> None:
    async with running("1.37") as cluster:
        taints = [{"key": "toy.example.com/sick", "effect": "NoSchedule"}]
        noted = [{"key": "toy.example.com/sick", "effect": "None"}]
        devices = [{"name": "d0", "taints": taints}, {"name": "d1", "taints": noted}, "d2", "d3"]
        selector = {"driver": DRIVER, "device": "d2"}
        rule = {"deviceSelector": selector, "taint": {"key": "a.example.com/recall", "effect": "NoExecute"}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "recall"}}
        await cluster.apply(pool("node-1", devices), {**kind, "spec": rule})
        await until_pools(cluster, {"node-1": {"unavailableDevices": 2, "availableDevices": 2}})


async def test_1_36_counts_no_device_as_unavailable() -> None:
    async with running("1.36") as cluster:
        await cluster.apply(
            pool("node-1", [{"name": "d", "taints": [{"key": "x.example.com/y", "effect": "NoExecute"}]}])
        )
        await until_pools(cluster, {"node-1": {"unavailableDevices": 0, "availableDevices": 1}})


# --- views of 1.37 ----------------------------------------------------------------------------------

PROFILE = f"{DRIVER}/profile"


def partition(name: str, profile: str, memory: str) -> JSON:
    consumed = [{"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}]
    return {"name": name, "attributes": {"profile": {"string": profile}}, "consumesCounters": consumed}


PARTITIONS = [
    partition("full", "full", "80Gi"),
    partition("half-1", "half", "40Gi"),
    partition("half-2", "half", "40Gi"),
]


async def partitioned(cluster: LocalCluster, devices: list[JSON], **spec: Any) -> None:
    """Publishes a pool of partitions, with the counters in a slice of their own."""
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    both = {"name": "node-3", "generation": 7, "resourceSliceCount": 2}
    one = slice_of("node-3", devices)
    other = slice_of("node-3", [], name="counters")
    del other["spec"]["devices"]
    one["spec"] |= {"pool": both, **spec}
    other["spec"] |= {"pool": both, "sharedCounters": counters, **spec}
    await cluster.apply(one, other)


TYPES = "DRAPartitionableDevicesType"


def of_type(kind: str, total: int, allocatable: int, attribute: str = PROFILE) -> JSON:
    return {"attribute": attribute, "type": kind, "total": total, "allocatable": allocatable}


async def test_a_view_of_partitions_counts_what_the_shared_counters_still_allow() -> None:
    async with running("1.37", TYPES) as cluster:
        whole = {"name": "cooler"}  # it consumes no counters, so it is no partition
        await partitioned(cluster, [*PARTITIONS, whole], partitionTypeAttribute=PROFILE)
        await allocate(cluster, "node-3", "half-1")
        counts = {"totalDevices": 4, "allocatedDevices": 1, "availableDevices": 3, "resourceSliceCount": 2}
        summary = [of_type("full", 1, 0), of_type("half", 2, 1)]
        await until_pools(cluster, {"node-3": {**counts, "generation": 7, "partitionSummary": summary}})
        await allocate(cluster, "node-3", "full")  # KEP-5677: both halves are blocked by the counter
        summary = [of_type("full", 1, 0), of_type("half", 2, 0)]
        await until_pools(cluster, {"node-3": {"allocatedDevices": 2, "partitionSummary": summary}})


async def test_a_request_names_the_attribute_of_types_for_a_pool_whose_slices_name_none() -> None:
    async with running("1.37", TYPES) as cluster:
        await partitioned(cluster, PARTITIONS)
        await until_pools(cluster, {"node-3": {"totalDevices": 3}})
        assert "partitionSummary" not in (await pools_of(cluster))["node-3"]
        await cluster.apply(request("typed", defaultPartitionTypeAttribute=PROFILE))
        [found] = (await completed(cluster, "typed"))["pools"]
        assert found["partitionSummary"] == [of_type("full", 1, 1), of_type("half", 2, 2)]


async def test_the_attribute_that_a_slice_names_comes_before_that_of_the_request() -> None:
    async with running("1.37", TYPES) as cluster:
        await partitioned(cluster, PARTITIONS, partitionTypeAttribute=PROFILE)
        await until_pools(cluster, {"node-3": {"totalDevices": 3}})
        await cluster.apply(request("typed", defaultPartitionTypeAttribute=f"{DRIVER}/other"))
        [found] = (await completed(cluster, "typed"))["pools"]
        assert found["partitionSummary"] == [of_type("full", 1, 1), of_type("half", 2, 2)]


async def test_without_the_gate_of_types_a_request_loses_its_attribute() -> None:
    async with running("1.37") as cluster:
        [created] = await cluster.apply(request(defaultPartitionTypeAttribute=PROFILE))
        assert created["spec"] == {"driver": DRIVER, "limit": 100}


async def test_1_36_has_no_views() -> None:
    async with running("1.36") as cluster:
        await partitioned(cluster, PARTITIONS)
        await until_pools(cluster, {"node-3": {"totalDevices": 3}})
        found = (await pools_of(cluster))["node-3"]
        assert found.keys().isdisjoint({"partitionSummary", "shareableSummary"})


UNTYPED: JSON = {**PARTITIONS[1], "name": "untyped", "attributes": {"profile": {"int": 1}}}


@pytest.mark.parametrize(
    ("devices", "error"),
    [
        (
            [*PARTITIONS, UNTYPED],
            f'PartitionTypeMissing: device "untyped" in pool {DRIVER}/node-3 does not carry partition type attribute '
            f'"{PROFILE}"',
        ),
        (
            [*PARTITIONS, partition("third", "half", "30Gi")],
            f'PartitionCostMismatch: devices of partition type "half" in pool {DRIVER}/node-3 consume different counters',
        ),
    ],
)
async def test_an_inconsistent_pool_has_an_error_beside_its_counts(devices: list[JSON], error: str) -> None:
    async with running("1.37", TYPES) as cluster:
        await partitioned(cluster, devices, partitionTypeAttribute=PROFILE)
        await until_pools(cluster, {"node-3": {"totalDevices": 4, "validationError": error}})
        found = (await pools_of(cluster))["node-3"]
        assert "partitionSummary" not in found
        [condition] = (await completed(cluster))["conditions"]
        assert condition["message"] == "Calculated status for 1 pools (1 incomplete)"


async def test_a_view_of_shared_devices_sums_their_capacity() -> None:
    async with running("1.37") as cluster:
        shared = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
        await cluster.apply(pool("node-4", [{"name": f"d{i}", **shared} for i in range(3)]))
        for name, device, amount in (("a", "d0", "30Gi"), ("b", "d0", "20Gi"), ("c", "d1", "40Gi")):
            await allocate(cluster, "node-4", device, name=name, shareID=share(), consumedCapacity={"memory": amount})
        capacity = [{"name": "memory", "total": "240Gi", "consumed": "90Gi", "available": "150Gi"}]
        summary = {"fullyAvailableDevices": 1, "partiallyAvailableDevices": 2, "capacity": capacity}
        counts = {"totalDevices": 3, "allocatedDevices": 2, "availableDevices": 1}
        await until_pools(cluster, {"node-4": {**counts, "shareableSummary": summary}})


# --- the life of a request --------------------------------------------------------------------------


async def test_a_request_for_an_incomplete_pool_waits_until_the_pool_is_complete_and_the_request_changes() -> None:
    async with running("1.37") as cluster:
        half = pool("node-1", ["d0"], pool={"name": "node-1", "generation": 1, "resourceSliceCount": 2})
        await cluster.apply(half)
        await cluster.apply(request("waiting"))
        number = iter(range(1000))

        async def is_complete() -> bool:
            label = {"metadata": {"labels": {"try": str(next(number))}}}
            found = await cluster.client.patch(REQUESTS, "waiting", label)
            return "status" in found

        assert not await is_complete()
        await cluster.apply({**half, "metadata": {"name": "second"}})
        await cluster.wait("the status", is_complete)
        [found] = (await completed(cluster, "waiting"))["pools"]
        assert (found["resourceSliceCount"], found["totalDevices"]) == (2, 2)


async def test_a_request_is_deleted_one_hour_after_its_end() -> None:
    async with running("1.36") as cluster:
        # The request has no status yet, because a pool is incomplete.
        await cluster.apply(pool("node-1", ["d0"], pool={"name": "node-1", "generation": 1, "resourceSliceCount": 2}))
        [created] = await cluster.apply(request())
        head = {"status": "True", "reason": "CalculationComplete", "message": ""}
        ended = {"type": "Complete", "lastTransitionTime": "2026-01-01T00:00:00Z", **head}
        await cluster.client.update(REQUESTS, {**created, "status": {"poolCount": 0, "conditions": [ended]}}, "status")

        async def is_gone() -> bool:
            try:
                await cluster.client.get(REQUESTS, "check")
            except NotFoundError:
                return True
            return False

        await cluster.wait("the deletion", is_gone)


async def test_requests_are_served_only_when_their_gate_and_version_are_on() -> None:
    for gates, config in (({GATE: True}, {}), ({}, {"resource.k8s.io/v1alpha3": True})):
        async with LocalCluster((), features=Features.of("1.36", gates, config)) as cluster:
            with pytest.raises(ApiError, match="404"):
                await cluster.client.list(REQUESTS)
