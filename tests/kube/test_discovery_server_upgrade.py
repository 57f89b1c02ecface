"""A control plane changes its release, with the same objects and address, while the plugin runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from dra_kubeletplugin import Claim, CounterSet, Device, Driver, Pool, PreparedDevice
from dra_kubeletplugin.localcluster.apiserver import ApiServer
from dra_kubeletplugin.plugin.node import Plugin
from dra_kubeletplugin.resourceapi.kubernetes_releases import Features
from dra_kubeletplugin.testing import node_with

SLICES = "resourceslices.resource.k8s.io"


class Layered(Driver):
    """Devices that a server stores completely, partly or not at all."""

    name = "layered.example.com"

    def pools(self) -> list[Pool]:
        parts = [Device(f"part-{i}", consumes_counters={"gpu": {"c": 1}}) for i in range(2)]
        far = Device("lists", {"kind": "lists", "numa": [0, 1]})
        return [Pool(self.settings.node_name, [Device("plain"), far, *parts], [CounterSet("gpu", {"c": 2})])]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]


def published(node: Any) -> dict[str, Any]:
    return {d["name"]: d for s in node.cluster.slices(Layered.name) for d in s["spec"].get("devices") or []}


KEPT = {  # by a server: the devices that are published, and the attributes of the one with a list
    "1.34": ({"plain", "lists"}, {"kind"}),
    "1.36": ({"plain", "lists", "part-0", "part-1"}, {"kind"}),
    "1.37": ({"plain", "lists", "part-0", "part-1"}, {"kind"}),
    "1.37 with lists": ({"plain", "lists", "part-0", "part-1"}, {"kind", "numa"}),
}


@pytest.mark.full
async def test_a_server_that_is_upgraded_and_downgraded_under_a_running_plugin_has_at_once_what_it_keeps() -> None:
    """At the same address with the same objects: version v1 before and after, so that only a broken watch tells of it."""
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

                async def kept(name: str = name) -> bool:
                    found = published(node)
                    return (set(found), set(found.get("lists", {}).get("attributes", {}))) == KEPT[name]

                await node.cluster.wait(f"what {name} keeps", kept)
                await node.run_pod("pod")
                await node.delete_pod("pod")
            await node.stop()
        finally:
            if front is not None:
                await front.close()


@pytest.mark.full
async def test_connections_that_are_cut_again_and_again_cost_few_questions_and_leave_a_plugin_that_is_well() -> None:
    """Each cut makes the plugin doubt what it knows of the server; doubts are gathered, and asked with growing pauses."""
    cuts = 300
    async with node_with(Layered) as node:
        await node.stop()
        front = ApiServer(storage=node.cluster.api.storage, tokens=node.cluster.api.tokens)
        await front.start()
        try:
            await node.start_plugin(Plugin(Layered(), node.settings, front.config))
            await node.plugin.published(60)
            before = dict(published(node))
            front.injected_faults.calls.clear()
            began = time.monotonic()
            for _ in range(cuts):
                front.drop_connections()
                await asyncio.sleep(0.005)
            assert len(front.injected_faults.calls) < 200 * (time.monotonic() - began)  # the figure is a rate

            async def is_well() -> bool:
                return not node.plugin.publisher.not_ready()

            await node.cluster.wait("a plugin that is well", is_well)
            assert published(node) == before
            await node.run_pod("pod")
            await node.delete_pod("pod")
            await node.stop()
        finally:
            await front.close()
