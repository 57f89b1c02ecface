"""Finds nodes that are equal for a pod, so that only one of them is examined.

In a cluster of 5,000 nodes most nodes refuse a pod for the same reason. They differ in names, in labels that the pod does not read,
and in amounts of resources that are enough.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from dra_devkit.scheduling.framework.claim_cache import is_allocated
from dra_devkit.scheduling.framework.devices import PodClaims
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.resourceapi import node_selectors

from .device_keys import DeviceKeys
from .node_reasons import NodeFilters


class NodeKeys:
    """Keys of nodes for one pod. The scheduler has the same result, for the same reasons, on nodes with an equal key.

    Args:
        nominated: the pods with a nominated node, by node name. Such a node is equal to no other node.
    """

    def __init__(
        self,
        filters: NodeFilters,
        claims: PodClaims,
        devices: DeviceKeys,
        nominated: Mapping[str, Sequence[PodInfo]],
    ) -> None:
        self._filters = filters
        self._devices = devices
        self._nominated = nominated
        self._resources = tuple(claims.by_class)
        allocated = [c["status"]["allocation"].get("nodeSelector") for c in claims.claims if is_allocated(c)]
        self._selectors = [selector for selector in allocated if selector is not None]

    def of(self, node: NodeInfo) -> Hashable:
        devices = self._devices.of(node)
        if devices is None or node.name in self._nominated:
            return node.name
        return (
            devices,
            self._filters.key(node),
            tuple(bool(node.allocatable.get(name)) for name in self._resources),
            tuple(node_selectors.selector_matches(node.node, s) for s in self._selectors),
        )


def repeated(nodes: Iterable[NodeInfo], keys: Mapping[str, Hashable]) -> set[str]:
    """Returns the names of the nodes that come after a node with an equal key."""
    first: dict[Hashable, str] = {}
    return {n.name for n in nodes if first.setdefault(keys[n.name], n.name) != n.name}
