"""The library for tests of drivers: runs a driver on a node of a local cluster, with real sockets, records and files.

from dra_devkit.testing import node_with

async def test_a_pod_gets_its_fpga():
    async with node_with(Fpga, host="hosts/two-fpgas.yaml") as node:
        pod = await node.run_pod(parameters={"image": "a.bit"})
        assert node.env(pod)["FPGA_IMAGE"] == "a.bit"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_kubeletplugin.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..localcluster.kubelet import Timers
    from .api import AsyncApi, FaultError
    from .claims import (
        ClaimSpec,
        DistinctAttribute,
        FirstAvailable,
        MatchAttribute,
        OpaqueConfig,
        Request,
        SubRequest,
        Toleration,
    )
    from .cluster import controller_on, plugin_on
    from .events import Event, PodError
    from .facade import Api, Cluster, Kubelet, Node
    from .node import DriverNode, node_with, on_node
    from .oci import env_of, oci_of
    from .pods import claim, device_class, pod, template
    from .published import Published, PublishedDevice, PublishedError

# pytest loads this package for its fixtures in every project.
__getattr__ = lazy_names(
    __name__,
    {
        "..localcluster.kubelet": "Timers",
        ".api": "AsyncApi FaultError",
        ".claims": "ClaimSpec DistinctAttribute FirstAvailable MatchAttribute OpaqueConfig Request SubRequest Toleration",
        ".cluster": "controller_on plugin_on",
        ".events": "Event PodError",
        ".facade": "Api Cluster Kubelet Node",
        ".node": "DriverNode node_with on_node",
        ".oci": "env_of oci_of",
        ".pods": "claim device_class pod template",
        ".published": "Published PublishedDevice PublishedError",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Api",
    "AsyncApi",
    "ClaimSpec",
    "Cluster",
    "DistinctAttribute",
    "DriverNode",
    "Event",
    "FaultError",
    "FirstAvailable",
    "Kubelet",
    "MatchAttribute",
    "Node",
    "OpaqueConfig",
    "PodError",
    "Published",
    "PublishedDevice",
    "PublishedError",
    "Request",
    "SubRequest",
    "Timers",
    "Toleration",
    "claim",
    "controller_on",
    "device_class",
    "env_of",
    "node_with",
    "oci_of",
    "on_node",
    "plugin_on",
    "pod",
    "template",
]
