"""Prepares a claim, prepares it again and unprepares it; prints each step. test_store_power_failure.py runs it under strace."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, Host, Pool, PreparedDevice
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims import ClaimManager, PluginContext
from dra_kubeletplugin.claims.instances import InstanceLock
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError
from tests.helpers.crash.claim_manager import FakeApiServer

NAME = "one.example.com"


class One(Driver):
    name = NAME

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"ONE": d.name})) for d in claim.devices]


async def main(root: Path) -> None:
    settings = Settings(driver_name=NAME, node_name="node", kubelet_root=root, cdi_root=root / "cdi")
    driver, inventory, process = One(), Inventory("node"), InstanceLock(settings.plugin_dir / "processes")
    driver.attach(Host(), settings)
    await inventory.update([Pool("node", [Device("d")])])
    process.acquire()
    api: Any = FakeApiServer()
    claims = ClaimManager(PluginContext(driver, Calls(), api, inventory, settings, Metrics()), process, "boot")
    await claims.open()
    ref = api.allocate("claim", "uid", "d", NAME)
    for phase, call in (("prepare", claims.prepare), ("repeat", claims.prepare), ("unprepare", claims.unprepare)):
        os.write(1, f"PHASE {phase}\n".encode())
        answer = (await call([ref]))["uid"]
        assert not isinstance(answer, DraError), answer
    os.write(1, b"PHASE end\n")
    await claims.close()


asyncio.run(main(Path(sys.argv[1])))
