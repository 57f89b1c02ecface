"""The test table of Go's slice controller: each test is named after its row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from dra_kubeletplugin import Capacity, CounterSet, Device, Gate, Nodes, Pool, RequestPolicy, Role, Taint
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices import ClusterScope, Publisher
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import SLICES
from tests.helpers.publisher import DRIVER, ScriptedApiServer, running_publisher, scripted_api_server

pytestmark = pytest.mark.gates(
    "DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceBindingConditions"
)

TAINT = Taint(key="example.com/sick", effect="NoExecute")


class Row:
    """Holds a server with slices and the inventory of a driver."""

    def __init__(self, server: ScriptedApiServer, client: KubeClient, role: Role) -> None:
        self.server, self.client = server, client
        self.inventory = Inventory("node" if role is Role.NODE else "", role=role)
        self.scope = None if role is Role.NODE else ClusterScope(DRIVER, "default")

    async def create_slice(
        self, name: str, devices: list[str | Device], *, generation: int = 1, count: int = 1, **spec: Any
    ) -> Any:
        """Creates a slice before the publisher starts."""
        found = [(Device(d) if isinstance(d, str) else d).json() for d in devices]
        pool = {"name": spec.pop("pool", "node"), "generation": generation, "resourceSliceCount": count}
        where = {} if any(k in spec for k in ("allNodes", "nodeSelector")) else {"nodeName": "node"}
        body = {"driver": DRIVER, **where, "pool": pool, "devices": found, **spec}
        obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": body}
        return await self.client.create(SLICES, obj)

    async def set_owner(self) -> None:
        """Makes the Node the owner of the existing slices, as an earlier instance of the driver does."""
        (node,) = self.server.storage.list("nodes")
        owner = {"apiVersion": "v1", "kind": "Node", "name": "node", "uid": node["metadata"]["uid"], "controller": True}
        for found in (await self.client.list(SLICES))["items"]:
            await self.client.update(SLICES, {**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}})
        self.server.written.clear()

    async def set_pools(self, *pools: Pool | list[str | Device]) -> None:
        created = [
            p if isinstance(p, Pool) else Pool("node", [Device(d) if isinstance(d, str) else d for d in p])
            for p in pools
        ]
        await self.inventory.update(created)

    @contextlib.asynccontextmanager
    async def published(self) -> AsyncIterator[Publisher]:
        async with running_publisher(self.server, self.inventory, scope=self.scope) as publisher:
            await asyncio.wait_for(publisher.current(), 30)
            yield publisher
            await asyncio.wait_for(publisher.current(), 30)

    async def reconcile(self) -> list[str]:
        """Publishes once and returns the methods of the writes in order. Checks that a second run writes nothing."""
        async with self.published():
            pass
        out = [method for method, _ in self.server.written]
        self.server.written.clear()
        async with self.published():
            pass
        assert self.server.written == []
        return out

    def shape(self, pool: str = "node") -> list[tuple[str, int, int, list[str]]]:
        """Returns the name, generation, count and devices of each slice."""
        return [
            (
                s["metadata"]["name"],
                s["spec"]["pool"]["generation"],
                s["spec"]["pool"]["resourceSliceCount"],
                [d["name"] for d in s["spec"].get("devices") or []],
            )
            for s in self.server.slices(pool)
        ]


@contextlib.asynccontextmanager
async def row(role: Role = Role.NODE) -> AsyncIterator[Row]:
    async with scripted_api_server() as server, KubeClient(server.config) as client:
        yield Row(server, client, role)


# --- one pool ---------------------------------------------------------------------------------------


async def test_create() -> None:
    async with row() as r:
        await r.set_pools(["a"])
        assert await r.reconcile() == ["POST"]
        ((name, generation, count, devices),) = r.shape()
        assert name.startswith(f"00000-{DRIVER}-node-")
        assert (generation, count, devices) == (1, 1, ["a"])
        (owner,) = r.server.slices()[0]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", "node", True)


async def test_keep_a_taint_unchanged() -> None:
    async with row() as r:
        created = await r.create_slice("s", [Device("a", taints=[TAINT])])
        await r.set_owner()
        await r.set_pools([Device("a", taints=[TAINT])])
        assert await r.reconcile() == []
        assert created["spec"]["devices"][0]["taints"][0]["timeAdded"]


async def test_add_taints() -> None:
    async with row() as r:
        await r.create_slice("s", [Device("a", taints=[TAINT]), "b"])
        await r.set_owner()
        (before,) = r.server.slices()
        await r.set_pools([Device("a", taints=[TAINT]), Device("b", taints=[TAINT])])
        assert await r.reconcile() == ["PUT"]
        (after,) = r.server.slices()
        assert after["spec"]["devices"][0]["taints"] == before["spec"]["devices"][0]["taints"]
        assert after["spec"]["devices"][1]["taints"][0]["timeAdded"]


async def test_consumable_capacity_dropped() -> None:
    async with row() as r:
        r.server.injected_faults.dropped |= {"allowMultipleAllocations", "requestPolicy"}
        policy = RequestPolicy(default="1Gi", min="1Gi", step="1Gi")
        shared = Device("a", capacity={"memory": Capacity("8Gi", policy=policy)}, allow_multiple_allocations=True)
        await r.set_pools([shared])
        assert await r.reconcile() == ["POST"]
        (device,) = r.server.slices()[0]["spec"]["devices"]
        assert device == {"name": "a", "capacity": {"memory": {"value": "8Gi"}}}, "one claim gets the whole device"
        assert (r.inventory.gates_off, dict(r.inventory.rejected)) == ({Gate.SHARING}, {})


async def test_more_than_one_of_either() -> None:
    async with row() as r:
        r.inventory.slice_size = 2
        await r.create_slice("s", ["a"])
        await r.set_owner()
        await r.set_pools(["x", "y", "z"])
        assert sorted(await r.reconcile()) == ["DELETE", "POST", "POST"]
        assert {(g, n) for _, g, n, _ in r.shape()} == {(2, 2)}
        await r.set_pools(["a"])
        assert sorted(await r.reconcile()) == ["DELETE", "PUT"]
        assert [(n, d) for _, _, n, d in r.shape()] == [(1, ["a"])]


async def test_update_many_devices() -> None:
    async with row() as r:
        r.inventory.slice_size = 128
        await r.set_pools([f"d{i}" for i in range(300)])
        assert await r.reconcile() == ["POST"] * 3
        await r.set_pools([Device(f"d{i}", attributes={"x": i}) for i in range(300)])
        assert await r.reconcile() == ["PUT"] * 3
        assert [(g, n, len(d)) for _, g, n, d in r.shape()] == [(2, 3, 128), (2, 3, 128), (2, 3, 44)]


# --- existing slices of at most two devices ----------------------------------------------------------


class Case(NamedTuple):
    """The existing slices, the wanted devices, the methods of the writes, and the generation and devices of each slice afterwards."""

    existing: dict[str, list[str]]
    fields: dict[str, Any]
    wanted: list[str | Device]
    writes: list[str]
    generation: int
    slices: list[list[str]]


THREE = {f"0000{i}-{DRIVER}-node-x": devices for i, devices in enumerate((["a", "b"], ["c", "d"], ["e", "f"]))}
FIFTH = {"generation": 5, "count": 3}
C, E = (Device(name, attributes={"x": 1}) for name in "ce")
PAIRS = [["a", "b"], ["c", "d"], ["e", "f"]]
CASES = {
    "keep unchanged": Case({"s": ["a"]}, {"generation": 7}, ["a"], [], 7, [["a"]]),
    "one existing and one desired": Case({"s": ["a"]}, {"generation": 3}, ["b"], ["PUT"], 3, [["b"]]),
    "update one": Case({"s": ["c"]}, {}, [C], ["PUT"], 1, [["c"]]),
    "delete redundant": Case({"s": ["a"], "t": ["a"]}, {}, ["a"], ["DELETE"], 1, [["a"]]),
    "no change": Case(THREE, FIFTH, [*"abcdef"], [], 5, PAIRS),
    "one changed": Case(THREE, FIFTH, ["a", "b", C, "d", "e", "f"], ["PUT"], 5, PAIRS),
    "two changed": Case(THREE, FIFTH, ["a", "b", C, "d", E, "f"], ["PUT"] * 3, 6, PAIRS),
    "one removed": Case(THREE, FIFTH, [*"abcd"], ["DELETE", "PUT", "PUT"], 6, PAIRS[:2]),
    "one added": Case(THREE, FIFTH, [*"abcdefg"], ["PUT", "PUT", "PUT", "POST"], 6, [*PAIRS, ["g"]]),
    "random names in order": Case({"aa": ["a", "b"], "zz": ["c", "d"]}, {"count": 2}, [*"abcd"], [], 1, PAIRS[:2]),
}


@pytest.mark.parametrize("name", CASES)
async def test_several_existing(name: str) -> None:
    case = CASES[name]
    async with row() as r:
        r.inventory.slice_size = 2
        for slice_name, devices in case.existing.items():
            await r.create_slice(slice_name, [*devices], **case.fields)
        await r.set_owner()
        await r.set_pools(case.wanted)
        assert await r.reconcile() == case.writes
        assert [(g, n, d) for _, g, n, d in r.shape()] == [
            (case.generation, len(case.slices), devices) for devices in case.slices
        ]
        kept = [n for n, *_ in r.shape() if n in case.existing]
        assert len(kept) == min(len(case.slices), len(case.existing)), "existing slices are not created again"


async def test_several_existing_other_generation_in_the_pool() -> None:
    async with row() as r:
        r.inventory.slice_size = 2
        for name, devices in THREE.items():
            await r.create_slice(name, [*devices], generation=5, count=3)
        await r.create_slice(f"00009-{DRIVER}-node-old", ["a", "b"], generation=4, count=3)
        await r.create_slice("t", ["b"], pool="node-second")
        await r.set_owner()
        await r.set_pools([*"abcdef"])
        assert await r.reconcile() == ["DELETE", "DELETE"]
        assert ({g for _, g, _, _ in r.shape()}, r.shape("node-second")) == ({5}, [])


# --- pools that do not belong to one node ------------------------------------------------------------------------


def selector(kind: str, key: str, *values: str) -> dict[str, Any]:
    return {"nodeSelector": {"nodeSelectorTerms": [{kind: [{"key": key, "operator": "In", "values": [*values]}]}]}}


@pytest.mark.parametrize(
    ("nodes", "fields"),
    [
        (Nodes.all(), {"allNodes": True}),
        (Nodes.matching({"rack": ["a", "b"]}), selector("matchExpressions", "rack", "a", "b")),
        (Nodes.named("node"), selector("matchFields", "metadata.name", "node")),
    ],
    ids=["all nodes", "some nodes", "one node"],
)
async def test_network_device(nodes: Nodes, fields: dict[str, Any]) -> None:
    async with row(Role.CONTROLLER) as r:
        await r.set_pools(Pool("fabric", [Device("nic")], nodes=nodes))
        assert await r.reconcile() == ["POST"]
        (found,) = r.server.slices("fabric")
        assert {k: v for k, v in found["spec"].items() if k in {"allNodes", "nodeName", "nodeSelector"}} == fields


async def test_reconcile_one_named_pool_created_without_node_name() -> None:
    """The publisher also never changes slices that other publishers write for the same driver."""
    async with row(Role.CONTROLLER) as r:
        await r.create_slice("plugin", ["a"], pool="node")
        await r.create_slice("somebody", ["b"], pool="others", allNodes=True)
        r.server.written.clear()
        await r.set_pools(Pool("fabric", [Device("nic")], nodes=Nodes.all()))
        assert await r.reconcile() == ["POST"]
        await r.set_pools()
        assert await r.reconcile() == ["DELETE"]
        assert (len(r.shape("node")), len(r.shape("others"))) == (1, 1)


async def test_reconcile_one_named_pool_created_with_per_device_selection() -> None:
    async with row(Role.CONTROLLER) as r:
        devices = [Device("a", nodes=Nodes.named("node")), Device("b")]
        await r.set_pools(Pool("pool", devices, nodes=Nodes.all()))
        assert await r.reconcile() == ["POST"]
        (found,) = r.server.slices("pool")
        assert found["spec"]["perDeviceNodeSelection"] is True
        assert [{k: v for k, v in d.items() if k != "name"} for d in found["spec"]["devices"]] == [
            {"nodeName": "node"},
            {"allNodes": True},
        ]


async def test_update_a_node_selector() -> None:
    async with row(Role.CONTROLLER) as r:
        await r.set_pools(Pool("pool", [Device("d")], nodes=Nodes.matching({"rack": "a"})))
        await r.reconcile()
        await r.set_pools(Pool("pool", [Device("d")], nodes=Nodes.matching({"rack": "b"})))
        assert await r.reconcile() == ["PUT"]
        (term,) = r.server.slices("pool")[0]["spec"]["nodeSelector"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == ["b"]


# --- fields that depend on feature gates ----------------------------------------------------------------------------

PARTS = [Device(f"part-{i}", consumes_counters={"gpu": {"slices": 1}}) for i in range(3)]
SETS = [CounterSet("gpu", {"slices": 7})]
BINDING = Device("fabric", binding_conditions=["example.com/ready"], binding_failure_conditions=["example.com/failed"])


async def test_partitionable_devices_created() -> None:
    async with row() as r:
        await r.set_pools(Pool("node", [*PARTS, Device("whole")], SETS))
        assert await r.reconcile() == ["POST", "POST"]
        counters, devices = r.server.slices()
        assert (counters["spec"]["sharedCounters"][0]["name"], counters["spec"].get("devices")) == ("gpu", None)
        assert len(devices["spec"]["devices"]) == 4


async def test_partitionable_devices_dropped_by_the_server() -> None:
    async with row() as r:
        r.server.injected_faults.dropped |= {"sharedCounters", "consumesCounters"}
        await r.set_pools(Pool("node", [*PARTS, Device("whole")], SETS))
        assert await r.reconcile() == ["POST"]
        assert r.shape()[0][3] == ["whole"]
        assert set(r.inventory.rejected) == {"part-0", "part-1", "part-2"}
        r.server.injected_faults.dropped.clear()
        assert await r.reconcile() == ["PUT", "POST"], "the publisher checks an upgraded server again"
        assert r.inventory.rejected == {}


async def test_binding_conditions_created() -> None:
    async with row() as r:
        await r.set_pools([BINDING])
        assert await r.reconcile() == ["POST"]
        assert r.server.slices()[0]["spec"]["devices"][0]["bindingConditions"] == ["example.com/ready"]


# --- detected before sending ------------------------------------------------------------------------


async def test_detected_before_sending_duplicate_counter_set() -> None:
    async with row() as r:
        await r.set_pools(Pool("node", [*PARTS, Device("whole")], [*SETS, *SETS]))
        await r.reconcile()
        assert r.shape()[0][3] == ["whole"]
        assert set(r.inventory.rejected) == {"counter_sets[1]", "counter set gpu", "part-0", "part-1", "part-2"}


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("zz", "aa"), ("zz", f"00000-{DRIVER}-node-x")], ids=["random names", "a mix"])
async def test_migration_to_indexed_names(names: tuple[str, str]) -> None:
    async with row() as r:
        r.inventory.slice_size = 2
        await r.create_slice(names[0], ["a", "b"], count=2)
        await r.create_slice(names[1], ["c", "d"], count=2)
        await r.set_owner()
        await r.set_pools([*"abcd"])
        await r.reconcile()
        assert [(n[:6], d) for n, _, _, d in r.shape()] == [("00000-", ["a", "b"]), ("00001-", ["c", "d"])]
