"""The inventory publishes only measured health, and one invalid device never withholds another device."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Device, Health, Nodes, Pool, Taint
from dra_kubeletplugin._proto import health_v1_pb2 as v1
from dra_kubeletplugin._proto import health_v1alpha1_pb2 as v1alpha1
from dra_kubeletplugin.devices.health_policy import HealthPolicy
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.pool_state import GONE
from dra_kubeletplugin.errors import DriverError
from dra_kubeletplugin.plugin.grpc.health import HealthService
from dra_kubeletplugin.resourceapi.gated_fields import Gate
from tests.helpers.devices import published_devices

UNHEALTHY = Taint(key="example.com/unhealthy", effect="NoExecute")
KINDS = pytest.mark.parametrize("kind", [v1.NodeWatchResourcesResponse, v1alpha1.NodeWatchResourcesResponse])


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def node(devices: Any, counter_sets: Any = ()) -> list[Pool]:
    """Returns the pools of a node whose driver has only ``devices()``."""
    return [Pool("node", devices, counter_sets)]


def renamed(device: Device, name: str) -> Device:
    """Copies the device without the slow validation of the constructor."""
    out = copy.copy(device)
    object.__setattr__(out, "name", name)
    return out


async def inventory_with(*names: str, clock: Clock | None = None) -> Inventory:
    clock = clock or Clock()
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY), clock=clock, wall=clock)
    await inventory.update(node([Device(n) for n in names or ("a", "b")]))
    return inventory


async def messages(inventory: Inventory, kind: Any = v1.NodeWatchResourcesResponse) -> list[Any]:
    return [m async for m in HealthService(inventory).messages(kind)]


async def reported_health(
    inventory: Inventory, kind: Any = v1.NodeWatchResourcesResponse
) -> dict[str, tuple[int, int, str]]:
    (message,) = await messages(inventory, kind)
    return {d.device.device_name: (d.health, d.last_updated_time, d.message) for d in message.devices}


def published(inventory: Inventory) -> dict[str, list[str]]:
    return {d["name"]: [t["key"] for t in d.get("taints", [])] for d in published_devices(inventory)}


# --- health -----------------------------------------------------------------------------------------


@KINDS
async def test_health_is_unknown_until_the_driver_has_reported_it(kind: Any) -> None:
    inventory = await inventory_with()
    assert {n: h for n, (h, _, _) in (await reported_health(inventory, kind)).items()} == {
        "a": v1.UNKNOWN,
        "b": v1.UNKNOWN,
    }
    assert all(at == 0 for _, at, _ in (await reported_health(inventory, kind)).values())
    assert inventory.health_age() is None
    assert inventory.healthy("a"), "unknown health is not unhealthy"
    assert published(inventory) == {"a": [], "b": []}


@KINDS
async def test_the_kubelet_receives_the_time_of_measurement(kind: Any) -> None:
    clock = Clock()
    inventory = await inventory_with(clock=clock)
    await inventory.set_health({"a": Health(True)}, at=clock.now - 3)
    clock.now += 20
    assert (await reported_health(inventory, kind))["a"] == (v1.HEALTHY, 999_997, "")
    assert inventory.health_age() == 23


async def test_no_device_in_a_report_counts_as_unknown_before_the_first_discovery() -> None:
    inventory = Inventory("node-1")
    await inventory.set_health({"a": Health(True)}, at=1.0)
    assert inventory.health_notes == []
    await inventory.update([Pool("node-1", [])])
    await inventory.set_health({"a": Health(True)}, at=2.0)
    assert inventory.health_notes == ["health() returned a, which is not a device of this node: the entry is ignored"]


async def test_health_becomes_unknown_after_an_old_report_expires() -> None:
    clock = Clock()
    inventory = await inventory_with(clock=clock)
    await inventory.set_health({"a": Health(True), "b": Health(False, "hot")}, at=clock.now)
    clock.now += 30
    assert [h for h, _, _ in (await reported_health(inventory)).values()] == [v1.HEALTHY, v1.UNHEALTHY]
    clock.now += 1
    assert [(h, at) for h, at, _ in (await reported_health(inventory)).values()] == [(v1.UNKNOWN, 1_000_000)] * 2
    assert inventory.health_counts() == {"healthy": 0, "unhealthy": 0, "unknown": 2}
    assert published(inventory)["b"] == [UNHEALTHY.key], "a missing report does not make an unhealthy device healthy"


async def test_a_device_has_its_own_time_of_measurement_and_its_own_timeout() -> None:
    clock = Clock()
    inventory = await inventory_with("a", "b", "c", "d", clock=clock)
    report = {
        "a": Health(True, timeout=5),
        "b": Health(True, measured=clock.now - 20),
        "c": Health(True, measured=clock.now + 3600),
        "d": Health(True, measured=clock.now - 20, timeout=1000),
    }
    await inventory.set_health(report, at=clock.now)
    (message,) = await messages(inventory)
    found = {
        d.device.device_name: (d.health, d.last_updated_time, d.health_check_timeout_seconds) for d in message.devices
    }
    assert found == {
        "a": (v1.HEALTHY, 1_000_000, 5),
        "b": (v1.HEALTHY, 999_980, 30),
        "c": (v1.HEALTHY, 1_000_000, 30),
        "d": (v1.HEALTHY, 999_980, 1000),
    }
    assert inventory.expires_in() == 5
    clock.now += 6
    assert inventory.expires_in() == 4
    clock.now += 5
    await inventory.set_health(report, at=clock.now)  # A monitor that hangs repeats its last report.
    assert {n: h for n, (h, _, _) in (await reported_health(inventory)).items()} == {
        "a": v1.HEALTHY,
        "b": v1.UNKNOWN,
        "c": v1.HEALTHY,
        "d": v1.HEALTHY,
    }


async def test_a_repeated_measurement_does_not_count_as_another_report() -> None:
    clock = Clock()
    policy = HealthPolicy(taint=UNHEALTHY, unhealthy_after=2)
    inventory = Inventory("node", policy, clock=clock, wall=clock)
    await inventory.update(node([Device("a")]))
    await inventory.set_health({}, at=clock.now)
    for _ in range(3):
        await inventory.set_health({"a": Health(False, "hot", measured=999_999.0)}, at=clock.now)
        assert inventory.healthy("a")
    await inventory.set_health({"a": Health(False, "hot", measured=1_000_000.0)}, at=clock.now)
    assert not inventory.healthy("a")


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
async def test_a_clock_change_expires_no_report_and_the_kubelet_receives_the_new_time(step: float) -> None:
    clock, wall = Clock(), Clock()
    inventory = Inventory("node", clock=clock, wall=wall)
    await inventory.update(node([Device("a")]))
    await inventory.set_health({}, at=clock.now)
    clock.now += 3
    wall.now += 3 + step
    assert (await reported_health(inventory))["a"] == (v1.HEALTHY, int(1_000_000 + step), "")
    clock.now += 28
    assert (await reported_health(inventory))["a"][0] == v1.UNKNOWN


@pytest.mark.parametrize(
    "times", [{"timeout": 0}, {"timeout": -1.0}, {"measured": "now"}, {"timeout": float("nan")}, {"measured": 1e300}]
)
def test_invalid_times_of_a_report_raise_an_error_at_construction(times: Any) -> None:
    with pytest.raises(DriverError, match=r"Health\.(timeout|measured) is .*: it must be in seconds"):
        Health(True, **times)


async def test_devices_missing_from_a_report_are_healthy_and_new_devices_are_unknown() -> None:
    clock = Clock()
    inventory = await inventory_with(clock=clock)
    await inventory.set_health({}, at=clock.now)
    await inventory.update(node([Device(n) for n in "abc"]))
    assert [h for h, _, _ in (await reported_health(inventory)).values()] == [v1.HEALTHY, v1.HEALTHY, v1.UNKNOWN]


async def test_only_explicitly_unhealthy_devices_have_taints() -> None:
    clock = Clock()
    inventory = await inventory_with("a", "b", "c", clock=clock)
    await inventory.set_health({"a": Health(False, "hot"), "b": Health(None, "busy")}, at=clock.now)
    assert published(inventory) == {"a": [UNHEALTHY.key], "b": [], "c": []}
    assert (inventory.healthy("a"), inventory.healthy("b"), inventory.unhealthy_reason("a")) == (False, True, "hot")
    assert (await reported_health(inventory))["b"] == (v1.UNKNOWN, 1_000_000, "busy")


async def test_a_report_without_taint_changes_writes_no_slice_and_reaches_the_stream() -> None:
    inventory = await inventory_with()
    version, health = inventory.version, inventory.health_version
    await inventory.set_health({}, at=1.0)
    assert (inventory.version, inventory.health_version) == (version, health + 1)
    await inventory.set_health({"a": Health(False)}, at=2.0)
    assert inventory.version == version + 1


async def test_a_device_removed_in_use_stays_in_the_stream_as_unhealthy_with_the_time_of_its_detection() -> None:
    clock = Clock()
    inventory = await inventory_with(clock=clock)
    clock.now += 5
    await inventory.update(node([Device("b")]), held={("node", "a"): {}})
    clock.now += 100
    assert (await reported_health(inventory))["a"] == (
        v1.UNHEALTHY,
        1_000_005,
        "the device vanished while a claim uses it",
    )
    await inventory.update(node([Device("b")]), held={("node", "a"): {}})
    assert (await reported_health(inventory))["a"][1] == 1_000_105, "each discovery finds the device missing again"
    assert published(inventory) == {"b": [], "a": [GONE.key]}
    await inventory.update(node([Device("b")]), held={})
    assert set(await reported_health(inventory)) == {"b"}


async def test_the_taint_of_a_fault_is_published_and_changes_with_the_fault() -> None:
    inventory = await inventory_with()
    ecc, hot = Taint(key="x.example.com/ecc", effect="NoExecute"), Taint(key="x.example.com/hot")
    await inventory.set_health({"a": Health(False, "ECC", taints=[ecc]), "b": Health(False, "odd")}, at=1.0)
    assert published(inventory) == {"a": ["x.example.com/ecc"], "b": [UNHEALTHY.key]}
    version = inventory.version
    await inventory.set_health({"a": Health(False, "ECC again", taints=[ecc]), "b": Health(False, "odd")}, at=2.0)
    assert inventory.version == version, "a changed message does not cause a write of a slice"
    await inventory.set_health({"a": Health(False, "hot", taints=[hot]), "b": Health(None)}, at=1_000_000.0)
    assert published(inventory) == {"a": ["x.example.com/hot"], "b": [UNHEALTHY.key]}, (
        "unknown health does not clear a fault"
    )
    assert (await reported_health(inventory))["b"][0] == v1.UNKNOWN


async def test_an_unhealthy_device_with_an_invalid_taint_does_not_appear_healthy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inventory = await inventory_with()
    for _ in range(3):
        await inventory.set_health({"a": Health(False, "hot", taints=[Taint(key="not valid!")])}, at=1.0)
    assert published(inventory)["a"] == [UNHEALTHY.key]
    assert sum("a taint that health() returned for a is invalid" in r.getMessage() for r in caplog.records) == 1


async def test_all_taints_of_a_report_are_published_with_one_version_and_the_device_s_own_taints_stay() -> None:
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY))
    await inventory.update(node([Device("a", taints=[Taint(key="x.example.com/worn")])]))
    program, ecc = Taint(key="x.example.com/xid", value="13", effect="None"), Taint(key="x.example.com/ecc")
    await inventory.set_health({"a": Health(True, taints=[program])}, at=1.0)
    assert published(inventory) == {"a": ["x.example.com/worn", program.key]}
    assert inventory.healthy("a") and not inventory.unhealthy(), (
        "a healthy device with an informational taint is prepared"
    )
    assert "attributes" not in published_devices(inventory)[0], "a healthy device has no reason for being unhealthy"
    version = inventory.version
    await inventory.set_health({"a": Health(False, "ECC", taints=[ecc, program, program])}, at=2.0)
    assert published(inventory) == {"a": ["x.example.com/worn", program.key, ecc.key]}
    assert inventory.version == version + 1


async def test_the_taints_of_a_report_replace_the_last_of_16_taints_of_the_device() -> None:
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY))
    await inventory.update(node([Device("a", taints=[Taint(key=f"x.example.com/{i:02}") for i in range(16)])]))
    faults = [Taint(key="x.example.com/ecc"), Taint(key="x.example.com/xid", effect="None")]
    await inventory.set_health({"a": Health(False, "ECC", taints=faults)}, at=1.0)
    keys = published(inventory)["a"]
    assert (len(keys), keys[13:]) == (16, ["x.example.com/13", "x.example.com/xid", "x.example.com/ecc"])


async def test_an_api_server_without_taints_receives_a_healthy_device_without_informational_taints() -> None:
    inventory = await inventory_with("a")
    await inventory.set_gates_off(frozenset({Gate.TAINTS}))
    await inventory.set_health({"a": Health(True, taints=[Taint(key="x.example.com/xid", effect="None")])}, at=1.0)
    assert published(inventory) == {"a": []}


async def test_a_fault_every_second_causes_one_write_a_minute() -> None:
    clock = Clock()
    inventory = await inventory_with("a", clock=clock)
    versions, begun = [], clock()
    for second in range(120):
        clock.now = begun + second
        taint = Taint(key="x.example.com/xid", value=str(second), effect="None")
        await inventory.set_health({"a": Health(True, f"xid {second}", taints=[taint])}, at=clock())
        versions.append(inventory.version)
    assert len(set(versions)) == 2, "the first taint at once, the second after a minute"
    assert published_devices(inventory)[0]["taints"][0]["value"] == "60"
    clock.now = begun + 121
    last = Health(True, "is over", measured=clock())
    for _ in range(2):  # The driver repeats its last measurement.
        await inventory.set_health({"a": last}, at=clock())
        clock.now = begun + 180
    assert published(inventory) == {"a": []}


async def test_a_recovery_must_hold_before_the_taint_goes_and_the_stream_reports_it() -> None:
    clock = Clock()
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY, healthy_after=3), clock=clock, wall=clock)
    await inventory.update(node([Device("a")]))
    at = 1_000_000.0
    await inventory.set_health({"a": Health(False, "hot")}, at=at)
    version = inventory.version
    reports: list[dict[str, Health]] = [{}, {"a": Health(False, "hot again")}, {}, {}]
    for report in reports:
        await inventory.set_health(report, at=at)
        assert (published(inventory), inventory.healthy("a")) == ({"a": [UNHEALTHY.key]}, False)
    assert (await reported_health(inventory))["a"] == (
        v1.UNHEALTHY,
        1_000_000,
        "healthy again in 2 of 3 reports; it was: hot again",
    )
    assert inventory.version == version, "a flapping device causes no writes of slices"
    await inventory.set_health({}, at=at)
    assert (published(inventory), (await reported_health(inventory))["a"][0]) == ({"a": []}, v1.HEALTHY)


async def test_a_text_is_truncated_at_the_kubelet_s_limit() -> None:
    inventory = await inventory_with()
    await inventory.set_health({"a": Health(False, "ß" * 2000), "b": Health(False, "\ud800broken")}, at=1_000_000.0)
    messages = {n: m for n, (_, _, m) in (await reported_health(inventory)).items()}
    assert messages["a"] == "ß" * 510 + "...", "1,024 bytes"
    assert "broken" in messages["b"]


@pytest.mark.parametrize("report", [None, [], 5, {"a": True}, {1: Health(True)}, {"a": Health("no")}, {"a": None}])  # type: ignore[arg-type]
async def test_an_invalid_report_leaves_the_last_report_in_force(report: object) -> None:
    inventory = await inventory_with()
    await inventory.set_health({"a": Health(False, "hot")}, at=999_999.0)
    with pytest.raises(DriverError, match="health"):
        await inventory.set_health(report, at=1_000_000.0)
    assert (await reported_health(inventory))["a"] == (v1.UNHEALTHY, 999_999, "hot")


# --- devices ----------------------------------------------------------------------------------------


INVALID_RESULTS: list[Any] = [None, 5, "devices", {"a": Device("a")}, (Device(n) for n in "ab")]


@pytest.mark.parametrize("result", INVALID_RESULTS, ids=lambda a: repr(a)[:20])
async def test_an_invalid_result_of_devices_leaves_the_last_result_in_force(result: Any) -> None:
    inventory = Inventory("node")
    with pytest.raises(DriverError):
        await inventory.update(node(result))
    assert not inventory.known
    await inventory.update(node([Device("kept")]))
    assert inventory.known
    version = inventory.version
    with pytest.raises(DriverError):
        await inventory.update(node(result))
    assert ([d.name for d in inventory], inventory.version) == (["kept"], version)


def test_a_driver_whose_unhealthy_taint_is_invalid_is_reported_at_start() -> None:
    with pytest.raises(DriverError, match="unhealthy_taint"):
        Inventory("node", HealthPolicy(taint=Taint(key="not valid!")))


async def test_a_rejected_device_is_omitted_until_its_description_changes() -> None:
    inventory = await inventory_with()
    await inventory.reject({"a": "spec.devices[0].x: forbidden"})
    assert (set(published(inventory)), list(inventory.rejected)) == ({"b"}, ["a"])
    await inventory.update(node([Device("a"), Device("b")]))
    assert set(published(inventory)) == {"b"}
    await inventory.update(node([Device("a", attributes={"x": 1}), Device("b")]))
    assert set(published(inventory)) == {"a", "b"}


async def test_a_rejection_during_an_update_stays_in_force() -> None:
    names = [f"d{i}" for i in range(200)]
    inventory = await inventory_with(*names)
    update = asyncio.create_task(inventory.update(node([Device(n) for n in names])))
    await asyncio.sleep(0)
    assert not update.done()
    await inventory.reject({"d7": "forbidden"})
    await update
    assert "rejected by the API server" in inventory.rejected["d7"]
    update = asyncio.create_task(inventory.update(node([Device(n) for n in names])))
    await asyncio.sleep(0)
    await inventory.clear_rejections()
    await update
    assert not inventory.rejected


async def test_all_removed_devices_stay_while_the_held_devices_are_unknown() -> None:
    inventory = await inventory_with()
    await inventory.update(node([Device("b")]), held=None)
    assert published(inventory) == {"b": [], "a": [GONE.key]}


async def test_unchanged_devices_are_kept_with_the_newest_data_of_the_driver() -> None:
    """Each discovery creates thousands of equal devices. The inventory keeps the existing objects, so the new ones are freed at once."""
    inventory, handle = Inventory("node"), object()
    first = Device("a", attributes={"x": 1}, data=handle)
    await inventory.update(node([first]))
    assert not await inventory.update(node([Device("a", attributes={"x": 1}, data=handle)]))
    assert inventory.get("a") is first
    other = Device("a", attributes={"x": 1}, data=object())
    assert not await inventory.update(node([other]))
    assert inventory.get("a") is other
    written_differently = Device("a", attributes={"x": 1}, capacity={"memory": 1}, data=other.data)
    assert await inventory.update(node([written_differently]))
    again = Device("a", attributes={"x": 1}, capacity={"memory": "1"}, data=other.data)
    assert not await inventory.update(node([again]))
    assert inventory.get("a") is again, "the published device is equal, and the driver's data is the newest"


async def test_a_device_removed_during_a_health_update_has_no_health() -> None:
    inventory, device = Inventory("node", clock=Clock()), Device("d")
    await inventory.update(node([renamed(device, f"d{i}") for i in range(1024)]))
    report = asyncio.create_task(inventory.set_health({}, at=1_000_000.0))
    await asyncio.sleep(0)
    await inventory.update(node([renamed(device, "d0"), Device("new")]))
    await report
    assert {n: h for n, (h, _, _) in (await reported_health(inventory)).items()} == {
        "d0": v1.HEALTHY,
        "new": v1.UNKNOWN,
    }


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.builds(Device, st.sampled_from("abc")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(anything, anything, anything)
async def test_any_result_of_a_driver_raises_only_driver_errors(a: Any, b: Any, c: Any) -> None:
    inventory = await inventory_with("kept")
    for step in (inventory.update(node(a, b)), inventory.set_health(c, at=1.0)):
        try:
            await step
        except DriverError as e:
            assert str(e).encode()
    assert (await messages(inventory))[0].SerializeToString() is not None
    published_devices(inventory)


async def test_changes_of_thousands_of_devices_do_not_block_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """The benchmark measures milliseconds."""
    iterations = 0

    async def tick() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    attributes = {**{f"a{k}": f"value {k}" for k in range(8)}, "listed": ["a", "b"]}
    devices = [Device(f"d{i}", attributes={**attributes, "index": i}) for i in range(2048)]
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY))
    fault = dict.fromkeys((d.name for d in devices), Health(False, "too hot"))
    recorded = {("node", d.name): {"device": d.json()} for d in devices}
    for change in (
        lambda: inventory.update(node(devices)),
        lambda: inventory.set_gates_off(frozenset({Gate.LISTS})),
        lambda: inventory.update(node(devices)),
        lambda: inventory.set_health(fault, 1.0),
        lambda: inventory.update(node([]), held=None),
        lambda: Inventory("node").update(node([]), held=recorded),
    ):
        before = iterations
        await change()
        assert iterations - before > 20, "on the loop itself, a change takes fewer than ten iterations"
        assert len(inventory.contents()[0].devices) == 2048
    ticking.cancel()
    assert len(caplog.records) < 200, "thousands of log lines would delay other work"


async def test_a_device_with_invalid_nodes_is_published_after_their_correction() -> None:
    """The JSON text does not contain invalid nodes, so it does not show the change."""
    inventory = Inventory("node")
    for nodes, rejected in ((Nodes.this(), ["a"]), (None, []), (Nodes.this(), ["a"])):
        await inventory.update(node([Device("a", nodes=nodes)]))
        assert list(inventory.rejected) == rejected
