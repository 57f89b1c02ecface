"""For tests of drivers: a node in a box, with the real sockets, records and files, and a local cluster around it.

from dra_kubeletplugin.testing import node_with

async def test_a_pod_gets_its_fpga():
    async with node_with(Fpga, host="hosts/two-fpgas.yaml") as node:
        pod = await node.run_pod(parameters={"image": "a.bit"})
        assert node.env(pod)["FPGA_IMAGE"] == "a.bit"
"""

from .cluster import controller_on, plugin_on
from .node import DriverNode, node_with
from .pods import device_class, pod, template

__all__ = ["DriverNode", "controller_on", "device_class", "node_with", "plugin_on", "pod", "template"]
