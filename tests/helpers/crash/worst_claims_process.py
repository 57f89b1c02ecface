"""Prepares claims with the worst parameters and prints the resident memory; test_claims_worst_parameters.py runs it as a process.

Prints JSON: resident bytes ``before``, at the ``peak`` and ``after``; ``faults`` is the number of claims that were refused.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.host.memory import trim
from dra_kubeletplugin.kube.http1 import HttpResponse
from tests.helpers import worst_parameters
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.waiting import wait_until

CLAIMS = 40


class Server(FakeApiServer):
    """Encodes each claim once, before the measurement."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: dict[str, bytes] = {}

    async def raw(self, path: str, query: Any = None, *, timeout: float | None = None) -> HttpResponse:
        return HttpResponse(200, {}, self.encoded[path.rpartition("/")[2]])


class WorstClaimsDriver(Driver):
    name = worst_parameters.DRIVER
    config = worst_parameters.KINDS

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        pass


def resident(field: str = "VmRSS") -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields[field].split()[0]) * 1024


def encoded(kind: Any, shape: str, name: str, requests: int) -> bytes:
    config = worst_parameters.entries(kind, shape)
    obj = worst_parameters.with_allocation(
        worst_parameters.claim(config, name, requests=requests), config, requests=requests
    )
    return json.dumps(obj, separators=(",", ":")).encode()


async def main(folder: Path) -> None:
    api = Server()
    shapes = [("many unknown keys", 1), ("right items", 1), ("right numbers", 32), ("nested lists", 1)]
    api.encoded = {
        f"c{i}": encoded(worst_parameters.Plain, shape, f"c{i}", requests)
        for i in range(CLAIMS)
        for shape, requests in [shapes[i % len(shapes)]]
    }
    api.encoded["warm"] = encoded(worst_parameters.Plain, "same", "warm", 1)
    faults = 0
    async with running_manager(folder, WorstClaimsDriver(), api) as manager:
        threads = threading.active_count()
        await manager.prepare(ClaimIdentity("ns", "warm", "warm"))
        trim()
        resident_before = resident()
        for _ in range(3):  # like the retries of a kubelet
            outcomes = await asyncio.gather(
                *(manager.prepare(ClaimIdentity("ns", f"c{i}", f"c{i}")) for i in range(CLAIMS))
            )
            faults += sum(isinstance(o, DraError) for o in outcomes)
            for i, outcome in enumerate(outcomes):
                if not isinstance(outcome, DraError):
                    await manager.unprepare(ClaimIdentity("ns", f"c{i}", f"c{i}"))
        del outcomes
        burst = resident()
        await wait_until(lambda: threading.active_count() <= threads, "the end of the idle threads", 60)
        trim()
        resident_after = resident()
    peak = resident("VmHWM")
    print(
        json.dumps({"before": resident_before, "burst": burst, "after": resident_after, "peak": peak, "faults": faults})
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
