"""The filters that need only the pod and one node with its pods: one function per plugin, in Kubernetes' order."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dra_kubeletplugin.resourceapi import node_selectors

from ..allocator.taints import tolerates
from .node_info import NodeInfo, pods_allowed
from .pod_info import PodInfo
from .status import Plugin, Rejection

UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_BLOCKING_EFFECTS = {"NoSchedule", "NoExecute"}


def unschedulable(pod: PodInfo, node: NodeInfo) -> Rejection | None:
    if not node.unschedulable or any(tolerates(t, UNSCHEDULABLE_TAINT) for t in pod.tolerations):
        return None
    return Rejection.of(Plugin.NODE_UNSCHEDULABLE, "node(s) were unschedulable")


def taints(pod: PodInfo, node: NodeInfo) -> Rejection | None:
    for taint in node.taints:
        if taint["effect"] in _BLOCKING_EFFECTS and not any(tolerates(t, taint) for t in pod.tolerations):
            return Rejection.of(Plugin.TAINTS, "node(s) had untolerated taint(s)")
    return None


def node_affinity(pod: PodInfo, node: NodeInfo) -> Rejection | None:
    wanted = pod.spec.get("nodeSelector") or {}
    required = pod.affinity("nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution")
    fits = all(node.labels.get(k) == v for k, v in wanted.items())
    if fits and (required is None or node_selectors.selector_matches(node.node, required)):
        return None
    return Rejection.of(Plugin.NODE_AFFINITY, "node(s) didn't match Pod's node affinity/selector")


def ports(pod: PodInfo, node: NodeInfo) -> Rejection | None:
    if not pod.ports or not node.conflicts(pod.ports):
        return None
    return Rejection.of(Plugin.PORTS, "node(s) didn't have free ports for the requested pod ports", resolvable=True)


def fit(pod: PodInfo, node: NodeInfo, by_devices: Collection[str] = ()) -> Rejection | None:
    """Checks the node's resources.

    Args:
        by_devices: extended resources that devices provide on nodes without a device plugin for them (KEP-5004).
    """
    reasons = []
    resolvable = True
    if len(node.pods) + 1 > pods_allowed(node):
        reasons.append("Too many pods")
    for name, wanted in pod.wanted:
        has = node.allocatable.get(name, 0)
        if wanted > has - node.requested.get(name, 0) and (has or name not in by_devices):
            reasons.append(f"Insufficient {name}")
            resolvable = resolvable and wanted <= has
    return Rejection(Plugin.FIT, tuple(reasons), resolvable) if reasons else None


Filter = Callable[[PodInfo, NodeInfo], Rejection | None]


def before_fit(pod: PodInfo) -> list[Filter]:
    """Returns the filters that can reject a pod before ``fit``, in order."""
    found: list[Filter] = [unschedulable, taints]
    if pod.has_affinity or pod.spec.get("nodeSelector"):
        found.append(node_affinity)
    if pod.ports:
        found.append(ports)
    return found
