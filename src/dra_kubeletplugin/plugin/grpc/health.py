"""The health stream (KEP-4680): sends all devices after every report, and at intervals so that no status expires."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from ..._proto import health_v1_pb2 as v1
from ..._proto import health_v1_pb2_grpc as v1_grpc
from ..._proto import health_v1alpha1_pb2 as v1alpha1
from ..._proto import health_v1alpha1_pb2_grpc as v1alpha1_grpc
from ...devices.health_policy import DeviceHealth
from ...devices.inventory import Inventory
from ...errors import clip, printable

log = logging.getLogger(__name__)
MAX_TEXT = 1024  # bytes of a device's message that the kubelet keeps
MAX_BYTES = 4 * 1024 * 1024 - 64 * 1024  # of one message: gRPC rejects more than 4 MiB
_EXPIRY_MARGIN = 0.01  # seconds added to an expiry, so that the report has expired when the stream wakes
_BATCH = 256  # devices that are processed before other tasks on the event loop run
_FIELDS = 40  # maximum bytes of an entry without its texts

Response = v1.NodeWatchResourcesResponse | v1alpha1.NodeWatchResourcesResponse
Request = v1.NodeWatchResourcesRequest | v1alpha1.NodeWatchResourcesRequest


class HealthService:
    """Streams the inventory's health to any number of kubelet streams. ``heartbeat`` is in seconds."""

    def __init__(self, inventory: Inventory, heartbeat: float | None = None) -> None:
        self.inventory = inventory
        self.heartbeat = inventory.health_timeout / 3 if heartbeat is None else heartbeat

    def add_to(self, server: grpc.aio.Server) -> None:
        v1_grpc.add_DRAResourceHealthServicer_to_server(_HealthServicer(self, v1.NodeWatchResourcesResponse), server)
        v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(
            _HealthServicer(self, v1alpha1.NodeWatchResourcesResponse), server
        )

    async def stream(self, kind: type[Response]) -> AsyncIterator[Response]:
        while True:
            seen = self.inventory.health_version
            async for message in self.messages(kind):
                yield message
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self.inventory.health_changed(seen)

    def _pause(self) -> float:
        """Returns the seconds until the next message if nothing changes: at the latest when a report expires."""
        expiry = self.inventory.expires_in()
        return self.heartbeat if expiry is None else min(self.heartbeat, expiry + _EXPIRY_MARGIN)

    async def messages(self, kind: type[Response]) -> AsyncIterator[Response]:
        """Yields all devices: in one message, as the API intends, or in as many as gRPC needs.

        If a message does not contain a device, the kubelet (1.34 to 1.37) keeps the device's last status until that status expires.
        """
        out, remaining = kind(), MAX_BYTES
        for i, (key, health) in enumerate(self.inventory.health()):
            if i % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
            pool, name, text = printable(key.pool), printable(key.device), clip(health.message, MAX_TEXT)
            size = _FIELDS + len(pool.encode()) + len(name.encode()) + len(text.encode())
            if size > remaining:
                yield out
                out, remaining = kind(), MAX_BYTES
            remaining -= size
            entry = out.devices.add(
                health=_status(health),
                # The time of measurement, so that an unknown status does not look fresh.
                last_updated_time=int(health.at),
                health_check_timeout_seconds=math.ceil(health.timeout),
                message=text,
            )
            entry.device.pool_name, entry.device.device_name = pool, name
        yield out


def _status(health: DeviceHealth) -> Any:  # the enums of both versions have the same numbers
    return v1.UNKNOWN if health.healthy is None else v1.HEALTHY if health.healthy else v1.UNHEALTHY


class _HealthServicer(v1_grpc.DRAResourceHealthServicer, v1alpha1_grpc.DRAResourceHealthServicer):
    def __init__(self, service: HealthService, kind: type[Response]) -> None:
        self._service = service
        self._kind = kind

    async def NodeWatchResources(self, request: Request, context: Any) -> AsyncIterator[Any]:
        async for message in self._service.stream(self._kind):
            yield message
