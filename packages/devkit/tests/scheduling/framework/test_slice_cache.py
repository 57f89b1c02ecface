"""The pools of a node equal the pools gathered from all slices. The cache does not read the counters of all nodes for each node."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.scheduling.allocator.pools import AllocatorPool, gather
from dra_devkit.scheduling.framework import node_info
from dra_devkit.scheduling.framework.slice_cache import PoolCache, SliceCache
from dra_kubeletplugin.base.json_types import JSON

NODES = ["a", "b", "c"]


def node(name: str) -> node_info.NodeInfo:
    return node_info.read({"metadata": {"name": name, "labels": {"zone": name}}, "spec": {}, "status": {}})


def slice_of(r: Random, number: int) -> JSON:
    pool, generation = r.choice(NODES), r.choice([1, 1, 1, 2])
    # If slices of a generation disagree about their number, the result depends on their order, as in Kubernetes.
    count = {"a": 1, "b": 2, "c": 3}[pool]
    spec: JSON = {
        "driver": "d",
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
    }
    spec |= r.choice([{"nodeName": pool}, {"nodeName": pool}, {"allNodes": True}])
    if r.random() < 0.5:
        spec["sharedCounters"] = [{"name": r.choice("st"), "counters": {"m": {"value": "4"}}}]
    else:
        device: JSON = {"name": f"d{r.randint(0, 4)}"}
        if r.random() < 0.7:
            device["consumesCounters"] = [{"counterSet": "s", "counters": {"m": {"value": "1"}}}]
        if r.random() < 0.2:
            device["bindingConditions"] = ["Attached"]
        if r.random() < 0.2:
            del spec["nodeName" if "nodeName" in spec else "allNodes"]
            spec["perDeviceNodeSelection"] = True
            device["nodeName"] = r.choice(NODES)
        spec["devices"] = [device]
    return {"metadata": {"name": f"s{number}", "uid": f"u{number}"}, "spec": spec}


def comparable(pools: list[AllocatorPool]) -> list[Any]:
    return [
        (
            p.key, p.incomplete, p.invalid, [(c.id, c.for_node) for c in p.candidates],
            [s["metadata"]["name"] for s in p.slices], [s["metadata"]["name"] for s in p.others],
        )
        for p in pools
    ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_cached_pools_equal_the_pools_gathered_from_all_slices(seed: int) -> None:
    r, slices, cache = Random(seed), SliceCache(), PoolCache()
    nodes = [node(name) for name in NODES]
    for _ in range(12):
        number = r.randint(0, 6)
        changed = slice_of(r, number)
        slices.forget(changed) if r.random() < 0.2 else slices.observe(changed)
        observed = slices.slices
        for current_node in nodes:
            gathered = gather(
                [*observed.local.get(current_node.name, ()), *observed.wide],
                current_node.node,
                lambda key, observed=observed: observed.by_pool.get(key, ()),
            )
            expected = [p for p in gathered if p.candidates or p.invalid or p.incomplete]
            assert comparable(cache.pools(current_node, observed)) == comparable(expected)


def test_a_change_of_counters_affects_only_the_pools_of_its_node() -> None:
    slices, cache = SliceCache(), PoolCache()
    nodes = [node(f"n{i}") for i in range(40)]
    for i, current_node in enumerate(nodes):
        spec = {
            "driver": "d",
            "nodeName": current_node.name,
            "pool": {"name": current_node.name, "generation": 1, "resourceSliceCount": 2},
        }
        counters = {"sharedCounters": [{"name": "s", "counters": {"m": {"value": "4"}}}]}
        slices.observe({"metadata": {"name": f"c{i}", "uid": f"c{i}"}, "spec": {**spec, **counters}})
        devices = {"devices": [{"name": "d0"}]}
        slices.observe({"metadata": {"name": f"d{i}", "uid": f"d{i}"}, "spec": {**spec, **devices}})
    before = [cache.pools(current_node, slices.slices) for current_node in nodes]
    slices.observe({**slices.slices.wide[7], "metadata": {"name": "c7", "uid": "c7"}})
    assert sum(cache.pools(n, slices.slices) is not b for n, b in zip(nodes, before, strict=True)) <= 1
