"""The devices of a pod's claims in a scheduling cycle, also for extended resources."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dra_devkit.scheduling.framework import devices
from dra_devkit.scheduling.framework.cache import Cache
from dra_devkit.scheduling.framework.cycle import Cycle, CycleSnapshot
from dra_devkit.scheduling.framework.devices import PodClaims
from dra_devkit.scheduling.framework.extended import class_names, requests_of
from dra_devkit.scheduling.framework.node_allocation import AllocationMemory, AllocationSlow, NodeAllocator
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_devkit.scheduling.framework.status import NodeDiagnosis, Plugin, Rejection
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.scheduling.framework.cycles import cycle_of, node, pod

DRIVER = "d.example.com"


def cache_with(devices_of: JSON, **classes: JSON) -> Cache:
    """Returns a cache with a local pool for each node, and with device classes."""
    cache = Cache()
    for name, entries in devices_of.items():
        spec = {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": entries,
        }
        cache.slice_changed({"metadata": {"name": f"s-{name}", "uid": f"s-{name}"}, "spec": spec}, gone=False)
    for name, spec in {"any": {}, **classes}.items():
        cache.class_changed({"metadata": {"name": name}, "spec": spec}, gone=False)
    return cache


def claim(name: str, version: int = 1, status: JSON | None = None, **exactly: Any) -> JSON:
    request = {
        "name": "r",
        "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1, **exactly},
    }
    meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"devices": {"requests": [request]}}, "status": status or {}}


def allocated_claim(name: str, device: str, pool: str, version: int = 2) -> JSON:
    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": device}]
    return claim(name, version, {"allocation": {"devices": {"results": results}}})


def with_claims(*names: str) -> PodInfo:
    return pod("p", resourceClaims=[{"name": n, "resourceClaimName": n} for n in names])


def read(p: PodInfo, cache: Cache) -> PodClaims | Rejection:
    return devices.read(p, cache.claims, cache.classes, cache.extended, 600.0)


def feasible(p: PodInfo, cache: Cache, *nodes: NodeInfo) -> list[str]:
    claims = read(p, cache)
    assert isinstance(claims, PodClaims), claims
    return [n.name for n in cycle_of(p, nodes, claims, cache).feasible()]


def test_devices_of_reserved_allocations_are_not_available() -> None:
    cache = cache_with({"a": [{"name": "d0"}], "b": [{"name": "d0"}]})
    cache.claims.observe(claim("c"))
    cache.claims.observe(claim("other"))
    nodes = [node("a"), node("b")]
    assert feasible(with_claims("c"), cache, *nodes) == ["a", "b"]
    cache.claims.reserve("other", allocated_claim("other", "d0", "a"))
    assert feasible(with_claims("c"), cache, *nodes) == ["b"]
    rejection = read(with_claims("other"), cache)
    assert isinstance(rejection, Rejection)
    assert rejection.reasons == ("resource claim default/other is in the process of being allocated",)
    cache.claims.release("other")
    assert feasible(with_claims("c"), cache, *nodes) == ["a", "b"]


def test_a_written_claim_is_used_until_a_newer_version_is_observed() -> None:
    cache = cache_with({"a": [{"name": "d0"}]})
    cache.claims.observe(claim("c"))
    cache.claims.observe(claim("other"))
    cache.claims.wrote(allocated_claim("other", "d0", "a", version=5))
    assert feasible(with_claims("c"), cache, node("a")) == []
    cache.claims.observe(claim("other", version=3))
    assert feasible(with_claims("c"), cache, node("a")) == []
    cache.claims.observe(claim("other", version=6))
    assert feasible(with_claims("c"), cache, node("a")) == ["a"]
    cache.claims.observe(allocated_claim("other", "d0", "a", version=7))
    cache.claims.forget(allocated_claim("other", "d0", "a", version=8))
    assert feasible(with_claims("c"), cache, node("a")) == ["a"]


def test_results_of_a_node_are_recomputed_after_a_change() -> None:
    cache = cache_with({"a": [{"name": "d0"}], "b": [{"name": "d0"}]})
    cache.claims.observe(claim("c"))
    memory = AllocationMemory()
    nodes = [node("a"), node("b")]

    def feasible_nodes() -> list[str]:
        claims = read(with_claims("c"), cache)
        assert isinstance(claims, PodClaims)
        allocations = NodeAllocator(memory, cache.devices(), 2)
        return [n.name for n in Cycle(with_claims("c"), CycleSnapshot(nodes, {}, {}), claims, allocations).feasible()]

    assert feasible_nodes() == ["a", "b"]
    cache.claims.observe(allocated_claim("x", "d0", "a"))
    assert feasible_nodes() == ["b"]
    cache.slice_changed({"metadata": {"name": "s-b", "uid": "s-b"}}, gone=True)
    assert feasible_nodes() == []
    cache.claims.forget(allocated_claim("x", "d0", "a"))
    assert feasible_nodes() == ["a"]
    cache.class_changed(
        {"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": "false"}}]}}, gone=False
    )
    assert feasible_nodes() == []


def cycle_with_long_search(limit: float, slow_after: float = math.inf) -> Cycle:
    """Returns the cycle of a pod whose claim no node can satisfy, which only a long search shows."""
    hard = [{"name": f"d{i}", "attributes": {"i": {"int": i}, "pair": {"int": i // 2}}} for i in range(24)]
    cache = cache_with({f"n{i}": hard for i in range(3)})
    claim_object = claim("c")
    claim_object["spec"]["devices"]["requests"] = [
        {"name": f"r{i}", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 2}}
        for i in range(9)
    ]
    pairs = [{"requests": [f"r{i}"], "matchAttribute": f"{DRIVER}/pair"} for i in range(8)]
    claim_object["spec"]["devices"]["constraints"] = [*pairs, {"requests": ["r8"], "matchAttribute": f"{DRIVER}/i"}]
    cache.claims.observe(claim_object)
    claims = read(with_claims("c"), cache)
    assert isinstance(claims, PodClaims)
    nodes = [node(f"n{i}") for i in range(3)]
    allocations = NodeAllocator(AllocationMemory(), cache.devices(), 3, limit=limit, slow_after=slow_after)
    return Cycle(with_claims("c"), CycleSnapshot(nodes, {}, {}), claims, allocations)


def test_the_time_for_all_nodes_is_bounded() -> None:
    cycle = cycle_with_long_search(0.1)
    assert cycle.feasible() == []  # without the limit the search would take hours
    assert {r.reasons for r in cycle.rejected.values()} == {("timed out trying to allocate devices",)}


def test_a_slow_search_is_reported_before_it_has_a_result() -> None:
    cycle = cycle_with_long_search(0.1, slow_after=0.01)
    with pytest.raises(AllocationSlow):
        cycle.feasible()
    assert not cycle.rejected
    cycle.allocations.remove_slow_limit()
    assert cycle.feasible() == []
    assert len(cycle.rejected) == 3


# --- extended resources -----------------------------------------------------------------------


def test_the_newest_class_of_an_extended_resource_is_used() -> None:
    def device_class(name: str, created_at: str) -> JSON:
        return {
            "metadata": {"name": name, "creationTimestamp": created_at},
            "spec": {"extendedResourceName": "example.com/gpu"},
        }

    old, b, c = (
        device_class("a", "2026-01-01T00:00:00Z"),
        device_class("b", "2026-01-02T00:00:00Z"),
        device_class("c", "2026-01-02T00:00:00Z"),
    )
    assert class_names([old, b, c]) == {"example.com/gpu": "b"}
    assert class_names([old]) == {"example.com/gpu": "a"}


def containers(*limits: JSON, init: int = 0) -> PodInfo:
    entries = [{"name": f"c{i}", "resources": {"limits": amounts}} for i, amounts in enumerate(limits)]
    return pod("p", containers=entries[init:], initContainers=entries[:init])


@pytest.mark.parametrize(
    ("p", "requests", "mappings"),
    [
        pytest.param(
            containers({"x.com/g": "1"}, {"x.com/g": "2", "cpu": "1"}),
            {"container-0-request-0": 1, "container-1-request-1": 2},
            [("c0", "container-0-request-0"), ("c1", "container-1-request-1")],
            id="two-containers",
        ),
        pytest.param(
            containers({"x.com/g": "2"}, {"x.com/g": "1"}, init=1),
            {"container-0-request-0": 1, "container-1-request-0": 1},
            [("c1", "container-1-request-0"), ("c0", "container-1-request-0"), ("c0", "container-0-request-0")],
            id="init-container-shares-and-adds-one",
        ),
        pytest.param(
            containers({"x.com/g": "1"}, {"x.com/g": "3"}, {}, init=2),
            {"container-1-request-0": 3},
            [("c0", "container-1-request-0"), ("c1", "container-1-request-0")],
            id="sequential-init-containers",
        ),
    ],
)  # fmt: skip
def test_init_containers_share_requests_with_later_containers(
    p: PodInfo, requests: dict[str, int], mappings: list[tuple[str, str]]
) -> None:
    created, mapped = requests_of(p, {"x.com/g": "gpu"})
    assert {r["name"]: r["exactly"]["count"] for r in created} == requests
    assert [(m["containerName"], m["requestName"]) for m in mapped] == mappings


def test_rejections_contain_the_plugin_for_requeueing() -> None:
    cycle = cycle_of(pod("p", cpu="9"), [node("a"), node("b", unschedulable=True)])
    cycle.feasible()
    assert NodeDiagnosis(2, cycle.rejected).plugins == {Plugin.FIT, Plugin.NODE_UNSCHEDULABLE}
    assert str(NodeDiagnosis(0)) == "no nodes available to schedule pods"


def test_an_allocation_on_one_node_keeps_results_of_other_nodes() -> None:
    """Counter sets count for all nodes, so a naive cache would search each node again after each pod."""
    cache = cache_with({})
    for name in ("a", "b"):
        for i, content in enumerate(
            (
                {"sharedCounters": [{"name": "g", "counters": {"slots": {"value": "2"}}}]},
                {
                    "devices": [
                        {"name": "d", "consumesCounters": [{"counterSet": "g", "counters": {"slots": {"value": "1"}}}]}
                    ]
                },
            )
        ):
            pool = {"name": name, "generation": 1, "resourceSliceCount": 2}
            spec = {"driver": DRIVER, "nodeName": name, "pool": pool, **content}
            cache.slice_changed({"metadata": {"name": f"{name}{i}", "uid": f"{name}{i}"}, "spec": spec}, gone=False)
    cache.claims.observe(claim("c"))
    memory = AllocationMemory()
    nodes = [node("a"), node("b")]

    def results_by_node() -> dict[str, object]:
        claims = read(with_claims("c"), cache)
        assert isinstance(claims, PodClaims)
        allocations = NodeAllocator(memory, cache.devices(), 2)
        Cycle(with_claims("c"), CycleSnapshot(nodes, {}, {}), claims, allocations).feasible()
        [by_node] = memory.found.values()
        return dict(by_node)

    before = results_by_node()
    cache.claims.observe(allocated_claim("x", "d", "a"))
    after = results_by_node()
    assert after["a"] is not before["a"]
    assert after["b"] is before["b"]
