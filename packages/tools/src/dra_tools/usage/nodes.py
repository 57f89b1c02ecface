"""Decides which nodes take new pods, and so which devices a new pod can reach."""

from __future__ import annotations

from collections.abc import Iterable

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi import node_selectors

from ..taints import BLOCKING_EFFECTS

# Taints of Kubernetes itself. Other taints reserve a node for pods that tolerate the taint, so the node does take new pods.
_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_CORDONED = "unschedulable"


def unschedulable(node: ReadOnlyJSON) -> str:
    """Returns why a node takes no new pods, for example ``cordoned`` or ``not ready, disk pressure``; empty if it takes new pods."""
    spec = node.get("spec") or {}
    states = ["cordoned"] if spec.get("unschedulable") else []
    for taint in spec.get("taints") or []:
        key = str(taint.get("key") or "")
        if taint.get("effect") in BLOCKING_EFFECTS and key.startswith(_PREFIXES):
            state = key.rpartition("/")[2]
            states.append("cordoned" if state == _CORDONED else state.replace("-", " "))
    return ", ".join(sorted(dict.fromkeys(states), key=lambda s: s == "cordoned"))


class NodeStates:
    """The nodes of a cluster.

    Args:
        nodes: all nodes; None if they are not known. Then each device counts as reachable.
    """

    def __init__(self, nodes: Iterable[ReadOnlyJSON] | None) -> None:
        self._nodes = None if nodes is None else {str(n["metadata"]["name"]): n for n in nodes}
        self._why = {name: unschedulable(node) for name, node in (self._nodes or {}).items()}
        # Reasons by the identity of a node selector. The selector is kept, so that no other object gets its identity.
        self._of_selector: dict[int, tuple[ReadOnlyJSON | None, str]] = {}

    def unreachable(self, owner: ReadOnlyJSON) -> str:
        """Returns why no new pod can reach the devices of a slice; empty if some pod can.

        Args:
            owner: the spec of the slice, or the device itself if its slice has ``perDeviceNodeSelection``.
        """
        if self._nodes is None:
            return ""
        if name := owner.get("nodeName"):
            if name not in self._nodes:
                return f"node {name} does not exist"
            return f"node {name} is {self._why[name]}" if self._why[name] else ""
        selector = None if owner.get("allNodes") else owner.get("nodeSelector")
        known = self._of_selector.get(id(selector))
        if known is None:
            known = self._of_selector[id(selector)] = selector, self._none_of(selector)
        return known[1]

    def _none_of(self, selector: ReadOnlyJSON | None) -> str:
        """Returns why none of the nodes that a selector matches takes new pods; empty if one does. None matches all nodes."""
        states = set()
        for name, node in (self._nodes or {}).items():
            if selector is None or node_selectors.selector_matches(node, selector):
                if not self._why[name]:
                    return ""
                states.add(self._why[name])
        if states:
            return f"each of its nodes is {' or '.join(sorted(states))}"
        return "no node matches its node selector" if selector is not None else "there is no node"
