"""Steps of a test with a node: the kubelet's calls of the plugin, claims with a chosen allocation, and a restart with another configuration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from dra_devkit.localcluster.kubelet.plugins import dial
from dra_devkit.testing import ClaimSpec
from dra_devkit.testing.pods import claim
from dra_kubeletplugin._proto import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from dra_kubeletplugin.kube import ApiConfig
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.plugin.node import Plugin

NOTHING = {"files": [], "records": [], "held": []}


async def prepare_call(node: Any, *claims: Any, version: str = "v1", authority: str = "localhost") -> Any:
    pb, stub_module = (dra_v1_pb2, dra_v1_pb2_grpc) if version == "v1" else (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc)
    request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace=n, name=m, uid=u) for n, m, u in claims])
    async with dial(node.plugin.paths.dra, authority) as channel:
        return await stub_module.DRAPluginStub(channel).NodePrepareResources(request, timeout=60)


async def unprepare_call(node: Any, *claims: Any) -> Any:
    pb = dra_v1_pb2
    request = pb.NodeUnprepareResourcesRequest(claims=[pb.Claim(namespace=n, name=m, uid=u) for n, m, u in claims])
    async with dial(node.plugin.paths.dra) as channel:
        return await dra_v1_pb2_grpc.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=60)


def ref(claim_object: Any) -> tuple[str, str, str]:
    meta = claim_object["metadata"]
    return meta["namespace"], meta["name"], meta["uid"]


async def allocate(node: Any, name: str, results: list[dict[str, Any]]) -> Any:
    """Creates a claim with an allocation that the test chooses."""
    (created,) = await node.cluster.apply(claim(name, ClaimSpec()))
    full_results = [{"request": "device", "driver": node.settings.driver_name, **r} for r in results]
    consumer = {"apiGroup": "tests.example.com", "resource": "tests", "name": "test", "uid": "test"}
    status = {"allocation": {"devices": {"results": full_results}}, "reservedFor": [consumer]}
    return await node.cluster.client.update(CLAIMS, {**created, "status": status}, "status")


@contextlib.asynccontextmanager
async def restarted_plugin(node: Any, config: ApiConfig) -> AsyncIterator[Plugin]:
    """Starts the node's plugin again, with another configuration of the API server."""
    await node.stop()
    plugin = Plugin(type(node.plugin.driver)(), node.settings, config)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(plugin.running())
        await asyncio.wait_for(plugin.registration.registered.wait(), 30)
        yield plugin
