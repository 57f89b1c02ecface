"""Runs a plugin as a DaemonSet does: with TLS, a pod's service account, metrics and probes.

The caller is the kubelet. It registers the plugin once, and then makes only the calls that are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.apiserver import ROOT, Api
from dra_devkit.localcluster.kubelet.plugins import dial
from dra_devkit.testing import ClaimSpec
from dra_devkit.testing.pods import claim
from dra_devkit.testing.ports import free_port
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.kube.resource import CLAIMS, NODES

NODE = "node-1"
START = 90.0  # seconds; a loaded machine validates thousands of devices slowly
Ref = tuple[str, str, str]  # namespace, name, UID


@dataclass(frozen=True)
class Deployed:
    """A running plugin. ``registered`` is in seconds after the start of the process."""

    pid: int
    driver: str
    socket: str
    http: str
    cdi: Path
    registered: float

    async def probe(self, path: str) -> str:
        """Returns the response of /metrics, /healthz or /readyz."""

        def ask() -> str:
            with urllib.request.urlopen(self.http + path, timeout=10) as response:  # noqa: S310
                return str(response.read().decode())

        return await asyncio.to_thread(ask)

    async def published(self) -> None:
        """Waits until /readyz succeeds: registered, and slices published. Raises ``TimeoutError`` with the last response."""
        response = ""
        try:
            async with asyncio.timeout(START):
                while True:
                    try:
                        await self.probe("/readyz")
                        return
                    except urllib.error.HTTPError as e:
                        response = e.read().decode()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise TimeoutError(f"{self.driver} is not ready after {START:g}s: {response}") from None

    def cpu(self) -> float:
        """Seconds of CPU time so far, user and system. Source: clock_getcpuclockid(3)."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def memory(self) -> dict[str, float]:
        """Returns the fields of /proc/PID/smaps_rollup in MiB: Rss, Pss, Anonymous and others."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()[1:]
        return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}


def environment(root: Path, cdi: Path, api: Api) -> dict[str, str]:
    """Returns the variables that the DaemonSet of deploy/ sets. Python may write compiled files, because the image has them."""
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "PYTHONPATH", "HOME", "LANG"}}
    return kept | {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": api.port,
        "SERVICE_ACCOUNT": str(api.folder),
        "NODE_NAME": NODE,
        "POD_UID": "00000000-0000-4000-8000-000000000000",
        "KUBELET_ROOT": str(root),
        "CDI_ROOT": str(cdi),
        "HTTP_ADDRESS": f"127.0.0.1:{free_port()}",
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "error",
        "LOCAL_CLUSTER": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONNODEBUGRANGES": "1",
    }


@contextlib.asynccontextmanager
async def deployed(target: str, api: Api, state: Path, python: str = sys.executable) -> AsyncIterator[Deployed]:
    """Runs ``dra run target``, registered and published. Records are below ``state``, CDI files in memory, as /var/run is."""
    with contextlib.suppress(Exception):
        await api.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else state) as cdi,
        tempfile.TemporaryDirectory(dir=state, prefix="k") as folder,
    ):
        root = Path(folder)
        for name in ("plugins", "plugins_registry"):
            (root / name).mkdir()
        options = environment(root, Path(cdi), api)
        loop = asyncio.get_running_loop()
        started = loop.time()
        process = await asyncio.create_subprocess_exec(
            python, *("-m", "dra_kubeletplugin", "run", target), env=options, cwd=ROOT
        )
        try:
            async with asyncio.timeout(START):
                driver, endpoint = await register(root / "plugins_registry", process)
                registered = loop.time() - started
            url = f"http://{options['HTTP_ADDRESS']}"
            out = Deployed(process.pid, driver, endpoint, url, Path(cdi), registered)
            await out.published()
            yield out
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def register(registry: Path, process: asyncio.subprocess.Process) -> tuple[str, str]:
    """Registers the plugin as the kubelet does. Returns the driver's name and its socket."""
    while not (found := [p for p in registry.iterdir() if not p.name.startswith(".")]):
        if process.returncode is not None:
            raise RuntimeError(f"the plugin ended with {process.returncode}: see its error above")
        await asyncio.sleep(0.002)
    channel = dial(found[0])
    try:
        stub = pb_grpc.RegistrationStub(channel)
        info = await stub.GetInfo(pb.InfoRequest(), timeout=5)
        await stub.NotifyRegistrationStatus(pb.RegistrationStatus(plugin_registered=True), timeout=5)
        return info.name, info.endpoint
    finally:
        await channel.close()


async def allocated(api: Api, driver: str, name: str, device: str, config: Sequence[dict[str, Any]] = ()) -> Ref:
    """Creates a claim of realistic size to which ``device`` is allocated, with ``config`` as the scheduler copies it."""
    created = await api.client.create(CLAIMS, claim(name, ClaimSpec()), "default")
    result = {"request": "device", "driver": driver, "pool": NODE, "device": device}
    consumer = {"resource": "pods", "name": "bench", "uid": "bench"}
    devices = {"results": [result], **({"config": list(config)} if config else {})}
    status = {"allocation": {"devices": devices}, "reservedFor": [consumer]}
    await api.client.update(CLAIMS, {**created, "status": status}, "status")
    return "default", name, created["metadata"]["uid"]
