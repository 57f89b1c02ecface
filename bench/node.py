"""Runs a plugin as a process with a local cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.plugins import dial
from dra_devkit.testing import ClaimSpec
from dra_devkit.testing.pods import claim, device_class
from dra_kubeletplugin._proto import dra_v1_pb2, dra_v1_pb2_grpc
from dra_kubeletplugin.kube.resource import CLAIMS

ROOT = Path(__file__).parents[1]


@dataclass
class Process:
    """A running plugin. ``registered`` is in seconds after the start of the process."""

    process: asyncio.subprocess.Process
    cluster: LocalCluster
    driver: str
    registered: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def status(self, key: str) -> int:
        """Returns a field of /proc/PID/status in KiB, e.g. VmRSS."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
        raise KeyError(key)

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def socket(self) -> str:
        return str(self.cluster.node.kubelet.plugins.newest(self.driver).endpoint)


@contextlib.asynccontextmanager
async def running(
    target: str, driver: str, *, state: Path | None = None, timers: Timers | None = None
) -> AsyncIterator[Process]:
    """Runs ``dra run target`` with a local cluster. :func:`allocate` creates claims."""
    loop = asyncio.get_running_loop()
    async with LocalCluster(state=state, timers=timers or Timers(plugin_poll_interval=0.01)) as cluster:
        await cluster.apply(device_class("devices", driver))
        node = cluster.node
        environment = {k: v for k, v in os.environ.items() if k not in {"KUBECONFIG", "POD_UID"}}
        environment |= {
            "NODE_NAME": node.name,
            "KUBECONFIG": str(cluster.kubeconfig),
            "KUBELET_ROOT": str(node.kubelet_root),
            "CDI_ROOT": str(node.cdi_root),
            "LOG_LEVEL": "warning",
            "LOCAL_CLUSTER": "1",
        }
        started = loop.time()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dra_kubeletplugin.cli", "run", target, env=environment, cwd=ROOT
        )
        try:
            async with asyncio.timeout(30):
                while not node.kubelet.plugins.newest(driver):
                    await asyncio.sleep(0.002)
            registered = loop.time() - started
            async with asyncio.timeout(30):
                while not cluster.slices(driver):
                    await asyncio.sleep(0.01)
            yield Process(process, cluster, driver, registered)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def allocate(cluster: LocalCluster, driver: str, name: str, device: str) -> tuple[str, str, str]:
    """Creates a claim to which ``device`` is allocated. Returns namespace, name and UID."""
    (created,) = await cluster.apply(claim(name, ClaimSpec()))
    result = {"request": "device", "driver": driver, "pool": cluster.node.name, "device": device}
    consumer = {"apiGroup": "bench.example.com", "resource": "benches", "name": "bench", "uid": "bench"}
    status: dict[str, Any] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
    await cluster.client.update(CLAIMS, {**created, "status": status}, "status")
    return "default", name, created["metadata"]["uid"]


class Kubelet:
    """Calls the plugin's socket as the kubelet does."""

    def __init__(self, path: str) -> None:
        self.channel = dial(path)
        self.stub = dra_v1_pb2_grpc.DRAPluginStub(self.channel)

    async def prepare(self, claims: list[tuple[str, str, str]]) -> None:
        pb = dra_v1_pb2
        response = await self.stub.NodePrepareResources(
            pb.NodePrepareResourcesRequest(claims=_refs(claims)), timeout=45
        )
        for uid, result in response.claims.items():
            if result.error or not result.devices:
                raise RuntimeError(f"prepare of {uid}: {result.error}")

    async def unprepare(self, claims: list[tuple[str, str, str]]) -> None:
        pb = dra_v1_pb2
        response = await self.stub.NodeUnprepareResources(
            pb.NodeUnprepareResourcesRequest(claims=_refs(claims)), timeout=45
        )
        for uid, result in response.claims.items():
            if result.error:
                raise RuntimeError(f"unprepare of {uid}: {result.error}")

    async def close(self) -> None:
        await self.channel.close()


def _refs(claims: list[tuple[str, str, str]]) -> list[Any]:
    return [dra_v1_pb2.Claim(namespace=n, name=m, uid=u) for n, m, u in claims]
