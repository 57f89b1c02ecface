"""Measures gRPC alone: a plugin that responds without any work, in its own process. ``python -m bench.empty SOCKET``."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

from bench.apiserver import ROOT
from bench.node import Kubelet
from dra_kubeletplugin._proto import dra_v1_pb2 as pb
from dra_kubeletplugin._proto import dra_v1_pb2_grpc as pb_grpc


class Empty(pb_grpc.DRAPluginServicer):
    """Returns responses of the size of a real plugin's."""

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        device = pb.Device(request_names=["device"], pool_name="node-1", device_name="d-1")
        out = pb.NodePrepareResourcesResponse()
        for claim in request.claims:
            device.cdi_device_ids[:] = [f"k8s.idle.example.com/claim={claim.uid}-d-1"]
            out.claims[claim.uid].devices.append(device)
        return out

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        out = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            out.claims[claim.uid].SetInParent()
        return out


@contextlib.asynccontextmanager
async def empty_plugin(folder: Path, python: str) -> AsyncIterator[Kubelet]:
    path = folder / "empty.sock"
    process = await asyncio.create_subprocess_exec(
        python, "-m", "bench.empty", str(path), stdin=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdin
    try:
        async with asyncio.timeout(30):
            while not path.exists():
                await asyncio.sleep(0.01)
        kubelet = Kubelet(str(path))
        yield kubelet
        await kubelet.close()
    finally:
        process.stdin.close()
        await process.wait()
        path.unlink(missing_ok=True)


async def serve(path: str) -> None:
    server = grpc.aio.server()
    pb_grpc.add_DRAPluginServicer_to_server(Empty(), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
