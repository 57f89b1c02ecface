"""The local kubelet registers plugins as a real kubelet does, also plugins that restart or fail."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dra_devkit.localcluster.kubelet.plugins import PluginWatcher, dial
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc

NAME = "some.example.com"


class Registrar(pb_grpc.RegistrationServicer):
    """A plugin that fails the notification of its registration status."""

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return pb.PluginInfo(type="DRAPlugin", name=NAME, endpoint="/nowhere.sock", supported_versions=["v1.DRAPlugin"])

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.INTERNAL, "not now")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, because the length of socket paths is limited."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def serve_registrar(path: Path) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(Registrar(), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


async def test_a_plugin_that_rejects_the_notification_stays_registered_until_its_socket_is_removed(
    folder: Path,
) -> None:
    """As in a real kubelet: operationexecutor registers the plugin before it notifies the plugin."""
    removed = []
    watcher = PluginWatcher(folder, 0.01, ("v1.DRAPlugin",), removed.append)
    for instance in (1, 2):
        async with serve_registrar(folder / "reg.sock"), asyncio.timeout(60):
            while NAME not in watcher.registered:  # the plugin has one second to respond; the watcher then retries
                await watcher.scan()
            assert [c.order for c in watcher.registered[NAME]] == [instance]
            await watcher.scan()
            assert [c.order for c in watcher.registered[NAME]] == [instance]
        (folder / "reg.sock").unlink(missing_ok=True)
        await watcher.scan()
        assert watcher.registered == {}
    assert removed == [NAME, NAME]
    await watcher.close()


async def test_a_restarted_plugin_is_reached_immediately(folder: Path) -> None:
    """Each connection has its own backoff, so a new connection does not inherit the backoff of the old connection."""
    path = folder / "x.sock"
    async with serve_registrar(path):
        old = dial(path)
        await pb_grpc.RegistrationStub(old).GetInfo(pb.InfoRequest(), timeout=60)
    with pytest.raises(grpc.aio.AioRpcError):
        await pb_grpc.RegistrationStub(old).GetInfo(pb.InfoRequest(), timeout=5)
    async with serve_registrar(path), asyncio.timeout(30):
        new = dial(path)
        assert (await pb_grpc.RegistrationStub(new).GetInfo(pb.InfoRequest())).name == NAME
        await new.close()
    await old.close()


class PodRegistrar(Registrar):
    """A plugin in a pod, which knows the paths of a node."""

    async def GetInfo(self, request: Any, context: Any) -> Any:
        endpoint = "/var/lib/kubelet/plugins/p.sock"
        return pb.PluginInfo(type="DRAPlugin", name=NAME, endpoint=endpoint, supported_versions=["v1.DRAPlugin"])


async def test_a_plugin_in_a_pod_is_reached_in_a_folder_whose_path_is_too_long_for_a_socket(folder: Path) -> None:
    root = folder / ("long-" * 30)
    (link := folder / "s").symlink_to(root)
    for name in ("plugins_registry", "plugins"):
        (root / name).mkdir(parents=True)
    watcher = PluginWatcher(root / "plugins_registry", 0.01, ("v1.DRAPlugin",), lambda driver: None)
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(PodRegistrar(), server)
    for path in ("plugins_registry/reg.sock", "plugins/p.sock"):
        server.add_insecure_port(f"unix:{link}/{path}")
    await server.start()
    try:
        async with asyncio.timeout(60):
            while NAME not in watcher.registered:
                await watcher.scan()
            await watcher.registered[NAME][0].channel.channel_ready()
    finally:
        await watcher.close()
        await server.stop(0)
