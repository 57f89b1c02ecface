"""Claims of pools that another process publishes: read from slices, for this node only, with one list for all who ask."""

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
from dra_kubeletplugin.devices.pool_content import GONE
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


def labelled(key: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": "In", "values": list(values)}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def named(name: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}


class Fabric(Driver):
    """Remembers the devices of the claims that it was given."""

    name = NAME

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    async def devices(self) -> list[Device]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            self.given[d.name] = d.device
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]


def a_slice(
    *devices: dict[str, Any], pool: str = "fabric", generation: int = 1, count: int = 1, number: int = 0, **spec: Any
) -> dict[str, Any]:
    where = {} if {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"} & spec.keys() else EVERYWHERE
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{pool}-{number}", "uid": f"{pool}-{number}", "resourceVersion": "1"},
        "spec": {
            "driver": NAME,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
            **where,
            **spec,
        },
    }


def asks(api: FakeApiServer, device: str, pool: str = "fabric", uid: str = "", **result: Any) -> ClaimIdentity:
    uid = uid or f"u-{device}"
    return api.allocate(f"c-{uid}", uid, device, NAME, pool=pool, **result)


async def test_a_device_that_only_a_slice_describes_is_prepared_as_the_slice_has_it(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [
        a_slice(
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
        a_slice(pool="fabric", number=1, devices=[], sharedCounters=[{"name": "s", "counters": {"links": {"value": "2"}}}]),
    ]  # fmt: skip
    for s in api.slices:
        s["spec"]["pool"]["resourceSliceCount"] = 2
    driver = Fabric()
    async with running_manager(tmp_path, driver, api) as one:
        answer = await one.prepare(asks(api, "f-0"))
        assert not isinstance(answer, DraError), answer
        assert [(a.pool, a.device) for a in answer] == [("fabric", "f-0")]
        device = driver.given["f-0"]
        assert dict(device.attributes) == {
            "model": "f", "index": 3, "fast": True, "fw": Version("1.2.3"), "racks": ["r1", "r2"]
        }  # fmt: skip
        assert device.json()["capacity"]["lanes"]["value"] == "16"
        assert {s: dict(c) for s, c in device.consumes_counters.items()} == {"s": {"links": "1"}}
        assert device.data is None
        assert await one.unprepare(asks(api, "f-0")) == ()


async def test_one_list_serves_all_devices_of_a_claim_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dra_kubeletplugin.claims.remote_devices._MAX_AGE", 0.0
    )  # as if each list took longer than it is fresh
    api = FakeApiServer()
    api.slices = [a_slice(*({"name": f"f-{i}"} for i in range(8)))]
    ref = asks(api, "f-0", uid="u")
    results = api.claims[ref.name]["status"]["allocation"]["devices"]["results"]
    results += [{**results[0], "device": f"f-{i}"} for i in range(1, 8)]
    async with running_manager(tmp_path, Fabric(), api) as one:
        answer = await one.prepare(ref)
        assert not isinstance(answer, DraError), answer
        assert len(answer) == 8
        assert len(api.listed) == 1


async def test_one_list_serves_all_claims_of_a_call_and_a_device_of_the_inventory_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.remote_devices._MAX_AGE", 600.0)  # however slow this machine is
    api = FakeApiServer()
    api.slices = [a_slice(*({"name": f"f-{i}"} for i in range(32)))]
    async with running_manager(tmp_path, Fabric(), api) as one:
        own = [asks(api, f"d-{i}", pool="node") for i in range(32)]
        answers = await one.claims.prepare(own)
        assert not any(isinstance(a, DraError) for a in answers.values()), answers
        assert api.listed == []
        refs = [asks(api, f"f-{i}") for i in range(32)]
        answers = await one.claims.prepare(refs)
        assert not any(isinstance(a, DraError) for a in answers.values()), answers
        assert len(api.listed) == 1


async def test_a_device_that_was_missing_a_moment_ago_is_found_when_it_is_there(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"})]
    async with running_manager(tmp_path, Fabric(), api) as one:
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)
        assert isinstance(await one.prepare(asks(api, "f-1")), DeviceGoneError)
        api.slices = [a_slice({"name": "f-0"}, {"name": "f-1"}, generation=2)]
        assert not isinstance(await one.prepare(asks(api, "f-1")), DraError)


@pytest.mark.parametrize("status", [0, 403, 500, 503])
async def test_an_unknown_device_is_tried_again_while_the_slices_cannot_be_read(tmp_path: Path, status: int) -> None:
    class Refusing(FakeApiServer):
        refuses = True

        async def page(self, *args: Any, **kwargs: Any) -> Any:
            if self.refuses:
                raise api_error("no", status)
            return await super().page(*args, **kwargs)

    api = Refusing()
    api.slices = [a_slice({"name": "f-0"})]
    async with running_manager(tmp_path, Fabric(), api) as one:
        answer = await one.prepare(asks(api, "f-0"))
        assert isinstance(answer, ApiUnavailableError)
        assert "its ResourceSlices cannot be read now" in str(answer)
        api.refuses = False
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)
        api.refuses = True
        one.claims.engine.verifier.slices._unbound_slices._task = None
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError), "a repetition needs no slice"


async def test_a_server_that_does_not_answer_the_list_is_waited_for_no_longer_than_a_repetition_may_take(
    tmp_path: Path,
) -> None:
    class Silent(FakeApiServer):
        silent = False

        async def page(self, *args: Any, **kwargs: Any) -> Any:
            if self.silent:
                await asyncio.Event().wait()
            return await super().page(*args, **kwargs)

    api = Silent()
    api.slices = [a_slice({"name": "f-0"})]
    async with running_manager(tmp_path, Fabric(), api, call_timeout=600) as one:
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)
        api.silent = True
        one.claims.engine.verifier.slices._unbound_slices._task = None
        async with asyncio.timeout(100):
            assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)


NODES: dict[str, tuple[dict[str, Any], bool]] = {
    "all nodes": (EVERYWHERE, True),
    "a node's name": (named("node"), True),
    "another node's name": (named("there"), False),
    "a label of the node": (labelled("rack", "r1", "r2"), True),
    "a label of others": (labelled("rack", "r3"), False),
    "a label that it has not": (labelled("zone", "z"), False),
}


@pytest.mark.parametrize("per_device", [False, True], ids=["for the slice", "by device"])
@pytest.mark.parametrize(("nodes", "here"), NODES.values(), ids=NODES)
async def test_a_slice_or_device_must_be_for_this_node(
    tmp_path: Path, nodes: dict[str, Any], here: bool, per_device: bool
) -> None:
    api = FakeApiServer()
    api.nodes = {"node": {"rack": "r1"}}
    device = {"name": "f-0", **(nodes if per_device else {})}
    api.slices = [a_slice(device, **({"perDeviceNodeSelection": True} if per_device else nodes))]
    async with running_manager(tmp_path, Fabric(), api) as one:
        answer = await one.prepare(asks(api, "f-0"))
        assert isinstance(answer, WrongNodeError) is not here, answer
        if not here:
            assert "f-0 of pool fabric is not available on node node" in str(answer)
    assert api.nodes_read <= 2
    assert bool(api.nodes_read) == ("matchExpressions" in str(nodes))


async def test_where_the_node_may_not_be_read_the_scheduler_s_choice_stands(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"}, **labelled("rack", "r1"))]
    api.forbidden = True
    async with running_manager(tmp_path, Fabric(), api) as one:
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)


async def test_a_label_that_the_node_got_a_moment_ago_is_seen(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.nodes = {"node": {}}
    api.slices = [a_slice({"name": "f-0"}, **labelled("rack", "r1"))]
    async with running_manager(tmp_path, Fabric(), api) as one:
        assert isinstance(await one.prepare(asks(api, "f-0")), WrongNodeError)
        api.nodes = {"node": {"rack": "r1"}}
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)


async def test_a_pool_of_which_no_slice_is_for_this_node_is_another_node_s(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"}, pool="there", **THERE)]
    async with running_manager(tmp_path, Fabric(), api) as one:
        answer = await one.prepare(asks(api, "f-0", pool="there"))
        assert isinstance(answer, WrongNodeError)
        assert "pool there, which is neither a pool of node node" in str(answer)


async def test_slices_of_this_node_count_only_while_another_instance_lives_to_publish_them(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"}, pool="other", **HERE)]
    async with running_manager(tmp_path, Fabric(), api) as one:
        assert isinstance(await one.prepare(asks(api, "f-0", pool="other")), WrongNodeError)
        async with running_manager(tmp_path, Fabric(), api):
            assert not isinstance(await one.prepare(asks(api, "f-0", pool="other")), DraError)


async def test_a_pool_that_is_being_written_states_nothing_of_a_device_that_is_missing(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"}, generation=2, count=2), a_slice({"name": "f-1"}, generation=1, number=1)]
    async with running_manager(tmp_path, Fabric(), api) as one:
        assert isinstance(await one.prepare(asks(api, "f-1")), DevicesUnknownError)
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)


async def test_a_device_that_its_publisher_states_has_vanished_is_gone(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0", "taints": [GONE.json()]})]
    async with running_manager(tmp_path, Fabric(), api) as one:
        assert isinstance(await one.prepare(asks(api, "f-0")), DeviceGoneError)


async def test_shares_and_partitions_of_others_are_guarded_as_our_own(tmp_path: Path) -> None:
    api = FakeApiServer()
    part = {"consumesCounters": [{"counterSet": "s", "counters": {"links": {"value": "3"}}}]}
    api.slices = [
        a_slice(
            {"name": "shared", "allowMultipleAllocations": True, "capacity": {"lanes": {"value": "8"}}},
            {"name": "p-0", **part}, {"name": "p-1", **part},
            count=2,
        ),
        a_slice(number=1, count=2, devices=[], sharedCounters=[{"name": "s", "counters": {"links": {"value": "5"}}}]),
    ]  # fmt: skip
    async with running_manager(tmp_path, Fabric(), api) as one:
        first = asks(api, "shared", uid="s1", shareID="one", consumedCapacity={"lanes": "6"})
        second = asks(api, "shared", uid="s2", shareID="two", consumedCapacity={"lanes": "3"})
        assert not isinstance(await one.prepare(first), DraError)
        refused = await one.prepare(second)
        assert isinstance(refused, OverdrawnError)
        assert "3 of capacity lanes of device shared in pool fabric are requested and 8 exist" in str(refused)
        assert not isinstance(await one.prepare(asks(api, "p-0")), DraError)
        refused = await one.prepare(asks(api, "p-1"))
        assert isinstance(refused, OverdrawnError)
        assert (
            "3 of counter links in counter set s of pool fabric are requested and 5 exist, of which 3 are held"
            in str(refused)
        )
        for ref in (first, asks(api, "p-0")):
            assert await one.unprepare(ref) == ()
        assert not isinstance(await one.prepare(second), DraError)
        assert not isinstance(await one.prepare(asks(api, "p-1")), DraError)


async def test_what_another_process_publishes_is_not_ours_to_publish_when_it_vanishes(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"})]
    async with running_manager(tmp_path, Fabric(), api) as one:
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)
        held = await one.claims.held()
        assert held == {("fabric", "f-0"): {}}
        await one.inventory.update([], held)
        assert not one.inventory.has_gone


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda v: st.lists(v, max_size=2) | st.dictionaries(st.sampled_from(["name", "value", "key", "nodeSelectorTerms"]), v),
    max_leaves=4,
)  # fmt: skip
FIELDS = ["attributes", "capacity", "taints", "consumesCounters", "nodeSelector", "nodeName", "allNodes", "bindingConditions"]  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(device=st.dictionaries(st.sampled_from(FIELDS), odd, max_size=3), spec=st.dictionaries(
    st.sampled_from(["devices", "sharedCounters", "nodeSelector", "perDeviceNodeSelection"]), odd, max_size=2))  # fmt: skip
async def test_a_slice_of_any_content_is_an_error_of_the_claim_alone(
    tmp_path_factory: pytest.TempPathFactory, device: dict[str, Any], spec: dict[str, Any]
) -> None:
    api = FakeApiServer()
    api.nodes = {"node": {}}
    api.slices = [a_slice({"name": "f-0", **device}, **spec), a_slice({"name": "g-0"}, pool="good")]
    async with running_manager(tmp_path_factory.mktemp("odd"), Fabric(), api) as one:
        answer = await one.prepare(asks(api, "f-0"))
        assert not isinstance(answer, DraError) or answer.code != "DRA-E000", answer
        assert not isinstance(await one.prepare(asks(api, "g-0", pool="good")), DraError)


async def test_nothing_of_the_slices_is_kept_when_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.remote_devices._TIMEOUT", 5.0)
    monkeypatch.setattr("dra_kubeletplugin.claims.remote_devices._MAX_AGE", 0.1)
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"})]
    async with running_manager(tmp_path, Fabric(), api) as one:
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)
        look = one.claims.engine.verifier.slices._unbound_slices
        async with asyncio.timeout(30):
            while look._task is not None:
                await asyncio.sleep(0.02)


async def test_a_device_of_the_inventory_that_vanishes_while_slices_are_read_is_no_fault_of_ours(
    tmp_path: Path,
) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"})]
    ref = asks(api, "d-0", pool="node", uid="u")
    results = api.claims[f"c-{ref.uid}"]["status"]["allocation"]["devices"]["results"]
    results.append(results[0] | {"pool": "fabric", "device": "f-0", "request": "s"})
    async with running_manager(tmp_path, Fabric(), api) as one:
        page = api.page

        async def slow(*args: Any, **kwargs: Any) -> Any:
            await one.inventory.update([])
            return await page(*args, **kwargs)

        api.page = slow  # type: ignore[method-assign]
        answer = await one.prepare(ref)
        assert not isinstance(answer, DraError), answer
        assert {a.device for a in answer} == {"d-0", "f-0"}


async def test_that_the_node_may_not_be_read_is_logged_once_and_the_kubelet_counts_as_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    api.slices = [a_slice({"name": "f-0"}, **labelled("rack", "r1"))]
    api.forbidden = True
    async with running_manager(tmp_path, Fabric(), api) as one:
        lookup = one.claims.engine.verifier.slices
        for _ in range(2):
            assert await lookup.kubelet_is_away() is False
            lookup._node_object._task = None
        assert not isinstance(await one.prepare(asks(api, "f-0")), DraError)
    assert caplog.text.count("cannot read this node") == 1


@pytest.mark.parametrize(
    ("node", "away"),
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
async def test_the_kubelet_is_alive_only_if_its_node_is_ready(tmp_path: Path, node: Any, away: Any) -> None:
    api = FakeApiServer()

    async def get(*_: Any, **__: Any) -> Any:
        if node is None:
            raise NotFoundError("no such node")
        return node

    api.get = get  # type: ignore[method-assign]
    async with running_manager(tmp_path, Fabric(), api) as one:
        ask = one.claims.engine.verifier.slices.kubelet_is_away
        if isinstance(away, bool):
            assert await ask() is away
        else:
            with pytest.raises(ApiError, match="is not a Node"):
                await ask()


@pytest.mark.parametrize("found", [{}, {"spec": {}}, {"spec": {"pool": {"name": 7}}}, []])
async def test_a_list_of_something_else_is_an_error_of_the_server(tmp_path: Path, found: Any) -> None:
    class Odd(FakeApiServer):
        async def page(self, *args: Any, **kwargs: Any) -> Page:
            return Page(Metadata("1"), [msgspec.Raw(msgspec.json.encode(found))])

    api = Odd()
    async with running_manager(tmp_path, Fabric(), api) as one:
        answer = await one.prepare(asks(api, "f-0"))
        assert isinstance(answer, ApiUnavailableError)
        assert "is not a ResourceSlice" in str(answer)


async def test_of_two_generations_of_a_pool_the_newest_counts_in_whatever_order_they_come(tmp_path: Path) -> None:
    for numbers in ((1, 2), (2, 1)):
        api = FakeApiServer()
        api.slices = [a_slice({"name": f"g{g}"}, generation=g, number=g) for g in numbers]
        async with running_manager(tmp_path / str(numbers[0]), Fabric(), api) as one:
            assert isinstance(await one.prepare(asks(api, "g1")), DeviceGoneError)
            assert not isinstance(await one.prepare(asks(api, "g2")), DraError)


def test_counters_and_capacity_of_a_claim_s_devices_come_from_their_own_pools() -> None:
    inventory = Inventory("node")
    lookup = DeviceLookup(inventory)
    for pool, name, amount in (("p", "a", "4"), ("q", "b", "9")):
        device = Device(name, capacity={"m": amount}, consumes_counters={"s": {"c": "1"}})
        lookup.add(pool, RemoteDevice(device, {"s": {"c": amount}, f"only-{pool}": {"c": "1"}}))
    assert [lookup.counters(pool, "s") for pool in "pq"] == [{"c": "4"}, {"c": "9"}]
    assert lookup.counters("q", "only-p") is None
    assert [lookup.capacity(*of) for of in (("p", "a"), ("q", "b"), ("q", "a"))] == [{"m": "4"}, {"m": "9"}, None]
    assert lookup.draws("p", "a") == {"s": {"c": "1"}}
    assert lookup.draws("q", "a") is None


async def test_the_entry_of_a_device_has_its_amounts_and_its_description_if_it_is_the_driver_s_own() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("b")])])
    lookup = DeviceLookup(inventory)
    found = Device("a", consumes_counters={"s": {"c": "1"}})
    lookup.add("p", RemoteDevice(found, {}))
    fields = {"admin_access": False, "config": None, "config_source": "", "device": found}
    for share, capacity in ((None, {}), ("x", {"capacity": {"m": "2"}})):
        device = AllocatedDevice(
            request="r", pool="p", name="a", share_id=share, consumed_capacity={"m": Quantity("2")}, **fields
        )
        entry = lookup.entry(device)
        assert entry["takes"] == {"counters": {"s": {"c": "1"}}} | capacity
        assert "published" not in entry
    own = AllocatedDevice(request="r", pool="node", name="b", share_id=None, consumed_capacity={}, **fields)
    assert lookup.entry(own)["takes"] == {}
    assert "published" in lookup.entry(own)
