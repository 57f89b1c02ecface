"""What is said of devices and their health was measured, and one bad device takes no other with it."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import CounterSet, Device, Health, Nodes, Pool, Role, Taint
from dra_kubeletplugin._proto import health_v1_pb2 as v1
from dra_kubeletplugin._proto import health_v1_pb2_grpc
from dra_kubeletplugin._proto import health_v1alpha1_pb2 as v1alpha1
from dra_kubeletplugin.devices.health_policy import HealthPolicy
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.pool_content import GONE
from dra_kubeletplugin.errors import DriverError, InvalidObjectError
from dra_kubeletplugin.plugin.grpc.health import HealthService
from dra_kubeletplugin.resourceapi.gated_fields import Gate
from dra_kubeletplugin.resourceapi.nodes import Where
from dra_kubeletplugin.resourceapi.validation.slices import validate_device
from tests.helpers.devices import published_devices

UNHEALTHY = Taint(key="example.com/unhealthy", effect="NoExecute")
KINDS = pytest.mark.parametrize("kind", [v1.NodeWatchResourcesResponse, v1alpha1.NodeWatchResourcesResponse])


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def node(devices: Any, counter_sets: Any = ()) -> list[Pool]:
    """What ``devices()`` becomes."""
    return [Pool("node", devices, counter_sets)]


def published_sets(inventory: Inventory) -> list[Any]:
    return [s for pool in inventory.contents() for s in pool.counter_sets]


def renamed(device: Device, name: str) -> Device:
    """Quickly: making a device checks it."""
    out = copy.copy(device)
    object.__setattr__(out, "name", name)
    return out


async def stocked(*names: str, clock: Clock | None = None) -> Inventory:
    clock = clock or Clock()
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY), clock=clock, wall=clock)
    await inventory.update(node([Device(n) for n in names or ("a", "b")]))
    return inventory


async def messages(inventory: Inventory, kind: Any = v1.NodeWatchResourcesResponse) -> list[Any]:
    return [m async for m in HealthService(inventory).messages(kind)]


async def told(inventory: Inventory, kind: Any = v1.NodeWatchResourcesResponse) -> dict[str, tuple[int, int, str]]:
    (message,) = await messages(inventory, kind)
    return {d.device.device_name: (d.health, d.last_updated_time, d.message) for d in message.devices}


def published(inventory: Inventory) -> dict[str, list[str]]:
    return {d["name"]: [t["key"] for t in d.get("taints", [])] for d in published_devices(inventory)}


# --- health -----------------------------------------------------------------------------------------


@KINDS
async def test_health_is_unknown_until_the_driver_has_reported_it(kind: Any) -> None:
    inventory = await stocked()
    assert {n: h for n, (h, _, _) in (await told(inventory, kind)).items()} == {"a": v1.UNKNOWN, "b": v1.UNKNOWN}
    assert all(at == 0 for _, at, _ in (await told(inventory, kind)).values())
    assert inventory.health_age() is None
    assert inventory.healthy("a"), "unknown is not unhealthy"
    assert published(inventory) == {"a": [], "b": []}


@KINDS
async def test_the_kubelet_is_informed_when_health_was_measured_and_not_the_time_of_now(kind: Any) -> None:
    clock = Clock()
    inventory = await stocked(clock=clock)
    await inventory.set_health({"a": Health(True)}, at=clock.now - 3)
    clock.now += 20
    assert (await told(inventory, kind))["a"] == (v1.HEALTHY, 999_997, "")
    assert inventory.health_age() == 23


async def test_before_the_first_answer_of_devices_no_name_in_a_report_is_a_stranger() -> None:
    inventory = Inventory("node-1")
    await inventory.set_health({"a": Health(True)}, at=1.0)
    assert inventory.rejected_reports.notes == []
    await inventory.update([Pool("node-1", [])])
    await inventory.set_health({"a": Health(True)}, at=2.0)
    assert inventory.rejected_reports.notes == [
        "health() returned a, which is not a device of this node: the entry is ignored"
    ]


async def test_a_report_that_is_too_old_states_nothing_any_more() -> None:
    clock = Clock()
    inventory = await stocked(clock=clock)
    await inventory.set_health({"a": Health(True), "b": Health(False, "hot")}, at=clock.now)
    clock.now += 30
    assert [h for h, _, _ in (await told(inventory)).values()] == [v1.HEALTHY, v1.UNHEALTHY]
    clock.now += 1
    assert [(h, at) for h, at, _ in (await told(inventory)).values()] == [(v1.UNKNOWN, 1_000_000)] * 2
    assert inventory.health_counts() == {"healthy": 0, "unhealthy": 0, "unknown": 2}
    assert published(inventory)["b"] == [UNHEALTHY.key], "silence does not heal a device that was reported as unhealthy"


async def test_a_device_has_its_own_time_of_measurement_and_its_own_time_out() -> None:
    clock = Clock()
    inventory = await stocked("a", "b", "c", "d", clock=clock)
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
    await inventory.set_health(report, at=clock.now)  # a monitor that hangs: its last report, once more
    assert {n: h for n, (h, _, _) in (await told(inventory)).items()} == {
        "a": v1.HEALTHY,
        "b": v1.UNKNOWN,
        "c": v1.HEALTHY,
        "d": v1.HEALTHY,
    }


async def test_a_measurement_that_is_reported_again_is_no_further_report() -> None:
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
async def test_a_clock_that_is_set_makes_no_report_old_and_the_kubelet_is_informed_by_the_new_one(step: float) -> None:
    clock, wall = Clock(), Clock()
    inventory = Inventory("node", clock=clock, wall=wall)
    await inventory.update(node([Device("a")]))
    await inventory.set_health({}, at=clock.now)
    clock.now += 3
    wall.now += 3 + step
    assert (await told(inventory))["a"] == (v1.HEALTHY, int(1_000_000 + step), "")
    clock.now += 28
    assert (await told(inventory))["a"][0] == v1.UNKNOWN


@pytest.mark.parametrize(
    "times", [{"timeout": 0}, {"timeout": -1.0}, {"measured": "now"}, {"timeout": float("nan")}, {"measured": 1e300}]
)
def test_times_of_a_report_that_are_none_are_refused_where_they_are_written(times: Any) -> None:
    with pytest.raises(DriverError, match=r"Health\.(timeout|measured) is .*: it must be in seconds"):
        Health(True, **times)


async def test_devices_that_a_report_leaves_out_were_healthy_then_and_new_ones_are_unknown() -> None:
    clock = Clock()
    inventory = await stocked(clock=clock)
    await inventory.set_health({}, at=clock.now)
    await inventory.update(node([Device(n) for n in "abc"]))
    assert [h for h, _, _ in (await told(inventory)).values()] == [v1.HEALTHY, v1.HEALTHY, v1.UNKNOWN]


async def test_taints_follow_what_is_explicitly_unhealthy_only() -> None:
    clock = Clock()
    inventory = await stocked("a", "b", "c", clock=clock)
    await inventory.set_health({"a": Health(False, "hot"), "b": Health(None, "busy")}, at=clock.now)
    assert published(inventory) == {"a": [UNHEALTHY.key], "b": [], "c": []}
    assert (inventory.healthy("a"), inventory.healthy("b"), inventory.unhealthy_reason("a")) == (False, True, "hot")
    assert (await told(inventory))["b"] == (v1.UNKNOWN, 1_000_000, "busy")


async def test_what_a_library_states_for_false_means_the_same_to_slices_claims_and_kubelet() -> None:
    inventory = await stocked("a", "b")
    await inventory.set_health({"a": Health(0), "b": Health(1)}, at=1_000_000.0)  # type: ignore[arg-type]
    assert published(inventory) == {"a": [UNHEALTHY.key], "b": []}
    assert (inventory.healthy("a"), inventory.healthy("b")) == (False, True)
    assert inventory.health_counts() == {"healthy": 1, "unhealthy": 1, "unknown": 0}


async def test_a_device_whose_name_became_no_text_ends_no_health_stream() -> None:
    inventory = await stocked()
    await inventory.update(node([Device("a"), broken("b", name="b\udcff")]))
    assert (await told(inventory)).keys() == {"a", "b\ufffd"}


async def test_a_report_that_changes_no_taint_writes_no_slice_and_still_reaches_the_stream() -> None:
    inventory = await stocked()
    version, health = inventory.version, inventory.health_version
    await inventory.set_health({}, at=1.0)
    assert (inventory.version, inventory.health_version) == (version, health + 1)
    await inventory.set_health({"a": Health(False)}, at=2.0)
    assert inventory.version == version + 1


async def test_a_device_that_vanished_in_use_stays_in_the_stream_as_unhealthy_with_the_time_when_that_was_seen() -> (
    None
):
    clock = Clock()
    inventory = await stocked(clock=clock)
    clock.now += 5
    await inventory.update(node([Device("b")]), held={("node", "a"): {}})
    clock.now += 100
    assert (await told(inventory))["a"] == (v1.UNHEALTHY, 1_000_005, "the device vanished while a claim uses it")
    await inventory.update(node([Device("b")]), held={("node", "a"): {}})
    assert (await told(inventory))["a"][1] == 1_000_105, "each look finds it missing again"
    assert published(inventory) == {"b": [], "a": [GONE.key]}
    await inventory.update(node([Device("b")]), held={})
    assert set(await told(inventory)) == {"b"}


@pytest.mark.parametrize(("text", "most"), [("\U0001f525" * 2000, 4), ("", 1)])
async def test_8192_devices_with_long_messages_go_in_as_few_messages_as_grpc_takes_and_lose_nothing(
    text: str, most: int
) -> None:
    inventory = Inventory("n" * 253, clock=Clock())
    names = [f"{'d' * 50}-{i}" for i in range(8192)]
    device = Device("d")
    await inventory.update(node([renamed(device, n) for n in names]))
    await inventory.set_health({n: Health(False, text) for n in names}, at=1_000_000.0)
    found = await messages(inventory)
    assert len(found) <= most
    assert all(m.ByteSize() < 4 * 1024 * 1024 for m in found)
    assert [d.device.device_name for m in found for d in m.devices] == names
    assert {d.message for m in found for d in m.devices} == {text[:255] + "..." if text else ""}


async def test_a_report_counts_as_it_was_returned_also_if_the_driver_goes_on_changing_its_dict() -> None:
    inventory = await stocked()
    report = {"a": Health(False, "hot")}
    async with inventory._change:  # a discovery is being processed
        setting = asyncio.create_task(inventory.set_health(report, at=1.0))
        await asyncio.sleep(0)
        del report["a"]
    await setting
    assert not inventory.healthy("a")


async def test_a_fault_s_own_taint_is_published_and_changes_with_the_fault() -> None:
    inventory = await stocked()
    ecc, hot = Taint(key="x.example.com/ecc", effect="NoExecute"), Taint(key="x.example.com/hot")
    await inventory.set_health({"a": Health(False, "ECC", taints=[ecc]), "b": Health(False, "odd")}, at=1.0)
    assert published(inventory) == {"a": ["x.example.com/ecc"], "b": [UNHEALTHY.key]}
    version = inventory.version
    await inventory.set_health({"a": Health(False, "ECC again", taints=[ecc]), "b": Health(False, "odd")}, at=2.0)
    assert inventory.version == version, "another message is no reason to write a slice"
    await inventory.set_health({"a": Health(False, "hot", taints=[hot]), "b": Health(None)}, at=1_000_000.0)
    assert published(inventory) == {"a": ["x.example.com/hot"], "b": [UNHEALTHY.key]}, "not known heals nothing"
    assert (await told(inventory))["b"][0] == v1.UNKNOWN


async def test_a_taint_that_cannot_be_published_does_not_make_a_sick_device_look_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inventory = await stocked()
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
    assert "attributes" not in published_devices(inventory)[0], "and has no reason why it is unhealthy"
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


async def test_an_api_server_without_taints_gets_a_healthy_device_without_its_informational_taints() -> None:
    inventory = await stocked("a")
    await inventory.set_gates_off(frozenset({Gate.TAINTS}))
    await inventory.set_health({"a": Health(True, taints=[Taint(key="x.example.com/xid", effect="None")])}, at=1.0)
    assert published(inventory) == {"a": []}


async def test_a_program_that_causes_a_fault_every_second_causes_a_write_once_a_minute() -> None:
    clock = Clock()
    inventory = await stocked("a", clock=clock)
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
    for _ in range(2):  # the driver repeats its last measurement
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
    assert (await told(inventory))["a"] == (
        v1.UNHEALTHY,
        1_000_000,
        "healthy again in 2 of 3 reports; it was: hot again",
    )
    assert inventory.version == version, "a device that comes and goes writes no slices"
    await inventory.set_health({}, at=at)
    assert (published(inventory), (await told(inventory))["a"][0]) == ({"a": []}, v1.HEALTHY)


async def test_what_changed_and_its_version_change_together_whoever_is_being_reported_then() -> None:
    inventory = Inventory("node")
    await inventory.update(node([Device("d0")]))
    before = inventory.version
    async with inventory._changed:  # somebody who waited for the last change has not gone on yet
        updating = asyncio.create_task(inventory.update(node([Device("d1")])))
        async with asyncio.timeout(30):
            while not inventory.get("d1"):
                await asyncio.sleep(0)
        assert inventory.version == before + 1
    assert await updating


async def test_without_any_device_one_empty_message_reports_it() -> None:
    assert [len(m.devices) for m in await messages(Inventory("node"))] == [0]


async def test_a_single_message_is_cut_at_the_kubelet_s_length() -> None:
    inventory = await stocked()
    await inventory.set_health({"a": Health(False, "ß" * 2000), "b": Health(False, "\ud800broken")}, at=1_000_000.0)
    messages = {n: m for n, (_, _, m) in (await told(inventory)).items()}
    assert messages["a"] == "ß" * 510 + "...", "1,024 bytes"
    assert "broken" in messages["b"]


@pytest.mark.parametrize("report", [None, [], 5, {"a": True}, {1: Health(True)}, {"a": Health("no")}, {"a": None}])  # type: ignore[arg-type]
async def test_a_report_that_is_none_leaves_the_last_one_in_force(report: object) -> None:
    inventory = await stocked()
    await inventory.set_health({"a": Health(False, "hot")}, at=999_999.0)
    with pytest.raises(DriverError, match="health"):
        await inventory.set_health(report, at=1_000_000.0)
    assert (await told(inventory))["a"] == (v1.UNHEALTHY, 999_999, "hot")


# --- devices ----------------------------------------------------------------------------------------


def _ends_badly() -> Iterator[Device]:
    yield Device("a")
    raise LookupError("\ud800 the bus is gone")


def _endless() -> Iterator[Device]:
    device = Device("d")
    for i in itertools.count():
        yield renamed(device, f"d{i}")


ODD_ANSWERS: list[Any] = [None, 5, "devices", {"a": Device("a")}, [None], [Device("a"), "b"], [Device("a"), Device("a")], _ends_badly, _endless]  # fmt: skip


@pytest.mark.parametrize("answer", ODD_ANSWERS, ids=lambda a: getattr(a, "__name__", repr(a)[:20]))
async def test_an_answer_that_is_no_list_of_devices_leaves_the_last_one_in_force(answer: Any) -> None:
    inventory = Inventory("node")
    with pytest.raises((DriverError, LookupError)):
        await inventory.update(node(answer() if callable(answer) else answer))
    assert not inventory.known
    await inventory.update(node([Device("kept")]))
    assert inventory.known
    version = inventory.version
    with pytest.raises((DriverError, LookupError)):
        await inventory.update(node(answer() if callable(answer) else answer))
    assert ([d.name for d in inventory], inventory.version) == (["kept"], version)


async def test_before_the_first_answer_nothing_is_known_and_an_empty_answer_is_one() -> None:
    inventory = Inventory("node")
    assert (inventory.known, inventory.version) == (False, 0)
    await inventory.update(node([]))
    assert (inventory.known, inventory.version) == (True, 1)


async def test_devices_count_as_known_only_with_what_is_published_of_them() -> None:
    """A publisher that finds a driver without pools deletes all slices."""
    inventory, device = Inventory("node"), Device("d")
    update = asyncio.create_task(inventory.update(node([renamed(device, f"d{i}") for i in range(2048)])))
    while not update.done():
        assert inventory.known is bool(inventory.contents())
        await asyncio.sleep(0)
    assert await update
    assert len(inventory.contents()[0].devices) == 2048


def broken(made: str, /, **fields: object) -> Device:
    """A device that was changed after it had been checked."""
    device = Device(made)
    for key, value in fields.items():
        object.__setattr__(device, key, value)
    return device


SEVENTEEN = [Taint(key=f"k{i}") for i in range(17)]
BAD = {
    "an invalid taint": broken("bad", taints=[Taint(key="not valid!")]),
    "a 17th taint": broken("bad", taints=SEVENTEEN),
    "an int beyond 64 bits": broken("bad", attributes={"x": 2**63}),
    "a bad quantity": broken("bad", capacity={"memory": "1 Gi"}),
    "what is no attribute": broken("bad", attributes={"x": object()}),
    "what cannot be encoded": broken("bad", attributes={"x": "\ud800"}),
    "too large": broken("bad", extra={"note": "x" * 600_000}),
    "binding without failing": broken("bad", binding_conditions=["example.com/bound"]),
    "an unknown counter set": Device("bad", consumes_counters={"nowhere": {"slices": 1}}),
    "an unknown counter": Device("bad", consumes_counters={"gpu-0": {"slizes": 1}}),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_device_that_the_server_would_refuse_is_left_out_alone_and_named(what: str) -> None:
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY))
    sets = [CounterSet("gpu-0", {"slices": 7})]
    good = Device("good", consumes_counters={"gpu-0": {"slices": 1}})
    await inventory.update(node([BAD[what], good], sets))
    assert published(inventory) == {"good": []}
    assert list(inventory.rejected) == ["bad"]
    assert inventory.rejected["bad"]
    await inventory.update(node([Device("bad"), good], sets))
    assert (set(published(inventory)), dict(inventory.rejected)) == ({"bad", "good"}, {})


@pytest.mark.parametrize(
    "bad",
    [
        CounterSet("GPU_0", {"slices": 7}),
        CounterSet("gpu-0", {f"c{i}": 1 for i in range(33)}),
        CounterSet("gpu-0", {"slices": "7 Gi"}),
        CounterSet("gpu-0", {}),
    ],
)
async def test_an_invalid_counter_set_takes_its_users_with_it_and_nobody_else(bad: CounterSet) -> None:
    inventory = Inventory("node")
    user = broken("user", consumes_counters={bad.name: {"slices": 1}})
    await inventory.update(node([user, Device("free")], [bad, CounterSet("fine", {"x": 1})]))
    assert set(published(inventory)) == {"free"}
    assert [s["name"] for s in published_sets(inventory)] == ["fine"]
    assert set(inventory.rejected) == {"user", f"counter set {bad.name}"}


async def test_a_counter_set_that_is_answered_twice_is_left_out() -> None:
    inventory = Inventory("node")
    await inventory.update(node([Device("free")], [CounterSet("s", {"x": 1}), CounterSet("s", {"x": 2})]))
    assert (published_sets(inventory), list(inventory.rejected)) == ([], ["counter set s"])


async def test_the_taint_of_an_unhealthy_device_never_makes_a_seventeenth() -> None:
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY))
    await inventory.update(node([Device("a", taints=SEVENTEEN[:16])]))
    await inventory.set_health({"a": Health(False)}, at=1.0)
    (device,) = published_devices(inventory)
    assert validate_device(device, "") == []
    assert device["taints"][-1]["key"] == UNHEALTHY.key
    await inventory.update(node([]), held={("node", "a"): {}})
    (device,) = published_devices(inventory)
    assert (validate_device(device, ""), device["taints"][-1]["key"]) == ([], GONE.key)


def test_a_driver_whose_unhealthy_taint_is_invalid_is_reported_at_start() -> None:
    with pytest.raises(DriverError, match="unhealthy_taint"):
        Inventory("node", HealthPolicy(taint=Taint(key="not valid!")))


async def test_a_refused_device_is_left_out_until_it_is_described_differently() -> None:
    inventory = await stocked()
    await inventory.reject({"a": "spec.devices[0].x: forbidden"})
    assert (set(published(inventory)), list(inventory.rejected)) == ({"b"}, ["a"])
    await inventory.update(node([Device("a"), Device("b")]))
    assert set(published(inventory)) == {"b"}
    await inventory.update(node([Device("a", {"x": 1}), Device("b")]))
    assert set(published(inventory)) == {"a", "b"}


async def test_what_the_server_refuses_while_an_answer_is_taken_stays_refused() -> None:
    names = [f"d{i}" for i in range(200)]
    inventory = await stocked(*names)
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


async def test_where_it_is_not_known_what_claims_hold_all_that_vanish_stay() -> None:
    inventory = await stocked()
    await inventory.update(node([Device("b")]), held=None)
    assert published(inventory) == {"b": [], "a": [GONE.key]}


async def test_the_same_object_that_was_changed_inside_is_a_change() -> None:
    inventory = Inventory("node")
    device = Device("a", {"x": 1})
    await inventory.update(node([device]))
    device.attributes["x"] = 2  # type: ignore[index]
    assert await inventory.update(node([device]))
    assert published_devices(inventory)[0]["attributes"] == {"x": {"int": 2}}


async def test_devices_that_a_look_finds_unchanged_are_kept_and_the_newest_data_of_the_driver_counts() -> None:
    """A look every minute makes thousands of equal devices anew: they are garbage at once, and fill no second place."""
    inventory, handle = Inventory("node"), object()
    first = Device("a", {"x": 1}, data=handle)
    await inventory.update(node([first]))
    assert not await inventory.update(node([Device("a", {"x": 1}, data=handle)]))
    assert inventory.get("a") is first
    other = Device("a", {"x": 1}, data=object())
    assert not await inventory.update(node([other]))
    assert inventory.get("a") is other
    written_differently = Device("a", {"x": 1}, {"memory": 1}, data=other.data)
    assert await inventory.update(node([written_differently]))
    again = Device("a", {"x": 1}, {"memory": "1"}, data=other.data)
    assert not await inventory.update(node([again]))
    assert inventory.get("a") is again, "published alike, and yet what the driver said last"


async def test_others_have_their_turn_while_thousands_of_devices_are_judged() -> None:
    """The kubelet's question who we are has one second."""
    inventory, turns = Inventory("node"), 0
    device = Device("d", {f"a{i}": i for i in range(16)})
    update = asyncio.create_task(inventory.update(node([renamed(device, f"d{i}") for i in range(2048)])))
    while not update.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2048 / 16


async def test_others_have_their_turn_while_the_health_of_thousands_is_taken_and_reported() -> None:
    inventory, device = Inventory("node", clock=Clock()), Device("d")
    await inventory.update(node([renamed(device, f"d{i}") for i in range(4096)]))
    report = {f"d{i}": Health(False, "hot") for i in range(4096)}
    for work in (inventory.set_health(report, at=1_000_000.0), messages(inventory)):
        task, turns = asyncio.create_task(work), 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 4096 / 256
        await task


async def test_a_device_that_goes_while_its_health_is_taken_has_none() -> None:
    inventory, device = Inventory("node", clock=Clock()), Device("d")
    await inventory.update(node([renamed(device, f"d{i}") for i in range(1024)]))
    report = asyncio.create_task(inventory.set_health({}, at=1_000_000.0))
    await asyncio.sleep(0)
    await inventory.update(node([renamed(device, "d0"), Device("new")]))
    await report
    assert {n: h for n, (h, _, _) in (await told(inventory)).items()} == {"d0": v1.HEALTHY, "new": v1.UNKNOWN}


def test_computed_names_of_attributes_are_kept_once() -> None:
    a, b = (Device(n, {f"attribute{i}": n for i in range(8)}) for n in "ab")
    assert all(x is y for x, y in zip(a.attributes, b.attributes, strict=True))


def test_what_the_server_would_refuse_is_reported_when_a_device_is_made() -> None:
    for fields in ({"attributes": {"x": 2**63}}, {"attributes": {"x": "\ud800"}}, {"binding_conditions": ["a.b/c"]}):
        with pytest.raises(InvalidObjectError, match="device 'a'"):
            Device("a", **fields)  # type: ignore[arg-type]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.builds(Device, st.sampled_from("abc")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(anything, anything, anything)
async def test_nothing_that_a_driver_answers_raises_anything_but_a_driver_error(a: Any, b: Any, c: Any) -> None:
    inventory = await stocked("kept")
    for step in (inventory.update(node(a, b)), inventory.set_health(c, at=1.0)):
        try:
            await step
        except DriverError as e:
            assert str(e).encode()
    assert (await messages(inventory))[0].SerializeToString() is not None
    published_devices(inventory)


@given(st.text(max_size=6), st.dictionaries(st.text(max_size=6), st.text(max_size=6) | st.integers(), max_size=3))
async def test_whatever_a_device_has_become_inside_it_is_published_validly_or_left_out(
    name: str, attributes: Any
) -> None:
    inventory = Inventory("node")
    await inventory.update(node([broken("a", name=name, attributes=attributes), Device("good")]))
    for device in published_devices(inventory):
        assert validate_device(device, "") == []
    assert "good" in published(inventory) or name == "good"
    (await messages(inventory))[0].SerializeToString()


# --- pools ------------------------------------------------------------------------------------------


async def test_each_role_takes_its_own_pools_of_one_answer() -> None:
    answer = [
        Pool("node", [Device("gpu")]),
        Pool("node/mig", [Device("gpu")]),
        Pool("fabric", [Device("switch")], nodes=Nodes.all()),
        Pool("rack", [Device("nic")], nodes=Nodes.matching({"rack": ["a", "b"]})),
    ]
    plugin, controller = Inventory("node"), Inventory("", role=Role.CONTROLLER)
    await plugin.update(answer)
    await controller.update(answer)
    assert ([*plugin.pools], [*controller.pools]) == (["node", "node/mig"], ["fabric", "rack"])
    assert plugin.get("gpu", "node/mig") is not None
    assert plugin.get("switch", "fabric") is None


async def test_a_device_s_own_nodes_make_every_device_of_its_pool_state_its_own() -> None:
    inventory = Inventory("", role=Role.CONTROLLER)
    devices = [Device("a", nodes=Nodes.named("node-1")), Device("b"), Device("c", nodes=Nodes.all())]
    await inventory.update([Pool("p", devices, nodes=Nodes.matching({"rack": "r1"}))])
    (content,) = inventory.contents()
    assert content.fields == {"perDeviceNodeSelection": True}
    a, b, c = published_devices(inventory, "p")
    assert (a["nodeName"], c["allNodes"]) == ("node-1", True)
    assert b["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["r1"]


async def test_while_a_vanished_device_has_its_own_nodes_every_device_of_its_pool_has_its_own() -> None:
    """The API server rejects a slice in which some devices have nodes and others do not."""
    inventory = Inventory("", role=Role.CONTROLLER)
    own, plain = Device("own", nodes=Nodes.named("node-1")), Device("plain")
    await inventory.update([Pool("p", [own, plain], nodes=Nodes.all())])
    await inventory.update([Pool("p", [plain], nodes=Nodes.all())], held={("p", "own"): {}})
    (content,) = inventory.contents()
    assert content.fields == {"perDeviceNodeSelection": True}
    assert [d.get("nodeName") or d["allNodes"] for d in published_devices(inventory, "p")] == [True, "node-1"]
    await inventory.update([Pool("p", [plain], nodes=Nodes.all())])
    assert inventory.contents()[0].fields == {"allNodes": True}
    assert published_devices(inventory, "p") == [{"name": "plain"}]


async def test_a_vanished_device_gets_its_own_nodes_when_its_pool_becomes_one_of_devices_with_own_nodes() -> None:
    inventory = Inventory("", role=Role.CONTROLLER)
    await inventory.update([Pool("p", [Device("gone"), Device("stays")], nodes=Nodes.all())])
    moved = Pool("p", [Device("stays", nodes=Nodes.named("node-1"))], nodes=Nodes.all())
    for _ in range(2):
        await inventory.update([moved], held={("p", "gone"): {}})
        (content,) = inventory.contents()
        assert content.fields == {"perDeviceNodeSelection": True}
        assert [d.get("nodeName") or d.get("allNodes") for d in published_devices(inventory, "p")] == ["node-1", True]


async def test_without_the_gate_of_partitions_neither_counter_sets_nor_nodes_of_devices_are_sent() -> None:
    inventory = Inventory("", role=Role.CONTROLLER)
    own = Pool("own", [Device("a", nodes=Nodes.named("node-1"))], nodes=Nodes.all())
    counted = Pool("counted", [Device("b")], [CounterSet("s", {"x": 1})], nodes=Nodes.all())
    await inventory.update([own, counted])
    await inventory.set_gates_off(frozenset({Gate.PARTITIONS}))
    (content,) = inventory.contents()
    assert (content.name, list(content.counter_sets)) == ("counted", [])
    assert "each device of the pool selects its own nodes" in inventory.rejected["pool own"]
    await inventory.set_gates_off(frozenset())
    assert [c.name for c in inventory.contents()] == ["own", "counted"]


async def test_a_device_with_own_nodes_in_a_pool_of_this_node_is_left_out_alone() -> None:
    inventory = await stocked("a")
    await inventory.update(node([Device("a"), Device("b", nodes=Nodes.all())]))
    assert (set(published(inventory)), list(inventory.rejected)) == ({"a"}, ["b"])


@pytest.mark.parametrize("answer", [None, [None], [Pool("p", [])] * 2, [Pool("p", [Device("a")] * 2)], [Pool("p", None)], [Pool(1, [])], [Pool("p", [], nodes=None)]])  # type: ignore[arg-type]  # fmt: skip
async def test_an_answer_that_is_no_list_of_pools_leaves_the_last_one_in_force(answer: Any) -> None:
    inventory = await stocked("a")
    with pytest.raises(DriverError, match=r"pools\(\)"):
        await inventory.update(answer)
    assert set(published(inventory)) == {"a"}


async def test_a_pool_whose_name_is_refused_is_left_out_alone() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("a")]), Pool("Not_A_Name", [Device("b")])])
    assert ([c.name for c in inventory.contents()], list(inventory.rejected)) == (["node"], ["pool Not_A_Name"])


async def test_a_partition_that_vanished_in_use_keeps_its_counter_set_published() -> None:
    inventory = Inventory("node")
    part = Device("part", consumes_counters={"gpu-0": {"slices": 1}})
    await inventory.update([Pool("node", [part, Device("b")], [CounterSet("gpu-0", {"slices": 7})])])
    await inventory.update([Pool("node", [Device("b")])], held={("node", "part"): {}})
    assert set(published(inventory)) == {"b", "part"}
    assert [s["name"] for s in published_sets(inventory)] == ["gpu-0"]
    await inventory.update([Pool("node", [Device("b")])])
    assert published_sets(inventory) == []


async def test_the_driver_s_newest_counter_set_counts_also_for_a_partition_that_vanished_in_use() -> None:
    inventory = Inventory("node")
    part = Device("part", consumes_counters={"gpu-0": {"slices": 1}})
    await inventory.update([Pool("node", [part], [CounterSet("gpu-0", {"slices": 7})])])
    await inventory.update([Pool("node", [], [CounterSet("gpu-0", {"slices": 6})])], held={("node", "part"): {}})
    assert published_sets(inventory) == [{"name": "gpu-0", "counters": {"slices": {"value": "6"}}}]


async def test_a_pool_that_vanished_stays_as_long_as_a_claim_has_a_device_of_it() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("a")]), Pool("node/x", [Device("a"), Device("b")])])
    await inventory.update([Pool("node", [Device("a")])], held={("node/x", "b"): {}})
    assert [d["name"] for d in published_devices(inventory, "node/x")] == ["b"]
    await inventory.update([Pool("node", [Device("a")])])
    assert list(inventory.pools) == ["node"]


async def test_health_of_one_name_in_two_pools_is_distinguished_by_the_pool() -> None:
    inventory = Inventory("node", HealthPolicy(taint=UNHEALTHY), clock=Clock())
    await inventory.update([Pool("node", [Device("a")]), Pool("node/x", [Device("a")])])
    await inventory.set_health({"node/x/a": Health(False, "hot")}, at=1.0)
    assert (inventory.healthy("a"), inventory.healthy("a", "node/x")) == (True, False)
    await inventory.set_health({"a": Health(False, "hot")}, at=2.0)
    assert (inventory.healthy("a"), inventory.healthy("a", "node/x")) == (False, False)


async def test_8192_sick_devices_reach_a_client_that_takes_4_mib_and_no_more(tmp_path: Path) -> None:
    """Through a real socket, with gRPC's own limit, as the kubelet has it."""
    inventory = Inventory("node", clock=Clock())
    device = Device("d")
    names = {f"d-{i}" for i in range(8192)}
    await inventory.update(node([renamed(device, n) for n in names]))
    await inventory.set_health({n: Health(False, "x" * 1024) for n in names}, at=1_000_000.0)
    server = grpc.aio.server()
    HealthService(inventory).add_to(server)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel, asyncio.timeout(60):
            seen: set[str] = set()
            stub = health_v1_pb2_grpc.DRAResourceHealthStub(channel)
            async for message in stub.NodeWatchResources(v1.NodeWatchResourcesRequest()):
                seen |= {d.device.device_name for d in message.devices if d.health == v1.UNHEALTHY}
                if seen == names:
                    break
    finally:
        await server.stop(0)


@pytest.mark.parametrize("role", Role)
async def test_a_pool_that_becomes_the_other_role_s_is_published_by_that_one_alone_though_claims_hold_devices(
    role: Role,
) -> None:
    inventory = Inventory("node", role=role)
    ours, theirs = (Nodes.this(), Nodes.all()) if role is Role.NODE else (Nodes.all(), Nodes.this())
    held = {("node/shelf", "d"): {"device": {"name": "d"}}}
    await inventory.update([Pool("node/shelf", [Device("d")], nodes=ours)], held)
    assert [c.name for c in inventory.contents()] == ["node/shelf"]
    for _ in range(2):
        await inventory.update([Pool("node/shelf", [Device("d")], nodes=theirs)], held)
        assert inventory.contents() == []


@pytest.mark.parametrize(
    "odd", [Pool("\ud800", [], nodes=Nodes.all()), Pool("odd", [], nodes=Nodes(Where.SELECTED, "a"))]
)
async def test_a_pool_whose_name_or_nodes_cannot_be_sent_hides_no_other(odd: Pool) -> None:
    inventory = Inventory("", role=Role.CONTROLLER)
    await inventory.update([odd, Pool("good", [Device("d")], nodes=Nodes.all())])
    assert [c.name for c in inventory.contents()] == ["good"]
    assert len(inventory.rejected) == 1


async def test_the_name_of_a_pool_may_be_of_a_class_derived_from_text() -> None:
    class Name(str):
        __slots__ = ()

    inventory = Inventory("node")
    await inventory.update([Pool(Name("node"), [Device("d")])])
    (content,) = inventory.contents()
    assert type(content.name) is str


async def test_8192_devices_fall_ill_lose_gates_and_vanish_while_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Counted are the turns of the loop: how long one takes is the machine's affair (bench tells the milliseconds)."""
    attributes = {**{f"a{k}": f"value {k}" for k in range(8)}, "listed": ["a", "b"]}
    devices = [Device(f"d{i}", {**attributes, "index": i}) for i in range(8192)]
    inventory, turns = Inventory("node", HealthPolicy(taint=UNHEALTHY)), Counter[str]()
    now = ""

    async def tick() -> None:
        while True:
            turns[now] += 1
            await asyncio.sleep(0)

    async def contents() -> None:
        assert len(inventory.contents()[0].devices) == 8192

    fault = dict.fromkeys((d.name for d in devices), Health(False, "too hot"))
    ticking = asyncio.create_task(tick())
    try:
        for what, step in (
            ("the first look", lambda: inventory.update(node(devices))),
            ("a gate that is off", lambda: inventory.set_gates_off(frozenset({Gate.LISTS}))),
            ("what is published then", contents),
            ("the same look again", lambda: inventory.update(node(devices))),
            ("all are ill", lambda: inventory.set_health(fault, 1.0)),
            ("what is published of the ill", contents),
            ("all vanish in use", lambda: inventory.update(node([]), held=None)),
            ("what is published of what vanished", contents),
        ):
            now = what
            await step()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    finally:
        ticking.cancel()
    # What is published is answered in one turn, from what was prepared for it; the rest in steps.
    assert {what: n for what, n in turns.items() if what and "published" not in what and n < 100} == {}
    assert len(caplog.records) < 100, "thousands of lines would hold up all else"


async def test_a_device_whose_nodes_were_wrong_is_published_when_they_are_right() -> None:
    """Wrong nodes are not part of the JSON text, which alone does not show the change."""
    inventory = Inventory("node")
    for nodes, rejected in ((Nodes.this(), ["a"]), (None, []), (Nodes.this(), ["a"])):
        await inventory.update(node([Device("a", nodes=nodes)]))
        assert list(inventory.rejected) == rejected


class Changing(dict[str, Any]):
    """A dict that a thread of the driver changes during the first readings after ``left`` was set."""

    left = 0

    def items(self) -> Any:
        if self.left:
            self.left -= 1
            raise RuntimeError("dictionary changed size during iteration")
        return super().items()


async def test_a_device_whose_dict_changes_while_it_is_read_stays_published() -> None:
    inventory, capacity, counters = Inventory("node"), Changing(memory="1Gi"), Changing(memory=1)
    device, card = Device("a", capacity=capacity), CounterSet("card", counters)
    capacity.left = counters.left = 2
    await inventory.update([Pool("node", [device], [card])])
    assert (inventory.rejected, [d.name for d in inventory]) == ({}, ["a"])
    assert inventory.counters("node", "card") == {"memory": "1"}
