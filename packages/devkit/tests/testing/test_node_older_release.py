"""On a release without partitions, the fixture returns when the devices of the simpler layout are published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import (
    Claim,
    ContainerEdits,
    Driver,
    Gate,
    Pool,
    PreparedClaim,
    PreparedDevice,
    Profile,
    partitions,
)


class Halves(Driver):
    """Publishes two cards, each whole or in halves; without the gate, whole only."""

    name = "halves.example.com"

    def pools(self) -> list[Pool]:
        half = Profile(name="half", takes={"memory": "8Gi"}, slots=1, at=[0, 1])
        cards = [partitions(f"card-{i}", [half], has={"memory": "16Gi"}, slots=2) for i in range(2)]
        devices = [d for card in cards for d in card.devices]
        if Gate.PARTITIONS in self.gates_off:
            whole_cards = [replace(d, consumes_counters={}) for d in devices if d.data.profile is None]
            return [Pool(self.settings.node_name, whole_cards)]
        return [Pool(self.settings.node_name, devices, [card.counter_set for card in cards])]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits()) for d in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        pass


@pytest.mark.parametrize("process", [False, True], ids=["in process", "process"])
@pytest.mark.parametrize(("release", "count"), [("1.34", 2), ("1.36", 6)])
async def test_the_fixture_returns_when_the_devices_are_published(release: str, count: int, process: bool) -> None:
    async with node_with(Halves, kubernetes=release, process=process) as node:
        assert len(await node.published()) == count
        await node.restart()
        assert len(await node.published()) == count
