"""The pools of the inventory: which role publishes a pool, the nodes of its devices, and pools that change while claims use them."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin import CounterSet, Device, Health, Nodes, Pool, Role
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.errors import DriverError
from dra_kubeletplugin.resourceapi.gated_fields import Gate
from tests.helpers.devices import published_devices


def names(inventory: Inventory) -> set[str]:
    return {d["name"] for d in published_devices(inventory)}


def published_sets(inventory: Inventory) -> list[Any]:
    return [s for pool in inventory.contents() for s in pool.counter_sets]


async def test_each_role_uses_its_own_pools_of_one_result() -> None:
    result = [
        Pool("node", [Device("gpu")]),
        Pool("node/mig", [Device("gpu")]),
        Pool("fabric", [Device("switch")], nodes=Nodes.all()),
        Pool("rack", [Device("nic")], nodes=Nodes.matching({"rack": ["a", "b"]})),
    ]
    plugin, controller = Inventory("node"), Inventory("", role=Role.CONTROLLER)
    await plugin.update(result)
    await controller.update(result)
    assert ([*plugin.pools], [*controller.pools]) == (["node", "node/mig"], ["fabric", "rack"])
    assert plugin.get("gpu", "node/mig") is not None
    assert plugin.get("switch", "fabric") is None


async def test_one_device_with_own_nodes_requires_own_nodes_for_all_devices_of_its_pool() -> None:
    inventory = Inventory("", role=Role.CONTROLLER)
    devices = [Device("a", nodes=Nodes.named("node-1")), Device("b"), Device("c", nodes=Nodes.all())]
    await inventory.update([Pool("p", devices, nodes=Nodes.matching({"rack": "r1"}))])
    (content,) = inventory.contents()
    assert content.fields == {"perDeviceNodeSelection": True}
    a, b, c = published_devices(inventory, "p")
    assert (a["nodeName"], c["allNodes"]) == ("node-1", True)
    assert b["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["r1"]


async def test_a_removed_device_with_own_nodes_requires_own_nodes_for_all_devices_of_its_pool() -> None:
    """The API server rejects a slice in which only some devices have nodes."""
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


async def test_a_removed_device_gets_own_nodes_if_other_devices_of_its_pool_have_own_nodes() -> None:
    inventory = Inventory("", role=Role.CONTROLLER)
    await inventory.update([Pool("p", [Device("gone"), Device("stays")], nodes=Nodes.all())])
    moved = Pool("p", [Device("stays", nodes=Nodes.named("node-1"))], nodes=Nodes.all())
    for _ in range(2):
        await inventory.update([moved], held={("p", "gone"): {}})
        (content,) = inventory.contents()
        assert content.fields == {"perDeviceNodeSelection": True}
        assert [d.get("nodeName") or d.get("allNodes") for d in published_devices(inventory, "p")] == ["node-1", True]


async def test_counter_sets_and_nodes_of_devices_are_not_sent_without_the_partitions_gate() -> None:
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


async def test_only_a_device_with_own_nodes_is_omitted_from_a_pool_of_this_node() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("a")])])
    await inventory.update([Pool("node", [Device("a"), Device("b", nodes=Nodes.all())])])
    assert (names(inventory), list(inventory.rejected)) == ({"a"}, ["b"])


@pytest.mark.parametrize("result", [None, [None], [Pool("p", [])] * 2, [Pool("p", None)], [Pool(1, [])], [Pool("p", [], nodes=None)]])  # type: ignore[arg-type]  # fmt: skip
async def test_an_invalid_result_of_pools_leaves_the_last_result_in_force(result: Any) -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("a")])])
    with pytest.raises(DriverError, match=r"pools\(\)"):
        await inventory.update(result)
    assert names(inventory) == {"a"}


async def test_a_partition_removed_in_use_keeps_its_counter_set_published() -> None:
    inventory = Inventory("node")
    part = Device("part", consumes_counters={"gpu-0": {"slices": 1}})
    await inventory.update([Pool("node", [part, Device("b")], [CounterSet("gpu-0", {"slices": 7})])])
    await inventory.update([Pool("node", [Device("b")])], held={("node", "part"): {}})
    assert names(inventory) == {"b", "part"}
    assert [s["name"] for s in published_sets(inventory)] == ["gpu-0"]
    await inventory.update([Pool("node", [Device("b")])])
    assert published_sets(inventory) == []


async def test_the_driver_s_newest_counter_set_also_applies_to_a_partition_removed_in_use() -> None:
    inventory = Inventory("node")
    part = Device("part", consumes_counters={"gpu-0": {"slices": 1}})
    await inventory.update([Pool("node", [part], [CounterSet("gpu-0", {"slices": 7})])])
    await inventory.update([Pool("node", [], [CounterSet("gpu-0", {"slices": 6})])], held={("node", "part"): {}})
    assert published_sets(inventory) == [{"name": "gpu-0", "counters": {"slices": {"value": "6"}}}]


async def test_a_removed_pool_stays_while_a_claim_has_one_of_its_devices() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("a")]), Pool("node/x", [Device("a"), Device("b")])])
    await inventory.update([Pool("node", [Device("a")])], held={("node/x", "b"): {}})
    assert [d["name"] for d in published_devices(inventory, "node/x")] == ["b"]
    await inventory.update([Pool("node", [Device("a")])])
    assert list(inventory.pools) == ["node"]


async def test_health_of_one_name_in_two_pools_is_distinguished_by_the_pool() -> None:
    inventory = Inventory("node", clock=lambda: 1_000_000.0)
    await inventory.update([Pool("node", [Device("a")]), Pool("node/x", [Device("a")])])
    await inventory.set_health({"node/x/a": Health(False, "hot")}, at=1.0)
    assert (inventory.healthy("a"), inventory.healthy("a", "node/x")) == (True, False)
    await inventory.set_health({"a": Health(False, "hot")}, at=2.0)
    assert (inventory.healthy("a"), inventory.healthy("a", "node/x")) == (False, False)


@pytest.mark.parametrize("role", Role)
async def test_only_the_new_role_publishes_a_pool_that_changes_roles_while_claims_hold_its_devices(
    role: Role,
) -> None:
    inventory = Inventory("node", role=role)
    this_node, other_node = (Nodes.this(), Nodes.all()) if role is Role.NODE else (Nodes.all(), Nodes.this())
    held = {("node/shelf", "d"): {"device": {"name": "d"}}}
    await inventory.update([Pool("node/shelf", [Device("d")], nodes=this_node)], held)
    assert [c.name for c in inventory.contents()] == ["node/shelf"]
    for _ in range(2):
        await inventory.update([Pool("node/shelf", [Device("d")], nodes=other_node)], held)
        assert inventory.contents() == []


async def test_a_pool_with_invalid_nodes_does_not_withhold_other_pools() -> None:
    inventory = Inventory("", role=Role.CONTROLLER)
    await inventory.update([Pool("odd", [], nodes=Nodes.named("")), Pool("good", [Device("d")], nodes=Nodes.all())])
    assert [c.name for c in inventory.contents()] == ["good"]
    assert list(inventory.rejected) == ["pool odd"]
