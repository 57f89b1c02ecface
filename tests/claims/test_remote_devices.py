"""Claims with devices of pools that another process publishes: the plugin reads them from slices, for this node only,
with one list for all claims.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice, Version
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.devices.pool_state import GONE
from dra_kubeletplugin.errors import (
    ApiUnavailableError,
    DeviceGoneError,
    DevicesUnknownError,
    DraError,
    OverdrawnError,
    WrongNodeError,
)
from dra_kubeletplugin.kube.decoding import Metadata, Page
from dra_kubeletplugin.kube.errors import NotFoundError, api_error
from tests.helpers.crash.claim_manager import FakeApiServer, check_success, running_manager

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

NAME = "fabric.example.com"
EVERYWHERE = {"allNodes": True}


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
            self.devices_prepared[d.name] = d.published
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]


class FabricApiServer(FakeApiServer):
    """Has slices, or returns ``fault`` or ``content`` in place of them."""

    fault: Exception | None = None
    content: Any = None

    def __init__(self, *slices: dict[str, Any]) -> None:
        super().__init__()
        self.slices = list(slices)

    async def page(self, *args: Any, **kwargs: Any) -> Page:
        if self.fault:
            raise self.fault
        found = await super().page(*args, **kwargs)
        return found if self.content is None else Page(Metadata("1"), [msgspec.Raw(msgspec.json.encode(self.content))])


def make_slice(
    *devices: dict[str, Any], pool: str = "fabric", generation: int = 1, count: int = 1, number: int = 0, **spec: Any
) -> dict[str, Any]:
    nodes_field = {} if {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"} & spec.keys() else EVERYWHERE
    pool_field = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{pool}-{number}", "uid": f"{pool}-{number}", "resourceVersion": "1"},
        "spec": {"driver": NAME, "pool": pool_field, "devices": list(devices), **nodes_field, **spec},
    }


def allocate_claim(
    api: FakeApiServer, device: str = "f-0", pool: str = "fabric", uid: str = "", **result: Any
) -> ClaimIdentity:
    uid = uid or f"u-{device}"
    return api.allocate(f"c-{uid}", uid, device, NAME, pool=pool, **result)


async def test_a_device_is_prepared_with_the_attributes_of_its_slice_and_not_published_by_this_plugin(
    tmp_path: Path,
) -> None:
    described = {
        "attributes": {
            "model": {"string": "f"}, "index": {"int": 3}, "fast": {"bool": True}, "fw": {"version": "1.2.3"},
            "racks": {"strings": ["r1", "r2"]},
        },
        "capacity": {"lanes": {"value": "16", "requestPolicy": {"default": "2"}}},
        "taints": [{"key": "k", "effect": "None", "timeAdded": "2026-01-01T00:00:00Z"}],
    }  # fmt: skip
    api, driver = FabricApiServer(make_slice({"name": "f-0", **described})), FabricDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        await check_success(manager.prepare(allocate_claim(api)))
        device = driver.devices_prepared["f-0"]
        attributes = {"model": "f", "index": 3, "fast": True, "fw": Version("1.2.3"), "racks": ["r1", "r2"]}
        assert dict(device.attributes) == attributes
        assert (device.json()["capacity"]["lanes"]["value"], device.data) == ("16", None)
        held_devices = await manager.claims.held()
        assert held_devices == {("fabric", "f-0"): {}}
        await manager.inventory.update([], held_devices)
        assert not manager.inventory.has_gone
        assert await manager.unprepare(allocate_claim(api)) == ()


async def test_one_list_serves_all_claims_of_a_call_and_a_device_of_the_inventory_needs_none(
    tmp_path: Path,
) -> None:
    api = FabricApiServer(make_slice(*({"name": f"f-{i}"} for i in range(33))))
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        for device, pool, lists in (("d", "node", 0), ("f", "fabric", 1)):
            refs = [allocate_claim(api, f"{device}-{i}", pool) for i in range(32)]
            responses = await manager.claims.prepare(refs)
            assert not any(isinstance(a, DraError) for a in responses.values()), responses
            assert len(api.listed) == lists


async def test_a_device_that_was_missing_is_found_when_its_slice_exists(tmp_path: Path) -> None:
    api = FabricApiServer(make_slice({"name": "f-0"}))
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        await check_success(manager.prepare(allocate_claim(api)))
        assert isinstance(await manager.prepare(allocate_claim(api, "f-1")), DeviceGoneError)
        api.slices = [make_slice({"name": "f-0"}, {"name": "f-1"}, generation=2)]
        await check_success(manager.prepare(allocate_claim(api, "f-1")))


@pytest.mark.parametrize(
    ("fault", "content", "text"),
    [
        (api_error("no", 0), None, "its ResourceSlices cannot be read now: no"),
        (api_error("no", 403), None, "its ResourceSlices cannot be read now: no"),
        (TimeoutError(), None, "its ResourceSlices cannot be read now: no response within 8 s"),
        (None, {"spec": {"pool": {"name": 7}}}, "is not a ResourceSlice"),
        (None, [], "is not a ResourceSlice"),
    ],
)
async def test_a_device_is_a_retryable_error_while_the_slices_cannot_be_read_and_a_repetition_needs_none(
    tmp_path: Path, fault: Exception | None, content: Any, text: str
) -> None:
    api = FabricApiServer(make_slice({"name": "f-0"}))
    for fault_now, content_now in ((fault, content), (None, None), (fault, content)):
        api.fault, api.content = fault_now, content_now
        async with running_manager(tmp_path, FabricDriver(), api) as manager:
            response = await manager.prepare(allocate_claim(api))
        assert isinstance(response, ApiUnavailableError) == (text != ""), response
        assert text in str(response)
        text = ""


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
    device = {"name": "f-0", **(nodes if per_device else {})}
    api = FabricApiServer(make_slice(device, **({"perDeviceNodeSelection": True} if per_device else nodes)))
    api.nodes = {"node": {"rack": "r1"}}
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        response = await manager.prepare(allocate_claim(api))
        assert isinstance(response, WrongNodeError) is not is_for_this_node, response
        if not is_for_this_node:
            assert "f-0 of pool fabric is not available on node node" in str(response)
    assert api.nodes_read <= 2
    assert bool(api.nodes_read) == ("matchExpressions" in str(nodes))


async def test_slices_of_this_node_are_used_only_while_another_instance_runs_to_publish_them(tmp_path: Path) -> None:
    api = FabricApiServer(make_slice({"name": "f-0"}, nodeName="node"))
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        response = await manager.prepare(allocate_claim(api))
        assert isinstance(response, WrongNodeError)
        assert "pool fabric, which is neither a pool of node node" in str(response)
        async with running_manager(tmp_path, FabricDriver(), api):
            await check_success(manager.prepare(allocate_claim(api)))


@pytest.mark.parametrize(
    ("slices", "error"),
    [
        ([make_slice({"name": "f-0"}, nodeName="there")], WrongNodeError),
        ([make_slice({"name": "f-0", "taints": [GONE.json()]})], DeviceGoneError),
        ([make_slice({"name": "f-1"}, generation=2), make_slice({"name": "f-0"}, number=1)], DeviceGoneError),
        ([make_slice({"name": "f-0"}, number=1), make_slice({"name": "f-1"}, generation=2)], DeviceGoneError),
        ([make_slice({"name": "f-1"}, generation=2, count=2), make_slice({"name": "f-0"})], DevicesUnknownError),
        ([make_slice({"name": "f-0", "attributes": 7}), make_slice({"name": "f-1"}, number=1)], DevicesUnknownError),
    ],
    ids=["of another node", "vanished", "old slice last", "old slice first", "incomplete pool", "unreadable"],
)
async def test_a_device_that_the_newest_slices_do_not_have_for_this_node_is_refused_with_the_reason(
    tmp_path: Path, slices: list[dict[str, Any]], error: type[DraError]
) -> None:
    api = FabricApiServer(*slices)
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert type(await manager.prepare(allocate_claim(api))) is error
        if len(slices) > 1:
            await check_success(manager.prepare(allocate_claim(api, "f-1")))


async def test_shares_and_partitions_of_remote_devices_have_the_same_limits_as_local_ones(tmp_path: Path) -> None:
    draws = {"consumesCounters": [{"counterSet": "s", "counters": {"links": {"value": "3"}}}]}
    api = FabricApiServer(
        make_slice(
            {"name": "shared", "allowMultipleAllocations": True, "capacity": {"lanes": {"value": "8"}}},
            {"name": "p-0", **draws}, {"name": "p-1", **draws},
            count=2,
        ),
        make_slice(number=1, count=2, devices=[], sharedCounters=[{"name": "s", "counters": {"links": {"value": "5"}}}]),
    )  # fmt: skip
    first = allocate_claim(api, "shared", uid="s1", shareID="one", consumedCapacity={"lanes": "6"})
    second = allocate_claim(api, "shared", uid="s2", shareID="two", consumedCapacity={"lanes": "3"})
    cases = (
        (first, second, "3 of capacity lanes of device shared in pool fabric are requested and 8 exist"),
        (allocate_claim(api, "p-0"), allocate_claim(api, "p-1"), "3 of counter links in counter set s of pool fabric are requested and 5"),
    )  # fmt: skip
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        for holder, other, text in cases:
            await check_success(manager.prepare(holder))
            error = await manager.prepare(other)
            assert isinstance(error, OverdrawnError)
            assert text in str(error)
            await check_success(manager.unprepare(holder))
            await check_success(manager.prepare(other))


async def test_a_local_device_that_vanishes_while_slices_are_read_causes_no_internal_error(tmp_path: Path) -> None:
    api = FabricApiServer(make_slice({"name": "f-0"}))
    ref = allocate_claim(api, "d-0", pool="node")
    results = api.claims[ref.name]["status"]["allocation"]["devices"]["results"]
    results.append(results[0] | {"pool": "fabric", "device": "f-0", "request": "s"})
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        page = api.page

        async def update_and_list(*args: Any, **kwargs: Any) -> Any:
            await manager.inventory.update([])
            return await page(*args, **kwargs)

        api.page = update_and_list  # type: ignore[method-assign]
        await check_success(manager.prepare(ref))


async def test_a_node_that_may_not_be_read_is_logged_once_and_the_kubelet_counts_as_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FabricApiServer(make_slice({"name": "f-0"}, **label_selector("rack", "r1")))
    api.forbidden = True
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert await manager.claims.engine.verifier.slices.kubelet_is_away() is False
        await check_success(manager.prepare(allocate_claim(api)))
        assert await manager.claims.engine.verifier.slices.kubelet_is_away() is False
    assert caplog.text.count("cannot read this node") == 1


@pytest.mark.parametrize(
    ("node", "is_away"),
    [
        (None, True),
        ({}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, True),
        ({"status": {"conditions": [{"type": "Other", "status": "True"}]}}, True),
        ({"status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}}, False),
    ],
)  # fmt: skip
async def test_the_kubelet_is_away_unless_its_node_is_ready(tmp_path: Path, node: Any, is_away: bool) -> None:
    api = FabricApiServer()

    async def get(*_: Any, **__: Any) -> Any:
        if node is None:
            raise NotFoundError("no such node")
        return node

    api.get = get  # type: ignore[method-assign]
    async with running_manager(tmp_path, FabricDriver(), api) as manager:
        assert await manager.claims.engine.verifier.slices.kubelet_is_away() is is_away
