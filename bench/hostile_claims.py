"""`python -m bench.hostile_claims`: a node where 50 claims have the costliest parameters that the API server accepts.

The plugin runs as a DaemonSet runs it. The kubelet prepares the hostile claims again and again, as it retries failing pods. Meanwhile
an ordinary claim is prepared and unprepared, and /healthz is read. The same is measured without the hostile claims, in the same run.
Aims: an ordinary claim is delayed by less than 1 s, every probe gets its response within 1 s, and memory returns to within 8 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.apiserver import Api, api_server
from bench.deployed import Deployed, Ref, allocated, deployed
from bench.node import Kubelet
from dra_kubeletplugin._proto import dra_v1_pb2 as pb

ENTRIES = 32  # configuration entries of a claim: the API server's limit
PARAMETERS = 10 * 1024 - 300  # bytes of each entry: the limit is 10 KiB
WORST_DELAY = 1.0  # seconds
MEMORY_LEFT = 8.0  # MiB above the memory before
SETTLE = 120.0  # seconds in which memory must come back


@dataclass
class Measured:
    """Seconds of every prepare with unprepare of the ordinary claim, and of every probe."""

    claim: list[float] = field(default_factory=list)
    probe: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        def shown(values: list[float]) -> str:
            return f"{statistics.median(values) * 1000:.0f} ms, worst {max(values) * 1000:.0f} ms ({len(values)})"

        return f"| {name} | {shown(self.claim)} | {shown(self.probe)} |"


def parameters(number: int) -> dict[str, Any]:
    """Returns an object with as many unknown fields as fit into an entry. Their names are similar to a known field."""
    out: dict[str, Any] = {"apiVersion": "typed.example.com/v1", "kind": "TypedConfig"}
    size = len(json.dumps(out))
    for i in range(PARAMETERS):
        name, value = f"imag{number}{i}", i
        size += len(name) + len(str(value)) + 6
        if size > PARAMETERS:
            break
        out[name] = value
    return out


async def hostile(api: Api, driver: str, number: int) -> Ref:
    """Creates an allocated claim whose configuration the driver refuses at the greatest cost."""
    config = [
        {"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": parameters(i)}}
        for i in range(ENTRIES)
    ]
    return await allocated(api, driver, f"hostile-{number}", f"d-{number}", config)


async def retried(kubelet: Kubelet, ref: Ref, stop: asyncio.Event) -> int:
    """Prepares a hostile claim until ``stop``, with a pause of a second, and returns the number of calls."""
    tries = 0
    while not stop.is_set():
        request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace=ref[0], name=ref[1], uid=ref[2])])
        response = await kubelet.stub.NodePrepareResources(request, timeout=45)
        if not response.claims[ref[2]].error:
            raise RuntimeError(f"claim {ref[1]} was prepared: its parameters should have been refused")
        tries += 1
        await asyncio.sleep(1)
    return tries


async def measured(p: Deployed, kubelet: Kubelet, ordinary: Ref, seconds: float) -> Measured:
    out = Measured()
    end = time.monotonic() + seconds

    async def claims() -> None:
        while time.monotonic() < end:
            begun = time.monotonic()
            await kubelet.prepare([ordinary])
            await kubelet.unprepare([ordinary])
            out.claim.append(time.monotonic() - begun)
            await asyncio.sleep(0.05)

    async def probes() -> None:
        while time.monotonic() < end:
            begun = time.monotonic()
            with contextlib.suppress(OSError):  # a probe that fails took as long as the kubelet would wait
                await p.probe("/healthz")
            out.probe.append(time.monotonic() - begun)
            await asyncio.sleep(0.05)

    await asyncio.gather(claims(), probes())
    return out


async def run(count: int, seconds: float) -> int:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        async with api_server(state, 0.001) as api, deployed("bench.drivers:Typed", api, state) as p:
            ordinary = await allocated(api, p.driver, "ordinary", "d-127")
            claims = [await hostile(api, p.driver, i) for i in range(count)]
            kubelet = Kubelet(p.socket)
            try:
                await measured(p, kubelet, ordinary, 2)  # warm
                alone = await measured(p, kubelet, ordinary, seconds)
                before = p.memory()["Rss"]
                stop = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(retried(kubelet, ref, stop)) for ref in claims]
                    under = await measured(p, kubelet, ordinary, seconds)
                    peak = p.memory()["Rss"]
                    stop.set()
                tries = sum(task.result() for task in tasks)
                begun = time.monotonic()
                while (after := p.memory()["Rss"]) > before + MEMORY_LEFT and time.monotonic() - begun < SETTLE:
                    await asyncio.sleep(1)
            finally:
                await kubelet.close()
    delay = max(under.claim) - statistics.median(alone.claim)
    print("| | prepare and unprepare, median, worst (calls) | /healthz |\n|---|---|---|")
    print(alone.line("without hostile claims"))
    print(under.line(f"with {count} hostile claims, {tries} refused prepares"))
    print(f"\nResident MiB: before {before:.1f}, during {peak:.1f}, {time.monotonic() - begun:.0f} s after {after:.1f}")
    missed = [
        text
        for text, bad in (
            (f"an ordinary claim was delayed by {delay:.2f} s", delay >= WORST_DELAY),
            (f"a probe took {max(under.probe):.2f} s", max(under.probe) >= WORST_DELAY),
            (f"{after - before:.1f} MiB did not come back", after > before + MEMORY_LEFT),
        )
        if bad
    ]
    print("missed: " + "; ".join(missed) if missed else "all aims met")
    return int(bool(missed))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(
        description="measures a node with hostile claims and the same node without them"
    )
    arguments.add_argument("--claims", type=int, default=50)
    arguments.add_argument("--seconds", type=float, default=15.0)
    options = arguments.parse_args()
    sys.exit(asyncio.run(run(options.claims, options.seconds)))
