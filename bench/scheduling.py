"""Measures how many pods per second the local cluster schedules: ``python -m bench.scheduling``.

The workloads have the form of Kubernetes' scheduler_perf. API server, claim controller and scheduler run in one process, as in
``dra dev``; there are no kubelets and drivers. A workload creates nodes, then pods that are not counted, then the counted pods. A
steady workload deletes each counted pod after it is scheduled.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dra_devkit.commands import gc_tuning
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient, Reflector
from dra_kubeletplugin.kube.decoding import as_json
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, NODES, PODS, SLICES, TEMPLATES

DRIVER = "bench.example.com"
API = "resource.k8s.io"
_AT_ONCE = 8  # requests in flight


def whole(node: str) -> list[JSON]:
    """Returns eight devices."""
    devices = [{"name": f"dev-{i}", "attributes": {"model": {"string": "A"}}} for i in range(8)]
    return [_slice(node, 0, 1, {"devices": devices})]


def partitions(node: str) -> list[JSON]:
    """Returns two devices that can each be one large, two medium or seven small partitions."""
    sets = [{"name": f"gpu-{g}", "counters": {"slices": {"value": "7"}}} for g in range(2)]
    devices = []
    for g in range(2):
        for kind, count, takes in (("small", 7, 1), ("middle", 2, 3), ("large", 1, 7)):
            for i in range(count):
                consumed = [{"counterSet": f"gpu-{g}", "counters": {"slices": {"value": str(takes)}}}]
                attributes = {"model": {"string": kind}}
                devices.append({"name": f"gpu-{g}-{kind}-{i}", "attributes": attributes, "consumesCounters": consumed})
    return [_slice(node, 0, 2, {"sharedCounters": sets}), _slice(node, 1, 2, {"devices": devices})]


def _slice(node: str, number: int, count: int, content: JSON) -> JSON:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, **content}
    return {"metadata": {"name": f"{node}-{number}"}, "spec": spec}


def request(name: str, model: str, count: int = 1) -> JSON:
    expression = f"device.attributes['{DRIVER}'].model == '{model}'"
    selectors = [{"cel": {"expression": expression}}]
    return {"name": name, "exactly": {"deviceClassName": "bench", "count": count, "selectors": selectors}}


@dataclass(frozen=True)
class Workload:
    """``published`` is the figure of Kubernetes' benchmark for a similar workload, in pods per second."""

    name: str
    nodes: int
    before: int
    pods: int
    requests: list[JSON] = field(default_factory=lambda: [request("r", "A")])
    devices: Callable[[str], list[JSON]] = whole
    steady: bool = False
    share: int = 0  # pods that share one claim; 0 for claims from a template
    aim: float = 0.0
    published: str = "-"


WORKLOADS = (
    Workload("claims from a template, 100 nodes", 100, 50, 400, aim=100.0),
    Workload("claims from a template, 500 nodes", 500, 50, 400, published="10 to 17"),
    Workload("steady state, 100 nodes, empty", 100, 50, 400, steady=True),
    Workload("steady state, 500 nodes, empty", 500, 50, 400, steady=True, published="81"),
    Workload("steady state, 100 nodes, half full", 100, 400, 400, steady=True, published="115 to 121 (500 nodes)"),
    Workload("5 pods of one claim, 100 nodes", 100, 50, 400, share=5),
    Workload(
        "partitions with backtracking, 100 nodes", 100, 10, 80,
        [request("a", "small", 2), request("b", "middle", 2), request("c", "small", 1)], partitions,
    ),
)  # fmt: skip


async def measure(workload: Workload) -> tuple[float, float]:
    """Returns counted pods per second of wall time and per second of CPU time.

    Cluster and client are one process with one busy thread. So both figures are nearly equal on an idle machine; on a busy machine the
    second is the reliable one.
    """
    async with LocalCluster(()) as cluster:
        client = KubeClient(cluster.config)
        try:
            await _prepare(client, workload)
            gc_tuning.settle()  # as `dra dev` does
            async with _scheduled(client, delete="pod-" if workload.steady else "") as bound:
                await _pods(client, workload, "before", workload.before)
                await bound(workload.before)
                started, used = time.perf_counter(), time.process_time()
                await asyncio.gather(
                    _pods(client, workload, "pod", workload.pods), bound(workload.before + workload.pods)
                )
                took, cost = time.perf_counter() - started, time.process_time() - used
                return workload.pods / took, workload.pods / cost
        finally:
            await client.close()


async def _prepare(client: KubeClient, workload: Workload) -> None:
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    await client.create(CLASSES, {"metadata": {"name": "bench"}, "spec": {"selectors": selectors}})
    spec = {"devices": {"requests": workload.requests}}
    await client.create(TEMPLATES, {"metadata": {"name": "t"}, "spec": {"spec": spec}}, "default")
    nodes = [_node(f"node-{i:03}") for i in range(workload.nodes)]
    await _at_once([lambda n=n: client.create(NODES, n) for n in nodes])
    slices = [s for n in nodes for s in workload.devices(n["metadata"]["name"])]
    await _at_once([lambda s=s: client.create(SLICES, s) for s in slices])


def _node(name: str) -> JSON:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "status": status}


async def _pods(client: KubeClient, workload: Workload, prefix: str, count: int) -> None:
    async def make(i: int) -> None:
        claim = {"name": "t", "resourceClaimTemplateName": "t"}
        if workload.share:
            name = f"{prefix}-{i // workload.share}"
            claim = {"name": "t", "resourceClaimName": name}
            if i % workload.share == 0:
                spec = {"devices": {"requests": workload.requests}}
                await client.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")
        await client.create(PODS, pod(i, claim), "default")

    def pod(i: int, claim: JSON) -> JSON:
        resources = {"claims": [{"name": "t"}], "requests": {"cpu": "100m"}}
        container = {"name": "main", "image": "pause", "resources": resources}
        return {"metadata": {"name": f"{prefix}-{i}"}, "spec": {"containers": [container], "resourceClaims": [claim]}}

    await _at_once([lambda i=i: make(i) for i in range(count)])


async def _at_once(calls: list[Callable[[], Any]]) -> None:
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call()

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


@asynccontextmanager
async def _scheduled(client: KubeClient, *, delete: str) -> AsyncIterator[Callable[[int], Any]]:
    """Yields a function that waits until so many pods have a node. Deletes scheduled pods whose names begin with ``delete``."""
    seen: set[str] = set()
    more = asyncio.Condition()

    async def follow() -> None:
        async for event in Reflector(client, PODS, namespace="default").events():
            if event.type in {"ADDED", "MODIFIED"} and as_json(event.encoded)["spec"].get("nodeName"):
                name = event.name
                if name in seen:
                    continue
                async with more:
                    seen.add(name)
                    more.notify_all()
                if delete and name.startswith(delete):
                    await client.delete(PODS, name, "default", grace=0)

    async def bound(count: int) -> None:
        async with more:
            await more.wait_for(lambda: len(seen) >= count)

    task = asyncio.create_task(follow())
    try:
        yield bound
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def main(words: list[str]) -> None:
    print(
        "| workload | pods/s | a second of processor time | aim | Kubernetes' own, published (2025) |\n|---|---|---|---|---|"
    )
    for workload in WORKLOADS:
        if all(w in workload.name for w in words):
            async with asyncio.timeout(600):
                rate, of_cpu = await measure(workload)
            aim = "-" if not workload.aim else f"{workload.aim:.0f}{'' if rate >= workload.aim else ' (missed)'}"
            print(f"| {workload.name} | {rate:.0f} | {of_cpu:.0f} | {aim} | {workload.published} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="*", help="only workloads with these words in their name")
    asyncio.run(main(parser.parse_args().word))
