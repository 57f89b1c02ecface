"""Which unreachable nodes have their pods evicted. Upstream: nodelifecycle, TestComputeZoneState, handleDisruption."""

from __future__ import annotations

import pytest

from dra_devkit.localcluster.controllers.zones import Eviction, eviction_from
from dra_kubeletplugin.base.json_types import JSON


def zone(name: str, ready: int, unreachable: int, **labels: str) -> list[JSON]:
    """Returns the nodes of a zone. Unreachable nodes come first."""
    statuses = ["Unknown"] * unreachable + ["True"] * ready
    metas = {"labels": {"topology.kubernetes.io/zone": name, **labels}}
    return [{"metadata": metas, "status": {"conditions": [{"type": "Ready", "status": s}]}} for s in statuses]


@pytest.mark.parametrize(
    ("ready", "unreachable", "expected"),
    [
        (1, 1, Eviction.ALLOWED),
        (1, 2, Eviction.ALLOWED),  # two nodes are allowed at any share
        (3, 3, Eviction.ALLOWED),
        (2, 3, Eviction.ONLY_TAINTED),
        (22, 28, Eviction.ONLY_TAINTED),
        (22, 29, Eviction.ALLOWED),  # a large zone only has a lower eviction rate
        (0, 1, Eviction.STOPPED),
        (0, 60, Eviction.STOPPED),
    ],
)
def test_pods_are_not_evicted_when_most_of_a_cluster_is_unreachable(
    ready: int, unreachable: int, expected: Eviction
) -> None:
    nodes = zone("a", ready, unreachable)
    assert eviction_from(nodes[0], nodes) is expected


def test_pods_of_an_unreachable_zone_are_evicted_while_another_zone_is_ready() -> None:
    lost = zone("a", 0, 4)
    assert eviction_from(lost[0], [*lost, *zone("b", 1, 0)]) is Eviction.ALLOWED
    assert eviction_from(lost[0], [*lost, *zone("b", 0, 1)]) is Eviction.STOPPED
    assert eviction_from(lost[0], [*lost, *zone("b", 2, 3)]) is Eviction.ALLOWED


def test_an_excluded_node_does_not_affect_evictions() -> None:
    lost, other = zone("a", 0, 1), zone("a", 1, 0, **{"node.kubernetes.io/exclude-disruption": ""})
    assert eviction_from(lost[0], [*lost, *other]) is Eviction.STOPPED


def test_a_node_without_status_counts_as_unreachable() -> None:
    lost = zone("a", 0, 1)
    assert eviction_from(lost[0], [*lost, {"metadata": {"name": "made by hand"}}]) is Eviction.STOPPED
