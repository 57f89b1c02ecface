"""The scores of nodes."""

from __future__ import annotations

from dra_devkit.scheduling.framework import scoring
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.scheduling.framework.cycles import node, pod


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
