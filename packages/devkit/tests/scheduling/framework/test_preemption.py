"""The victims of preemption, and nominated pods."""

from __future__ import annotations

import pytest

from dra_devkit.scheduling.framework import pod_info
from dra_devkit.scheduling.framework.cycle import CycleSnapshot
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_devkit.scheduling.framework.preemption import Victims, preempt
from packages.devkit.tests.scheduling.framework.cycles import cycle_of, node, pod


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
