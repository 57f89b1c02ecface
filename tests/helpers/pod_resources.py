"""The kubelet's list of pods (PodResources API) without a kubelet."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from dra_kubeletplugin._proto import podresources_v1_pb2 as pb
from dra_kubeletplugin._proto import podresources_v1_pb2_grpc as pb_grpc


class _Lister(pb_grpc.PodResourcesListerServicer):
    def __init__(self, pods: Sequence[tuple[str, str]]) -> None:
        self.pods = pods

    async def List(self, request: Any, context: Any) -> Any:
        return pb.ListPodResourcesResponse(
            pod_resources=[pb.PodResources(namespace=space, name=name) for space, name in self.pods]
        )


@contextlib.asynccontextmanager
async def listing_pods(kubelet_root: Path, pods: Sequence[tuple[str, str]] = ()) -> AsyncIterator[None]:
    """Serves a list of ``pods`` (namespace and name), which the caller may change. Does nothing if the list is served already."""
    socket = kubelet_root / "pod-resources" / "kubelet.sock"
    if socket.exists():
        yield
        return
    socket.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.aio.server()
    pb_grpc.add_PodResourcesListerServicer_to_server(_Lister(pods), server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
        socket.unlink(missing_ok=True)
