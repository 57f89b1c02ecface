"""The requests of a plugin to the API server: it reads only its own slices and its own node, whatever other nodes
publish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from bench import fleet_cluster
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin import Device, Driver, Health
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.kube.resource import SLICES
from dra_kubeletplugin.plugin.node import Plugin
from tests.helpers.waiting import wait_until

OWN = f"spec.driver={fleet_cluster.DRIVER},spec.nodeName=node-0003"


class RecordingServer(ApiServer):
    """Records each request, and the names of the objects in each list."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str, str]] = []  # verb, path, field selector
        self.listed_names: list[str] = []

    async def _handle(self, request: Request) -> Response:
        verb = "WATCH" if request.query.get("watch") else request.method
        self.requests.append((verb, request.path, request.query.get("fieldSelector", "")))
        response = await super()._handle(request)
        if verb == "GET" and b'"items"' in response.body:
            self.listed_names += [item["metadata"]["name"] for item in msgspec.json.decode(response.body)["items"]]
        return response

    def watches(self) -> int:
        return sum(verb == "WATCH" for verb, _, _ in self.requests)


class FleetDriver(Driver):
    """The driver of all nodes of the cluster."""

    name = fleet_cluster.DRIVER
    revision = 0

    async def devices(self) -> list[Device]:
        return [Device(f"d-{i}", attributes={"revision": self.revision}) for i in range(8)]

    async def health(self) -> dict[str, Health]:
        return {}


@pytest.fixture
async def server() -> AsyncIterator[RecordingServer]:
    server = RecordingServer()
    for resource, obj in fleet_cluster.objects(fleet_cluster.Size(nodes=50, pods=100, claims=60)):
        if obj["metadata"]["name"] != "node-0003-gpu-abcde":
            server.storage.put(resource, obj)
    await server.start()
    yield server
    await server.close()


async def test_each_list_and_each_watch_selects_the_slices_of_this_node(
    server: RecordingServer, tmp_path: Path
) -> None:
    for folder in ("plugins", "plugins_registry", "cdi"):
        (tmp_path / folder).mkdir()
    settings = Settings(
        driver_name=FleetDriver.name,
        node_name="node-0003",
        kubelet_root=tmp_path,
        cdi_root=tmp_path / "cdi",
        local_cluster=True,
    )
    plugin = Plugin(FleetDriver(), settings, server.config)
    async with plugin.running():
        await plugin.published(30)
        own_slices = {
            s["metadata"]["name"]
            for s in server.storage.list("resourceslices.resource.k8s.io")
            if "node-0003" in s["spec"]["nodeName"]
        }
        watches = server.watches()
        server.storage.cut_watches()
        await wait_until(lambda: server.watches() > watches, "another watch")
        version = plugin.inventory.version
        FleetDriver.revision += 1
        plugin.discovery.request()
        await plugin.inventory.changed(version)
        await plugin.published(30)
        server.storage.remove(
            "resourceslices.resource.k8s.io", "", next(iter(own_slices))
        )  # as a kubelet does at its start
        await wait_until(lambda: len(names(server)) == 50, "the slice again")
        await plugin.published(30)
    slices = SLICES.path()
    of_slices = [
        (verb, fields) for verb, path, fields in server.requests if path == slices and verb in {"GET", "WATCH"}
    ]
    assert {verb for verb, _ in of_slices} == {"GET", "WATCH"}
    assert {fields for _, fields in of_slices} == {OWN}
    assert all("node-0003" in name for name in server.listed_names)
    other_requests = Counter((verb, path) for verb, path, _ in server.requests if not path.startswith(slices))
    assert other_requests.keys() <= {("GET", "/apis/resource.k8s.io"), ("GET", "/api/v1/nodes/node-0003")}


def names(server: ApiServer) -> list[str]:
    return [s["metadata"]["name"] for s in server.storage.list("resourceslices.resource.k8s.io")]
