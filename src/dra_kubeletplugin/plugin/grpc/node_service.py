"""NodePrepareResources and NodeUnprepareResources of the kubelet's DRA service, in v1 and v1beta1."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc.aio
import msgspec

from ..._proto import dra_v1_pb2 as v1
from ..._proto import dra_v1_pb2_grpc as v1_grpc
from ..._proto import dra_v1beta1_pb2 as v1beta1
from ..._proto import dra_v1beta1_pb2_grpc as v1beta1_grpc
from ...base.telemetry.logs import operation
from ...base.telemetry.metrics import Metrics
from ...claims import ClaimIdentity, ClaimManager, ClaimOutcome
from ...errors import DraError, describe

log = logging.getLogger(__name__)

PrepareRequest = v1.NodePrepareResourcesRequest | v1beta1.NodePrepareResourcesRequest
PrepareResponse = v1.NodePrepareResourcesResponse | v1beta1.NodePrepareResourcesResponse
UnprepareRequest = v1.NodeUnprepareResourcesRequest | v1beta1.NodeUnprepareResourcesRequest
UnprepareResponse = v1.NodeUnprepareResourcesResponse | v1beta1.NodeUnprepareResourcesResponse
Handle = Callable[[Sequence[ClaimIdentity]], Awaitable[Mapping[str, ClaimOutcome]]]


_KEPT_CALLS = 20


class KubeletCall(msgspec.Struct, frozen=True):
    """A finished call: its method, its end (``at``, in seconds since 1970), how long it took, and how many of its claims failed."""

    method: str
    at: float
    seconds: float
    claims: int
    failed: int


class NodeService:
    """Both versions of the service for one claim manager. Every response contains every claim of its request."""

    def __init__(self, claims: ClaimManager, metrics: Metrics) -> None:
        self.claims = claims
        self.metrics = metrics
        self.calls = deque[KubeletCall](maxlen=_KEPT_CALLS)
        """The last calls, oldest first, for the status page."""

    def add_to(self, server: grpc.aio.Server) -> None:
        v1_grpc.add_DRAPluginServicer_to_server(
            _NodeServicer(self, v1.NodePrepareResourcesResponse, v1.NodeUnprepareResourcesResponse), server
        )
        v1beta1_grpc.add_DRAPluginServicer_to_server(
            _NodeServicer(self, v1beta1.NodePrepareResourcesResponse, v1beta1.NodeUnprepareResourcesResponse), server
        )

    async def prepare(self, request: PrepareRequest, kind: type[PrepareResponse]) -> PrepareResponse:
        out = kind()
        for uid, response in (await self._call("NodePrepareResources", self.claims.prepare, request)).items():
            entry = out.claims[uid]
            if isinstance(response, DraError):
                entry.error = response.event()
                continue
            try:
                for d in response:
                    device = entry.devices.add(
                        request_names=d.requests, pool_name=d.pool, device_name=d.device, cdi_device_ids=d.cdi_ids
                    )
                    if d.share_id and isinstance(device, v1.Device):
                        device.share_id = d.share_id
            except (TypeError, ValueError) as e:  # a value that a message cannot contain, such as invalid Unicode
                entry.Clear()
                entry.error = DraError(f"the response cannot be sent: {describe(e)}").event()
        return out

    async def unprepare(self, request: UnprepareRequest, kind: type[UnprepareResponse]) -> UnprepareResponse:
        out = kind()
        for uid, response in (await self._call("NodeUnprepareResources", self.claims.unprepare, request)).items():
            out.claims[uid].error = response.event() if isinstance(response, DraError) else ""
        return out

    async def _call(
        self, method: str, handle: Handle, request: PrepareRequest | UnprepareRequest
    ) -> Mapping[str, ClaimOutcome]:
        self.metrics.inc("kubelet_calls_total", method=method)
        refs, begun = list(_refs(request.claims)), time.monotonic()
        with operation():
            log.debug("call of the kubelet: %s for %d claims", method, len(refs))
            fault = DraError(f"the plugin has no result for this claim of {method}")
            responses: Mapping[str, ClaimOutcome] = {}
            try:
                responses = await handle(refs)
            except BaseException as e:  # otherwise gRPC would return an error without any claim's cause
                task = asyncio.current_task()
                if isinstance(e, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise  # the kubelet has given up, or the server stops
                log.critical("unexpected exception in a call of the kubelet: %s; please report it", method, exc_info=e)
                fault = DraError(f"{method} failed inside the plugin: {describe(e)}")
            finally:  # also if the kubelet has given up
                failed = sum(isinstance(responses.get(r.uid, fault), DraError) for r in refs)
                self.calls.append(KubeletCall(method, time.time(), time.monotonic() - begun, len(refs), failed))
            return {r.uid: responses.get(r.uid, fault) for r in refs}


def _refs(claims: Iterable[v1.Claim | v1beta1.Claim]) -> Iterable[ClaimIdentity]:
    return (ClaimIdentity(c.namespace, c.name, c.uid) for c in claims)


class _NodeServicer(v1_grpc.DRAPluginServicer, v1beta1_grpc.DRAPluginServicer):
    """One version of the service. The messages of both have the same fields, except share_id."""

    def __init__(
        self, service: NodeService, prepared: type[PrepareResponse], unprepared: type[UnprepareResponse]
    ) -> None:
        self._service = service
        self._prepared = prepared
        self._unprepared = unprepared

    # The base classes of the two versions have different types; each receives and returns its own messages.
    async def NodePrepareResources(self, request: PrepareRequest, context: object) -> Any:
        return await self._service.prepare(request, self._prepared)

    async def NodeUnprepareResources(self, request: UnprepareRequest, context: object) -> Any:
        return await self._service.unprepare(request, self._unprepared)
