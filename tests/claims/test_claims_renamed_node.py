"""A node gets another name between two starts, with the same kubelet root: its devices are not allocated a second
time.
"""

from __future__ import annotations

from dra_devkit.testing import node_with
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import allocate, prepare_call, ref, unprepare_call


async def test_a_device_that_was_prepared_under_the_old_node_name_is_not_prepared_again_under_the_new_name() -> None:
    async with node_with(cls := make_toy_class(), reconcile_grace_period=600.0) as node:
        old_claim = await allocate(node, "old", [{"pool": "node-1", "device": "toy-0"}])
        old_uid = old_claim["metadata"]["uid"]
        assert not (await prepare_call(node, ref(old_claim))).claims[old_uid].error
        await node.cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "renamed"}})
        await node.restart(node_name="renamed")
        new_claim = await allocate(node, "new", [{"pool": "renamed", "device": "toy-0"}])
        uid = new_claim["metadata"]["uid"]
        for _ in range(2):
            error = (await prepare_call(node, ref(new_claim))).claims[uid].error
            assert "when this node was named node-1" in error
            assert old_uid in error
            assert list(cls.state) == [old_uid]
        # The kubelet unprepares the claims that it knew before.
        assert not (await unprepare_call(node, ref(old_claim))).claims[old_uid].error
        assert not (await prepare_call(node, ref(new_claim))).claims[uid].error
        assert list(cls.state) == [uid]
        assert (await node.leftovers())["held"] == ["toy-0"]
