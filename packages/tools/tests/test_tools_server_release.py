"""``explain`` and ``simulate`` follow the allocator of the release that the API server reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from dra_devkit.kubernetes_releases import RELEASES, Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.client import KubeClient
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, PODS, SLICES
from dra_tools import ExplanationState, Snapshot, explain, simulate, take
from dra_tools.watcher import ClusterWatcher
from tests.helpers.objects import DRIVER, claim, claim_spec, device_class, pod, slice_of

NODE = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "uid": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}},
}  # fmt: skip
# Before 1.37, the scheduler compares a device only with the device before it.
REPEATED = [{"name": n, "attributes": {"rail": {"int": v}}} for n, v in (("a", 1), ("b", 2), ("c", 1))]
STATES = dict.fromkeys(RELEASES, ExplanationState.FITS) | {"1.37": ExplanationState.WAITS}
EACH = pytest.mark.parametrize(("release", "state"), STATES.items())


def objects() -> list[JSON]:
    spec = claim_spec(count=3)
    spec["devices"]["constraints"] = [{"distinctAttribute": f"{DRIVER}/rail"}]
    return [device_class(), slice_of("node-1", REPEATED), claim("c", spec), pod("p", claims=["c"])]


@contextlib.asynccontextmanager
async def server_of(release: str) -> AsyncIterator[KubeClient]:
    server = ApiServer(features=Features.of(release, {"DRAConsumableCapacity": True}))
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        client = await stack.enter_async_context(KubeClient(server.config))
        server.storage.put("nodes", NODE)  # the server adds the not-ready taint to a node that a client creates
        for resource, obj in zip((CLASSES, SLICES, CLAIMS, PODS), objects(), strict=True):
            await client.create(resource, obj, "default" if resource.namespaced else "")
        yield client


@EACH
async def test_the_explanation_follows_the_release_of_the_server(release: str, state: ExplanationState) -> None:
    async with server_of(release) as client:
        snapshot = await take(client)
        assert explain(snapshot, "p").state is state
        without = replace(snapshot, pods=())
        assert simulate(without, [pod("p", claims=["c"])]).fits == (state is ExplanationState.FITS)
        watcher = ClusterWatcher(client)
        await watcher.start()
        task = asyncio.create_task(watcher.run())
        try:
            await watcher.wait_listed()
            assert explain(watcher.snapshot(), "p").state is state
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_files_without_a_server_follow_the_default_release() -> None:
    assert explain(Snapshot.of([NODE, *objects()]), "p").state is ExplanationState.FITS
