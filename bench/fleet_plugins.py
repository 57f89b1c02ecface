"""Runs many plugins against one API server, to measure what they cost the server: ``make bench ARGS=fleet``.

A worker process runs some of the plugins: their publishers, watches and health, with 8 devices each. No kubelet calls them. The
parent process counts the requests of all plugins at the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench.apiserver import ROOT, Api, in_pod
from dra_kubeletplugin import Device, Driver, Health
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.devices.slices import publisher
from dra_kubeletplugin.kube import reflector
from dra_kubeletplugin.plugin.node import Plugin

WORKERS = 4
FASTER = 20  # times that the watches and regular synchronisations are more frequent while the plugins are idle
_READY = 60.0


class Fleet(Driver):
    """8 devices with health. ``revision`` is an attribute of each, so that a change of it makes each plugin write."""

    name = "fleet.example.com"
    revision = 0

    async def devices(self) -> list[Device]:
        return [Device(f"d-{i}", attributes={"index": i, "revision": self.revision}) for i in range(8)]

    async def health(self) -> dict[str, Health]:
        return {f"d-{i}": Health.HEALTHY for i in range(8)}


@dataclass(frozen=True)
class Cost:
    """Times in seconds. Requests and CPU seconds of the server are those of all plugins together."""

    plugins: int
    start: float
    start_requests: dict[str, int]
    start_cpu: float
    hourly: dict[str, float]  # requests of one idle plugin in an hour
    hourly_cpu: float
    outage: float
    returned: float
    returned_requests: dict[str, int]
    returned_cpu: float
    connections: int  # that the plugins opened when the server was back


async def measure(api: Api, plugins: int, idle: float, outage: float) -> Cost:
    """Measures a start, ``idle`` seconds, and an outage of the server of ``outage`` seconds, in which all devices change."""
    before, began = await api.counts(), time.monotonic()
    async with _workers(api, plugins) as send:
        await send("published")
        start, started = time.monotonic() - began, (await api.counts())
        cost = started.since(before)
        await asyncio.sleep(_SETTLE)
        quiet = await api.counts()
        await asyncio.sleep(idle)
        used = (await api.counts()).since(quiet)
        hours = plugins * idle * FASTER / 3600
        hourly = {what: n / hours for what, n in sorted(used.selected.items())}
        await api.close_port()
        await send("change")
        await asyncio.sleep(outage)
        gone, began = await api.open_port(), time.monotonic()
        await send("published")
        returned = time.monotonic() - began
        async with asyncio.timeout(_READY):
            while (
                sum(n for k, n in (await api.counts()).since(gone).selected.items() if k.startswith("WATCH")) < plugins
            ):
                await asyncio.sleep(0.1)
        again = (await api.counts()).since(gone)
    return Cost(
        plugins, start, cost.selected, cost.cpu, hourly, used.cpu / hours, outage, returned, again.selected, again.cpu, again.connections
    )  # fmt: skip


_SETTLE = 5.0  # seconds after which the plugins are idle


@contextlib.asynccontextmanager
async def _workers(api: Api, plugins: int) -> AsyncIterator[_Commands]:
    """Starts the worker processes. Yields a function that sends a command to all of them and waits for their responses."""
    each = -(-plugins // WORKERS)
    shares = [(first, min(each, plugins - first)) for first in range(0, plugins, each)]
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.fleet_plugins", api.url, str(api.folder), str(first), str(count),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        )
        for first, count in shares
    ]  # fmt: skip
    try:
        yield _Commands(processes)
    finally:
        for process in processes:
            assert process.stdin
            process.stdin.close()
            await process.wait()


class _Commands:
    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    async def __call__(self, command: str) -> None:
        for process in self._processes:
            assert process.stdin
            process.stdin.write(command.encode() + b"\n")
        async with asyncio.timeout(_READY):
            for process in self._processes:
                assert process.stdout
                if (await process.stdout.readline()).decode().strip() != command:
                    raise RuntimeError("a worker process ended: see its error above")


# --- a worker process -------------------------------------------------------------------------------


async def work(url: str, account: Path, first: int, count: int) -> None:
    logging.disable(logging.WARNING)  # warnings about the unavailable server
    reflector.WATCH_SECONDS //= FASTER
    publisher._RESYNC /= FASTER
    config = in_pod(url, account)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="f") as folder:
        async with contextlib.AsyncExitStack() as stack:
            plugins = []
            for i in range(first, first + count):
                root = Path(folder) / str(i)
                for name in ("plugins", "plugins_registry", "cdi"):
                    (root / name).mkdir(parents=True)
                settings = Settings(
                    driver_name=Fleet.name, node_name=f"node-{i:04}", kubelet_root=root, cdi_root=root / "cdi", http_address="",
                    local_cluster=True,
                )  # fmt: skip
                plugins.append(Plugin(Fleet(), settings, config))
            await asyncio.gather(*(stack.enter_async_context(p.running()) for p in plugins))
            while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
                if command == "change":
                    versions = [p.inventory.version for p in plugins]
                    Fleet.revision += 1
                    for plugin in plugins:
                        plugin.discovery.request()
                    await asyncio.gather(*(p.inventory.changed(v) for p, v in zip(plugins, versions, strict=True)))
                else:
                    await asyncio.gather(*(p.publisher.current() for p in plugins))
                print(command, flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
