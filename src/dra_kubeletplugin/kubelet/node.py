"""NodePrepareResources and NodeUnprepareResources, v1 and v1beta1 from one handler."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .._proto import dra_v1_pb2 as v1
from .._proto import dra_v1_pb2_grpc as v1_grpc
from .._proto import dra_v1beta1_pb2 as v1beta1
from .._proto import dra_v1beta1_pb2_grpc as v1beta1_grpc
from ..claims import Answer, ClaimRef, Engine
from ..errors import DraError
from ..observe.log import operation
from ..observe.metrics import Metrics

log = logging.getLogger(__name__)


class NodeService:
    """Both versions of the service over one engine. Every claim of a request is in the answer, whatever happens."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self.engine = engine
        self.metrics = metrics
        self.last_call = 0.0  # unix seconds

    def add_to(self, server: Any) -> None:
        v1_grpc.add_DRAPluginServicer_to_server(_Servicer(self, v1), server)
        v1beta1_grpc.add_DRAPluginServicer_to_server(_Servicer(self, v1beta1), server)

    async def prepare(self, request: Any, pb: Any) -> Any:
        answers = await self._call("NodePrepareResources", self.engine.prepare, request)
        out = pb.NodePrepareResourcesResponse()
        for uid, answer in answers.items():
            entry = out.claims[uid]
            if isinstance(answer, DraError):
                entry.error = answer.event()
                continue
            for d in answer:
                device = entry.devices.add(
                    request_names=d.requests, pool_name=d.pool, device_name=d.device, cdi_device_ids=d.cdi_ids
                )
                if d.share_id and pb is v1:
                    device.share_id = d.share_id
        return out

    async def unprepare(self, request: Any, pb: Any) -> Any:
        answers = await self._call("NodeUnprepareResources", self.engine.unprepare, request)
        out = pb.NodeUnprepareResourcesResponse()
        for uid, answer in answers.items():
            out.claims[uid].error = answer.event() if isinstance(answer, DraError) else ""
        return out

    async def _call(self, method: str, handle: Any, request: Any) -> Mapping[str, Answer]:
        self.last_call = time.time()
        self.metrics.inc("kubelet_calls_total", method=method)
        refs = list(_refs(request.claims))
        with operation():
            log.debug("%s for %d claims", method, len(refs))
            try:
                answers: Mapping[str, Answer] = await handle(refs)
                return answers
            except Exception as e:  # a fault of ours must not become a text of gRPC's for all claims
                log.exception("%s failed", method)
                fault = DraError(f"{method} failed inside the plugin: {type(e).__name__}")
                return {r.uid: fault for r in refs}


def _refs(claims: Iterable[Any]) -> Iterable[ClaimRef]:
    return (ClaimRef(c.namespace, c.name, c.uid) for c in claims)


class _Servicer(v1_grpc.DRAPluginServicer, v1beta1_grpc.DRAPluginServicer):
    """One version; ``pb`` is its module of messages, which have the same fields but for share_id."""

    def __init__(self, service: NodeService, pb: Any) -> None:
        self._service = service
        self._pb = pb

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        return await self._service.prepare(request, self._pb)

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        return await self._service.unprepare(request, self._pb)
