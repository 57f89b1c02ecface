"""The memory of the scheduler's allocations."""

from __future__ import annotations

import random
from typing import Any, cast

from dra_devkit.scheduling.framework import node_info
from dra_devkit.scheduling.framework.node_allocation import AllocationMemory
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.slice_cache import Slices


def node(name: str) -> NodeInfo:
    return node_info.read({"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {}})


def test_results_of_removed_nodes_are_deleted() -> None:
    draw = random.Random(1)
    memory, slices, classes = AllocationMemory(), Slices(), dict[str, Any]()
    for _ in range(200):
        nodes = [node(f"node-{i}") for i in draw.sample(range(1000), 20)]
        results = memory.of((), classes)
        for n in nodes:
            memory.pools.pools(n, slices)
            results[n.name] = cast(Any, object())
        memory.keep_only(nodes)
        assert len(memory.pools) == 20
        assert memory.of((), classes).keys() == {n.name for n in nodes}
