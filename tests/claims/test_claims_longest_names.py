"""A pod whose namespace, claim and request have the longest names that the API server accepts, on a node with metadata
files.
"""

from __future__ import annotations

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import ClaimSpec, Request, node_with, pods
from dra_kubeletplugin import Claim, Device, Driver, PreparedDevice
from tests.helpers.node_steps import NOTHING

NAMESPACE = "n" * 63
NAME = ".".join(["c" * 63, "l" * 63, "a" * 63, "i" * 61])


class MetadataDriver(Driver):
    name = "described.example.com"
    metadata = True

    async def devices(self) -> list[Device]:
        return [Device("only")]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(metadata={"made": True}) for d in claim.devices]


async def run_and_delete(cluster: LocalCluster, namespace: str, name: str, request: str) -> None:
    """Runs a pod with the only device of the node, and deletes the pod and its claim."""
    claim = pods.claim(name, ClaimSpec(Request(request)))
    pod = pods.pod("p", claims=[name])
    for doc in (claim, pod):
        doc["metadata"]["namespace"] = namespace
    await cluster.apply(claim, pod)
    await cluster.wait_running("p", namespace)
    await cluster.delete_pod("p", namespace)


async def test_a_pod_with_the_longest_names_runs_and_its_end_frees_the_device() -> None:
    async with node_with(MetadataDriver) as node:
        await node.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await run_and_delete(node.cluster, NAMESPACE, NAME, "r" * 63)
        await run_and_delete(node.cluster, "default", "c", "r")
        assert await node.leftovers() == NOTHING
        assert not list((node.settings.plugin_dir / "dra-device-metadata").iterdir())
