"""`make bench`: the figures of README, side by side with a floor measured in the same run.

The floor of a call is what cannot be avoided: one concurrent round of GETs of the claims, two synced writes, and the CDI files
with one folder sync, done directly and without gRPC, SQLite or any rule.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.drivers import Idle
from bench.node import ROOT, Kubelet, Process, allocate, running
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.local.informer import CLAIMS

# The Go example driver against a real API server on this kind of machine: milliseconds for 1, 8 and 32 claims.
GO = {"prepare": {1: 5.4, 8: 35.0, 32: 177.0}, "unprepare": {1: 2.9, 8: 19.0, 32: 117.0}}
GO_MEMORY = 46.0
ROUNDS = 15


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1000


def synced_write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


async def floor(
    client: KubeClient, folder: Path, specs: ClaimSpecs, claims: list[tuple[str, str, str]], *, prepare: bool
) -> None:
    """The work that nobody can leave out."""
    if prepare:
        await asyncio.gather(*(client.get(CLAIMS, name, ns) for ns, name, _ in claims))
    data = b"x" * 4096 * len(claims)
    await asyncio.to_thread(synced_write, folder / "floor", data)
    uids = [uid for _, _, uid in claims]
    if prepare:
        spec = specs.build([("d", {"env": ["DEVICE=d"]})])
        await asyncio.to_thread(specs.write, [(uid, spec) for uid in uids])
    else:
        await asyncio.to_thread(specs.remove, uids)
    await asyncio.to_thread(synced_write, folder / "floor", data)


async def latencies(p: Process, state: Path) -> list[str]:
    rows = []
    kubelet = Kubelet(p.socket)
    specs = ClaimSpecs(state / "floor-cdi", "floor.example.com")
    claims = [await allocate(p.cluster, p.driver, f"c-{i}", f"d-{i}") for i in range(32)]
    for count in (1, 8, 32):
        some = claims[:count]
        figures: dict[str, list[float]] = {k: [] for k in ("prepare", "unprepare", "floor prepare", "floor unprepare")}
        for _ in range(ROUNDS):
            figures["floor prepare"].append(
                await timed(lambda some=some: floor(p.cluster.client, state, specs, some, prepare=True))
            )
            figures["prepare"].append(await timed(lambda some=some: kubelet.prepare(some)))
            figures["unprepare"].append(await timed(lambda some=some: kubelet.unprepare(some)))
            figures["floor unprepare"].append(
                await timed(lambda some=some: floor(p.cluster.client, state, specs, some, prepare=False))
            )
        for what in ("prepare", "unprepare"):
            ours, least = statistics.median(figures[what]), statistics.median(figures[f"floor {what}"])
            go = GO[what][count]
            rows.append(
                f"{what + f' {count}':<16}{ours:>9.1f} ms{least:>9.1f} ms{ours / least:>8.1f}x{go:>9.1f} ms{go / ours:>8.1f}x"
            )
    await kubelet.close()
    return rows


async def together(p: Process) -> str:
    kubelet = Kubelet(p.socket)
    claims = [await allocate(p.cluster, p.driver, f"t-{i}", f"d-{i}") for i in range(100)]
    elapsed = await timed(lambda: asyncio.gather(*(kubelet.prepare([c]) for c in claims)))
    await asyncio.gather(*(kubelet.unprepare([c]) for c in claims))
    await kubelet.close()
    return f"100 claims in 100 concurrent calls: {elapsed:.0f} ms (aim: under 1000 ms)"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--state", type=Path, default=ROOT / ".bench", help="a folder on a real disk; /tmp may be memory"
    )
    state = parser.parse_args().state
    state.mkdir(exist_ok=True)
    starts, memory = [], []
    for _ in range(3):
        async with running("drivers/pci/driver.py", "pci.dra-kubeletplugin.dev") as p:
            starts.append(p.registered * 1000)
            await asyncio.sleep(1)  # idle is what it is after a while, not at once
            memory.append(p.status("VmRSS") / 1024)
    print(
        f"idle memory of `dra run drivers/pci`: {statistics.median(memory):.1f} MiB resident (aim: at most {GO_MEMORY:.0f}, Go's)"
    )
    print(f"start to registered: {statistics.median(starts):.0f} ms (aim: under 600)")
    async with running("bench.drivers:Idle", Idle.name, state=state / "run") as p:
        print(f"\n{'claims':<16}{'ours':>12}{'floor':>12}{'ratio':>9}{'Go':>12}{'faster':>9}")
        print("\n".join(await latencies(p, state)))
        print("\n" + await together(p))


if __name__ == "__main__":
    asyncio.run(main())
