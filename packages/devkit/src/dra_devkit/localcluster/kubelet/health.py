"""Collects the health of devices from plugins, for the status of pods (KEP-4680)."""

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

from dra_kubeletplugin._proto import health_v1_pb2, health_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc

from ...kubernetes_releases import KubeletBehavior
from .plugins import Connection

log = logging.getLogger(__name__)
# Messages and stubs by service, newest version first
_STREAMS: dict[str, tuple[Any, Any]] = {
    "v1.DRAResourceHealth": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1.DRAResourceHealth": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}
_TIMEOUT = 30.0  # seconds for which a report is valid if it contains no timeout
_MAX_MESSAGE = 1024  # characters; longer messages are cut
DeviceKey = tuple[str, str, str]  # driver, pool, device


class DeviceHealthState(Enum):
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


_BY_NUMBER = {1: DeviceHealthState.HEALTHY, 2: DeviceHealthState.UNHEALTHY}


@dataclass(frozen=True)
class Report:
    """The health of one device. ``until`` is the unix time at which the report expires."""

    health: DeviceHealthState
    message: str = ""
    until: float = 0.0


UNKNOWN = Report(DeviceHealthState.UNKNOWN)


class HealthMonitor:
    """Reads one health stream per plugin instance, in the newest version that the kubelet and the plugin support.

    Args:
        behavior: the behavior of the simulated release's kubelet: the supported versions of the health service, and
            whether the kubelet also opens the stream of a plugin that does not advertise the service.
        on_change: called with the devices whose health changed.
        retry: seconds until an ended stream is opened again.
    """

    def __init__(
        self,
        on_change: Callable[[set[DeviceKey]], None],
        behavior: KubeletBehavior,
        retry: float = 5.0,
    ) -> None:
        self.on_change = on_change
        self.behavior = behavior
        self.retry = retry
        self.streams: dict[str, int] = {}  # number of streams opened so far, by version
        self._reports: dict[DeviceKey, Report] = {}
        # The instance that last reported a device. If an older instance ends, the reports of the newer instance stay.
        self._sources: dict[DeviceKey, Connection] = {}
        self._last_reports: dict[DeviceKey, Report] = {}  # the reports at the last call of on_change
        self._tasks: dict[Connection, asyncio.Task[None]] = {}

    def of(self, device: DeviceKey) -> Report:
        found = self._reports.get(device, UNKNOWN)
        return found if found.until > time.time() else UNKNOWN

    def follow(self, connection: Connection) -> None:
        """Opens the plugin's health stream. Does nothing if the stream is already open."""
        version = next((v for v in self.behavior.health if v in connection.services), None)
        if version is None and self.behavior.health_unadvertised:
            version = self.behavior.health[-1]
        known = self._tasks.get(connection)
        if version is None or (known and not known.done()):
            return
        self._tasks[connection] = asyncio.create_task(
            self._follow_safely(connection, version), name=f"health {connection.driver}"
        )

    async def run(self) -> None:
        """Checks each second for expired reports. Never returns."""
        while True:
            await asyncio.sleep(1.0)
            self._notify_changes(set(self._last_reports))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self, driver: str) -> None:
        """Forgets the health of a driver's devices after its last instance was lost."""
        self._notify_changes({k for k in self._reports if k[0] == driver}, forget=True)

    async def _follow_safely(self, connection: Connection, version: str) -> None:
        try:
            await self._follow(connection, version)
        except Exception:
            log.exception("kubelet: the health stream ended unexpectedly", extra={"driver": connection.driver})
        finally:
            self._forget_from(connection)  # also when the channel was closed during the stream

    async def _follow(self, connection: Connection, version: str) -> None:
        pb, pb_grpc = _STREAMS[version]
        stub = pb_grpc.DRAResourceHealthStub(connection.channel)
        while True:
            self.streams[version] = self.streams.get(version, 0) + 1
            with contextlib.suppress(grpc.aio.AioRpcError):
                try:
                    async for message in stub.NodeWatchResources(pb.NodeWatchResourcesRequest()):
                        self._store(connection, message)
                except grpc.aio.UsageError:
                    return  # the channel is closed
                except grpc.aio.AioRpcError as e:
                    if e.code() is grpc.StatusCode.UNIMPLEMENTED and not self.behavior.health_unadvertised:
                        return
                    log.debug("kubelet: the health stream ended: %s", e.code(), extra={"driver": connection.driver})
                    raise
            self._forget_from(connection)
            await asyncio.sleep(self.retry)

    def _forget_from(self, connection: Connection) -> None:
        self._notify_changes({key for key, source in self._sources.items() if source is connection}, forget=True)

    def _store(self, connection: Connection, message: Any) -> None:
        changed = set()
        for entry in message.devices:
            key = (connection.driver, entry.device.pool_name, entry.device.device_name)
            if not key[1] or not key[2]:
                continue
            text = entry.message if len(entry.message) <= _MAX_MESSAGE else entry.message[: _MAX_MESSAGE - 3] + "..."
            holds = entry.health_check_timeout_seconds or _TIMEOUT
            measured = entry.last_updated_time or time.time()
            self._reports[key] = Report(_BY_NUMBER.get(entry.health, DeviceHealthState.UNKNOWN), text, measured + holds)
            self._sources[key] = connection
            changed.add(key)
        self._notify_changes(changed)

    def _notify_changes(self, devices: set[DeviceKey], *, forget: bool = False) -> None:
        """Calls ``on_change`` with the devices whose health or message changed.

        Args:
            forget: delete the reports of the devices first.
        """
        changed = set()
        for key in devices:
            if forget:
                self._reports.pop(key, None)
                self._sources.pop(key, None)
            report = self.of(key)
            before = self._last_reports.get(key, UNKNOWN)
            if (report.health, report.message) != (before.health, before.message):
                changed.add(key)
            if report is UNKNOWN:
                self._last_reports.pop(key, None)
            else:
                self._last_reports[key] = report
        if changed:
            self.on_change(changed)
