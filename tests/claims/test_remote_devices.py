"""Claims with devices of pools that another process publishes: the plugin reads them from slices, for this node only,
with one list for all claims.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import AllocatedDevice, Claim, ContainerEdits, Device, Driver, Pool, PreparedDevice, Version
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.claims.device_lookup import DeviceLookup
from dra_kubeletplugin.claims.remote_devices import RemoteDevice
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.pool_state import GONE
from dra_kubeletplugin.errors import (
    ApiError,
    ApiUnavailableError,
    DeviceGoneError,
    DevicesUnknownError,
    DraError,
    OverdrawnError,
    WrongNodeError,
)
from dra_kubeletplugin.kube.decoding import Metadata, Page
from dra_kubeletplugin.kube.errors import NotFoundError, api_error
from dra_kubeletplugin.resourceapi.quantity import Quantity
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

NAME = "fabric.example.com"
EVERYWHERE = {"allNodes": True}
HERE = {"nodeName": "node"}
THERE = {"nodeName": "there"}


def label_selector(key: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": "In", "values": list(values)}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def name_selector(name: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}


class FabricDriver(Driver):
    """Records the devices of the claims that it prepares."""

    name = NAME

    def __init__(self) -> None:
        self.devices_prepared: dict[str, Any] = {}

    async def devices(self) -> list[Device]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            self.devices_prepared[d.name] = d.device
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]


def make_slice(
    *devices: dict[str, Any], pool: str = "fabric", generation: int = 1, count: int = 1, number: int = 0, **spec: Any
) -> dict[str, Any]:
    nodes_field = {} if {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"} & spec.keys() else EVERYWHERE
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{pool}-{number}", "uid": f"{pool}-{number}", "resourceVersion": "1"},
        "spec": {
            "driver": NAME,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
            **nodes_field,
            **spec,
        },
    }


def allocate_claim(
    api: FakeApiServer, device: str, pool: str = "fabric", uid: str = "", **result: Any
) -> ClaimIdentity:
    uid = uid or f"u-{device}"
    return api.allocate(f"c-{uid}", uid, device, NAME, pool=pool, **result)


async def test_a_device_is_prepared_with_the_attributes_of_its_slice(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [
        make_slice(
            {
                "name": "f-0",
                "attributes": {
                    "model": {"string": "f"}, "index": {"int": 3}, "fast": {"bool": True}, "fw": {"version": "1.2.3"},
                    "racks": {"strings": ["r1", "r2"]},
                },
                "capacity": {"lanes": {"value": "16", "requestPolicy": {"default": "2"}}},
                "taints": [{"key": "k", "effect": "None", "timeAdded": "2026-01-01T00:00:00Z"}],
                "consumesCounters": [{"counterSet": "s", "counters": {"links": {"value": "1"}}}],
            }
        ),
        make_slice(pool="fabric", number=1, devices=[], sharedCounters=[{"name": "s", "counters": {"links": {"value": "2"}}}]),
    ]  # fmt: skip
    for s in api.slices:
        s["spec"]["pool"]["resourceSliceCount"] = 2
    driver = FabricDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        response = await manager.prepare(allocate_claim(api, "f-0"))
        assert not isinstance(response, DraError), response
        assert [(a.pool, a.device) for a in response] == [("fabric", "f-0")]
        device = driver.devices_prepared["f-0"]
        assert dict(device.attributes) == {
            "model": "f", "index": 3, "fast": True, "fw": Version("1.2.3"), "racks": ["r1", "r2"]
        }  # fmt: skip
        assert device.json()["capacity"]["lanes"]["value"] == "16"
        assert {s: dict(c) for s, c in device.consumes_counters.items()} == {"s": {"links": "1"}}
        assert device.data is None
        assert await manager.unprepare(allocate_claim(api, "f-0")) == ()


async def test_one_list_serves_all_devices_of_a_claim_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dra_kubeletplugin.claims.remote_devices._MAX_AGE", 0.0
    )  # as if each list took longer than its maximum age
    api = FakeApiServer()
    api.slices = [make_slice(*({"name": f"f-{i}"} for i in range(8)))]
    ref = allocate_claim(api, "f-0", uid="u")
    results = api.claims[ref.name]["status"]["allocation"]["devices"]["results"]
    results += [{**results[0], "device": f"f-{i}"} for i in range(1, 8)]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        response = await manager.prepare(ref)
        assert not isinstance(response, DraError), response
        assert len(response) == 8
        assert len(api.listed) == 1


async def test_one_list_serves_all_claims_of_a_call_and_a_device_of_the_inventory_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.remote_devices._MAX_AGE", 600.0)  # also on a slow machine
    api = FakeApiServer()
    api.slices = [make_slice(*({"name": f"f-{i}"} for i in range(32)))]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        own_refs = [allocate_claim(api, f"d-{i}", pool="node") for i in range(32)]
        responses = await manager.claims.prepare(own_refs)
        assert not any(isinstance(a, DraError) for a in responses.values()), responses
        assert api.listed == []
        refs = [allocate_claim(api, f"f-{i}") for i in range(32)]
        responses = await manager.claims.prepare(refs)
        assert not any(isinstance(a, DraError) for a in responses.values()), responses
        assert len(api.listed) == 1


async def test_a_device_that_was_missing_is_found_when_its_slice_exists(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [make_slice({"name": "f-0"})]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)
        assert isinstance(await manager.prepare(allocate_claim(api, "f-1")), DeviceGoneError)
        api.slices = [make_slice({"name": "f-0"}, {"name": "f-1"}, generation=2)]
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-1")), DraError)


@pytest.mark.parametrize("status", [0, 403, 500, 503])
async def test_an_unknown_device_is_a_retryable_error_while_the_slices_cannot_be_read(
    tmp_path: Path, status: int
) -> None:
    class RefusingApiServer(FakeApiServer):
        is_refusing = True

        async def page(self, *args: Any, **kwargs: Any) -> Any:
            if self.is_refusing:
                raise api_error("no", status)
            return await super().page(*args, **kwargs)

    api = RefusingApiServer()
    api.slices = [make_slice({"name": "f-0"})]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        response = await manager.prepare(allocate_claim(api, "f-0"))
        assert isinstance(response, ApiUnavailableError)
        assert "its ResourceSlices cannot be read now" in str(response)
        api.is_refusing = False
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)
        api.is_refusing = True
        manager.claims.engine.verifier.slices._unbound_slices._task = None
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError), (
            "a repetition needs no slice"
        )


async def test_the_wait_for_a_list_is_as_short_as_for_a_repeated_prepare(
    tmp_path: Path,
) -> None:
    class SilentApiServer(FakeApiServer):
        is_silent = False

        async def page(self, *args: Any, **kwargs: Any) -> Any:
            if self.is_silent:
                await asyncio.Event().wait()
            return await super().page(*args, **kwargs)

    api = SilentApiServer()
    api.slices = [make_slice({"name": "f-0"})]
    async with running_manager(tmp_path, FabricDriver(), api, call_timeout=600) as manager:
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)
        api.is_silent = True
        manager.claims.engine.verifier.slices._unbound_slices._task = None
        async with asyncio.timeout(100):
            assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)


NODES: dict[str, tuple[dict[str, Any], bool]] = {
    "all nodes": (EVERYWHERE, True),
    "a node's name": (name_selector("node"), True),
    "another node's name": (name_selector("there"), False),
    "a label of the node": (label_selector("rack", "r1", "r2"), True),
    "a label of others": (label_selector("rack", "r3"), False),
    "a label that it has not": (label_selector("zone", "z"), False),
}


@pytest.mark.parametrize("per_device", [False, True], ids=["for the slice", "by device"])
@pytest.mark.parametrize(("nodes", "is_for_this_node"), NODES.values(), ids=NODES)
async def test_a_slice_or_device_must_be_for_this_node(
    tmp_path: Path, nodes: dict[str, Any], is_for_this_node: bool, per_device: bool
) -> None:
    api = FakeApiServer()
    api.nodes = {"node": {"rack": "r1"}}
    device = {"name": "f-0", **(nodes if per_device else {})}
    api.slices = [make_slice(device, **({"perDeviceNodeSelection": True} if per_device else nodes))]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        response = await manager.prepare(allocate_claim(api, "f-0"))
        assert isinstance(response, WrongNodeError) is not is_for_this_node, response
        if not is_for_this_node:
            assert "f-0 of pool fabric is not available on node node" in str(response)
    assert api.nodes_read <= 2
    assert bool(api.nodes_read) == ("matchExpressions" in str(nodes))


async def test_a_new_label_of_the_node_is_used(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.nodes = {"node": {}}
    api.slices = [make_slice({"name": "f-0"}, **label_selector("rack", "r1"))]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert isinstance(await manager.prepare(allocate_claim(api, "f-0")), WrongNodeError)
        api.nodes = {"node": {"rack": "r1"}}
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)


async def test_a_pool_without_a_slice_for_this_node_belongs_to_another_node(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [make_slice({"name": "f-0"}, pool="there", **THERE)]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        response = await manager.prepare(allocate_claim(api, "f-0", pool="there"))
        assert isinstance(response, WrongNodeError)
        assert "pool there, which is neither a pool of node node" in str(response)


async def test_slices_of_this_node_are_used_only_while_another_instance_runs_to_publish_them(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [make_slice({"name": "f-0"}, pool="other", **HERE)]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert isinstance(await manager.prepare(allocate_claim(api, "f-0", pool="other")), WrongNodeError)
        async with running_manager(tmp_path, FabricDriver(), api):
            assert not isinstance(await manager.prepare(allocate_claim(api, "f-0", pool="other")), DraError)


async def test_a_missing_device_of_an_incomplete_pool_is_unknown_and_not_gone(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [
        make_slice({"name": "f-0"}, generation=2, count=2),
        make_slice({"name": "f-1"}, generation=1, number=1),
    ]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert isinstance(await manager.prepare(allocate_claim(api, "f-1")), DevicesUnknownError)
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)


async def test_a_device_with_the_taint_for_vanished_devices_is_gone(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [make_slice({"name": "f-0", "taints": [GONE.json()]})]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert isinstance(await manager.prepare(allocate_claim(api, "f-0")), DeviceGoneError)


async def test_shares_and_partitions_of_remote_devices_have_the_same_limits_as_local_ones(tmp_path: Path) -> None:
    api = FakeApiServer()
    draws = {"consumesCounters": [{"counterSet": "s", "counters": {"links": {"value": "3"}}}]}
    api.slices = [
        make_slice(
            {"name": "shared", "allowMultipleAllocations": True, "capacity": {"lanes": {"value": "8"}}},
            {"name": "p-0", **draws}, {"name": "p-1", **draws},
            count=2,
        ),
        make_slice(number=1, count=2, devices=[], sharedCounters=[{"name": "s", "counters": {"links": {"value": "5"}}}]),
    ]  # fmt: skip
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        first = allocate_claim(api, "shared", uid="s1", shareID="one", consumedCapacity={"lanes": "6"})
        second = allocate_claim(api, "shared", uid="s2", shareID="two", consumedCapacity={"lanes": "3"})
        assert not isinstance(await manager.prepare(first), DraError)
        error = await manager.prepare(second)
        assert isinstance(error, OverdrawnError)
        assert "3 of capacity lanes of device shared in pool fabric are requested and 8 exist" in str(error)
        assert not isinstance(await manager.prepare(allocate_claim(api, "p-0")), DraError)
        error = await manager.prepare(allocate_claim(api, "p-1"))
        assert isinstance(error, OverdrawnError)
        assert (
            "3 of counter links in counter set s of pool fabric are requested and 5 exist, of which 3 are held"
            in str(error)
        )
        for ref in (first, allocate_claim(api, "p-0")):
            assert await manager.unprepare(ref) == ()
        assert not isinstance(await manager.prepare(second), DraError)
        assert not isinstance(await manager.prepare(allocate_claim(api, "p-1")), DraError)


async def test_a_vanished_remote_device_is_not_published_by_this_plugin(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [make_slice({"name": "f-0"})]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)
        held_devices = await manager.claims.held()
        assert held_devices == {("fabric", "f-0"): {}}
        await manager.inventory.update([], held_devices)
        assert not manager.inventory.has_gone


any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda v: st.lists(v, max_size=2) | st.dictionaries(st.sampled_from(["name", "value", "key", "nodeSelectorTerms"]), v),
    max_leaves=4,
)  # fmt: skip
FIELDS = ["attributes", "capacity", "taints", "consumesCounters", "nodeSelector", "nodeName", "allNodes", "bindingConditions"]  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(device=st.dictionaries(st.sampled_from(FIELDS), any_value, max_size=3), spec=st.dictionaries(
    st.sampled_from(["devices", "sharedCounters", "nodeSelector", "perDeviceNodeSelection"]), any_value, max_size=2))  # fmt: skip
async def test_a_slice_with_any_content_fails_only_the_claim_that_needs_it(
    tmp_path_factory: pytest.TempPathFactory, device: dict[str, Any], spec: dict[str, Any]
) -> None:
    api = FakeApiServer()
    api.nodes = {"node": {}}
    api.slices = [make_slice({"name": "f-0", **device}, **spec), make_slice({"name": "g-0"}, pool="good")]
    async with running_manager(tmp_path_factory.mktemp("odd"), FabricDriver(), api) as manager:
        response = await manager.prepare(allocate_claim(api, "f-0"))
        assert not isinstance(response, DraError) or response.code != "DRA-E000", response
        assert not isinstance(await manager.prepare(allocate_claim(api, "g-0", pool="good")), DraError)


async def test_no_slices_are_kept_in_memory_without_claims_that_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.remote_devices._TIMEOUT", 5.0)
    monkeypatch.setattr("dra_kubeletplugin.claims.remote_devices._MAX_AGE", 0.1)
    api = FakeApiServer()
    api.slices = [make_slice({"name": "f-0"})]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)
        slices_cache = manager.claims.engine.verifier.slices._unbound_slices
        async with asyncio.timeout(30):
            while slices_cache._task is not None:
                await asyncio.sleep(0.02)


async def test_a_local_device_that_vanishes_while_slices_are_read_causes_no_internal_error(
    tmp_path: Path,
) -> None:
    api = FakeApiServer()
    api.slices = [make_slice({"name": "f-0"})]
    ref = allocate_claim(api, "d-0", pool="node", uid="u")
    results = api.claims[f"c-{ref.uid}"]["status"]["allocation"]["devices"]["results"]
    results.append(results[0] | {"pool": "fabric", "device": "f-0", "request": "s"})
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        page = api.page

        async def update_and_list(*args: Any, **kwargs: Any) -> Any:
            await manager.inventory.update([])
            return await page(*args, **kwargs)

        api.page = update_and_list  # type: ignore[method-assign]
        response = await manager.prepare(ref)
        assert not isinstance(response, DraError), response
        assert {a.device for a in response} == {"d-0", "f-0"}


async def test_a_node_that_may_not_be_read_is_logged_once_and_the_kubelet_counts_as_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    api.slices = [make_slice({"name": "f-0"}, **label_selector("rack", "r1"))]
    api.forbidden = True
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        lookup = manager.claims.engine.verifier.slices
        for _ in range(2):
            assert await lookup.kubelet_is_away() is False
            lookup._node_object._task = None
        assert not isinstance(await manager.prepare(allocate_claim(api, "f-0")), DraError)
    assert caplog.text.count("cannot read this node") == 1


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (None, True),
        ({}, True),
        ({"status": None}, True),
        ({"status": {"conditions": None}}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, True),
        ({"status": {"conditions": [{"type": "Other", "status": "True"}]}}, True),
        (
            {"status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}},
            False,
        ),
        ({"status": {"conditions": [5]}}, ApiError),
        ({"status": 7}, ApiError),
    ],
)
async def test_the_kubelet_is_ready_only_if_its_node_is_ready(tmp_path: Path, node: Any, expected: Any) -> None:
    api = FakeApiServer()

    async def get(*_: Any, **__: Any) -> Any:
        if node is None:
            raise NotFoundError("no such node")
        return node

    api.get = get  # type: ignore[method-assign]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        is_kubelet_away = manager.claims.engine.verifier.slices.kubelet_is_away
        if isinstance(expected, bool):
            assert await is_kubelet_away() is expected
        else:
            with pytest.raises(ApiError, match="is not a Node"):
                await is_kubelet_away()


@pytest.mark.parametrize("body", [{}, {"spec": {}}, {"spec": {"pool": {"name": 7}}}, []])
async def test_a_list_of_another_kind_is_an_error_of_the_server(tmp_path: Path, body: Any) -> None:
    class InvalidApiServer(FakeApiServer):
        async def page(self, *args: Any, **kwargs: Any) -> Page:
            return Page(Metadata("1"), [msgspec.Raw(msgspec.json.encode(body))])

    api = InvalidApiServer()
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        response = await manager.prepare(allocate_claim(api, "f-0"))
        assert isinstance(response, ApiUnavailableError)
        assert "is not a ResourceSlice" in str(response)


async def test_the_newest_of_two_generations_of_a_pool_is_used_in_any_order_of_the_slices(tmp_path: Path) -> None:
    for numbers in ((1, 2), (2, 1)):
        api = FakeApiServer()
        api.slices = [make_slice({"name": f"g{g}"}, generation=g, number=g) for g in numbers]
        async with running_manager(tmp_path / str(numbers[0]), FabricDriver(), api) as manager:
            assert isinstance(await manager.prepare(allocate_claim(api, "g1")), DeviceGoneError)
            assert not isinstance(await manager.prepare(allocate_claim(api, "g2")), DraError)


def test_counters_and_capacity_of_a_claim_s_devices_come_from_their_own_pools() -> None:
    inventory = Inventory("node")
    lookup = DeviceLookup(inventory)
    for pool, name, amount in (("p", "a", "4"), ("q", "b", "9")):
        device = Device(name, capacity={"m": amount}, consumes_counters={"s": {"c": "1"}})
        lookup.add(pool, RemoteDevice(device, {"s": {"c": amount}, f"only-{pool}": {"c": "1"}}))
    assert [lookup.counters(pool, "s") for pool in "pq"] == [{"c": "4"}, {"c": "9"}]
    assert lookup.counters("q", "only-p") is None
    assert [lookup.capacity(*pool_and_name) for pool_and_name in (("p", "a"), ("q", "b"), ("q", "a"))] == [
        {"m": "4"},
        {"m": "9"},
        None,
    ]
    assert lookup.draws("p", "a") == {"s": {"c": "1"}}
    assert lookup.draws("q", "a") is None


async def test_the_entry_of_a_device_has_its_amounts_and_the_description_of_a_local_device() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("b")])])
    lookup = DeviceLookup(inventory)
    remote_device = Device("a", consumes_counters={"s": {"c": "1"}})
    lookup.add("p", RemoteDevice(remote_device, {}))
    fields = {"admin_access": False, "config": None, "config_source": "", "device": remote_device}
    for share, capacity in ((None, {}), ("x", {"capacity": {"m": "2"}})):
        device = AllocatedDevice(
            request="r", pool="p", name="a", share_id=share, consumed_capacity={"m": Quantity("2")}, **fields
        )
        entry = lookup.entry(device)
        assert entry["takes"] == {"counters": {"s": {"c": "1"}}} | capacity
        assert "published" not in entry
    local_device = AllocatedDevice(request="r", pool="node", name="b", share_id=None, consumed_capacity={}, **fields)
    assert lookup.entry(local_device)["takes"] == {}
    assert "published" in lookup.entry(local_device)
