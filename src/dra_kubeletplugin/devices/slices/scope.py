"""Whose slices are ours: the rule by which two roles of one driver never touch each other's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from ...errors import printable
from ...kube import KubeClient
from ...kube.resource import NODES
from ...resourceapi.nodes import Nodes

JSON = dict[str, Any]
_PUBLISHER = "dra-kubeletplugin.dev/publisher"
_CONTROLLER = "controller"
_NAMESPACE = "dra-kubeletplugin.dev/namespace"  # of the controller: each has a Lease, and so a leader, of its own


class Scope(Protocol):
    """Of one publisher. ``selector`` are the field selectors of its list and watch; ``middle`` stands in the slices' names.

    ``exact`` is whether a slice that was its own stays so as long as nobody changes it.
    """

    driver: str
    selector: str
    exact: bool
    middle: str

    def owns(self, obj: Mapping[str, Any], pools: Collection[str]) -> bool:
        """Whether a slice (v1) is this publisher's to change or delete; ``pools`` are those that it publishes.

        Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for what is no slice.
        """

    def rival(self, obj: Mapping[str, Any]) -> str:
        """Who else publishes the pool of a slice (v1) that is not this publisher's; empty where nobody does.

        Raises as :meth:`owns` does.
        """

    def nodes(self, nodes: Nodes) -> JSON:
        """The fields of a slice that say on which nodes its devices are."""

    def somewhere(self) -> JSON:
        """The same for a slice of which it does not matter where its devices are."""

    async def metadata(self, client: KubeClient) -> JSON:
        """What each slice's metadata has besides its name.

        Raises :class:`ApiError`.
        """


class NodeScope:
    """The plugin of one node: every slice of the driver that names this node, and none else."""

    exact = True

    def __init__(self, driver: str, node: str) -> None:
        self.driver = driver
        self.node = node
        self.selector = f"spec.driver={driver},spec.nodeName={node}"
        self.middle = node

    def owns(self, obj: Mapping[str, Any], pools: Collection[str]) -> bool:
        # A server that ignores field selectors must not make us touch what is not ours.
        spec = obj["spec"]
        return bool(spec["driver"] == self.driver and spec.get("nodeName") == self.node)

    def rival(self, obj: Mapping[str, Any]) -> str:
        return ""

    def nodes(self, nodes: Nodes) -> JSON:
        return dict(nodes.of_slice(self.node))

    def somewhere(self) -> JSON:
        return {"nodeName": self.node}

    async def metadata(self, client: KubeClient) -> JSON:
        node = await client.get(NODES, self.node)
        uid = node["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid, "controller": True}
        return {"ownerReferences": [owner]}


class ClusterScope:
    """The controller in one namespace: the driver's slices that name no node and carry its labels, or are of its pools and carry
    nobody's.

    ``owner`` is an owner reference for what is published, so that it goes when the controller is removed.
    """

    exact = False

    def __init__(self, driver: str, namespace: str, owner: Mapping[str, Any] | None = None) -> None:
        self.driver = driver
        self.namespace = namespace
        self.owner = owner
        self.selector = f"spec.driver={driver},spec.nodeName="  # those that name none: not all nodes of a large cluster
        self.middle = ""

    def owns(self, obj: Mapping[str, Any], pools: Collection[str]) -> bool:
        spec = obj["spec"]
        if spec["driver"] != self.driver or spec.get("nodeName"):
            return False
        by = _controller_of(obj)
        return by == self.namespace or (not by and spec["pool"]["name"] in pools)

    def rival(self, obj: Mapping[str, Any]) -> str:
        if obj["spec"]["driver"] != self.driver or (by := _controller_of(obj)) in {"", self.namespace}:
            return ""
        return (
            f"the controller in namespace {printable(by)!r} publishes it: remove one of the two or, where that one is no more, what it "
            f"left: kubectl delete resourceslices --field-selector spec.driver={self.driver} -l {_NAMESPACE}={printable(by)}"
        )

    def nodes(self, nodes: Nodes) -> JSON:
        return dict(nodes.of_slice(""))

    def somewhere(self) -> JSON:
        return {"allNodes": True}

    async def metadata(self, client: KubeClient) -> JSON:
        owners = {"ownerReferences": [dict(self.owner)]} if self.owner else {}
        return {"labels": {_PUBLISHER: _CONTROLLER, _NAMESPACE: self.namespace}, **owners}


def _controller_of(obj: Mapping[str, Any]) -> str:
    """The namespace of the controller that published a slice; empty where none did."""
    labels = obj["metadata"].get("labels") or {}
    return str(labels.get(_NAMESPACE) or "") if labels.get(_PUBLISHER) == _CONTROLLER else ""
