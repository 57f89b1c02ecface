"""A minimal DRA plugin on real sockets. A test can make it slow, silent, wrong or absent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc.aio

from dra_devkit.localcluster.listeners import stop_listening
from dra_kubeletplugin._proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc

HEALTHY, UNHEALTHY = 1, 2
_HEALTH = {
    "v1.DRAResourceHealth": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1.DRAResourceHealth": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}


class FakePlugin:
    """By default, prepares every claim with one device: ``device`` of ``pool``.

    ``calls`` contains the method and claim UIDs of each call, ``streams`` the number of opened health streams by version. Calls wait
    while ``gate`` is not set.
    """

    def __init__(
        self,
        kubelet_root: Path,
        driver: str,
        *,
        pool: str = "node-1",
        device: str = "d0",
        health: tuple[str, ...] = (),
        common: bool = False,
        dra: str = "v1.DRAPlugin",
    ) -> None:
        self.driver, self.pool, self.device = driver, pool, device
        self.health_services = health
        self.dra = dra
        folder = kubelet_root / "plugins" / driver
        folder.mkdir(parents=True, exist_ok=True)
        self.registry = kubelet_root / "plugins_registry" / f"{driver}-reg.sock"
        self.endpoint = self.registry if common else folder / "dra.sock"
        self.common = common
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.streams: Counter[str] = Counter()
        self.statuses: list[tuple[bool, str]] = []
        self.info_failures = 0
        self.error = ""  # the error of each claim
        self.gate = asyncio.Event()
        self.gate.set()
        self.share_ids: tuple[str, ...] = ("",)
        self.cdi: tuple[str, ...] = ()
        self.health = HEALTHY
        self.health_timeout = 30
        self.changed = asyncio.Event()
        self._service: grpc.aio.Server | None = None
        self._registrar: grpc.aio.Server | None = None
        self._open: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> FakePlugin:
        await self.serve()
        await self.register()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.unregister()
        await self.stop()

    async def serve(self) -> None:
        """Starts the service on its own socket, or on the registration socket if ``common`` is true."""
        server = grpc.aio.server()
        if self.dra == "v1.DRAPlugin":
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Service(self, dra_v1_pb2), server)
        else:
            dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(_Service(self, dra_v1beta1_pb2), server)
        for name in self.health_services:
            module, module_grpc = _HEALTH[name]
            module_grpc.add_DRAResourceHealthServicer_to_server(_Health(self, name, module), server)
        if self.common:
            pb_grpc.add_RegistrationServicer_to_server(_Registrar(self), server)
        self._service = await _listen(server, self.endpoint)

    async def register(self) -> None:
        if not self.common:
            server = grpc.aio.server()
            pb_grpc.add_RegistrationServicer_to_server(_Registrar(self), server)
            self._registrar = await _listen(server, self.registry)

    async def stop(self) -> None:
        """Stops the service and removes its socket, as a gRPC server does."""
        if self._service:
            await self._service.stop(0)
            self._service = None
        self.endpoint.unlink(missing_ok=True)

    async def unregister(self) -> None:
        if self._registrar:
            await self._registrar.stop(0)
            self._registrar = None
        self.registry.unlink(missing_ok=True)

    def send_health(self, health: int) -> None:
        self.health = health
        self.changed.set()
        self.changed = asyncio.Event()

    def count(self, method: str) -> int:
        return sum(m == method for m, _ in self.calls)


async def _listen(server: grpc.aio.Server, path: Path) -> grpc.aio.Server:
    path.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


class _Registrar(pb_grpc.RegistrationServicer):
    def __init__(self, plugin: FakePlugin) -> None:
        self.plugin = plugin

    async def GetInfo(self, request: Any, context: Any) -> Any:
        plugin = self.plugin
        if plugin.info_failures:
            plugin.info_failures -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "not yet")
        versions = [plugin.dra, *plugin.health_services]
        return pb.PluginInfo(
            type="DRAPlugin", name=plugin.driver, endpoint=str(plugin.endpoint), supported_versions=versions
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self.plugin.statuses.append((request.plugin_registered, request.error))
        return pb.RegistrationStatusResponse()


class _Service:
    def __init__(self, plugin: FakePlugin, module: Any) -> None:
        self.plugin, self.module = plugin, module

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        plugin, module = self.plugin, self.module
        plugin.calls.append(("prepare", tuple(c.uid for c in request.claims)))
        await plugin.gate.wait()
        response = module.NodePrepareResourcesResponse()
        for claim in request.claims:
            if plugin.error:
                response.claims[claim.uid].error = plugin.error
                continue
            for share in plugin.share_ids:
                device = response.claims[claim.uid].devices.add(pool_name=plugin.pool, device_name=plugin.device)
                device.cdi_device_ids.extend(plugin.cdi)
                if share:
                    device.share_id = share
        return response

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        plugin, module = self.plugin, self.module
        plugin.calls.append(("unprepare", tuple(c.uid for c in request.claims)))
        await plugin.gate.wait()
        response = module.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            response.claims[claim.uid].error = plugin.error
        return response


class _Health:
    def __init__(self, plugin: FakePlugin, name: str, module: Any) -> None:
        self.plugin, self.name, self.module = plugin, name, module

    async def NodeWatchResources(self, request: Any, context: Any) -> Any:
        plugin, module = self.plugin, self.module
        plugin.streams[self.name] += 1
        while True:
            changed = plugin.changed
            message = module.NodeWatchResourcesResponse()
            entry = message.devices.add(health=plugin.health, last_updated_time=int(time.time()))
            entry.device.pool_name, entry.device.device_name = plugin.pool, plugin.device
            entry.health_check_timeout_seconds = plugin.health_timeout
            entry.message = "as told"
            yield message
            await changed.wait()


class ConnectionCounter:
    """A proxy in front of a socket. It counts connections and can close them."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self.target = path, target
        self.accepted = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ConnectionCounter:
        self._server = await asyncio.start_unix_server(self._accept, str(self.path))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await stop_listening(self._server)
        self.cut()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()
        self.path.unlink(missing_ok=True)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)  # before the connection to the target, which may be refused or finish after the end
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_unix_connection(str(self.target))
            self._writers.add(to_writer)
            if writer.is_closing():
                to_writer.close()
            await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))
            self._writers.discard(to_writer)
        except OSError:
            pass  # closes the connection of the client
        finally:
            writer.close()
            self._writers.discard(writer)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
