"""The parts of an API server that a sync of slices needs, in memory, and a writer that syncs results of a driver with it."""

from __future__ import annotations

import asyncio
import copy
import itertools
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from dra_kubeletplugin import CounterSet, Device, Pool
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices import Leadership, NodeScope
from dra_kubeletplugin.devices.slices.sync import SupersededError, Syncer
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube.errors import ConflictError, NotFoundError
from dra_kubeletplugin.kube.resource import SLICES

FULL = 3  # the number of devices that fill a slice


class Page:
    def __init__(self, items: list[bytes]) -> None:
        self.items = items


class Server:
    """The parts of an API server that a sync needs. ``fails`` decides before each write, and again after it, whether the call fails."""

    def __init__(self, allowed: list[tuple[frozenset[str], ...]]) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.allowed = allowed
        self.writes = 0
        self.fails: list[bool] = []
        self.kills: list[int] = []  # returns the slice that another client deletes before a call
        self.numbers = itertools.count(1)
        self.slow: Random | None = None  # the delay in seconds before a call has its effect

    # --- faults and changes from outside ---

    def changed(self) -> None:
        """Checks the pool that a scheduler sees after each change of an object."""
        if not self.objects:
            return
        newest = max(o["spec"]["pool"]["generation"] for o in self.objects.values())
        current = [o for o in self.objects.values() if o["spec"]["pool"]["generation"] == newest]
        if len(current) != current[0]["spec"]["pool"]["resourceSliceCount"]:
            return
        assert {o["spec"]["pool"]["resourceSliceCount"] for o in current} == {len(current)}
        devices = [d for o in current for d in o["spec"].get("devices") or []]
        names = [d["name"] for d in devices]
        assert len(names) == len(set(names)), "a device is in the pool twice: the pool is invalid"
        sets = {c["name"] for o in current for c in o["spec"].get("sharedCounters") or []}
        used = {c["counterSet"] for d in devices for c in d.get("consumesCounters") or []}
        assert used <= sets, "a device uses a counter set that does not exist: the pool is invalid"
        seen = frozenset(f"{d['name']}={(d.get('attributes') or {}).get('v', {}).get('int')}" for d in devices)
        assert any(seen in versions for versions in self.allowed), f"a mixture: {sorted(seen)}"

    def delete_one(self, which: int) -> None:
        if self.objects:
            del self.objects[sorted(self.objects)[which % len(self.objects)]]
            self.changed()

    async def _call(self) -> None:
        for _ in range(self.slow.randrange(40) if self.slow else 1):
            await asyncio.sleep(0)
        if self.kills:
            which = self.kills.pop()
            if which >= 0:
                self.delete_one(which)

    def _lost(self) -> None:
        if self.fails and self.fails.pop():
            raise ApiError("the connection was cut")

    # --- calls of the client ---

    async def get(self, resource: Any, name: str) -> dict[str, Any]:
        if name != "node":
            raise NotFoundError("no such node")
        return {"metadata": {"name": name, "uid": "node-uid"}}

    async def page(self, resource: Any, fields: str = "") -> Page:
        await self._call()
        return Page([msgspec.json.encode(o) for o in self.objects.values()])

    def keep(self, obj: dict[str, Any], name: str, uid: str) -> dict[str, Any]:
        assert 0 <= obj["spec"]["pool"]["generation"] < 2**63, "the server's number has 64 bits"
        obj = copy.deepcopy(obj)
        obj["metadata"] |= {"name": name, "uid": uid, "resourceVersion": str(next(self.numbers))}
        self.objects[name] = obj
        self.writes += 1
        self.changed()
        return copy.deepcopy(obj)

    async def create(self, resource: Any, obj: dict[str, Any]) -> dict[str, Any]:
        await self._call()
        self._lost()
        n = next(self.numbers)
        made = self.keep(obj, f"{obj['metadata']['generateName']}{n:05}", f"u{n}")
        self._lost()
        return made

    def _found(self, name: str, uid: str, version: str) -> dict[str, Any]:
        found = self.objects.get(name)
        if found is None:
            raise NotFoundError("gone")
        if (uid, version) != (found["metadata"]["uid"], found["metadata"]["resourceVersion"]):
            raise ConflictError("conflict")
        return found

    async def update(self, resource: Any, obj: dict[str, Any]) -> dict[str, Any]:
        await self._call()
        self._lost()
        meta = obj["metadata"]
        self._found(meta["name"], meta["uid"], meta["resourceVersion"])
        kept = self.keep(obj, meta["name"], meta["uid"])
        self._lost()
        return kept

    async def delete(self, resource: Any, name: str, *, uid: str, version: str) -> None:
        await self._call()
        self._lost()
        self._found(name, uid, version)
        del self.objects[name]
        self.writes += 1
        self.changed()
        self._lost()


DeviceVersions = tuple[dict[str, int], bool]  # (versions of the devices by name, whether the devices are partitions)


def pool_from_result(result: DeviceVersions) -> Pool:
    devices, partitions = result
    counters: dict[str, Any] = {"consumes_counters": {"gpu": {"c": 1}}} if partitions else {}
    sets = [CounterSet("gpu", {"c": 99})] if partitions else []
    return Pool("node", [Device(n, attributes={"v": v}, **counters) for n, v in devices.items()], sets)


def scheduler_view(result: DeviceVersions) -> frozenset[str]:
    return frozenset(f"{n}={v}" for n, v in result[0].items())


class Writer:
    """A publishing instance. Without ``instances`` it does not detect other instances that write at the same time."""

    def __init__(self, server: Server, instances: Path | None = None) -> None:
        self.server = server
        self.instances = instances
        self.inventory = Inventory("node", slice_size=FULL)
        self.leads = True
        self.metrics = Metrics()
        self.restart()

    def restart(self) -> None:
        """Starts a new process without any state."""
        scope = NodeScope("d.example.com", "node")
        self.syncer = Syncer(
            self.server,  # type: ignore[arg-type]
            self.inventory,
            scope,
            self.metrics,
            Leadership(lambda: self.leads, self.instances),
        )

    async def set_result(self, result: DeviceVersions) -> None:
        await self.inventory.update([pool_from_result(result)])

    async def sync(self) -> int:
        plan = await self.syncer.plan(SLICES)
        await self.syncer.carry_out(plan, SLICES)
        return plan.writes

    async def try_once(self) -> bool:
        try:
            await self.sync()
        except (ApiError, SupersededError):
            return False
        return True

    async def settle(self) -> None:
        for _ in range(20):
            if await self.try_once() and not (await self.syncer.plan(SLICES)).writes:
                return
        raise AssertionError("never settles")
