"""`make soak`: random kills, then thousands of cycles with an eye on memory and descriptors. Bounded in count and time."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.drivers import Idle
from bench.node import ROOT, Kubelet, allocate, running

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from tests.crash.harness import box


@dataclass
class Done:
    kills: int
    pods: int
    seconds: float


async def kills(count: int, rng: random.Random, *, rolling: bool = False, progress: bool = False) -> Done:
    """Pods come and go while the plugin is killed at random moments.

    With ``rolling`` the next instance is started before the last one is killed, or asked to stop, as in an update.

    Raises ``AssertionError`` when a device has two holders, or something is left when all is quiet.
    """
    from dra_kubeletplugin.local.informer import PODS

    started = time.monotonic()
    made = 0
    with tempfile.TemporaryDirectory() as folder:
        async with box(Path(folder)) as b:
            options = {"CRASH_DELAY": "0.01", "LOG_LEVEL": "error"}
            await b.start("plugin-0", **options, **({"POD_UID": _uid(0)} if rolling else {}))
            for n in range(count):
                alive = [
                    p["metadata"]["name"]
                    for p in b.cluster.api.storage.list("pods")
                    if not p["metadata"].get("deletionTimestamp")
                ]
                for name in rng.sample(alive, min(len(alive), rng.randint(0, 3))):
                    await b.cluster.client.delete(PODS, name, "default")
                for _ in range(rng.randint(1, 3)):
                    made += 1
                    await b.apply_pod(f"p{made}", count=rng.randint(1, 2))
                await asyncio.sleep(rng.uniform(0, 0.25))  # the moment of the kill is what is random here
                old, new = f"plugin-{n}", f"plugin-{n + 1}"
                if rolling:
                    await b.start(new, POD_UID=_uid(n + 1), **options)
                    number = rng.choice([signal.SIGKILL, signal.SIGTERM])
                    assert await b.kill(old, number) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
                else:
                    assert await b.kill(old) == -signal.SIGKILL
                    b.check()
                    await b.start(new, **options)
                b.check()
                if n % 10 == 9 or n == count - 1:
                    await _settle(b)
                    if progress:
                        print(
                            f"{n + 1:>5} kills, {made} pods, {time.monotonic() - started:.0f} s, nothing leaked",
                            flush=True,
                        )
            for pod in b.cluster.api.storage.list("pods"):
                if not pod["metadata"].get("deletionTimestamp"):
                    await b.cluster.client.delete(PODS, pod["metadata"]["name"], "default")
            await b.until("all pods to go", lambda: not b.cluster.api.storage.list("pods"), 60)
            await b.until("everything to be free", b.is_empty, 30)
    return Done(count, made, time.monotonic() - started)


def _uid(n: int) -> str:
    return f"00000000-0000-4000-8000-{n:012d}"


async def _settle(b: object) -> None:
    """Waits until nothing moves, and checks that all stories agree."""

    def quiet() -> bool:
        try:
            b.check_quiet()  # type: ignore[attr-defined]
        except AssertionError:
            return False
        pods = b.cluster.api.storage.list("pods")  # type: ignore[attr-defined]
        held = b.records()  # type: ignore[attr-defined]
        running = [
            p
            for p in pods
            if p.get("status", {}).get("phase") == "Running" and not p["metadata"].get("deletionTimestamp")
        ]
        return len(held) == len(running) and not any(p["metadata"].get("deletionTimestamp") for p in pods)

    await b.until("everything to be quiet", quiet, 30)  # type: ignore[attr-defined]
    b.check_quiet()  # type: ignore[attr-defined]


async def cycles(count: int, state: Path) -> tuple[float, int]:
    """Prepare and unprepare again and again; answers the growth of memory in MiB and of open descriptors."""
    async with running("bench.drivers:Idle", Idle.name, state=state / "soak") as p:
        kubelet = Kubelet(p.socket)
        claims = [await allocate(p.cluster, p.driver, f"s-{i}", f"d-{i}") for i in range(8)]

        async def some(n: int) -> None:
            for _ in range(n // len(claims)):
                await kubelet.prepare(claims)
                await kubelet.unprepare(claims)

        await some(max(count // 5, 800))  # caches, threads and arenas reach their size first
        memory, descriptors = p.status("VmRSS"), p.descriptors
        await some(count)
        growth = (p.status("VmRSS") - memory) / 1024, p.descriptors - descriptors
        await kubelet.close()
    return growth


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    print(f"{args.kills} random kills, seed {args.seed}", flush=True)
    for rolling, count in ((False, args.kills), (True, args.kills // 4)):
        done = await kills(count, random.Random(args.seed), rolling=rolling, progress=True)
        what = "rolling updates, half of them by SIGKILL" if rolling else "kills"
        print(
            f"{done.kills} {what}, {done.pods} pods in {done.seconds:.0f} s: nothing leaked, nothing was handed out twice"
        )
    state = ROOT / ".bench"
    state.mkdir(exist_ok=True)
    memory, descriptors = await cycles(args.cycles, state)
    print(
        f"{args.cycles} cycles: memory grew by {memory:.2f} MiB (aim: under 2), descriptors by {descriptors} (aim: 0)"
    )


if __name__ == "__main__":
    asyncio.run(main())
