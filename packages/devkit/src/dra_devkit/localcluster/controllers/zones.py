"""Decides from the state of a zone whether pods are evicted from failed nodes. Many failed nodes indicate a network problem.

Source: kube-controller-manager's nodelifecycle controller, ``ComputeZoneState`` and ``handleDisruption``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ..informer import conditions_of

_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_EXCLUDED = "node.kubernetes.io/exclude-disruption"
_UNHEALTHY = 0.55  # share of failed nodes that makes a zone partially disrupted, --unhealthy-zone-threshold
_NEVER_DISRUPTED = 2  # a zone with at most this number of failed nodes is never partially disrupted
# In a zone with more nodes, a partial disruption does not stop evictions (--large-cluster-size-threshold)
_LARGE_ZONE = 50


class Eviction(Enum):
    """Whether pods are evicted from a failed node, by a NoExecute taint."""

    ALLOWED = "the node is tainted"
    ONLY_TAINTED = "the node keeps its taint if it has one"
    STOPPED = "no node is tainted"


class _Zone(Enum):
    NORMAL = "normal"
    PARTIAL = "partial disruption"
    FULL = "full disruption"


def ready_of(obj: ReadOnlyJSON) -> str | None:
    """Returns the status of the condition Ready of a node or pod; None if it has none."""
    return conditions_of(obj).get("Ready", {}).get("status")


def eviction_from(node: ReadOnlyJSON, nodes: Iterable[ReadOnlyJSON]) -> Eviction:
    """Returns whether pods are evicted from ``node``. ``nodes`` are all nodes of the cluster."""
    zones: dict[tuple[str, ...], list[ReadOnlyJSON]] = {}
    for each in nodes:
        if _EXCLUDED not in (each["metadata"].get("labels") or {}):
            zones.setdefault(_zone_of(each), []).append(each)
    states = {zone: _state(members) for zone, members in zones.items()}
    if all(state is _Zone.FULL for state in states.values()):
        return Eviction.STOPPED
    zone = _zone_of(node)
    if states.get(zone) is _Zone.PARTIAL and len(zones[zone]) <= _LARGE_ZONE:
        return Eviction.ONLY_TAINTED
    return Eviction.ALLOWED


def _zone_of(node: ReadOnlyJSON) -> tuple[str, ...]:
    labels = node["metadata"].get("labels") or {}
    return tuple(str(labels.get(name, "")) for name in _LABELS)


def _state(members: list[ReadOnlyJSON]) -> _Zone:
    failed = sum(ready_of(node) != "True" for node in members)
    if failed == len(members):
        return _Zone.FULL
    return _Zone.PARTIAL if failed > _NEVER_DISRUPTED and failed / len(members) >= _UNHEALTHY else _Zone.NORMAL
