"""The local kubelet with plugins that come, go and answer badly: what it believes is what a real one believes."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.localcluster.kubelet.plugins import PluginWatcher, dial

NAME = "some.example.com"


class Registrar(pb_grpc.RegistrationServicer):
    """A plugin that cannot be told how its registration went."""

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return pb.PluginInfo(type="DRAPlugin", name=NAME, endpoint="/nowhere.sock", supported_versions=["v1.DRAPlugin"])

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.INTERNAL, "not now")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Socket paths are short."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def served(path: Path) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(Registrar(), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


async def test_a_plugin_that_cannot_be_notified_stays_registered_and_goes_with_its_socket(folder: Path) -> None:
    """As a real kubelet: operationexecutor registers first and tells then."""
    gone = []
    watcher = PluginWatcher(folder, 0.01, ("v1.DRAPlugin",), gone.append)
    for instance in (1, 2):
        async with served(folder / "reg.sock"), asyncio.timeout(60):
            while NAME not in watcher.registered:  # a plugin has a second for its answer, and is asked again
                await watcher.look()
            assert [c.order for c in watcher.registered[NAME]] == [instance]
            await watcher.look()
            assert [c.order for c in watcher.registered[NAME]] == [instance]
        (folder / "reg.sock").unlink(missing_ok=True)
        await watcher.look()
        assert watcher.registered == {}
    assert gone == [NAME, NAME]
    await watcher.close()


async def test_a_plugin_that_comes_back_is_reached_at_once(folder: Path) -> None:
    """Each connection has a pause of its own between tries: a new one does not inherit the old one's."""
    path = folder / "x.sock"
    async with served(path):
        old = dial(path)
        await pb_grpc.RegistrationStub(old).GetInfo(pb.InfoRequest(), timeout=60)
    with pytest.raises(grpc.aio.AioRpcError):
        await pb_grpc.RegistrationStub(old).GetInfo(pb.InfoRequest(), timeout=5)
    async with served(path), asyncio.timeout(30):
        new = dial(path)
        assert (await pb_grpc.RegistrationStub(new).GetInfo(pb.InfoRequest())).name == NAME
        await new.close()
    await old.close()
