"""One device that the API server would reject never withholds another device, whatever is wrong with it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dra_devkit.testing import node_with
from dra_kubeletplugin import (
    Capacity,
    Claim,
    CounterSet,
    Device,
    Driver,
    NodeResource,
    Nodes,
    Pool,
    PreparedClaim,
    PreparedDevice,
    RequestPolicy,
    Taint,
    Version,
    cli,
)
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.errors import printable

GOOD = {"model": "X", "lanes": 4, "firmware": Version("6.19.4")}
BAD_FIELDS: list[tuple[str, Any, str]] = [
    *(
        ("attributes", {**GOOD, name: value}, text)
        for name, value, text in (
            ("firmware", Version("6.19.14.31400000"), "attributes['firmware']: '6.19.14.31400000'"),
            ("firmware", Version(None), "attributes['firmware']: 'None'"),
            ("model", "Y" * 65, "attributes[model].string: Too long"),
            ("model", "\udcff", "attributes['model'] is '\\udcff'"),
            ("lanes", None, "attributes['lanes'] is None"),
            ("lanes", 1.5, "attributes['lanes'] is 1.5"),
            ("lanes", float("nan"), "attributes['lanes'] is nan"),
            ("lanes", 2**64, "attributes['lanes']: 18446744073709551616"),
            ("lanes", -(10**400), "attributes['lanes']"),
            ("lanes", b"16", "attributes['lanes'] is b'16'"),
            ("lanes", [], "attributes['lanes'] is []"),
            ("lanes", [1, "x"], "attributes['lanes'] is [1, 'x']"),
            ("lanes", [[1]], "attributes['lanes'] is [[1]]"),
            ("lanes", ["x" * 65], "attributes[lanes].strings[0]"),
            ("lanes", object(), "attributes['lanes'] is <object object>"),
            ("bad-name", 1, "attributes: "),
            ("Not A Domain/rail", 1, "attributes: "),
            ("a/b/c", 1, "attributes[a/b/c]"),
            ("x" * 33, 1, f"attributes[{'x' * 33}]"),
            ("\udcff", 1, "attributes has a name"),
            (3, 1, "attributes has a name"),
        )
    ),
    ("attributes", {f"a{i}": i for i in range(33)}, "must not exceed 32"),
    ("attributes", {"l": [*range(49)]}, "must not exceed 48"),
    ("attributes", ["model"], "attributes is list"),
    *(
        ("capacity", {"memory": amount}, "capacity['memory']")
        for amount in ("80GB", "", "1 Gi", None, 1.5, float("nan"), -1, object(), Capacity("80GB"), Capacity(None))  # type: ignore[arg-type]
    ),
    ("capacity", {"memory": Capacity(8, RequestPolicy(default=1, step=0))}, "capacity['memory']"),
    ("capacity", {"memory": Capacity(8, RequestPolicy(default="x"))}, "capacity['memory']"),
    ("capacity", {"bad-name": 1}, "capacity: "),
    ("capacity", "80Gi", "capacity is str"),
    ("taints", [Taint(key="not valid!")], "taints[0].key"),
    ("taints", [Taint(key="k", effect="Sometimes")], "taints[0].effect"),
    ("taints", [Taint(key=None)], "taints has a Taint"),  # type: ignore[arg-type]
    ("taints", [Taint(key=f"k{i}") for i in range(17)], "taints"),
    ("taints", ["worn"], "taints has str"),
    ("taints", Taint(key="k"), "taints is Taint"),
    ("consumes_counters", {"card": {"slices": "x"}}, "consumes_counters['card']['slices']"),
    ("consumes_counters", {"card": 3}, "consumes_counters['card'] is int"),
    ("consumes_counters", {"card": {}}, "consumesCounters[0].counters"),
    ("consumes_counters", {"card": {"SLICES": 1}}, "consumesCounters[0].counters"),
    ("consumes_counters", {"other": {"slices": 1}}, "counter set 'other'"),
    ("consumes_counters", {"card": {"cores": 1}}, "counter set 'card' has no counter 'cores'"),
    ("compatibility_groups", {"odd": ["a"]}, "compatibility_groups['odd']"),
    ("node_resources", {"cpu": NodeResource()}, "node_resources['cpu']"),
    ("node_resources", {"cpu": NodeResource(per_device="x")}, "node_resources['cpu']"),
    ("binding_conditions", ["a b"], "bindingConditions[0]"),
    ("binding_conditions", "ready", "binding_conditions is str"),
    ("binding_conditions", ["example.com/bound"], "bindingFailureConditions"),
    ("nodes", Nodes.named("Not A Node"), "Nodes.named()"),
    ("nodes", "node", "nodes is str"),
    ("extra", {"name": "other"}, "extra: name is a field of Device"),
    ("extra", {"taints": [{}]}, "extra: taints is a field of Device"),
    ("extra", {"x": object()}, "extra: "),
    ("extra", {"nodeAllocatableResourceMappings": "cpu"}, "extra: nodeAllocatableResourceMappings is str"),
    ("name", "Card_0", "name: "),
    ("name", "x" * 64, "name: "),
    ("name", "", "name: "),
    ("name", None, "its name is NoneType"),
    ("name", 5, "its name is int"),
    ("name", "a\udcff", "its name is"),
]


NO_DEVICES = [None, "card-1", 5, {"name": "card-1"}, Device, [Device("card-1")], CounterSet("card-1", {"x": 1})]
CARD = CounterSet("card", {"slices": 7})


def good_devices(count: int) -> list[Any]:
    return [Device(f"card-{i}", attributes={**GOOD, "index": i}, capacity={"memory": "8Gi"}) for i in range(count)]


def spoiled(device: Device, **fields: Any) -> Any:
    return dataclasses.replace(device, **fields)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=2),
    max_leaves=4,
)
fields = st.sampled_from([f.name for f in dataclasses.fields(Device) if f.name != "data"])
spoilings: st.SearchStrategy[Callable[[Device], Any]] = st.one_of(
    st.sampled_from(BAD_FIELDS).map(lambda bad: lambda device: spoiled(device, **{bad[0]: bad[1]})),
    st.sampled_from(NO_DEVICES).map(lambda item: lambda device: item),
    st.tuples(fields, junk).map(lambda bad: lambda device: spoiled(device, **{bad[0]: bad[1]})),
)


async def published(*pools: Pool) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Returns the published devices of each pool as JSON, and what is not published."""
    inventory = Inventory("node")
    await inventory.update(list(pools))
    return {c.name: [d.json for d in c.devices] for c in inventory.contents()}, dict(inventory.rejected)


@given(st.integers(0, 4), st.data(), spoilings)
async def test_the_published_devices_are_the_list_without_the_spoiled_one(
    count: int, data: st.DataObject, spoil: Callable[[Device], Any]
) -> None:
    devices = good_devices(count + 1)
    at = data.draw(st.integers(0, count))
    bad = spoil(devices[at])
    assume(not isinstance(bad, Device) or bad.faults() or "consumes" in str(bad))
    listed, without = [*devices[:at], bad, *devices[at + 1 :]], [*devices[:at], *devices[at + 1 :]]
    found, rejected = await published(Pool("node", listed, [CARD]))
    assume(rejected)  # junk may be valid
    assert found == (await published(Pool("node", without, [CARD])))[0]
    ((name, reason),) = rejected.items()
    named = isinstance(bad, Device) and isinstance(bad.name, str) and bad.name
    assert name == (printable(bad.name) if named else f"devices[{at}]")
    assert reason.encode()


TOO_LARGE = ("extra", {"note": "x" * 600_000}, "at most 524288 can be published")


@pytest.mark.parametrize(
    ("field", "value", "text"), [*BAD_FIELDS, TOO_LARGE], ids=[text for *_, text in [*BAD_FIELDS, TOO_LARGE]]
)
async def test_the_reason_names_the_field(field: str, value: Any, text: str) -> None:
    first, second = good_devices(2)
    found, rejected = await published(Pool("node", [spoiled(first, **{field: value}), second], [CARD]))
    assert [d["name"] for d in found["node"]] == ["card-1"]
    (reason,) = rejected.values()
    assert printable(text) in reason


@given(st.lists(st.sampled_from(BAD_FIELDS), min_size=2, max_size=5, unique_by=lambda bad: bad[0]))
@example(
    [BAD_FIELDS[0], ("capacity", {"memory": "80GB"}, "capacity['memory']"), ("name", None, "its name is NoneType")]
)
async def test_all_faults_of_a_device_are_in_one_reason(bad: list[tuple[str, Any, str]]) -> None:
    assume(not any("counter set" in text for _, _, text in bad))  # looked up in the pool if the device itself is valid
    (device,) = good_devices(1)
    faults = spoiled(device, **{field: value for field, value, _ in bad}).faults()
    assert all(any(text in fault for fault in faults) for _, _, text in bad), faults


async def test_of_two_devices_with_one_name_the_first_is_published() -> None:
    first, second, third = good_devices(3)
    for devices, place in ([first, second, third], 1), ([first, third, second], 2):
        listed = [spoiled(d, name="card-0") if d is second else d for d in devices]
        found, rejected = await published(Pool("node", listed))
        assert [(d["name"], d["attributes"]["index"]) for d in found["node"]] == [
            ("card-0", {"int": 0}),
            ("card-2", {"int": 2}),
        ]
        assert list(rejected) == [f"devices[{place}]"] and "its name 'card-0'" in rejected[f"devices[{place}]"]


@given(st.sampled_from(BAD_FIELDS), st.booleans())
async def test_a_spoiled_device_in_one_pool_does_not_change_other_pools(
    bad: tuple[str, Any, str], is_first: bool
) -> None:
    first, second = good_devices(2)
    pools = [Pool("node/x", [spoiled(first, **{bad[0]: bad[1]}), second], [CARD]), Pool("node/y", [first, second])]
    found, rejected = await published(*pools[:: 1 if is_first else -1])
    assert {name: [d["name"] for d in devices] for name, devices in found.items()} == {
        "node/x": ["card-1"],
        "node/y": ["card-0", "card-1"],
    }
    assert len(rejected) == 1 and next(iter(rejected)).startswith("node/x/")


@pytest.mark.parametrize(
    "bad",
    [
        CounterSet("card", {"slices": "7 Gi"}),
        CounterSet("card", {"slices": None}),  # type: ignore[dict-item]
        CounterSet("card", {"SLICES": 7}),
        CounterSet("card", {"slices": float("nan")}),  # type: ignore[dict-item]
        CounterSet("card", 7),  # type: ignore[arg-type]
        CounterSet("card", {}),
        CounterSet("card", {f"c{i}": 1 for i in range(33)}),
        CounterSet(None, {"slices": 7}),  # type: ignore[arg-type]
        {"name": "card"},
        None,
    ],
)
async def test_a_fault_of_a_counter_set_is_a_fault_of_the_devices_that_consume_it(bad: Any) -> None:
    free, user, other = good_devices(3)
    user = spoiled(user, consumes_counters={"card": {"slices": 1}})
    other = spoiled(other, consumes_counters={"fine": {"slices": 1}})
    sets = [bad, CounterSet("fine", {"slices": 1})]
    found, rejected = await published(Pool("node", [free, user, other], sets))
    assert [d["name"] for d in found["node"]] == ["card-0", "card-2"]
    assert len(rejected) == 2 and "counter set 'card'" in rejected["card-1"]


@pytest.mark.parametrize("bad", [Pool("node/\ud800", []), Pool("node/x", [], partition_type="\ud800")])
async def test_a_pool_whose_name_or_type_is_not_unicode_does_not_withhold_other_pools(bad: Pool) -> None:
    found, rejected = await published(Pool("node", [Device("card-0")]), bad)
    assert set(found) == {"node"} and [name for name in rejected if name.startswith("pool node/")]


# --- where the device is named ----------------------------------------------------------------------

FIELD_CASES = {
    "card-1: attributes['firmware']: '6.19.14.31400000'": 'Version("6.19.14.31400000")',
    "card-1: attributes[firmware].string: Too long": '"Model Y with a very long marketing name, revision B2, of the second series"',
}
DRIVER = """from dra_kubeletplugin import Device, Driver, Version


class Cards(Driver):
    name = "cards.example.com"

    def devices(self):
        return [Device("card-0", attributes={{"firmware": Version("6.19.4")}}), Device("card-1", attributes={{"firmware": {value}}})]

    def prepare(self, claim):
        return [d.prepared() for d in claim.devices]
"""


@pytest.mark.parametrize("fault", FIELD_CASES)
async def test_the_device_is_named_in_readiness_the_metric_an_event_and_by_inspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    path = tmp_path / "cards.py"
    path.write_text(DRIVER.format(value=FIELD_CASES[fault]))
    line = f"({tmp_path.name}/cards.py:7)"
    assert await asyncio.to_thread(cli.main, ["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "pool node on node: 1 device" in out and f"not published: {fault}" in out and line in out
    async with node_with(load_driver(str(path))) as node:
        assert list(await node.published()) == ["card-0"]
        (note,) = await node.plugin.notes()
        expected = fault.replace(": ", " is not published: ", 1)
        assert note.startswith(expected) and note.endswith(line)
        assert b"\ndra_devices_not_published 1.0\n" in node.plugin.metrics.text()
        assert await node.plugin.not_ready() == []

        event = await node.api.wait_event(node.cluster.node.name, "DeviceNotPublished")
        assert expected in str(event)
        await node.run_pod()


async def test_a_driver_without_a_valid_device_is_not_ready_so_that_its_rollout_stops() -> None:
    class Cards(Driver):
        name = "cards.example.com"

        def devices(self) -> list[Device]:
            return [Device("card-0", attributes={"index": None}), Device("card-1", attributes={"index": None})]

        def prepare(self, claim: Claim) -> list[PreparedDevice]:
            raise NotImplementedError

        def unprepare(self, claim: PreparedClaim) -> None: ...

    async with node_with(Cards) as node:
        assert await node.plugin.not_ready() == [
            "no device can be published, because each device of the driver has a fault"
        ]
