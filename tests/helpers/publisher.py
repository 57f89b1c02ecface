"""A publisher without a plugin, and a local API server whose responses a test can replace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin import Device, Pool
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.health_policy import HealthPolicy
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices import Leadership, NodeScope, Publisher, Scope
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import NODES

DRIVER = "d.example.com"
SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices"


class ScriptedApiServer(ApiServer):
    """Calls ``instead`` for each request. If it returns None, the local API server handles the request."""

    def __init__(self, features: Features | None = None) -> None:
        super().__init__(features=features)
        self.instead: Callable[[Request], Response | None] = lambda request: None
        self.written: list[tuple[str, str]] = []

    async def _handle(self, request: Request) -> Response:
        if request.method != "GET" and "resourceslices" in request.path and "dryRun" not in request.query:
            self.written.append((request.method, request.path))
        return self.instead(request) or await super()._handle(request)

    def writes(self) -> list[tuple[str, str]]:
        return self.written

    def slices(self, pool: str = "node") -> list[dict[str, Any]]:
        """Returns the slices of a pool, sorted by name."""
        stored = self.storage.list("resourceslices.resource.k8s.io")
        return sorted(
            (s for s in stored if s["spec"]["pool"]["name"] == pool), key=lambda s: str(s["metadata"]["name"])
        )

    def devices(self) -> list[str]:
        stored = self.storage.list("resourceslices.resource.k8s.io")
        return sorted(d["name"] for s in stored for d in s["spec"].get("devices", []))


def json_response(value: object, status: int = 200) -> Response:
    return Response(status, msgspec.json.encode(value))


@contextlib.asynccontextmanager
async def scripted_api_server(features: Features | None = None) -> AsyncIterator[ScriptedApiServer]:
    server = ScriptedApiServer(features)
    await server.start()
    async with KubeClient(server.config) as client:
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
    try:
        yield server
    finally:
        await server.close()


async def make_inventory(*devices: Device | str) -> Inventory:
    inventory = Inventory("node", HealthPolicy(healthy_after=1))
    await inventory.update([Pool("node", [Device(d) if isinstance(d, str) else d for d in devices])])
    return inventory


@contextlib.asynccontextmanager
async def running_publisher(
    server: ApiServer,
    inventory: Inventory,
    leader: Callable[[], bool] = lambda: True,
    scope: Scope | None = None,
) -> AsyncIterator[Publisher]:
    async with KubeClient(server.config) as client:
        scope = scope or NodeScope(DRIVER, "node")
        publisher = Publisher(client, inventory, scope, Metrics(), Leadership(leader))
        task = asyncio.create_task(publisher.run())
        try:
            yield publisher
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.wait({task})
