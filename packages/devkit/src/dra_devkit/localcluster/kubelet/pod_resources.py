"""The PodResources service: lists the devices of each container, for monitoring agents on the node.
Source: k8s.io/kubelet, podresources/v1. ``Get`` and the devices of claims are on by default since Kubernetes 1.34.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc.aio

from dra_kubeletplugin._proto import podresources_v1_pb2 as pb
from dra_kubeletplugin._proto import podresources_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ...scheduling.framework.pod_info import is_finished
from ..informer import pod_claim_names
from .claims import ClaimManager
from .containers import requests_of, roles

log = logging.getLogger(__name__)


class PodResources(pb_grpc.PodResourcesListerServicer):
    """The gRPC service.

    Args:
        pods: returns the current pods of the node.
    """

    def __init__(self, socket: Path, manager: ClaimManager, pods: Callable[[], Iterable[ReadOnlyJSON]]) -> None:
        self.socket = socket
        self.manager = manager
        self.pods = pods
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Starts the server. Only logs a failure, because pods do not need this service."""
        try:
            await self._start()
        except (OSError, RuntimeError) as e:
            self._server = None
            log.warning(
                "kubelet: cannot serve the pod resources API; a socket's path has at most 107 bytes: %s: %s",
                self.socket,
                e,
            )

    async def _start(self) -> None:
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        pb_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def close(self) -> None:
        if self._server:
            await self._server.stop(0)
            self._server = None
        self.socket.unlink(missing_ok=True)

    async def List(self, request: Any, context: Any) -> Any:
        response = pb.ListPodResourcesResponse()
        for pod in self.pods():
            if not is_finished(pod):
                with contextlib.suppress(KeyError, TypeError, AttributeError):  # a malformed pod has no resources
                    response.pod_resources.append(self._resources(pod))
        return response

    async def GetAllocatableResources(self, request: Any, context: Any) -> Any:
        # This call lists only devices of device plugins. Devices of DRA drivers are listed in slices.
        return pb.AllocatableResourcesResponse()

    async def Get(self, request: Any, context: Any) -> Any:
        for pod in self.pods():
            if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._resources(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return await context.abort(grpc.StatusCode.UNKNOWN, text)

    def _resources(self, pod: ReadOnlyJSON) -> Any:
        meta = pod["metadata"]
        claims = {entry: name for entry, name in pod_claim_names(pod).items() if name}
        out = pb.PodResources(name=meta["name"], namespace=meta["namespace"])
        for container, _ in roles(pod):
            resources = out.containers.add(name=container["name"])
            for claim, request in requests_of(pod, container, claims):
                found = list(self.manager.devices(meta["namespace"], claim, request))
                if not found:
                    continue
                resource = resources.dynamic_resources.add(claim_name=claim, claim_namespace=meta["namespace"])
                for _, driver, device in found:
                    entry = resource.claim_resources.add(
                        driver_name=driver, pool_name=device.pool, device_name=device.device
                    )
                    for name in device.cdi:
                        entry.cdi_devices.add(name=name)
                    if device.share:
                        entry.share_id = device.share
        return out
