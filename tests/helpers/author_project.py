"""The folder of a driver's author, and a pytest of its own that runs the tests there."""

from __future__ import annotations

import pytest

LONGEST = 280  # seconds for a pytest of its own, which may be eight tests on a busy machine
DRIVER = """
import asyncio, os
from dra_kubeletplugin import ContainerEdits, Device, Driver, PermanentError

class Fpga(Driver):
    name = "fpga.example.com"

    def devices(self):
        return [Device(f"fpga-{fn.address.translate({58: 45, 46: 45})}") for fn in self.host.pci(vendor=0x10EE)]

    def health(self):
        return {}

    def prepare(self, claim):
        if os.environ.get("FPGA_REFUSES"):
            raise PermanentError("the bitstream is for another board")
        return [d.prepared(ContainerEdits(env={"FPGA": d.name})) for d in claim.devices]

    def unprepare(self, claim):
        pass
"""
HOST = """
functions:
- {address: "0000:17:00.0", vendor: 0x10ee, device: 0x5000, class: 0x120000}
- {address: "0000:18:00.0", vendor: 0x10ee, device: 0x5000, class: 0x120000}
"""
INI = """
[pytest]
dra_driver = driver.py
dra_host = host.yaml
filterwarnings = error
"""
FUNCTIONS = """
from dra_devkit.testing import Api, Cluster, Kubelet, Node
from driver import Fpga

def test_a_function_waits_until_the_pod_runs(node: Node[Fpga], api: Api, kubelet: Kubelet, local_cluster: Cluster):
    pod = node.run_pod()
    assert node.env(pod)["FPGA"] in node.allocated("pod")
    assert api.get("Pod", "pod")["status"]["phase"] == "Running"
    assert api.get("Pod", "another") is None
    assert (kubelet.root / "plugins" / "fpga.example.com").is_dir()
    assert local_cluster.nodes == ["node-1"] == [n["metadata"]["name"] for n in api.get_all("Node")]
    node.delete_pod()
    assert not any(node.leftovers().values())
"""


@pytest.fixture
def author(pytester: pytest.Pytester) -> pytest.Pytester:
    """The folder of an author: a driver, a host, and pytest's settings."""
    pytester.makepyfile(driver=DRIVER)
    pytester.makefile(".yaml", host=HOST)
    pytester.makefile(".ini", pytest=INI)
    return pytester


def run(author: pytest.Pytester, *args: str) -> pytest.RunResult:
    """A pytest without pytest-asyncio, where no arguments are given."""
    return author.runpytest_subprocess(
        "-p", "dra_devkit.pytest_plugin", "-q", *(args or ("-p", "no:asyncio")), timeout=LONGEST
    )
