"""``dra top --pool-status`` shows what the control plane counts in pools (KEP-5677) beside its own counts, and leaves no request behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, POOL_STATUS_REQUESTS
from dra_kubeletplugin.resourceapi.defaulting import now
from dra_tools.top.pools import count_pools
from packages.tools.tests.accounts import token_with_rules, write_kubeconfig
from tests.helpers.objects import DRIVER, claim, slice_of
from tests.helpers.usage_examples import node

FOUR = ["d0", "d1", "d2", "d3"]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@contextlib.asynccontextmanager
async def running(release: str, *gates: str) -> AsyncIterator[LocalCluster]:
    features = Features.of(
        release, dict.fromkeys(("DRAResourcePoolStatus", *gates), True), {"resource.k8s.io/v1alpha3": True}
    )
    async with LocalCluster((), features=features) as cluster:
        await add_nodes(cluster, "node-1", "node-2")
        yield cluster


async def add_nodes(cluster: LocalCluster, *names: str) -> None:
    """Adds nodes, and waits until the node controller has removed the not-ready taint that the API server gives to new nodes.

    Before that the page counts the devices of the nodes as unavailable.
    """
    await cluster.apply(*map(node, names))

    async def are_ready() -> bool:
        return not any(n["spec"].get("taints") for n in (await cluster.client.list(NODES))["items"])

    await cluster.wait("the nodes to be ready", are_ready)


async def allocate(cluster: LocalCluster, name: str, pool: str, *devices: str, **result: Any) -> None:
    """Allocates devices to a claim directly, so that the test chooses them."""
    [created] = await cluster.apply(claim(name))
    head = {"request": "device", "driver": DRIVER, "pool": pool}
    results = [{**head, "device": device, **result} for device in devices]
    status = {"allocation": {"devices": {"results": results}, "allocationTimestamp": now()}}
    await cluster.client.update(CLAIMS, {**created, "status": status}, "status")


async def dra_top(cluster: LocalCluster, *words: str, kubeconfig: Path | None = None) -> int:
    path = str(kubeconfig or cluster.kubeconfig)
    return await asyncio.to_thread(main, ["top", "--kubeconfig", path, *words])


async def shown_pools(cluster: LocalCluster, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, JSON]:
    """Returns the pools of ``-o json`` by name."""
    assert await dra_top(cluster, "--pool-status", "-o", "json", *words) == 0
    return {pool["pool"]: pool for pool in json.loads(capsys.readouterr().out)["pools"]}


async def requests(cluster: LocalCluster) -> list[JSON]:
    return (await cluster.client.list(POOL_STATUS_REQUESTS))["items"]


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_an_operator_sees_the_free_devices_of_each_pool_as_the_control_plane_counts_them(
    release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first story of KEP-5677."""
    async with running(release) as cluster:
        await cluster.apply(slice_of("node-1", FOUR), slice_of("node-2", FOUR))
        await cluster.apply(slice_of("node-1", FOUR, driver="other.example.com", name="other"))
        await allocate(cluster, "a", "node-1", "d0", "d1", "d2")

        async def is_counted() -> bool:  # the controller's cache may be older than the allocation
            pools = [
                p for p in (await count_pools(cluster.client, [DRIVER])).found.values() if p["poolName"] == "node-1"
            ]
            return bool(pools) and pools[0]["allocatedDevices"] == 3

        await cluster.wait("the controller to see the allocation", is_counted)
        assert await dra_top(cluster, "--pool-status") == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert f"{DRIVER}/node-1 4 / 4 3 / 3 1 / 1 - / 0 0 / 0 -" in lines
        assert f"{DRIVER}/node-2 4 / 4 0 / 0 4 / 4 - / 0 0 / 0 -" in lines
        assert "other.example.com/node-1 4 / 4 0 / 0 4 / 4 - / 0 0 / 0 -" in lines
        found = await shown_pools(cluster, capsys, "--filter", "node-2")
        counted = {"generation": 1, "devices": 4, "allocated": 0, "available": 4, "unavailable": 0}
        assert found.keys() == {"node-2"}
        assert found["node-2"]["counted"].items() >= counted.items()
        assert (found["node-2"]["devices"], found["node-2"]["held"], found["node-2"]["free"]) == (4, 0, 4)
        assert await requests(cluster) == []


async def test_views_of_1_37_and_differences_of_the_two_counts_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with running("1.37", "DRAPartitionableDevicesType") as cluster:
        profile = f"{DRIVER}/profile"
        consumed = [{"counterSet": "card", "counters": {"memory": {"value": "40Gi"}}}]
        whole = [{"counterSet": "card", "counters": {"memory": {"value": "80Gi"}}}]
        half = {"attributes": {"profile": {"string": "half"}}, "consumesCounters": consumed}
        devices = [
            {"name": "whole", "attributes": {"profile": {"string": "whole"}}, "consumesCounters": whole},
            *({"name": f"half-{i}", **half} for i in range(2)),
        ]
        both = {"name": "node-1", "generation": 1, "resourceSliceCount": 2}
        parts, counters = slice_of("node-1", devices), slice_of("node-1", [], name="counters")
        del counters["spec"]["devices"]
        parts["spec"] |= {"pool": both, "partitionTypeAttribute": profile}
        sets = [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]
        counters["spec"] |= {"pool": both, "sharedCounters": sets, "partitionTypeAttribute": profile}
        shared = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
        await cluster.apply(parts, counters, slice_of("node-2", [{"name": "d", **shared}]))
        await allocate(cluster, "half", "node-1", "half-0")
        amounts = {"shareID": str(uuid.uuid4()), "consumedCapacity": {"memory": "30Gi"}}
        await allocate(cluster, "share", "node-2", "d", **amounts)

        async def is_counted() -> bool:
            found = (await count_pools(cluster.client, [DRIVER])).found.values()
            return len(found) == 2 and all(p["allocatedDevices"] == 1 for p in found)

        await cluster.wait("the controller to see both allocations", is_counted)
        assert await dra_top(cluster, "--pool-status") == 0
        out = " ".join(capsys.readouterr().out.split())
        # The whole card is not allocated, so the control plane counts it as available; dra top counts it as blocked.
        assert "node-1 3 / 3 1 / 1 2 / 1 - / 1 0 / 0 1 of 2 half allocatable; 0 of 1 whole allocatable" in out
        assert "node-2 1 / 1 1 / 1 0 / 0 - / 0 0 / 0 memory 50Gi of 80Gi available" in out
        found = await shown_pools(cluster, capsys)
        assert found["node-1"]["counted"]["partitions"] == [
            {"type": "half", "total": 2, "allocatable": 1},
            {"type": "whole", "total": 1, "allocatable": 0},
        ]
        memory = {"name": "memory", "total": "80Gi", "consumed": "30Gi", "available": "50Gi"}
        assert found["node-2"]["counted"]["capacity"] == [memory]


async def test_a_cluster_without_the_api_shows_the_usual_page_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    async with LocalCluster((), features=Features.of("1.36")) as cluster:
        await add_nodes(cluster, "node-1")
        await cluster.apply(slice_of("node-1", FOUR))
        assert await dra_top(cluster, "--pool-status") == 3
        out = " ".join(capsys.readouterr().out.split())
        assert "note: this cluster does not serve resourcepoolstatusrequests.resource.k8s.io" in out
        assert "- / 4 - / 0 - / 4 - / 0 - / 0 not counted" in out


async def account(cluster: LocalCluster, folder: Path, *verbs: str) -> Path:
    """Returns a kubeconfig of an account that may list all objects, and use these verbs on requests."""
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]}]
    if verbs:
        rules.append(
            {"apiGroups": ["resource.k8s.io"], "resources": [POOL_STATUS_REQUESTS.plural], "verbs": list(verbs)}
        )
    return write_kubeconfig(cluster, folder, await token_with_rules(cluster.client, rules))


async def test_an_account_without_the_permission_sees_the_usual_page_and_the_role_to_ask_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running("1.36") as cluster:
        await cluster.apply(slice_of("node-1", FOUR))
        file = await account(cluster, tmp_path)
        assert await dra_top(cluster, "--pool-status", kubeconfig=file) == 3
        out = " ".join(capsys.readouterr().out.split())
        assert 'the verbs create, get and delete on "resourcepoolstatusrequests" of API group "resource.k8s.io"' in out
        assert "is not deleted" not in out
        assert "- / 4 - / 0 - / 4 - / 0 - / 0 not counted" in out


async def test_a_request_that_the_account_may_not_delete_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running("1.36") as cluster:
        await cluster.apply(slice_of("node-1", FOUR))
        file = await account(cluster, tmp_path, "create", "get")
        assert await dra_top(cluster, "--pool-status", kubeconfig=file) == 3
        (request,) = await requests(cluster)
        assert f"kubectl delete resourcepoolstatusrequests {request['metadata']['name']}" in capsys.readouterr().out


def incomplete() -> JSON:
    found = slice_of("node-1", FOUR)
    found["spec"]["pool"]["resourceSliceCount"] = 2
    return found


async def test_a_driver_with_an_incomplete_pool_is_not_counted_and_the_page_says_so() -> None:
    async with running("1.36") as cluster:
        await cluster.apply(incomplete(), slice_of("node-1", FOUR, driver="other.example.com", name="other"))
        counts = await count_pools(cluster.client, [DRIVER, "other.example.com"], wait=3)
        assert counts.found.keys() == {("other.example.com", "node-1")}
        (gap,) = counts.gaps
        assert (
            f"did not count the pools of driver {DRIVER} within 3 s: it waits while slices of a pool are missing" in gap
        )
        assert await requests(cluster) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_command_deletes_its_requests(number: signal.Signals) -> None:
    async with running("1.36") as cluster:
        await cluster.apply(incomplete())  # its request gets no status, so the command waits
        words = ["top", "--pool-status", "--kubeconfig", str(cluster.kubeconfig)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dra_kubeletplugin", *words, env={**os.environ}, stdout=asyncio.subprocess.PIPE
        )

        async def is_created() -> bool:
            return bool(await requests(cluster))

        await cluster.wait("the request", is_created)
        process.send_signal(number)
        assert await process.wait() == 128 + number
        assert await requests(cluster) == []


def test_files_cannot_be_combined_with_the_control_planes_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "-f", str(tmp_path), "--pool-status"]) == 2
    assert "cannot be combined with --file" in capsys.readouterr().err
