"""Selects the best of several nodes, with the scores and weights of Kubernetes' default profile.

Two scores are left out: soft topology spread constraints, and images, which are the same on all nodes of a local
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dra_kubeletplugin.resourceapi import node_selectors

from ..allocator.taints import tolerates
from .affinity import NamespaceLabels, preference
from .node_info import NodeInfo
from .pod_info import CPU, MEMORY, PodInfo

MAX_SCORE = 100
_COMPARED = (CPU, MEMORY)


def best(
    pod: PodInfo,
    nodes: Sequence[NodeInfo],
    all_nodes: Sequence[NodeInfo],
    namespaces: NamespaceLabels,
    of_devices: Callable[[str], int],
    *,
    has_alternatives: bool,
) -> NodeInfo:
    """Returns the node with the highest score. Of equal nodes, it is the node with more free cpu, then the first by name.

    Args:
        nodes: the feasible nodes.
        all_nodes: all nodes of the cluster.
        of_devices: the device score of a node, by its name.
        has_alternatives: whether the pod's claims have alternatives; otherwise ``of_devices`` is not called.
    """
    if len(nodes) == 1:
        return nodes[0]
    size = (*pod.nonzero_requested, pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0))
    totals = {n.name: n.scores[size] if size in n.scores else _of_amounts(pod, n, size) for n in nodes}
    if any(n.softly_tainted for n in nodes):
        _weigh(totals, 3, _scaled({n.name: _unwanted(pod, n) for n in nodes}, reverse=True))
    if pod.has_affinity:
        _weigh(totals, 2, _scaled({n.name: _node_preference(pod, n) for n in nodes}))
    if pod.has_affinity or any(n.pods_with_affinity for n in all_nodes):
        _weigh(totals, 2, _affinity_scores(pod, nodes, all_nodes, namespaces))
    if has_alternatives:
        _weigh(totals, 2, _scaled({n.name: of_devices(n.name) for n in nodes}))
    return min(nodes, key=lambda n: (-totals[n.name], -_free(n), n.name))


def _of_amounts(pod: PodInfo, node: NodeInfo, size: tuple[int, int, int, int]) -> int:
    """Returns the score for free and balanced cpu and memory. It is cached for pods of this size until the node changes."""
    total = least_allocated(pod, node)
    if pod.requests.get(CPU) or pod.requests.get(MEMORY):
        total += balanced(pod, node)
    node.scores[size] = total
    return total


def _weigh(totals: dict[str, int], weight: int, scores: Mapping[str, int]) -> None:
    for name, score in scores.items():
        totals[name] += weight * score


def _scaled(scores: Mapping[str, int], *, reverse: bool = False) -> dict[str, int]:
    highest = max(scores.values())
    if not highest:
        return dict.fromkeys(scores, MAX_SCORE if reverse else 0)
    scaled = {name: score * MAX_SCORE // highest for name, score in scores.items()}
    return {name: MAX_SCORE - score for name, score in scaled.items()} if reverse else scaled


def least_allocated(pod: PodInfo, node: NodeInfo) -> int:
    scores = []
    for i, name in enumerate(_COMPARED):
        has = node.allocatable.get(name, 0)
        if has:
            wanted = node.nonzero_requested[i] + pod.nonzero_requested[i]
            scores.append((has - wanted) * MAX_SCORE // has if wanted <= has else 0)
    return sum(scores) // len(scores) if scores else 0


def balanced(pod: PodInfo, node: NodeInfo) -> int:
    parts = []
    for name in _COMPARED:
        if has := node.allocatable.get(name, 0):
            parts.append(min((node.requested.get(name, 0) + pod.requests.get(name, 0)) / has, 1.0))
    spread = abs(parts[0] - parts[1]) / 2 if len(parts) == len(_COMPARED) else 0.0
    return int((1 - spread) * MAX_SCORE)


def _free(node: NodeInfo) -> int:
    return node.allocatable.get(CPU, 0) - node.nonzero_requested[0]


def _unwanted(pod: PodInfo, node: NodeInfo) -> int:
    return sum(
        t["effect"] == "PreferNoSchedule" and not any(tolerates(x, t) for x in pod.tolerations) for t in node.taints
    )


def _node_preference(pod: PodInfo, node: NodeInfo) -> int:
    terms = pod.affinity("nodeAffinity").get("preferredDuringSchedulingIgnoredDuringExecution") or []
    return sum(
        int(t["weight"])
        for t in terms
        if node_selectors.selector_matches(node.node, {"nodeSelectorTerms": [t["preference"]]})
    )


def _affinity_scores(
    pod: PodInfo, nodes: Sequence[NodeInfo], all_nodes: Sequence[NodeInfo], namespaces: NamespaceLabels
) -> dict[str, int]:
    gains = preference(pod, all_nodes, namespaces)
    scores = {n.name: sum(gains.get(place, 0) for place in n.labels.items()) for n in nodes}
    low, high = min(scores.values()), max(scores.values())
    return {name: (score - low) * MAX_SCORE // (high - low) if high > low else 0 for name, score in scores.items()}
