"""A prepare that ends just before, at or after the kubelet's time limit runs once, and the pod starts. All times are
scaled: 1 s stands for 40 s.
"""

from __future__ import annotations

import pytest

from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.testing import node_with
from tests.helpers.drivers import make_toy_class

SCALE = 1 / 40  # the plugin responds after 40 s, and the kubelet cancels after 45 s


@pytest.mark.parametrize("seconds", [39.9, 44.9, 45.1, 60.0])
async def test_the_pod_runs_after_one_prepare(seconds: float) -> None:
    cls = make_toy_class()
    cls.delay = seconds * SCALE
    async with node_with(cls, timers=Timers(call_timeout=45 * SCALE), call_timeout=40 * SCALE) as node:
        await node.run_pod()
        uid = (await node.claim_of("pod"))["metadata"]["uid"]
        assert cls.calls == [("prepare", uid)]
        assert await node.leftovers() == {"files": [uid], "records": [uid], "held": ["toy-0"]}
        await node.delete_pod()
        assert await node.leftovers() == {"files": [], "records": [], "held": []}
