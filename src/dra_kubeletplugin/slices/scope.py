"""Whose slices are ours: the rule by which two roles of one driver never touch each other's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from ..kube import KubeClient
from ..kube.client import NODES
from ..resources.nodes import Nodes

JSON = dict[str, Any]
_PUBLISHER = "dra-kubeletplugin.dev/publisher"
_CONTROLLER = "controller"


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
    """The controller: the driver's slices that name no node and are of its pools, or carry its label.

    ``owner`` is an owner reference for what is published, so that it goes when the controller is removed.
    """

    exact = False

    def __init__(self, driver: str, owner: Mapping[str, Any] | None = None) -> None:
        self.driver = driver
        self.owner = owner
        self.selector = f"spec.driver={driver},spec.nodeName="  # those that name none: not all nodes of a large cluster
        self.middle = ""

    def owns(self, obj: Mapping[str, Any], pools: Collection[str]) -> bool:
        spec = obj["spec"]
        if spec["driver"] != self.driver or spec.get("nodeName"):
            return False
        return spec["pool"]["name"] in pools or (obj["metadata"].get("labels") or {}).get(_PUBLISHER) == _CONTROLLER

    def nodes(self, nodes: Nodes) -> JSON:
        return dict(nodes.of_slice(""))

    def somewhere(self) -> JSON:
        return {"allNodes": True}

    async def metadata(self, client: KubeClient) -> JSON:
        owners = {"ownerReferences": [dict(self.owner)]} if self.owner else {}
        return {"labels": {_PUBLISHER: _CONTROLLER}, **owners}
