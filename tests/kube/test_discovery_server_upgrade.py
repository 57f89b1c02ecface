"""Tests a running plugin while the control plane changes its release and keeps its objects and address."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, CounterSet, Device, Driver, Pool, PreparedDevice
from dra_kubeletplugin.plugin.node import Plugin

SLICES = "resourceslices.resource.k8s.io"


class Layered(Driver):
    """A driver whose devices a server stores completely, partly or not at all."""

    name = "layered.example.com"

    def pools(self) -> list[Pool]:
        parts = [Device(f"part-{i}", consumes_counters={"gpu": {"c": 1}}) for i in range(2)]
        far = Device("lists", attributes={"kind": "lists", "numa": [0, 1]})
        return [Pool(self.settings.node_name, [Device("plain"), far, *parts], [CounterSet("gpu", {"c": 2})])]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]


def published(node: Any) -> dict[str, Any]:
    return {d["name"]: d for s in node.cluster.slices(Layered.name) for d in s["spec"].get("devices") or []}


STORED = {  # for each release: the published devices, and the attributes of the device with a list
    "1.34": ({"plain", "lists"}, {"kind"}),
    "1.36": ({"plain", "lists", "part-0", "part-1"}, {"kind"}),
    "1.37": ({"plain", "lists", "part-0", "part-1"}, {"kind"}),
    "1.37 with lists": ({"plain", "lists", "part-0", "part-1"}, {"kind", "numa"}),
}


@pytest.mark.full
async def test_slices_match_the_release_after_each_upgrade_and_downgrade_of_the_server() -> None:
    """The server keeps its address, objects and version v1, so the plugin notices the change only from the broken watch."""
    async with node_with(Layered, kubernetes="1.37") as node:
        await node.stop()
        api, url, front = node.cluster.api, "", None
        for slice_ in node.cluster.slices(Layered.name):
            api.storage.remove(SLICES, "", slice_["metadata"]["name"])
        try:
            for name in ("1.34", "1.37", "1.34", "1.37 with lists", "1.36", "1.37 with lists", "1.34", "1.37"):
                if front is not None:
                    await front.close()
                release, _, more = name.partition(" ")
                features = Features.of(release, {"DRAListTypeAttributes": True} if more else {})
                address = urlsplit(url).netloc or "127.0.0.1:0"
                front = ApiServer(address, storage=api.storage, tokens=api.tokens, features=features)
                if not url:
                    url = await front.start()
                    await node.start_plugin(Plugin(Layered(), node.settings, front.config))
                else:
                    await front.start()

                async def is_stored(name: str = name) -> bool:
                    found = published(node)
                    return (set(found), set(found.get("lists", {}).get("attributes", {}))) == STORED[name]

                await node.cluster.wait(f"the fields that {name} stores", is_stored)
                await node.run_pod("pod")
                await node.delete_pod("pod")
            await node.stop()
        finally:
            if front is not None:
                await front.close()
