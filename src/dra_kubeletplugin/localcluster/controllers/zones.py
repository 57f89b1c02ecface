"""Zones of nodes, and whether pods are evicted from one that is away: where too many are, it is rather the network.

Source: kube-controller-manager's nodelifecycle controller, ``ComputeZoneState`` and ``handleDisruption``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

JSON = Mapping[str, Any]
_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_NOT_COUNTED = "node.kubernetes.io/exclude-disruption"
_UNHEALTHY = 0.55  # share of a zone's nodes, --unhealthy-zone-threshold
_SEVERAL = 2  # nodes: fewer that are away never disturb a zone
_LARGE = 50  # nodes of a zone that is disturbed and evicts all the same, --large-cluster-size-threshold


class Eviction(Enum):
    """What becomes of the NoExecute taint of a node that is away."""

    GOES_ON = "it is tainted"
    STANDS_STILL = "it is tainted if it was before"
    STOPS = "no node is tainted"


class _Zone(Enum):
    NORMAL = "normal"
    PARTIAL = "partial disruption"
    FULL = "full disruption"


def ready_of(node: JSON) -> str | None:
    """The status of its condition Ready; None where nobody has told."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((str(c["status"]) for c in conditions if c.get("type") == "Ready"), None)


def eviction_from(node: JSON, nodes: Iterable[JSON]) -> Eviction:
    """``nodes`` are all of the cluster."""
    zones: dict[tuple[str, ...], list[JSON]] = {}
    for each in nodes:
        if _NOT_COUNTED not in (each["metadata"].get("labels") or {}):
            zones.setdefault(_zone_of(each), []).append(each)
    states = {zone: _state(members) for zone, members in zones.items()}
    if all(state is _Zone.FULL for state in states.values()):
        return Eviction.STOPS
    zone = _zone_of(node)
    if states.get(zone) is _Zone.PARTIAL and len(zones[zone]) <= _LARGE:
        return Eviction.STANDS_STILL
    return Eviction.GOES_ON


def _zone_of(node: JSON) -> tuple[str, ...]:
    labels = node["metadata"].get("labels") or {}
    return tuple(str(labels.get(name, "")) for name in _LABELS)


def _state(members: list[JSON]) -> _Zone:
    away = sum(ready_of(node) != "True" for node in members)
    if away == len(members):
        return _Zone.FULL
    return _Zone.PARTIAL if away > _SEVERAL and away / len(members) >= _UNHEALTHY else _Zone.NORMAL


__all__ = ["Eviction", "eviction_from", "ready_of"]
