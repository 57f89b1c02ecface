"""Prepares a claim, prepares it again and unprepares it, each twice; prints each step. test_store_power_failure.py runs it under strace."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedDevice
from dra_kubeletplugin.errors import DraError
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager

NAME = "one.example.com"


class OneDeviceDriver(Driver):
    name = NAME

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"ONE": d.name})) for d in claim.devices]


async def main(root: Path) -> None:
    api = FakeApiServer()
    ref = api.allocate("claim", "uid", "d-0", NAME)
    async with running_manager(root, OneDeviceDriver(), api) as manager:
        for number in ("first", "second"):
            for phase, call in (
                ("prepare", manager.prepare),
                ("repeat", manager.prepare),
                ("unprepare", manager.unprepare),
            ):
                os.write(1, f"PHASE {number} {phase}\n".encode())
                response = await call(ref)
                assert not isinstance(response, DraError), response
        os.write(1, b"PHASE end\n")


asyncio.run(main(Path(sys.argv[1])))
