"""What plugins say of their devices' health, for the status of pods (KEP-4680)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import grpc.aio

from ..._proto import health_v1_pb2, health_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc
from ...resourceapi.kubernetes_releases import KubeletBehavior
from .plugins import Connection

log = logging.getLogger(__name__)
_STREAMS: dict[str, tuple[Any, Any]] = {
    "v1.DRAResourceHealth": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1.DRAResourceHealth": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}  # newest first
_TIMEOUT = 30.0  # seconds for which a report holds, where it says nothing else
_LONGEST = 1024  # characters of a message; more is cut
DeviceKey = tuple[str, str, str]  # driver, pool, device


class DeviceHealthState(Enum):
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


_BY_NUMBER = {1: DeviceHealthState.HEALTHY, 2: DeviceHealthState.UNHEALTHY}


@dataclass(frozen=True)
class Report:
    """``until`` is on the wall clock: the plugin says when it measured, and the kubelet believes it."""

    health: DeviceHealthState
    message: str = ""
    until: float = 0.0


UNKNOWN = Report(DeviceHealthState.UNKNOWN)


class HealthMonitor:
    """One stream to each plugin that offers one, of the newest version that both sides know.

    Args:
        ways: those of the kubelet's release: the versions of the service that it knows, and whom it asks.
        on_change: called with the devices whose health is another than before.
        retry: seconds until a stream that ended is opened again.
    """

    def __init__(
        self,
        on_change: Callable[[set[DeviceKey]], None],
        ways: KubeletBehavior,
        retry: float = 5.0,
    ) -> None:
        self.on_change = on_change
        self.ways = ways
        self.retry = retry
        self.streams: dict[str, int] = {}  # opened so far, by version
        self._reports: dict[DeviceKey, Report] = {}
        self._from: dict[DeviceKey, Connection] = {}  # whose report it is: of two instances the older may end later
        self._told: dict[DeviceKey, Report] = {}  # as of the last look, so that a report that expires is noticed
        self._tasks: dict[Connection, asyncio.Task[None]] = {}

    def of(self, device: DeviceKey) -> Report:
        found = self._reports.get(device, UNKNOWN)
        return found if found.until > time.time() else UNKNOWN

    def follow(self, connection: Connection) -> None:
        """Opens the stream of a plugin; of one that is followed already nothing happens."""
        version = next((v for v in self.ways.health if v in connection.services), None)
        if version is None and self.ways.health_unasked:
            version = self.ways.health[-1]
        known = self._tasks.get(connection)
        if version is None or (known and not known.done()):
            return
        self._tasks[connection] = asyncio.create_task(
            self._watched(connection, version), name=f"health {connection.driver}"
        )

    async def run(self) -> None:
        """Notices reports that expire, and streams that are not needed any more. Never returns."""
        while True:
            await asyncio.sleep(1.0)
            self._look(set(self._told))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self, driver: str) -> None:
        """No instance of the driver answers any more: nothing is known of its devices."""
        self._look({k for k in self._reports if k[0] == driver}, forget=True)

    async def _watched(self, connection: Connection, version: str) -> None:
        try:
            await self._follow(connection, version)
        except Exception:
            log.exception("kubelet: the health of %s is not followed any more", connection.driver)
        finally:
            self._forget_from(connection)  # also where its channel was closed under it

    async def _follow(self, connection: Connection, version: str) -> None:
        pb, pb_grpc = _STREAMS[version]
        stub = pb_grpc.DRAResourceHealthStub(connection.channel)
        while True:
            self.streams[version] = self.streams.get(version, 0) + 1
            with contextlib.suppress(grpc.aio.AioRpcError):
                try:
                    async for message in stub.NodeWatchResources(pb.NodeWatchResourcesRequest()):
                        self._take(connection, message)
                except grpc.aio.UsageError:
                    return  # its channel is closed
                except grpc.aio.AioRpcError as e:
                    if e.code() is grpc.StatusCode.UNIMPLEMENTED and not self.ways.health_unasked:
                        return
                    log.debug("kubelet: health stream of %s ended: %s", connection.driver, e.code())
                    raise
            self._forget_from(connection)
            await asyncio.sleep(self.retry)

    def _forget_from(self, connection: Connection) -> None:
        self._look({key for key, source in self._from.items() if source is connection}, forget=True)

    def _take(self, connection: Connection, message: Any) -> None:
        changed = set()
        for entry in message.devices:
            key = (connection.driver, entry.device.pool_name, entry.device.device_name)
            if not key[1] or not key[2]:
                continue
            text = entry.message if len(entry.message) <= _LONGEST else entry.message[: _LONGEST - 3] + "..."
            holds = entry.health_check_timeout_seconds or _TIMEOUT
            measured = entry.last_updated_time or time.time()
            self._reports[key] = Report(_BY_NUMBER.get(entry.health, DeviceHealthState.UNKNOWN), text, measured + holds)
            self._from[key] = connection
            changed.add(key)
        self._look(changed)

    def _look(self, devices: set[DeviceKey], *, forget: bool = False) -> None:
        """Tells of those whose health is another than it was."""
        changed = set()
        for key in devices:
            if forget:
                self._reports.pop(key, None)
                self._from.pop(key, None)
            report = self.of(key)
            before = self._told.get(key, UNKNOWN)
            if (report.health, report.message) != (before.health, before.message):
                changed.add(key)
            if report is UNKNOWN:
                self._told.pop(key, None)
            else:
                self._told[key] = report
        if changed:
            self.on_change(changed)


__all__ = ["DeviceHealthState", "HealthMonitor", "Report"]
