"""The cluster watcher keeps an object if only its unread fields change, and then does not increase its version."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench import fleet_cluster
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import NODES, PODS
from dra_tools import Snapshot, overview
from dra_tools.watcher import ClusterWatcher
from tests.helpers.waiting import wait_until

OBJECTS = list(fleet_cluster.objects(fleet_cluster.Size(nodes=10, pods=60, claims=40)))


@pytest.fixture
async def client() -> AsyncIterator[KubeClient]:
    server = ApiServer()
    for resource, obj in OBJECTS:
        server.storage.put(resource, obj)
    await server.start()
    async with KubeClient(server.config) as client:
        yield client
    await server.close()


@contextlib.asynccontextmanager
async def running_watcher(client: KubeClient) -> AsyncIterator[ClusterWatcher]:
    watcher = ClusterWatcher(client)
    await watcher.start()
    task = asyncio.create_task(watcher.run())
    try:
        async with asyncio.timeout(30):
            await watcher.wait_listed()
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_heartbeat_of_a_node_does_not_change_the_snapshot(client: KubeClient) -> None:
    async with running_watcher(client) as watcher:
        before, version = watcher.snapshot(), watcher.version
        heartbeat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T00:00:00Z"}
        for i in range(10):
            await client.patch(NODES, f"node-{i:04}", {"status": {"conditions": [heartbeat]}}, sub="status")
        await client.patch(NODES, "node-0003", {"spec": {"unschedulable": True}})
        await wait_until(lambda: watcher.version != version, "the change of a node")
        assert watcher.version == version + 1
        changed = [
            n["metadata"]["name"] for n, old in zip(watcher.snapshot().nodes, before.nodes, strict=True) if n is not old
        ]
        assert changed == ["node-0003"]


async def test_the_overview_equals_that_of_complete_objects(client: KubeClient) -> None:
    complete = Snapshot.of([obj for _, obj in OBJECTS], live=True)
    async with running_watcher(client) as watcher:
        assert overview(watcher.snapshot()) == overview(complete)


async def test_the_snapshot_has_devices_and_waiting_pods_before_running_pods_are_listed(
    client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow, may_list = ClusterWatcher._follow, asyncio.Event()

    async def follow_when_allowed(self: ClusterWatcher, kind: Any) -> None:
        if kind.is_last:
            await may_list.wait()
        await follow(self, kind)

    monkeypatch.setattr(ClusterWatcher, "_follow", follow_when_allowed)
    complete = Snapshot.of([obj for _, obj in OBJECTS], live=True)
    watcher = ClusterWatcher(client)
    await watcher.start()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watcher.run())
        await watcher.wait_devices()
        assert overview(watcher.snapshot()) == overview(complete)
        assert len(watcher.snapshot().pods) < len(complete.pods)
        may_list.set()
        await watcher.wait_listed()
        assert len(watcher.snapshot().pods) == len(complete.pods)
        task.cancel()


async def test_the_snapshot_contains_a_starting_pod_once(client: KubeClient) -> None:
    async with running_watcher(client) as watcher:
        pods = {p["metadata"]["uid"]: p for p in watcher.snapshot().pods}
        uid, pod = next((uid, p) for uid, p in pods.items() if p["status"]["phase"] == "Pending")
        meta = pod["metadata"]
        await client.patch(PODS, meta["name"], {"status": {"phase": "Running"}}, meta["namespace"], "status")

        await wait_until(
            lambda: watcher.objects(PODS)[uid]["status"]["phase"] == "Running", "the watch of running pods"
        )
        after = [p["metadata"]["uid"] for p in watcher.snapshot().pods]
        assert sorted(after) == sorted(pods)
