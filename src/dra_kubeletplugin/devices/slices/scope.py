"""Decides which slices belong to a publisher, so that two roles of one driver never change each other's slices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from ...errors import printable
from ...kube import KubeClient
from ...kube.resource import NODES

JSON = dict[str, Any]
_PUBLISHER = "dra-kubeletplugin.dev/publisher"
_CONTROLLER = "controller"
# The controller's namespace: controllers in two namespaces have two Leases, and so two leaders.
_NAMESPACE = "dra-kubeletplugin.dev/namespace"


class Scope(Protocol):
    """The scope of one publisher.

    Attributes:
        driver: the driver's name.
        selector: field selectors of its list and watch.
        node: the name of the only node; empty if the pools belong to no single node.
        exact: whether only the slice's own content decides if it is in the scope. An unchanged slice then stays in the scope.
    """

    driver: str
    selector: str
    node: str
    exact: bool

    def owns(self, obj: Mapping[str, Any], pools: Collection[str]) -> bool:
        """Whether the publisher may change or delete a slice (v1). ``pools`` are the pools that it publishes.

        Raises:
            KeyError, TypeError, AttributeError: the object is not a slice.
        """

    def rival(self, obj: Mapping[str, Any]) -> str:
        """Returns a message about another publisher of the slice's (v1) pool; empty if there is none.

        Raises as :meth:`owns`. Call it for slices outside this scope.
        """

    async def metadata(self, client: KubeClient) -> JSON:
        """Returns the metadata of each slice, without its name.

        Raises:
            ApiError: a request failed.
        """


class NodeScope:
    """The plugin of one node: exactly the driver's slices that name this node."""

    exact = True

    def __init__(self, driver: str, node: str) -> None:
        self.driver = driver
        self.node = node
        self.selector = f"spec.driver={driver},spec.nodeName={node}"

    def owns(self, obj: Mapping[str, Any], pools: Collection[str]) -> bool:
        # An API server that ignores field selectors must not make us change other slices.
        spec = obj["spec"]
        return bool(spec["driver"] == self.driver and spec.get("nodeName") == self.node)

    def rival(self, obj: Mapping[str, Any]) -> str:
        return ""

    async def metadata(self, client: KubeClient) -> JSON:
        node = await client.get(NODES, self.node)
        uid = node["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid, "controller": True}
        return {"ownerReferences": [owner]}


class ClusterScope:
    """The controller in one namespace. Its scope is the driver's slices that have no node and that carry this controller's labels.

    A slice without labels of any controller also belongs to this controller if the slice is in one of its pools.

    Args:
        driver: the driver's name.
        namespace: the controller's namespace.
    """

    exact = False
    node = ""

    def __init__(self, driver: str, namespace: str) -> None:
        self.driver = driver
        self.namespace = namespace
        self.selector = f"spec.driver={driver},spec.nodeName="  # excludes the slices of all nodes of a large cluster

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
            f"the controller in namespace {printable(by)!r} also publishes this pool: remove one of the two controllers; if the "
            f"controller in that namespace is already removed, delete its slices: kubectl delete resourceslices --field-selector "
            f"spec.driver={self.driver} -l "
            f"{_NAMESPACE}={printable(by)}"
        )

    async def metadata(self, client: KubeClient) -> JSON:
        return {"labels": {_PUBLISHER: _CONTROLLER, _NAMESPACE: self.namespace}}


def _controller_of(obj: Mapping[str, Any]) -> str:
    """Returns the namespace of the controller that published a slice; empty if none did."""
    labels = obj["metadata"].get("labels") or {}
    return str(labels.get(_NAMESPACE) or "") if labels.get(_PUBLISHER) == _CONTROLLER else ""
