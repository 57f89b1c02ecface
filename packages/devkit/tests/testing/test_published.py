"""`published()` of the test kit returns the devices of the driver, and differences are reported."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.testing import AsyncApi, PublishedDevice, PublishedError, controller_on, node_with, plugin_on
from dra_devkit.testing.published import Published, differs, pools_of, read_pool
from dra_kubeletplugin import (
    Capacity,
    Claim,
    CounterSet,
    Device,
    Driver,
    Nodes,
    Pool,
    PreparedDevice,
    Quantity,
    RequestPolicy,
    Taint,
    Version,
)
from dra_kubeletplugin.driver import Health, Role

NAME = "cards.example.com"


def layout(node: str) -> Pool:
    """Returns a pool with every field that a pool of a node can have by default in 1.36, with amounts in the form of `published()`."""
    shared = Capacity("8Gi", RequestPolicy(default="1Gi", min="1Gi", step="1Gi"))
    return Pool(
        node,
        [
            Device("card-0", attributes={"model": "x1", "index": 0, "fast": True, "firmware": Version("1.2.3")}, capacity={"memory": Capacity("40Gi")}),
            Device("card-1", attributes={"other.example.com/rack": "r1"}, capacity={"memory": shared}, allow_multiple_allocations=True),
            Device("part-0", taints=[Taint(key="example.com/worn", value="much", effect="NoExecute")]),
            Device("part-1", consumes_counters={"card": {"memory": "1Gi"}}),
        ],
        [CounterSet("card", {"memory": "2Gi"})],
    )  # fmt: skip


def cluster_pools() -> list[Pool]:
    return [
        Pool("everywhere", [Device("a")], nodes=Nodes.all()),
        Pool("named", [Device("b")], nodes=Nodes.named("node-1")),
        Pool("rack", [Device("c")], nodes=Nodes.matching({"rack": ["r1", "r2"]})),
        Pool("each", [Device("d", nodes=Nodes.named("node-1")), Device("e", nodes=Nodes.all())], nodes=Nodes.all()),
        Pool("bound", [Device("f", binding_conditions=["x"], binding_failure_conditions=["y"], binds_to_node=True)], nodes=Nodes.all()),
    ]  # fmt: skip


class Cards(Driver):
    name = NAME
    unhealthy: frozenset[str] = frozenset()

    def pools(self) -> list[Pool]:
        return [layout(self.settings.node_name)] if self.role is Role.NODE else cluster_pools()

    def health(self) -> dict[str, Health]:
        return {name: Health(False, "hot") for name in self.unhealthy}

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]


class Other(Cards):
    name = "other.example.com"

    def devices(self) -> list[Device]:
        return [Device("x")]

    pools = Driver.pools  # type: ignore[assignment] # uses devices()


class Wrong(Other):
    def devices(self) -> list[Device]:
        return [Device("part", consumes_counters={"card": {"memory": "1Gi"}})]


async def test_published_returns_the_devices_of_the_driver() -> None:
    async with node_with(Cards) as node:
        published = await node.published()
        assert published.pools == {"node-1": layout("node-1")}
        assert list(published) == ["card-0", "card-1", "part-0", "part-1"]
        assert published["card-0"].attributes["firmware"] == Version("1.2.3")
        assert published["card-0"].capacity["memory"].value == Quantity("40Gi")
        assert str(published["card-0"].capacity["memory"].value) == "40Gi"
        assert published["part-1"].consumes_counters["card"]["memory"] == "1Gi"
        async with controller_on(node.cluster, Cards):
            names = [*published, *"abcdef"]
            pools = (await node.wait_published(names)).pools
            assert {name: pool for name, pool in pools.items() if name != "node-1"} == {
                p.name: p for p in cluster_pools()
            }
            assert list(await node.published("node-1")) == list(published)


@pytest.mark.parametrize("amount", ["40Gi", "40960Mi", 40 << 30, Quantity("40Gi"), Capacity("40Gi")], ids=repr)
def test_a_published_device_has_one_type_for_amounts_and_equals_the_drivers_device(amount: Any) -> None:
    counters = {"card": {"memory": amount.value if isinstance(amount, Capacity) else amount}}
    returned = Device("card-0", attributes={"model": "x1"}, capacity={"memory": amount}, consumes_counters=counters)
    spec = {"driver": NAME, "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}}
    published, _ = pools_of([{"metadata": {"name": "s"}, "spec": {**spec, "devices": [returned.json()]}}])
    device = published["card-0"]
    assert isinstance(device, PublishedDevice)
    assert device.capacity["memory"].value == Quantity("40Gi") == 40 << 30
    assert device.consumes_counters == {"card": {"memory": "42949672960" if isinstance(amount, int) else "40Gi"}}
    assert device == returned
    assert returned == device
    assert device != Device(
        "card-0", attributes={"model": "x2"}, capacity={"memory": amount}, consumes_counters=counters
    )
    assert device != "card-0"


async def test_wait_published_accepts_names_or_a_function() -> None:
    async with node_with(Cards) as node:
        node.driver.unhealthy = frozenset({"card-0"})
        published = await node.wait_published(lambda devices: devices["card-0"].taints)
        assert [t.effect for t in published["card-0"].taints] == ["NoSchedule"]
        node.driver.unhealthy = frozenset()
        assert "card-0" in await node.wait_published(lambda devices: not devices["card-0"].taints)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (["card-0", "card-1", "part-0", "part-1", "part-2"], "part-2 is missing"),
        (["card-0", "card-1", "part-0"], "part-1 is unexpected"),
        (["card-2"], "card-2 is missing and card-0, card-1, part-0, part-1 is unexpected"),
        (lambda devices: devices["card-0"].taints, "the function returned no true value"),
        (lambda devices: devices["card0"].taints, "no device 'card0' is published, did you mean 'card-0'?"),
    ],
)
async def test_a_timeout_reports_the_published_devices_line_by_line(expected: Any, message: str) -> None:
    async with node_with(Cards) as node:
        with pytest.raises(PublishedError) as e:
            await node.wait_published(expected, timeout=0)
    first, *lines = str(e.value).splitlines()
    assert first.startswith(f"waited 0 s for the expected devices of {NAME}: ") and message in first
    assert lines == [
        "  pool node-1 has card-0: model='x1', index=0, fast=True, firmware=1.2.3, memory 40Gi",
        "  pool node-1 has card-1: other.example.com/rack='r1', memory 8Gi",
        "  pool node-1 has part-0: taint example.com/worn=much:NoExecute",
        "  pool node-1 has part-1",
    ]
    assert list(e.value.published) == ["card-0", "card-1", "part-0", "part-1"]


async def test_the_reason_for_a_missing_device_is_reported() -> None:
    async with node_with(Wrong) as node:
        with pytest.raises(
            PublishedError, match="part is missing; part is not published: it consumes counters of counter set 'card'"
        ):
            await node.wait_published(["part"], timeout=0)


async def test_a_misspelled_driver_name_is_reported_with_the_right_name() -> None:
    async with node_with(Cards) as node:
        assert not await node.api.published("card.example.com"), "a driver without devices is not an error"
        with pytest.raises(PublishedError, match=f"did you mean '{NAME}'.*\n  nothing is published"):
            await node.api.wait_published("card.example.com", ["card-0"], timeout=0)


async def test_the_pool_of_each_node_has_its_name() -> None:
    async with node_with(Cards) as node:
        expected = {"node-1": layout("node-1")}
        assert (await node.api.published(NAME)).pools == expected
        with pytest.raises(PublishedError, match="nothing is published"):
            await node.wait_published(["card-0"], "node-2", timeout=0)


async def test_leftovers_of_a_claim_are_the_same_in_process_and_as_a_process() -> None:
    """The kit runs `dra claims` for a driver process, and reads the object otherwise. Both count files and notes without a record."""
    counts = []
    for process in (False, True):
        async with node_with(Other, process=process) as node:
            await node.run_pod()
            uid = (await node.claim_of("pod"))["metadata"]["uid"]
            kind = f"k8s.{Other.name}-claim_"
            (node.settings.cdi_root / f"{kind}without-record.json").write_text("{}")
            (node.settings.cdi_root / f".{kind}a-note.record").write_text("{}")
            (node.settings.cdi_root / "k8s.someone.else-claim_x.json").write_text("{}")
            leftovers = await node.leftovers()
            assert leftovers["files"] == sorted([uid, "a-note", "without-record"])
            counts.append({key: len(value) for key, value in leftovers.items()})
    assert counts[0] == counts[1] == {"files": 3, "records": 1, "held": 1}


def slices(generation: int, *names: str, count: int = 0, pool: str = "p") -> list[dict[str, Any]]:
    """Returns one slice for each device."""
    place = {"name": pool, "generation": generation, "resourceSliceCount": count or len(names)}
    return [
        {"metadata": {"name": f"s-{generation}-{n}"}, "spec": {"driver": NAME, "pool": place, "nodeName": "n", "devices": [{"name": n}]}}
        for n in names
    ]  # fmt: skip


def test_the_newest_generation_is_used_when_it_is_complete() -> None:
    old, new = slices(1, "a", "b"), slices(2, "b", "c")
    published, incomplete = pools_of([*old, *new])
    assert (list(published), incomplete) == (["b", "c"], "")
    published, incomplete = pools_of([*old, new[1]])
    assert (list(published), incomplete) == ([], "pool p has 1 of 2 slices of generation 2")


def test_a_device_name_in_two_pools_is_ambiguous() -> None:
    published, _ = pools_of([*slices(1, "a", "b"), *slices(1, "a", pool="q")])
    assert list(published) == ["a", "b"] and published["b"] == Device("b")
    with pytest.raises(ValueError, match="device a is in the pools p, q: look into one of `pools`"):
        published["a"]
    assert differs(published, ["a", "b"]) == "", "a comparison of names needs no pool"


def test_a_long_list_of_devices_is_truncated() -> None:
    pool = read_pool([s["spec"] for s in slices(1, *(f"d-{i:03}" for i in range(208)))])
    lines = str(PublishedError("why", Published({"p": pool}))).splitlines()
    assert len(lines) == 22 and lines[-1] == "  and 188 more devices"


def test_a_string_instead_of_a_list_of_names_is_rejected() -> None:
    with pytest.raises(TypeError, match="use a list of names"):
        differs(Published({}), "card-0")


async def test_several_plugins_publish_their_own_devices() -> None:
    async with node_with(Cards) as node:
        api: AsyncApi = node.api
        async with plugin_on(node.cluster, Other, "node-1"):
            assert list(await api.published(Other.name)) == ["x"]
            assert "x" not in await node.published()
