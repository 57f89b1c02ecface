"""Fields of Kubernetes 1.36 and 1.37 are published to servers that support them, and omitted or withheld on other servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.testing import node_with
from dra_kubeletplugin import CounterSet, Device, Gate, NodeResource, Nodes, Pool, Taint
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver import Role
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.resourceapi.conversion import VERSIONS, convert
from dra_kubeletplugin.resourceapi.decoding import read_device
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import allocate, prepare_call, ref
from tests.helpers.publisher import (
    ScriptedApiServer,
    json_response,
    make_inventory,
    running_publisher,
    scripted_api_server,
)
from tests.helpers.waiting import wait_until

GROUPED = [
    Device("mig", consumes_counters={"card": {"c": 1}}, compatibility_groups={"card": ["mig"]}),
    Device("plain"),
]
CARD = CounterSet("card", {"c": 2})
MAPPINGS = "nodeAllocatableResourceMappings"
ON = Features.of(
    "1.37",
    dict.fromkeys(
        (
            "DRADeviceCompatibilityGroups",
            "DRAResourcePoolStatus",
            "DRAPartitionableDevicesType",
            "DRAOptionalNodeOperations",
        ),
        True,
    ),
)


async def published(server: ScriptedApiServer, pool: Pool) -> tuple[Any, list[dict[str, Any]]]:
    inventory = Inventory("node")
    await inventory.update([pool])
    async with running_publisher(server, inventory) as publisher:
        status = await asyncio.wait_for(publisher.current(), 30)
    return status, [s["spec"] for s in server.slices()]


def devices_of(specs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {d["name"]: d for s in specs for d in s.get("devices") or []}


async def test_a_device_with_compatibility_groups_is_withheld_if_the_server_drops_them() -> None:
    async with scripted_api_server(Features.of("1.37")) as server:
        status, specs = await published(server, Pool("node", GROUPED, [CARD]))
        assert set(devices_of(specs)) == {"plain"}
        assert status.gates_off == {Gate.COMPATIBILITY}
        assert "DRADeviceCompatibilityGroups is off" in status.rejected["mig"]
    async with scripted_api_server(ON) as server:
        status, specs = await published(server, Pool("node", GROUPED, [CARD]))
        assert devices_of(specs)["mig"]["consumesCounters"][0]["compatibilityGroups"] == ["mig"]
        assert (status.gates_off, dict(status.rejected)) == (frozenset(), {})


@pytest.mark.parametrize("release", ["1.34", "1.36", "1.37"])
async def test_pool_options_are_omitted_on_a_server_without_the_feature(
    release: str,
) -> None:
    pool = Pool("node", [Device("d")], partition_type="d.example.com/profile", skip_node_operations=["*"])
    async with scripted_api_server(Features.of(release)) as server:
        status, [spec] = await published(server, pool)
        assert "partitionTypeAttribute" not in spec
        assert "skipNodeOperations" not in spec
        assert status.gates_off == {Gate.PARTITION_TYPES, Gate.NODE_OPERATIONS}
        assert len(server.written) == 1, "the publisher has checked the features before the write"


async def test_pool_options_are_published_to_a_server_with_the_feature() -> None:
    pool = Pool("node", [Device("d")], partition_type="d.example.com/profile", skip_node_operations=["*"])
    async with scripted_api_server(ON) as server:
        status, [spec] = await published(server, pool)
        assert (spec["partitionTypeAttribute"], spec["skipNodeOperations"]) == ("d.example.com/profile", ["*"])
        assert status.gates_off == frozenset()


async def test_a_network_pool_without_node_operations_is_not_published_if_nodes_would_wait_for_a_plugin() -> None:
    inventory = Inventory("", role=Role.CONTROLLER)
    await inventory.update([Pool("net", [Device("d")], nodes=Nodes.all(), skip_node_operations=["*"])])
    assert [c.name for c in inventory.contents()] == ["net"]
    await inventory.set_gates_off(frozenset({Gate.NODE_OPERATIONS}))
    assert inventory.contents() == []
    assert "wait on their nodes for a plugin" in inventory.rejected["pool net"]


async def test_an_incomplete_list_of_skipped_operations_is_a_fault_of_the_pool() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("d")], skip_node_operations=["NodePrepareResources"])])
    assert "only be skipped together with NodeUnprepareResources" in inventory.rejected["pool node"]


@pytest.mark.parametrize(
    ("resource", "is_published"),
    [
        (NodeResource(per_pod="64Mi"), True),
        (NodeResource(per_device=2), False),
        (NodeResource(capacity="cores", per_unit=2, per_container="1Mi"), False),
    ],
)
async def test_a_device_that_is_part_of_its_node_is_withheld_if_the_node_would_be_allocated_twice(
    resource: NodeResource, is_published: bool
) -> None:
    async with scripted_api_server(Features.of("1.37")) as server:
        device = Device("d", capacity={"cores": 4}, node_resources={"cpu": resource})
        status, specs = await published(server, Pool("node", [device]))
        assert ("d" in devices_of(specs)) == is_published
        assert status.gates_off == {Gate.NODE_RESOURCES}
        assert all("nodeAllocatableResources" not in d for d in devices_of(specs).values())


async def test_the_notes_name_for_each_device_only_the_gates_of_its_fields() -> None:
    inventory = Inventory("node")
    shared = Device("shared", allow_multiple_allocations=True)
    await inventory.update([Pool("node", [Device("lists", attributes={"links": ["a"]}), shared, Device("plain")])])
    await inventory.set_gates_off(frozenset({Gate.LISTS, Gate.SHARING, Gate.TAINTS}))
    off = "the API server's feature gate is off"
    assert inventory.gate_notes() == [
        f"lists published without attributes[links]: {off} ({Gate.LISTS})",
        f"shared published without allowMultipleAllocations: {off} ({Gate.SHARING})",
    ]


async def test_an_older_server_that_has_the_gate_and_not_the_field_is_named() -> None:
    """1.36 has the gate with another field."""
    on = Features.of("1.36", {Gate.NODE_RESOURCES: True}, implemented=False)
    async with scripted_api_server(on) as server:
        device = Device("d", node_resources={"cpu": NodeResource(per_device=2)})
        status, _ = await published(server, Pool("node", [device, Device("plain")]))
        assert f"{Gate.NODE_RESOURCES} is off, or Kubernetes is older than 1.37, and" in status.rejected["d"]


async def test_a_newer_server_that_has_the_gate_and_no_longer_the_field_is_named() -> None:
    """1.37 replaced the field of 1.36."""
    on = Features.of("1.37", {Gate.NODE_RESOURCES: True})
    async with scripted_api_server(on) as server:
        device = Device("d", extra={"nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "2"}}})
        status, _ = await published(server, Pool("node", [device]))
        assert f"{Gate.NODE_RESOURCES} is off, or Kubernetes is newer than 1.36, and" in status.rejected["d"]


@pytest.mark.parametrize("release", ["1.34", "1.35", "1.36", "1.37"])
async def test_a_taint_without_effect_never_withholds_a_device(release: str) -> None:
    async with scripted_api_server(Features.of(release)) as server:
        device = Device("d", taints=[Taint(key="example.com/note", effect="None")])
        _, specs = await published(server, Pool("node", [device]))
        assert ("taints" in devices_of(specs)["d"]) == server.features.has("DRADeviceTaints")


def rejecting(*fields: str) -> Callable[[Request], Response | None]:
    """Returns a server's response to the first write that names the first device; later writes succeed."""
    causes = [{"field": f"spec.{field}", "message": "no"} for field in fields]
    responses = [{"kind": "Status", "reason": "Invalid", "message": "no", "code": 422, "details": {"causes": causes}}]

    def instead(request: Request) -> Response | None:
        is_write = request.method == "POST" and "dryRun" not in request.query and "resourceslices" in request.path
        return json_response(responses.pop(), 422) if is_write and responses else None

    return instead


async def test_1_34_with_the_gate_has_no_informational_taints_and_the_device_is_published_without_them() -> None:
    note, worn = Taint(key="example.com/note", effect="None"), Taint(key="example.com/worn")
    async with scripted_api_server(Features.of("1.34", {"DRADeviceTaints": True})) as server:
        devices = [Device("noted", taints=[note]), Device("both", taints=[worn, note]), Device("plain")]
        inventory = await make_inventory(*devices)
        async with running_publisher(server, inventory) as publisher:
            await publisher.current()
            await wait_until(lambda: server.devices() == ["both", "noted", "plain"])
            status = publisher.status
        found = devices_of([s["spec"] for s in server.slices()])
        assert [t["key"] for t in found["both"]["taints"]] == [worn.key]
        assert "taints" not in found["noted"]
        assert (status.rejected, status.gates_off, inventory.rejected) == ({}, frozenset(), {})


async def test_1_34_withholds_a_device_that_it_rejects_for_another_reason_too() -> None:
    note = Taint(key="example.com/note", effect="None")
    async with scripted_api_server(Features.of("1.34", {"DRADeviceTaints": True})) as server:
        server.instead = rejecting("devices[0].taints[0].effect", "devices[0].attributes[x]")
        inventory = await make_inventory(Device("noted", taints=[note]), Device("plain"))
        async with running_publisher(server, inventory):
            await wait_until(lambda: "noted" in inventory.rejected)
            assert "attributes[x]" in inventory.rejected["noted"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"node_resources": {"cpu": NodeResource()}}, "node_resources['cpu']: a NodeResource needs per_device"),
        ({"node_resources": {"cpu": NodeResource(capacity="cores")}}, "must be used together"),
        ({"node_resources": {"cpu": NodeResource(per_device=1, capacity="c", per_unit=1)}}, "not both"),
        ({"node_resources": {"cpu": NodeResource(per_device="1 Gi")}}, "node_resources['cpu']: '1 Gi' is not a quantity"),
        ({"node_resources": {"cpu": 1}}, "node_resources['cpu'] is int: use a NodeResource"),
        ({"node_resources": {"cpu": NodeResource(capacity="cores", per_unit=1)}}, "must be a capacity of the device"),
        ({"node_resources": {"example.com/x": NodeResource(per_device=1)}}, "one of these resources of nodes"),
        ({"node_resources": {"cpu": NodeResource(per_pod=1)}, "extra": {MAPPINGS: {"cpu": {}}}}, "no release stores both"),
        ({"extra": {MAPPINGS: "cpu"}}, f"extra: {MAPPINGS} is str: use a mapping"),
        ({"extra": {MAPPINGS: [{"cpu": {}}]}}, f"extra: {MAPPINGS} is list: use a mapping"),
        ({"extra": {MAPPINGS: {"cpu": "50m"}}}, f"extra: {MAPPINGS}['cpu'] is str: use a mapping with allocationMultiplier"),
        ({"extra": {MAPPINGS: {"cpu": {"allocationMultiplier": 2}}}}, "is int: use a quantity as text"),
        ({"extra": {MAPPINGS: {"cpu": None}}}, "['cpu'] is NoneType: use a mapping with allocationMultiplier"),
        ({"extra": {MAPPINGS: {"cpu": {"allocationMultiplier": "2 x"}}}}, "allocationMultiplier: "),
        ({"compatibility_groups": {"x": ["a"]}}, "consumes no counters of this counter set"),
        ({"consumes_counters": {"x": {"c": 1}}, "compatibility_groups": {"x": "ab"}}, "use a list of str"),
        ({"consumes_counters": {"x": {"c": 1}}, "compatibility_groups": {"x": [*"abc"]}}, "must have at most 2 items"),
    ],
)  # fmt: skip
def test_contradicting_fields_are_faults_of_the_device(fields: dict[str, Any], message: str) -> None:
    (fault,) = Device("d", **fields).faults()
    assert message in fault


def test_newer_fields_are_kept_by_conversions_and_records() -> None:
    device = Device(
        "d",
        capacity={"cores": 4},
        consumes_counters={"card": {"c": 1}},
        compatibility_groups={"card": ["a", "b"]},
        node_resources={"cpu": NodeResource(capacity="cores", per_unit=2, per_pod="100m")},
    )
    spec = {**Pool("p", [], partition_type="d/x", skip_node_operations=["*"]).options(), "devices": [device.json()]}
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}
    for version in VERSIONS:
        assert convert(convert(obj, version), "v1") == obj
    assert read_device(device.json()).json() == device.json()
    exactly = {"deviceClassName": "c", "derivedAttributes": [{"name": "d/n", "expression": "1"}]}
    requests = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": requests}
    for version in VERSIONS:
        assert convert(convert(claim, version), "v1") == claim


async def test_a_claim_of_a_pod_group_is_prepared_and_released_after_its_deletion() -> None:
    """The consumer and the owner of a claim need not be a Pod (KEP-5729)."""
    async with node_with(make_toy_class(), reconcile_interval=0.2, reconcile_grace_period=0.2) as node:
        group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "workers", "uid": "group-1"}
        allocated = await allocate(node, "shared", [{"pool": "node-1", "device": "toy-0"}])
        changed = {**allocated, "status": {**allocated["status"], "reservedFor": [group]}}
        allocated = await node.cluster.client.update(CLAIMS, changed, "status")
        for _ in range(2):
            response = (await prepare_call(node, ref(allocated))).claims[ref(allocated)[2]]
            assert (response.error, len(response.devices)) == ("", 1)
            await node.restart()
        assert (await node.leftovers())["held"] == ["toy-0"]
        await node.cluster.client.delete(CLAIMS, "shared", "default")

        async def is_released() -> bool:
            return (await node.leftovers())["held"] == []

        await node.cluster.wait("the release of the claim", is_released)
