"""Prepares a claim, prepares it again and unprepares it; prints each step. test_store_power_failure.py runs it under strace."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, Host, Pool, PreparedDevice
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims import ClaimIdentity, ClaimManager, PluginContext
from dra_kubeletplugin.claims.instances import InstanceLock
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.http1 import HttpResponse

NAME = "one.example.com"


class One(Driver):
    name = NAME

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"ONE": d.name})) for d in claim.devices]


class Api:
    async def dra(self, plural: str) -> Resource:
        return Resource("resource.k8s.io", "v1", plural, namespaced=True)

    async def raw(self, path: str, query: Any = None, *, timeout: float | None = None) -> HttpResponse:
        *_, namespace, plural, name = path.split("/")
        found = await self.get(await self.dra(plural), name, namespace, timeout=timeout)
        return HttpResponse(200, {}, msgspec.json.encode(found))

    async def get(self, resource: Resource, name: str, namespace: str = "", *, timeout: float | None = None) -> Any:
        result = {"request": "r", "driver": NAME, "pool": "node", "device": "d"}
        return {
            "metadata": {"name": name, "namespace": namespace, "uid": "uid"},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }


async def main(root: Path) -> None:
    settings = Settings(driver_name=NAME, node_name="node", kubelet_root=root, cdi_root=root / "cdi")
    driver, inventory, process = One(), Inventory("node"), InstanceLock(settings.plugin_dir / "processes")
    driver.attach(Host(), settings)
    await inventory.update([Pool("node", [Device("d")])])
    process.acquire()
    api: Any = Api()
    claims = ClaimManager(PluginContext(driver, Calls(), api, inventory, settings, Metrics()), process, "boot")
    await claims.open()
    ref = ClaimIdentity("ns", "claim", "uid")
    for phase, call in (("prepare", claims.prepare), ("repeat", claims.prepare), ("unprepare", claims.unprepare)):
        os.write(1, f"PHASE {phase}\n".encode())
        answer = (await call([ref]))["uid"]
        assert not isinstance(answer, DraError), answer
    os.write(1, b"PHASE end\n")
    await claims.close()


asyncio.run(main(Path(sys.argv[1])))
