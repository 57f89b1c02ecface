"""The API server's rules for ResourcePoolStatusRequests (KEP-5677). Upstream: declarative_validation_test.go of their registry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.errors import InvalidError

REQUESTS = Resource("resource.k8s.io", "v1alpha3", "resourcepoolstatusrequests")
POOL = {"driver": "d.example.com", "poolName": "pool-1", "generation": 1}
CONDITION = {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Done", "message": ""}


@pytest.fixture
async def client() -> AsyncIterator[KubeClient]:
    gates = dict.fromkeys(("DRAResourcePoolStatus", "DRAPartitionableDevicesType"), True)
    versions = {"resource.k8s.io/v1alpha3": True}
    api = ApiServer(features=Features.of("1.37", gates, versions))
    await api.start()
    try:
        async with KubeClient(api.config) as client:
            yield client
    finally:
        await api.close()


def request(**spec: Any) -> JSON:
    head = {"apiVersion": REQUESTS.api_version, "kind": "ResourcePoolStatusRequest", "metadata": {"name": "check"}}
    return {**head, "spec": {"driver": "d.example.com", **spec}}


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"driver": ""}, "spec.driver: Required value"),
        ({"driver": "invalid driver!"}, "spec.driver: Invalid value"),
        ({"poolName": ""}, "spec.poolName: Invalid value"),
        ({"poolName": "a//b"}, "spec.poolName: Invalid value"),
        ({"defaultPartitionTypeAttribute": "profile"}, "spec.defaultPartitionTypeAttribute: Invalid value"),
        ({"defaultPartitionTypeAttribute": "a/b!"}, "spec.defaultPartitionTypeAttribute: Invalid value"),
        ({"limit": 0}, "spec.limit: Invalid value: 0: must be greater than or equal to 1"),
        ({"limit": 1001}, "spec.limit: Invalid value: 1001: must be less than or equal to 1000"),
    ],
)
async def test_an_invalid_request_is_rejected(client: KubeClient, spec: JSON, error: str) -> None:
    with pytest.raises(InvalidError) as e:
        await client.create(REQUESTS, request(**spec))
    assert error in str(e.value)


async def test_a_new_request_has_the_default_limit_and_no_status(client: KubeClient) -> None:
    created = await client.create(REQUESTS, {**request(poolName="a/b"), "status": {"poolCount": 1}})
    assert (created["spec"], "status" in created) == (
        {"driver": "d.example.com", "poolName": "a/b", "limit": 100},
        False,
    )


async def test_the_spec_never_changes(client: KubeClient) -> None:
    created = await client.create(REQUESTS, request())
    with pytest.raises(InvalidError, match=r"spec: Invalid value.*field is immutable"):
        await client.update(REQUESTS, {**created, "spec": request(limit=5)["spec"]})


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"pools": [POOL]}, "status.poolCount: Required value"),
        ({"poolCount": -1}, "status.poolCount: Invalid value: -1: must be greater than or equal to 0"),
        ({"poolCount": 1, "pools": [POOL] * 1001}, "status.pools: Too many: 1001: must have at most 1000 items"),
        ({"poolCount": 1, "pools": [{**POOL, "driver": ""}]}, "status.pools[0].driver: Required value"),
        ({"poolCount": 1, "pools": [{**POOL, "poolName": "A"}]}, "status.pools[0].poolName: Invalid value"),
        ({"poolCount": 1, "pools": [{**POOL, "nodeName": "bad node"}]}, "status.pools[0].nodeName: Invalid value"),
        *(
            (
                {"poolCount": 1, "pools": [{**POOL, field: least - 1}]},
                f"status.pools[0].{field}: Invalid value: {least - 1}",
            )
            for field, least in (
                ("totalDevices", 0),
                ("allocatedDevices", 0),
                ("availableDevices", 0),
                ("unavailableDevices", 0),
                ("generation", 0),
                ("resourceSliceCount", 1),
            )
        ),
        (
            {"poolCount": 1, "pools": [{**POOL, "validationError": "x" * 257}]},
            "status.pools[0].validationError: Too long",
        ),
        (
            {
                "poolCount": 1,
                "pools": [{**POOL, "partitionSummary": [{"attribute": "a/b", "type": str(i)} for i in range(33)]}],
            },
            "status.pools[0].partitionSummary: Too many: 33",
        ),
        (
            {"poolCount": 1, "conditions": [{**CONDITION, "type": f"Type{i}"} for i in range(11)]},
            "status.conditions: Too many: 11: must have at most 10 items",
        ),
        (
            {"poolCount": 1, "conditions": [{**CONDITION, "type": "Complete", "reason": ""}]},
            "conditions[0].reason: Required",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_invalid_status_is_rejected(client: KubeClient, status: JSON, error: str) -> None:
    created = await client.create(REQUESTS, request())
    with pytest.raises(InvalidError) as e:
        await client.update(REQUESTS, {**created, "status": status}, "status")
    assert error in str(e.value)


async def test_a_status_is_written_once_and_labels_may_change_afterwards(client: KubeClient) -> None:
    created = await client.create(REQUESTS, request())
    written = await client.update(REQUESTS, {**created, "status": {"poolCount": 1, "pools": [POOL]}}, "status")
    with pytest.raises(InvalidError, match=r"status: Invalid value.*field is immutable"):
        await client.update(REQUESTS, {**written, "status": {"poolCount": 2}}, "status")
    labelled = await client.patch(REQUESTS, "check", {"metadata": {"labels": {"a": "b"}}, "status": {"poolCount": 3}})
    assert (labelled["metadata"]["labels"], labelled["status"]) == ({"a": "b"}, written["status"])
    assert "generation" not in labelled["metadata"]
