"""`dra explain` names a free card for a pod whose card has another mode, and says that the pod must be deleted to move."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import ClaimSpec, OpaqueConfig, Request, node_with
from dra_kubeletplugin import Claim, Config, ContainerEdits, CounterSet, Device, Driver, Pool, PreparedDevice
from dra_kubeletplugin.cli import main

NAME = "ssd.example.com"


class Mode(Config):
    mode: Literal["latency", "throughput"]


class Cards(Driver):
    """Cards a1, b2 and c3 with two parts each. The value of an attribute is the key of the shared step."""

    name = NAME
    config = Mode

    def pools(self) -> list[Pool]:
        parts = [
            Device(f"{card}-{i}", attributes={"serial": card.upper(), "fast": card != "b2"})
            for card in ("a1", "b2", "c3")
            for i in (0, 1)
        ]
        return [Pool(self.settings.node_name, parts)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for device in claim.devices:
            assert isinstance(device.config, Mode)
            claim.shared_step(self.setup_mode, device.name.partition("-")[0], mode=device.config.mode)
        return [d.prepared(ContainerEdits(env={"A": "b"})) for d in claim.devices]

    def setup_mode(self, card: str, mode: str) -> None:
        pass

    def teardown_mode(self, card: str, mode: str) -> None:
        pass


class Counted(Cards):
    """No attribute identifies the card: its parts have a common counter set."""

    def pools(self) -> list[Pool]:
        (pool,) = super().pools()
        devices = [
            Device(
                d.name,
                attributes={"fast": d.attributes["fast"]},
                consumes_counters={d.name.partition("-")[0]: {"parts": 1}},
            )
            for d in pool.devices
        ]
        return [Pool(self.settings.node_name, devices, [CounterSet(card, {"parts": 2}) for card in ("a1", "b2", "c3")])]


def wants(mode: str) -> ClaimSpec:
    request = Request(selectors=[f'device.attributes["{NAME}"].fast'])
    return ClaimSpec(request, config=[OpaqueConfig(NAME, {"mode": mode})])


@pytest.mark.parametrize("driver", [Cards, Counted])
async def test_a_pod_on_a_card_in_another_mode_learns_which_free_card_would_do(
    driver: type[Cards], capsys: pytest.CaptureFixture[str]
) -> None:
    async with node_with(driver) as node:

        async def change_for(pod: str) -> str:
            await node.apply_pod(pod, wants("throughput"))
            await node.api.wait_event(pod, "SHARED_STEP")
            assert isinstance(node.cluster, LocalCluster)
            words = ["explain", pod, "--kubeconfig", str(node.cluster.kubeconfig), "-o", "json"]
            assert await asyncio.to_thread(main, words) == 1
            (reason,) = json.loads(capsys.readouterr().out)["reasons"]
            return str(reason["change"])

        await node.run_pod("first", wants("latency"))
        assert await node.allocated("first") == ["a1-0"]
        expected = "delete the pod, and create it again: it does not move to another card by itself. node-1/c3-0 would do: its card is free"
        assert await change_for("second") == expected  # has a1-1; b2 does not match its selector
        await node.delete_pod("second")
        await node.run_pod("third", wants("latency"))  # a1-1
        await node.run_pod("fourth", wants("latency"))  # c3-0
        expected = "wait until the pods of that claim have stopped, or delete them; no other free card would do"
        assert await change_for("fifth") == expected  # c3-1
