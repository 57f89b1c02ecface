"""The nodes of devices, as drivers declare them and as the API server accepts them."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from dra_devkit.validation.slices import validate_spec
from dra_kubeletplugin import Device, Driver, Nodes, Pool, Role
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.devices.discovery import discovery_method, query_devices
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices.pack import WantedSlice
from dra_kubeletplugin.devices.slices.slice_objects import CommonSliceFields
from dra_kubeletplugin.devices.validation import parse_pools
from dra_kubeletplugin.driver import attach
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DriverError
from dra_kubeletplugin.host import Host

EVERY = {
    "this": Nodes.this(),
    "one by name": Nodes.named("node-1"),
    "several by name": Nodes.named("node-1", "node-2"),
    "labels": Nodes.matching({"rack": ["a", "b"], "zone": "z"}),
    "a selector": Nodes.selector({"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}),
    "all": Nodes.all(),
}


@pytest.mark.parametrize("nodes", EVERY)
def test_every_way_to_state_nodes_is_accepted_for_a_pool(nodes: str) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.example.com", "pool": pool, **EVERY[nodes].of_slice("node-1"), "devices": [{"name": "d"}]}
    assert validate_spec(spec, "spec") == []


@pytest.mark.parametrize("nodes", [w for w in EVERY if w != "this"])
def test_every_way_to_state_other_nodes_is_accepted_for_a_device(nodes: str) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    device = Device("d", nodes=EVERY[nodes]).json()
    spec = {"driver": "d.example.com", "pool": pool, "perDeviceNodeSelection": True, "devices": [device]}
    assert validate_spec(spec, "spec") == []


def test_nodes_are_equal_if_they_select_the_same_nodes() -> None:
    assert Nodes.matching({"a": "1", "b": ["2"]}) == Nodes.matching({"a": ["1"], "b": "2"})
    assert Nodes.named("a") != Nodes.named("b")
    assert len({Nodes.all(), Nodes.all(), Nodes.this()}) == 2


@pytest.mark.parametrize(
    "construct",
    [
        Nodes.named,
        lambda: Nodes.named("Not A Node"),
        lambda: Nodes.named(5),  # type: ignore[arg-type]
        lambda: Nodes.matching({}),
        lambda: Nodes.matching({"rack": []}),
        lambda: Nodes.matching({"not a label!": "x"}),
        lambda: Nodes.matching(5),  # type: ignore[arg-type]
        lambda: Nodes.selector({}),
        lambda: Nodes.selector({"nodeSelectorTerms": [{}, {}]}),
        lambda: Nodes.selector({"nodeSelectorTerms": 5}),
        lambda: Nodes.selector({"nodeSelectorTerms": [{}]}),
        lambda: Nodes.selector({"nodeSelectorTerms": [{"matchExpressions": []}]}),
        lambda: Nodes.selector(None),  # type: ignore[arg-type]
    ],
)
async def test_invalid_nodes_are_a_fault_of_their_pool_or_device(construct: Callable[[], Nodes]) -> None:
    inventory, nodes = Inventory("", role=Role.CONTROLLER), construct()
    good = Device("good", nodes=Nodes.named("n"))
    await inventory.update(
        [Pool("odd", [good], nodes=nodes), Pool("even", [good, Device("bad", nodes=nodes)], nodes=Nodes.all())]
    )
    assert [(c.name, [d.name for d in c.devices]) for c in inventory.contents()] == [("even", ["good"])]
    assert "Nodes." in inventory.rejected["pool odd"] and "nodes: Nodes." in inventory.rejected["even/bad"]


RACK = {"key": "rack", "operator": "In", "values": ["r1"]}


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ({"matchLabels": {"rack": "r1"}}, r"unknown field `matchLabels` - at `\$\.nodeSelectorTerms\[0\]`"),
        ({"matchExpressions": [{**RACK, "value": "r1"}]}, r"unknown field `value` - at .*matchExpressions\[0\]"),
        ({"matchExpressions": [{**RACK, "values": [float("nan")]}]}, r"Expected `str`, got `float` - at .*values\[0\]"),
        ({"matchExpressions": [{**RACK, "values": "r1"}]}, r"Expected `array`, got `str` - at .*values"),
        ({"matchExpressions": [{"operator": "Exists"}]}, r"missing required field `key`"),
        (
            {"matchExpressions": [{**RACK, "operator": "in"}]},
            r"operator: Invalid value: \"in\": not a valid selector operator",
        ),
        ({"matchExpressions": [{**RACK, "values": ["\ud800"]}]}, r"values\[0\]"),
        ({}, "matchExpressions"),
    ],
)
def test_an_invalid_selector_is_rejected_with_its_path_and_an_example(term: dict[str, Any], message: str) -> None:
    fault = Nodes.selector({"nodeSelectorTerms": [term]}).fault
    assert fault.startswith("Nodes.selector(): ") and re.search(message, fault)


def test_a_selector_accepts_tuples_and_any_mapping_class() -> None:
    made = Nodes.selector(MappingProxyType({"nodeSelectorTerms": ({"matchExpressions": (RACK,), "matchFields": []},)}))
    assert made == Nodes.matching({"rack": "r1"})


class Plain(Driver):
    name = "plain.example.com"

    def devices(self) -> list[Device]:
        return [Device("a")]


class Asynchronous(Driver):
    name = "async.example.com"

    async def devices(self) -> list[Device]:
        return [Device("a")]


@pytest.mark.parametrize("driver", [Plain, Asynchronous])
async def test_devices_without_pools_form_one_pool_with_the_node_s_name(driver: type[Driver]) -> None:
    made = driver()
    attach(made, Host(), Settings(node_name="node-1"), Role.NODE)
    found: Any = await query_devices(made, Calls(), "node-1")
    assert next((p.name, [d.name for d in p.devices]) for p in found) == ("node-1", ["a"])
    assert discovery_method(made) == "devices"


async def test_a_driver_with_only_devices_has_no_pools_for_the_controller() -> None:
    made = Plain()
    attach(made, Host(), Settings(), Role.CONTROLLER)
    assert await query_devices(made, Calls(), "") == []


def test_the_name_of_a_slice_is_never_too_long_for_the_server() -> None:
    common = CommonSliceFields("d" * 63, "p", {}, 1, 1)
    obj = common.object(0, WantedSlice(), None, f"{'n' * 62}." * 4, {}, {})
    prefix = obj["metadata"]["generateName"]
    assert len(prefix) <= 248
    assert prefix.endswith("-")
    assert not prefix.endswith((".-", "--"))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (Pool("gpus", []), "pools() returned Pool, not a list of Pool: put it into a list, `[pool]`"),
        ([Device("a")], "pools() returned a list with Device at [0], not Pool"),
        ([Pool(3, [])], "pools() returned a Pool whose name is int, not text"),  # type: ignore[arg-type]
        ([Pool("gpus", None)], "pools() returned pool 'gpus' whose devices are NoneType, not a list of Device"),  # type: ignore[arg-type]
        ([Pool("gpus", [], {"a": 1})], "pool 'gpus' whose counter_sets are dict, not a list of CounterSet: return its values"),  # type: ignore[arg-type]
        ([Pool("gpus", [], nodes="node-1")], "pool 'gpus' whose nodes are str: use Nodes.this(), Nodes.all()"),  # type: ignore[arg-type]
        ([Pool("gpus", [], nodes=Nodes.all)], "pool 'gpus' whose nodes are method: use Nodes.this()"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_wrong_type_inside_a_pool_is_reported_with_the_pool(result: object, message: str) -> None:
    with pytest.raises(DriverError, match=re.escape(message)):
        parse_pools(result, "pools")
