"""Measures publishing: time from ``devices()`` to the last slice, writes, and the response time for the kubelet meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench.apiserver import Api
from bench.deployed import Deployed, deployed
from bench.drivers import DEVICES_FILE, LISTED_FILE
from dra_devkit.localcluster.kubelet.plugins import dial
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.kube import Reflector

IDLE = 10.0  # seconds
_QUIET = 1.0  # seconds without a write after which publishing has ended
_LOADED = 5.0  # the same, if there were fewer writes than expected
_LONGEST = 60.0
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One measurement. ``seconds`` is the time from the end of ``devices()`` to the watch event of the last slice.

    ``most`` is the aim for ``writes``, ``slowest`` the longest time for GetInfo.
    """

    what: str
    seconds: float
    aim: float
    cpu: float
    writes: int
    most: int
    slowest: float


class Observation:
    """A plugin whose driver reads its devices from a file, and a watch of its slices."""

    def __init__(self, plugin: Deployed, api: Api) -> None:
        self.plugin = plugin
        self.root = Path(plugin.socket).parents[2]
        self.changes: list[float] = []
        self._reflector = Reflector(api.client, "resourceslices", fields=f"spec.driver={plugin.driver}")
        self._slowest = 0.0

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[Observation]:
        tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._call_get_info())]
        try:
            await asyncio.sleep(_QUIET)
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _watch(self) -> None:
        async for event in self._reflector.events():
            if event.type != "SYNCED":
                self.changes.append(time.monotonic())

    async def _call_get_info(self) -> None:
        """Calls GetInfo all the time. The kubelet waits one second for its response."""
        (path,) = (p for p in (self.root / "plugins_registry").iterdir() if not p.name.startswith("."))
        channel = dial(path)
        try:
            stub = pb_grpc.RegistrationStub(channel)
            while True:
                began = time.monotonic()
                await stub.GetInfo(pb.InfoRequest(), timeout=10)
                self._slowest = max(self._slowest, time.monotonic() - began)
                await asyncio.sleep(0.01)
        finally:
            await channel.close()

    async def change(self, what: str, aim: float, most: int, **wanted: int) -> Row:
        """Changes the devices of the driver, and waits until it has published them."""
        self.changes.clear()
        self._slowest, cpu, began = 0.0, self._cpu(), time.monotonic()
        file = self.root / DEVICES_FILE
        file.with_suffix(".new").write_text(json.dumps(wanted))
        file.with_suffix(".new").replace(file)
        while time.monotonic() - max(self.changes, default=began + _LONGEST) < (
            _QUIET if len(self.changes) >= most else _LOADED
        ):
            await asyncio.sleep(0.05)
            if not self.changes and time.monotonic() - began > _LONGEST:
                raise TimeoutError(f"no slice was published for {wanted}")
        used, slowest = self._cpu() - cpu, self._slowest
        listed = float((self.root / LISTED_FILE).read_text())
        return Row(what, self.changes[-1] - listed, aim, used, len(self.changes), most, slowest)

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self.plugin.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK


async def rows(api: Api, state: Path, python: str) -> AsyncIterator[Row]:
    async with deployed("bench.drivers:FromFile", api, state, python) as p, Observation(p, api).watched() as observed:
        yield await observed.change("2,048 new devices", 0.5, 16, count=2048)
        yield await observed.change("one of 2,048 changed", 0.5, 1, count=2048, changed=1000)
        yield await observed.change("8,192 devices after 2,048", 2.0, 64, count=8192)
    async with (
        deployed("bench.drivers:FromFileWithHealth", api, state, python) as p,
        Observation(p, api).watched() as observed,
    ):
        yield await observed.change("2,048 devices of a driver that reports health", 0.5, 32, count=2048)
        yield await observed.change("the first taint of 2,048", 0.5, 2, count=2048, tainted=1000)


async def idle(api: Api, state: Path, python: str) -> str:
    """Returns the requests to the API server while nothing changes, without watches."""
    async with deployed("bench.drivers:FromFile", api, state, python) as p, Observation(p, api).watched() as observed:
        await observed.change("", 0, 0, count=2048)
        before = await api.counts()
        await asyncio.sleep(IDLE)
        requests = (await api.counts()).since(before).requests
        return ", ".join(f"{n} x {what}" for what, n in requests.items())
