"""One scheduling cycle: filters with the messages of Kubernetes, scores, and the victims of preemption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.label_selectors import selected
from dra_devkit.scheduling.framework import devices, node_info, pod_info, scoring, unsupported
from dra_devkit.scheduling.framework.cache import Cache
from dra_devkit.scheduling.framework.cycle import Cycle, CycleSnapshot
from dra_devkit.scheduling.framework.devices import PodClaims
from dra_devkit.scheduling.framework.extended import class_names, requests_of
from dra_devkit.scheduling.framework.node_allocation import AllocationMemory, AllocationSlow, NodeAllocator
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_devkit.scheduling.framework.preemption import Victims, preempt
from dra_devkit.scheduling.framework.status import NodeDiagnosis, Plugin, Rejection
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi import node_selectors

DRIVER = "d.example.com"


def node(name: str, cpu: str = "8", pods: str = "110", labels: JSON | None = None, **spec: Any) -> NodeInfo:
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": pods, **spec.pop("more", {})}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    return node_info.read({"metadata": meta, "spec": spec, "status": {"allocatable": amounts}})


def pod(name: str, cpu: str = "", labels: JSON | None = None, **spec: Any) -> PodInfo:
    container: JSON = {"name": "c", "resources": {"requests": {"cpu": cpu}} if cpu else {}}
    container |= spec.pop("container", {})
    meta = {"name": name, "namespace": "default", "uid": name, "labels": labels or {}}
    return pod_info.read({"metadata": meta, "spec": {"containers": [container], **spec}})


def cycle_of(
    p: PodInfo, nodes: Sequence[NodeInfo], claims: PodClaims | None = None, cache: Cache | None = None
) -> Cycle:
    cache_used = cache or Cache()
    allocations = NodeAllocator(AllocationMemory(), cache_used.devices(), len(nodes), limit=10.0)
    return Cycle(
        p, CycleSnapshot(nodes, {"default": {}, "other": {"team": "x"}}, {}), claims or PodClaims(), allocations
    )


def diagnosis(p: PodInfo, *nodes: NodeInfo) -> str:
    """Returns the message about the rejected nodes, or an empty string if a node is feasible."""
    cycle = cycle_of(p, nodes)
    return "" if cycle.feasible() else str(NodeDiagnosis(len(nodes), cycle.rejected))


def anti_affinity(app: str, key: str = "kubernetes.io/hostname", **term: Any) -> JSON:
    required_term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **term}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [required_term]}}


def affinity_to(app: str, key: str = "zone") -> JSON:
    required_term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [required_term]}}


@pytest.mark.parametrize(
    ("p", "candidate", "reason"),
    [
        pytest.param(pod("p"), node("n", unschedulable=True), "1 node(s) were unschedulable", id="cordoned"),
        pytest.param(
            pod("p", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
            node("n", unschedulable=True),
            "",
            id="cordoned-and-tolerated",
        ),
        pytest.param(
            pod("p"), node("n", taints=[{"key": "a", "effect": "NoExecute"}]), "1 node(s) had untolerated taint(s)", id="taint"
        ),
        pytest.param(pod("p"), node("n", taints=[{"key": "a", "effect": "PreferNoSchedule"}]), "", id="soft-taint"),
        pytest.param(
            pod("p", tolerations=[{"key": "a", "value": "x"}]),
            node("n", taints=[{"key": "a", "value": "y", "effect": "NoSchedule"}]),
            "1 node(s) had untolerated taint(s)",
            id="taint-of-another-value",
        ),
        pytest.param(
            pod("p", nodeSelector={"zone": "a"}), node("n"), "1 node(s) didn't match Pod's node affinity/selector", id="selector"
        ),
        pytest.param(
            pod(
                "p",
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]}
                            ]
                        }
                    }
                },
            ),
            node("n"),
            "1 node(s) didn't match Pod's node affinity/selector",
            id="match-fields",
        ),
        pytest.param(pod("p", cpu="9"), node("n"), "1 Insufficient cpu", id="cpu"),
        pytest.param(
            pod("p", container={"resources": {"limits": {"example.com/x": "1"}}}),
            node("n"),
            "1 Insufficient example.com/x",
            id="extended-without-class",
        ),
        pytest.param(
            pod("p", initContainers=[{"name": "i", "resources": {"requests": {"cpu": "9"}}}]),
            node("n"),
            "1 Insufficient cpu",
            id="init-container",
        ),
        pytest.param(
            pod("p", cpu="4", initContainers=[{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "5"}}}]),
            node("n"),
            "1 Insufficient cpu",
            id="sidecar-beside",
        ),
        pytest.param(pod("p", cpu="7", overhead={"cpu": "2"}), node("n"), "1 Insufficient cpu", id="overhead"),
        pytest.param(pod("p"), node("n", pods="0"), "1 Too many pods", id="pods"),
        pytest.param(
            pod("p", affinity=affinity_to("db")), node("n", labels={"zone": "a"}), "1 node(s) didn't match pod affinity rules", id="no-matching-pod-in-zone"
        ),
        pytest.param(
            pod("p", labels={"app": "db"}, affinity=affinity_to("db")), node("n", labels={"zone": "a"}), "", id="first-pod-of-the-group"
        ),
        pytest.param(
            pod("p", labels={"app": "db"}, affinity=affinity_to("db")),
            node("n"),
            "1 node(s) didn't match pod affinity rules",
            id="no-such-topology",
        ),
    ],
)  # fmt: skip
def test_a_filter_rejects_a_node_with_the_message_of_kubernetes(p: PodInfo, candidate: NodeInfo, reason: str) -> None:
    assert diagnosis(p, candidate) == (f"0/1 nodes are available: {reason}." if reason else "")


@pytest.mark.parametrize(
    ("existing", "p", "reason"),
    [
        pytest.param(pod("a", cpu="5"), pod("b", cpu="4"), "1 Insufficient cpu", id="cpu-in-use"),
        pytest.param(
            pod("a", container={"ports": [{"containerPort": 80, "hostPort": 80}]}),
            pod("b", container={"ports": [{"containerPort": 81, "hostPort": 80, "hostIP": "127.0.0.1"}]}),
            "1 node(s) didn't have free ports for the requested pod ports",
            id="host-port",
        ),
        pytest.param(
            pod("a", container={"ports": [{"containerPort": 80, "hostPort": 80, "hostIP": "127.0.0.2"}]}),
            pod("b", container={"ports": [{"containerPort": 81, "hostPort": 80, "hostIP": "127.0.0.1"}]}),
            "",
            id="host-port-of-another-address",
        ),
        pytest.param(
            pod("a", labels={"app": "x"}),
            pod("b", affinity=anti_affinity("x")),
            "1 node(s) didn't match pod anti-affinity rules",
            id="anti-affinity",
        ),
        pytest.param(
            pod("a", affinity=anti_affinity("x")),
            pod("b", labels={"app": "x"}),
            "1 node(s) didn't satisfy existing pods anti-affinity rules",
            id="anti-affinity-of-the-existing-pod",
        ),
        pytest.param(
            pod("a", labels={"app": "x"}),
            pod("b", affinity=anti_affinity("x", namespaceSelector={"matchLabels": {"team": "x"}})),
            "",
            id="anti-affinity-in-other-namespaces",
        ),
        pytest.param(
            pod("a", labels={"app": "x", "v": "1"}),
            pod("b", labels={"v": "2"}, affinity=anti_affinity("x", matchLabelKeys=["v"])),
            "",
            id="anti-affinity-of-the-same-version",
        ),
    ],
)  # fmt: skip
def test_existing_pods_can_make_a_node_infeasible(existing: PodInfo, p: PodInfo, reason: str) -> None:
    assert diagnosis(p, node("n").with_pod(existing)) == (f"0/1 nodes are available: {reason}." if reason else "")


def test_pods_are_spread_over_zones() -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    new = pod("new", labels={"app": "x"}, topologySpreadConstraints=[constraint])
    a, b, without_zone = node("a", labels={"zone": "a"}), node("b", labels={"zone": "b"}, cpu="1"), node("c")
    a = a.with_pod(pod("old", labels={"app": "x"}))
    assert [n.name for n in cycle_of(new, [a, b, without_zone]).feasible()] == ["b"]
    cycle = cycle_of(new, [a, without_zone])
    assert [n.name for n in cycle.feasible()] == ["a"], "a single zone has no skew"
    assert cycle.rejected["c"].reasons == (
        "node(s) didn't match pod topology spread constraints (missing required label)",
    )


OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near", "")


@given(
    st.dictionaries(st.sampled_from("ab"), st.sampled_from(["", "1", "2", "x"])),
    st.sampled_from("ab"),
    st.sampled_from(OPERATORS),
    st.lists(st.sampled_from(["", "1", "2", "x"]), max_size=2),
)
def test_an_expression_matches_labels_of_pods_and_nodes_alike(
    labels: dict[str, str], key: str, operator: str, values: list[str]
) -> None:
    expression = {"key": key, "operator": operator, "values": values}
    of_node = node_selectors.selector_matches(
        {"metadata": {"name": "n", "labels": labels}}, {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    )
    assert selected(labels, {"matchExpressions": [expression]}) is of_node
    if operator in {"Near", ""}:
        assert not of_node


def test_reasons_are_counted_and_sorted_as_text() -> None:
    nodes = [node("a", unschedulable=True), node("b", cpu="1"), node("c", cpu="1", pods="0")]
    assert diagnosis(pod("p", cpu="2"), *nodes) == (
        "0/3 nodes are available: 1 Too many pods, 1 node(s) were unschedulable, 2 Insufficient cpu."
    )


@pytest.mark.parametrize(
    ("spec", "feature"),
    [
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]}, "volume v of kind persistentVolumeClaim"),
        ({"runtimeClassName": "gvisor"}, "runtimeClassName gvisor"),
        ({"resourceClaims": [{"name": "c", "podGroupResourceClaim": "x"}]}, "podGroupResourceClaim of resource claim c"),
        ({"workloadRef": {"name": "w"}}, "workloadRef: use schedulingGroup to add a pod to a PodGroup (gate GenericWorkload)"),
        ({"topologySpreadConstraints": [{"topologyKey": "z", "new": 1}]}, "new of a topology spread constraint"),
        ({"tolerations": [{"key": "a", "operator": "Gt"}]}, "operator Gt of a toleration"),
    ],
)  # fmt: skip
def test_an_unsupported_field_is_reported(spec: JSON, feature: str) -> None:
    assert unsupported.reasons(pod("p", **spec)) == [f"not supported by the local cluster: {feature}"]


@pytest.mark.parametrize(
    ("spec", "messages"),
    [
        ({"schedulingPolicy": {"gang": {"minCount": 2}}}, ["schedulingPolicy gang of PodGroup g: pods are placed one by one; use the policy basic"]),
        ({"schedulingPolicy": {"basic": {}}, "priority": 3}, ["priority of PodGroup g"]),
        ({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}, ["disruptionMode of PodGroup g"]),
        ({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}}, "resourceClaims": []}, []),
        ({"schedulingPolicy": {"basic": {}}, "disruptionMode": "Pod", "podGroupTemplateRef": {}}, []),
    ],
)  # fmt: skip
def test_an_unsupported_field_of_a_pod_group_is_reported(spec: JSON, messages: list[str]) -> None:
    group = {"metadata": {"name": "g"}, "spec": spec}
    reasons = unsupported.reasons(pod("p", schedulingGroup={"podGroupName": "g"}), group)
    assert reasons == [f"not supported by the local cluster: {w}" for w in messages]


def test_common_pod_fields_are_supported() -> None:
    volumes = [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "configMap": {"name": "x"}},
        {"name": "c", "hostPath": {"path": "/"}},
    ]
    assert not unsupported.reasons(pod("p", volumes=volumes, priority=0, priorityClassName="x"))


# --- scores -----------------------------------------------------------------------------------


def best(p: PodInfo, *nodes: NodeInfo) -> str:
    return scoring.best(p, nodes, nodes, {}, lambda name: 0, has_alternatives=False).name


def test_the_node_with_the_larger_free_share_is_chosen() -> None:
    assert best(pod("p", cpu="2"), node("a"), node("b", cpu="16")) == "b"
    assert best(pod("p", cpu="2"), node("a").with_pod(pod("q", cpu="2")), node("b")) == "b"
    assert best(pod("p"), node("b"), node("a")) == "a", "equal scores select the first name"


def test_preferences_outweigh_a_fuller_node() -> None:
    preferred = {"weight": 1, "preference": {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}
    fast = node("z", labels={"ssd": "y"}).with_pod(pod("q", cpu="3"))
    assert best(pod("p", affinity=affinity), node("a"), fast) == "z"
    tainted = node("a", taints=[{"key": "k", "effect": "PreferNoSchedule"}])
    assert best(pod("p"), tainted, node("b").with_pod(pod("q", cpu="3"))) == "b"


def test_preferred_pod_affinity_and_anti_affinity_select_the_node() -> None:
    def preferred_affinity(kind: str) -> JSON:
        term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
        return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "podAffinityTerm": term}]}}

    a, b = node("a").with_pod(pod("q", labels={"app": "x"})), node("b")
    assert best(pod("p", affinity=preferred_affinity("podAffinity")), a, b) == "a"
    assert best(pod("p", affinity=preferred_affinity("podAntiAffinity")), a, b) == "b"


# --- preemption -------------------------------------------------------------------------------


def low_priority_pod(name: str, cpu: str, priority: int = 0, created: str = "2026-01-01T00:00:00Z") -> PodInfo:
    p = pod(name, cpu=cpu, priority=priority)
    p.pod["metadata"]["creationTimestamp"] = created
    return pod_info.read(p.pod)


def test_preemption_selects_the_fewest_pods_of_lowest_priority() -> None:
    busy = (
        node("a")
        .with_pod(low_priority_pod("x", "3"))
        .with_pod(low_priority_pod("y", "3", 5))
        .with_pod(low_priority_pod("z", "2", 5))
    )
    important = node("b").with_pod(low_priority_pod("w", "8", 50))
    cycle = cycle_of(pod("new", cpu="2", priority=100), [busy, important])
    assert not cycle.feasible()
    victims = preempt(cycle)
    assert isinstance(victims, Victims)
    assert (victims.node, [p.name for p in victims.pods]) == ("a", ["x"])


@pytest.mark.parametrize(
    ("p", "nodes", "reason"),
    [
        pytest.param(
            pod("new", cpu="2"),
            [node("a").with_pod(low_priority_pod("x", "8")), node("b", unschedulable=True)],
            "0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.",
            id="no-pod-of-lower-priority",
        ),
        pytest.param(
            pod("new", cpu="9", priority=9),
            [node("a").with_pod(low_priority_pod("x", "8"))],
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            id="too-large-for-the-node",
        ),
        pytest.param(
            pod("new", cpu="2", priority=9, preemptionPolicy="Never"),
            [node("a").with_pod(low_priority_pod("x", "8"))],
            "not eligible due to preemptionPolicy=Never.",
            id="policy-never",
        ),
    ],
)
def test_preemption_without_benefit_has_no_victims(p: PodInfo, nodes: list[NodeInfo], reason: str) -> None:
    cycle = cycle_of(p, nodes)
    assert not cycle.feasible()
    assert preempt(cycle) == f"preemption: {reason}"


def test_a_nominated_pod_reserves_resources_against_pods_of_its_priority() -> None:
    full = node("a")
    nominated, late, higher = pod("promised", cpu="6"), pod("late", cpu="4"), pod("higher", cpu="4", priority=1)
    for p, fits in ((late, False), (higher, True)):
        cycle = cycle_of(p, [full])
        cycle.snapshot = CycleSnapshot([full], {}, {"a": [nominated]})
        assert bool(cycle.feasible()) is fits


# --- devices ----------------------------------------------------------------------------------


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
