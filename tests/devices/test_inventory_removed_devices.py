"""A device that is removed while in use stays published with its counter set, also after restarts, until its claim is unprepared."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import CounterSet, Device, Pool
from dra_kubeletplugin.devices.pool_state import GONE
from tests.helpers.drivers import Toy

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices")

SETS = {card: CounterSet(card, {"slices": 2}) for card in ("card-0", "card-1")}


class Parts(Toy):
    """Two cards with two partitions each; the cards in ``pulled`` are removed."""

    pulled: tuple[str, ...] = ()
    removes_empty_pool = False  # whether the pool disappears with its last card

    async def pools(self) -> list[Pool]:  # type: ignore[override]
        cards = [c for c in SETS if c not in self.pulled]
        devices = [
            Device(f"{card}-{i}", attributes={"index": i}, consumes_counters={card: {"slices": 1}}) for card in cards for i in (0, 1)
        ]  # fmt: skip
        if self.removes_empty_pool and not devices:
            return []
        return [Pool(self.settings.node_name, devices, [SETS[c] for c in cards])]


def parts_class() -> type[Parts]:
    return type("Parts", (Parts,), {"pulled": ()})


def devices(slices: list[Any]) -> dict[str, Any]:
    return {d["name"]: d for s in slices for d in s["spec"].get("devices") or ()}


def sets(slices: list[Any]) -> dict[str, Any]:
    return {c["name"]: c["counters"] for s in slices for c in s["spec"].get("sharedCounters") or ()}


def is_gone(device: Any) -> bool:
    return GONE.key in {t["key"] for t in device.get("taints") or ()}


@pytest.mark.parametrize("records", ["kept", "lost"])
@pytest.mark.parametrize("pulled", [("card-0",), ("card-0", "card-1")], ids=["one card", "all"])
async def test_a_partition_removed_while_no_plugin_ran_stays_published_with_its_counters_until_its_claim_ends(
    records: str, pulled: tuple[str, ...]
) -> None:
    driver = parts_class()
    driver.removes_empty_pool = True
    async with node_with(driver) as node:
        await node.run_pod()
        used = {device for _, device in await node.plugin.claims.held()}
        assert used == {"card-0-0"}
        before = {n: copy.deepcopy(d) for n, d in devices(node.cluster.slices()).items()}
        await node.stop()
        driver.pulled = pulled
        if records == "lost":  # The pool's recorded file contains the same data.
            shutil.rmtree(node.plugin.settings.records_path)
        for _ in range(2):
            await node.start()
            found = devices(node.cluster.slices())
            assert is_gone(found["card-0-0"])
            assert {k: v for k, v in found["card-0-0"].items() if k != "taints"} == before["card-0-0"]
            assert sets(node.cluster.slices())["card-0"] == {"slices": {"value": "2"}}
            assert set(found) - {"card-0-0"} == ({"card-1-0", "card-1-1"} if pulled == ("card-0",) else set())
            health = dict(node.plugin.inventory.health())
            assert [h.healthy for k, h in health.items() if k.device == "card-0-0"] == [False]
            if pulled == ("card-0",):  # The scheduler sees a complete pool: the other card works.
                await node.run_pod("other")
                await node.delete_pod("other")
            await node.stop()
        await node.start()
        await node.delete_pod()
        await node.cluster.wait("the device to be gone", lambda: _without(node, "card-0-0"))


async def _without(node: Any, name: str) -> bool:
    return name not in devices(node.cluster.slices())


async def test_a_device_that_returns_loses_the_taint_and_keeps_its_claim() -> None:
    driver = parts_class()
    async with node_with(driver) as node:
        await node.run_pod()
        await node.stop()
        driver.pulled = ("card-0",)
        await node.start()
        assert is_gone(devices(node.cluster.slices())["card-0-0"])
        driver.pulled = ()
        await node.restart()
        assert not is_gone(devices(node.cluster.slices())["card-0-0"])
        assert {d for _, d in await node.plugin.claims.held()} == {"card-0-0"}
        await node.delete_pod()


async def test_a_removed_device_is_not_prepared_for_another_claim_after_a_restart() -> None:
    """The claim was allocated before the removal and tolerates the taint."""
    driver = parts_class()
    async with node_with(driver) as node:
        await node.run_pod()
        await node.stop()
        driver.pulled = ("card-0",)
        await node.start()
        assert node.plugin.inventory.get("card-0-0", node.plugin.settings.node_name) is None
        assert node.plugin.inventory.find("card-0-0", node.plugin.settings.node_name) is not None
        await node.delete_pod()
