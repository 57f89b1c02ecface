"""NodePrepareResources and NodeUnprepareResources of the kubelet's DRA service, in v1 and v1beta1."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import grpc.aio
import msgspec

from ..._proto import dra_v1_pb2 as v1
from ..._proto import dra_v1_pb2_grpc as v1_grpc
from ..._proto import dra_v1beta1_pb2 as v1beta1
from ..._proto import dra_v1beta1_pb2_grpc as v1beta1_grpc
from ...base.telemetry.logs import operation
from ...base.telemetry.metrics import Metrics
from ...claims import ClaimIdentity, ClaimManager, ClaimOutcome
from ...claims.prepared_devices import PreparedResult
from ...errors import DraError, describe

log = logging.getLogger(__name__)

PrepareRequest = v1.NodePrepareResourcesRequest | v1beta1.NodePrepareResourcesRequest
PrepareResponse = v1.NodePrepareResourcesResponse | v1beta1.NodePrepareResourcesResponse
UnprepareRequest = v1.NodeUnprepareResourcesRequest | v1beta1.NodeUnprepareResourcesRequest
UnprepareResponse = v1.NodeUnprepareResourcesResponse | v1beta1.NodeUnprepareResourcesResponse
Handle = Callable[[Sequence[ClaimIdentity]], Awaitable[Mapping[str, ClaimOutcome]]]
AddDevices = Callable[[str, Sequence[PreparedResult]], None]
R = TypeVar("R", bound=PrepareResponse | UnprepareResponse)
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

        def add_devices(uid: str, devices: Sequence[PreparedResult]) -> None:
            entry = out.claims[uid]
            try:
                for d in devices:
                    device = entry.devices.add(
                        request_names=d.requests, pool_name=d.pool, device_name=d.device, cdi_device_ids=d.cdi_ids
                    )
                    if d.share_id and isinstance(device, v1.Device):
                        device.share_id = d.share_id
            except (TypeError, ValueError) as e:  # a value that a message cannot contain, such as invalid Unicode
                entry.Clear()
                entry.error = DraError(f"the response cannot be sent: {describe(e)}").event()

        return await self._call("NodePrepareResources", self.claims.prepare, request, out, add_devices)

    async def unprepare(self, request: UnprepareRequest, kind: type[UnprepareResponse]) -> UnprepareResponse:
        out = kind()
        return await self._call(
            "NodeUnprepareResources", self.claims.unprepare, request, out, lambda uid, devices: None
        )

    async def _call(
        self, method: str, handle: Handle, request: PrepareRequest | UnprepareRequest, out: R, add: AddDevices
    ) -> R:
        self.metrics.inc("kubelet_calls_total", method=method)
        refs, began = [ClaimIdentity(c.namespace, c.name, c.uid) for c in request.claims], time.monotonic()
        with operation():
            log.debug("call of the kubelet: %s for %d claims", method, len(refs))
            try:
                outcomes = await _outcomes(method, handle, refs)
                for uid, outcome in outcomes.items():  # each claim once, also if the call names it twice
                    # After a failed prepare, the kubelet writes this text into an Event of the pod.
                    out.claims[uid].error = outcome.event() if isinstance(outcome, DraError) else ""
                    if not isinstance(outcome, DraError):
                        add(uid, outcome)
                return out
            finally:  # also if the kubelet has given up
                failed = sum(ref.uid not in out.claims or bool(out.claims[ref.uid].error) for ref in refs)
                self.calls.append(KubeletCall(method, time.time(), time.monotonic() - began, len(refs), failed))


async def _outcomes(method: str, handle: Handle, refs: Sequence[ClaimIdentity]) -> Mapping[str, ClaimOutcome]:
    """Returns an outcome for each claim, also if the plugin fails: gRPC would return an error without any claim's cause."""
    fault = DraError(f"the plugin has no result for this claim of {method}")
    outcomes: Mapping[str, ClaimOutcome] = {}
    try:
        outcomes = await handle(refs)
    except BaseException as e:
        task = asyncio.current_task()
        if isinstance(e, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the kubelet has given up, or the server stops
        log.critical("unexpected exception in a call of the kubelet: %s; please report it", method, exc_info=e)
        fault = DraError(f"{method} failed inside the plugin: {describe(e)}")
    return {ref.uid: outcomes.get(ref.uid, fault) for ref in refs}


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
