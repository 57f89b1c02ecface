"""The health stream (KEP-4680): the whole list at once, after every change, and often enough not to go stale."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from .._proto import health_v1_pb2 as v1
from .._proto import health_v1_pb2_grpc as v1_grpc
from .._proto import health_v1alpha1_pb2 as v1alpha1
from .._proto import health_v1alpha1_pb2_grpc as v1alpha1_grpc
from ..inventory import Inventory

TIMEOUT = 30  # seconds after which the kubelet holds a device's health for unknown
HEARTBEAT = TIMEOUT / 3
MAX_MESSAGE = 1024


class HealthService:
    """Streams the inventory's health; any number of streams at once."""

    def __init__(self, inventory: Inventory, heartbeat: float = HEARTBEAT) -> None:
        self.inventory = inventory
        self.heartbeat = heartbeat

    def add_to(self, server: Any) -> None:
        v1_grpc.add_DRAResourceHealthServicer_to_server(_Servicer(self, v1), server)
        v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(_Servicer(self, v1alpha1), server)

    async def stream(self, pb: Any) -> AsyncIterator[Any]:
        seen = self.inventory.version
        while True:
            yield self._message(pb)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.heartbeat):
                    seen = await self.inventory.changed(seen)

    def _message(self, pb: Any) -> Any:
        out = pb.NodeWatchResourcesResponse()
        now = int(time.time())
        for device in self.inventory:
            health = self.inventory.health.get(device.name)
            healthy = True if health is None else health.healthy
            status = pb.UNKNOWN if healthy is None else pb.HEALTHY if healthy else pb.UNHEALTHY
            text = health.message if health else ""
            entry = out.devices.add(
                health=status,
                last_updated_time=now,
                health_check_timeout_seconds=TIMEOUT,
                message=text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "...",
            )
            entry.device.pool_name, entry.device.device_name = self.inventory.pool, device.name
        return out


class _Servicer(v1_grpc.DRAResourceHealthServicer, v1alpha1_grpc.DRAResourceHealthServicer):
    def __init__(self, service: HealthService, pb: Any) -> None:
        self._service = service
        self._pb = pb

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in self._service.stream(self._pb):
            yield message
