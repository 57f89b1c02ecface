"""Reads the OCI spec and the environment of a container of a local cluster, as the runtime received them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from ..localcluster.cluster import LocalCluster, resource_of
from .api import FaultError

_PODS = resource_of({"apiVersion": "v1", "kind": "Pod"})


def oci_of(cluster: LocalCluster, pod: Mapping[str, Any] | str, container: str = "") -> JSON:
    """Returns the OCI spec of a pod's container as the runtime received it; by default the first container.

    ``pod`` is the object, or the name of a pod in namespace ``default``.
    Raises :class:`FaultError` if the container was not started on a node of this cluster.
    """
    __tracebackhide__ = True
    if isinstance(pod, str):
        pod = _find_pod(cluster, pod)
    container = container or pod["spec"]["containers"][0]["name"]
    node = pod["spec"].get("nodeName", "")
    try:
        return cluster.nodes[node].runtime.spec(pod["metadata"]["uid"], container)
    except KeyError:
        where = f"on {node}" if node else "anywhere"
        raise FaultError(f"container {container} of pod {pod['metadata']['name']} was not started {where}") from None


def _find_pod(cluster: LocalCluster, name: str) -> JSON:
    """Returns the pod from the informer of the kubelet that runs it."""
    __tracebackhide__ = True
    for node in cluster.nodes.values():
        if found := node.kubelet.informers.find(_PODS, name, "default"):
            return found
    raise FaultError(f"no node has a pod {name}")


def env_of(cluster: LocalCluster, pod: Mapping[str, Any] | str, container: str = "") -> dict[str, str]:
    """Returns the environment variables of a container; arguments and errors as for :func:`oci_of`."""
    return dict(e.split("=", 1) for e in oci_of(cluster, pod, container)["process"]["env"])
