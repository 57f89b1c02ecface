"""From which nodes that are away pods are evicted. Upstream: nodelifecycle, TestComputeZoneState, handleDisruption."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.localcluster.controllers.zones import Eviction, eviction_from

JSON = dict[str, Any]


def zone(name: str, ready: int, away: int, **labels: str) -> list[JSON]:
    """Nodes of a zone; those that are away come first."""
    statuses = ["Unknown"] * away + ["True"] * ready
    metas = {"labels": {"topology.kubernetes.io/zone": name, **labels}}
    return [{"metadata": metas, "status": {"conditions": [{"type": "Ready", "status": s}]}} for s in statuses]


@pytest.mark.parametrize(
    ("ready", "away", "then"),
    [
        (1, 1, Eviction.ALLOWED),
        (1, 2, Eviction.ALLOWED),  # two are few, whatever their share
        (3, 3, Eviction.ALLOWED),
        (2, 3, Eviction.ONLY_TAINTED),
        (22, 28, Eviction.ONLY_TAINTED),
        (22, 29, Eviction.ALLOWED),  # a large zone is only slower
        (0, 1, Eviction.STOPPED),
        (0, 60, Eviction.STOPPED),
    ],
)
def test_pods_stay_where_most_of_a_cluster_is_away(ready: int, away: int, then: Eviction) -> None:
    nodes = zone("a", ready, away)
    assert eviction_from(nodes[0], nodes) is then


def test_a_zone_that_is_away_as_a_whole_is_evicted_from_while_another_is_well() -> None:
    lost = zone("a", 0, 4)
    assert eviction_from(lost[0], [*lost, *zone("b", 1, 0)]) is Eviction.ALLOWED
    assert eviction_from(lost[0], [*lost, *zone("b", 0, 1)]) is Eviction.STOPPED
    assert eviction_from(lost[0], [*lost, *zone("b", 2, 3)]) is Eviction.ALLOWED


def test_a_node_that_is_not_counted_changes_nothing_for_others() -> None:
    lost, other = zone("a", 0, 1), zone("a", 1, 0, **{"node.kubernetes.io/exclude-disruption": ""})
    assert eviction_from(lost[0], [*lost, *other]) is Eviction.STOPPED


def test_a_node_of_which_nobody_has_reported_anything_counts_as_away() -> None:
    lost = zone("a", 0, 1)
    assert eviction_from(lost[0], [*lost, {"metadata": {"name": "made by hand"}}]) is Eviction.STOPPED
