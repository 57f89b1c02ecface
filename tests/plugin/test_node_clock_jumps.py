"""The wall clock jumps by an hour, forwards or backwards, while claims are prepared: nothing expires early or late."""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

import pytest

from dra_devkit.testing import node_with
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import allocate, prepare_call, ref, unprepare_call

HOUR = 3600.0
NOTHING = {"files": [], "records": [], "held": []}
NOT_THE_PLUGIN = ("dra_devkit.localcluster", "dra_devkit.testing")


class FakeTimeModule(ModuleType):
    """Replaces the module ``time`` in the plugin's modules. gRPC and the local cluster keep the real one."""

    offset = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return time.time() + self.offset


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTimeModule:
    fake_time = FakeTimeModule("time")
    for name, module in list(sys.modules.items()):
        if name.startswith("dra_kubeletplugin.") and not name.startswith(NOT_THE_PLUGIN):
            if getattr(module, "time", None) is time:
                monkeypatch.setattr(module, "time", fake_time)
    return fake_time


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forwards", "backwards"])
async def test_claims_and_slices_survive_a_jump_of_the_wall_clock(jump: float, clock: FakeTimeModule) -> None:
    async with node_with(cls := make_toy_class(), reconcile_grace_period=600.0) as node:
        await node.run_pod("before")
        deleted_claim = await allocate(node, "gone", [{"pool": "node-1", "device": "toy-3"}])
        assert not (await prepare_call(node, ref(deleted_claim))).claims[deleted_claim["metadata"]["uid"]].error
        await node.api.delete("ResourceClaim", "gone")
        await node.plugin.claims.reconciler.once()
        slices = [(s["metadata"]["uid"], s["spec"]["pool"]["generation"]) for s in node.cluster.slices()]
        clock.offset = jump
        for _ in range(3):
            report = await node.plugin.claims.reconciler.once()
            assert report.waiting == [deleted_claim["metadata"]["uid"]]  # the grace period is not over
            assert not report.unprepared
            assert not report.files_removed
        await node.run_pod("after")
        held = (await node.leftovers())["held"]
        assert len(held) == 3
        assert await node.plugin.not_ready() == []
        assert [(s["metadata"]["uid"], s["spec"]["pool"]["generation"]) for s in node.cluster.slices()] == slices
        await node.restart()
        assert (await node.leftovers())["held"] == held
        clock.offset = 0.0
        await node.plugin.claims.reconciler.once()
        for name in ("before", "after"):
            await node.delete_pod(name)
        assert not (await unprepare_call(node, ref(deleted_claim))).claims[deleted_claim["metadata"]["uid"]].error
        assert await node.leftovers() == NOTHING
        assert cls.state == {}
