"""Decides which slices belong to a publisher, so that the plugins and the controller of a driver never change each other's slices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from ...base.json_types import JSON
from ...errors import printable
from ...kube import KubeClient
from ...kube.resource import NODES

_PUBLISHER = "dra-kubeletplugin.dev/publisher"
_CONTROLLER = "controller"
# Label with the controller's namespace. Controllers in two namespaces have two Leases, so each namespace has its own leader.
_NAMESPACE = "dra-kubeletplugin.dev/namespace"


class NodeScope:
    """The scope of the plugin on one node: the driver's slices whose ``nodeName`` is this node.

    Attributes:
        selector: the field selector with which the slices are listed and watched.
        exact: whether :meth:`owns` depends only on the slice and not on ``pools``. An unchanged slice then stays in the scope.
    """

    exact = True

    def __init__(self, driver: str, node: str) -> None:
        self.driver = driver
        self.node = node
        self.selector = f"spec.driver={driver},spec.nodeName={node}"

    def owns(self, obj: Mapping[str, Any], pools: Collection[str]) -> bool:
        """Whether the publisher may change or delete a slice (v1). ``pools`` are the pools that the publisher publishes.

        Raises:
            KeyError, TypeError, AttributeError: the object is not a slice.
        """
        # Checks the selected fields again, in case an API server ignores field selectors.
        spec = obj["spec"]
        return bool(spec["driver"] == self.driver and spec.get("nodeName") == self.node)

    def rival(self, obj: Mapping[str, Any]) -> str:
        """Returns a message if another publisher published this slice (v1) of the same driver; empty otherwise.

        Call it for slices outside this scope. Raises as :meth:`owns`.
        """
        return ""

    async def metadata(self, client: KubeClient) -> JSON:
        """Returns the metadata that all slices get, without a name. Raises :class:`.ApiError`."""
        node = await client.get(NODES, self.node)
        uid = node["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid, "controller": True}
        return {"ownerReferences": [owner]}


class ClusterScope:
    """The scope of the controller in one namespace: the driver's slices without a node that have the labels of this controller.

    A slice without the labels of any controller is also in the scope if it belongs to one of the controller's pools.
    See :class:`NodeScope` for the methods.

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


Scope: TypeAlias = NodeScope | ClusterScope


def _controller_of(obj: Mapping[str, Any]) -> str:
    """Returns the namespace of the controller that published a slice; empty if none did."""
    labels = obj["metadata"].get("labels") or {}
    return str(labels.get(_NAMESPACE) or "") if labels.get(_PUBLISHER) == _CONTROLLER else ""
