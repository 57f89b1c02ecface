"""`make soak`: kills the plugin at random, then checks memory and descriptors over thousands of cycles."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.drivers import Idle
from bench.node import ROOT, Kubelet, allocate, running
from dra_kubeletplugin.errors import RecordsError
from dra_kubeletplugin.kube.resource import PODS
from tests.helpers.crash.harness import NodeHarness, node_harness, small_cdi_folder
from tests.helpers.crash.random_faults import Faults

_CALL = 45.0  # seconds until the kubelet cancels a call; the plugin responds within CALL_TIMEOUT, unless it is stopped
_SETTLE = 60.0  # seconds from the end of all faults to a stable state
_ROUNDS = 10  # kills between two checks without faults
_PODS = 8  # a node with four devices runs two to four of them
QUICK = {
    "CRASH_DELAY": "0.01",
    "LOG_LEVEL": "info",
    "API_TIMEOUT": "2s",
    "CALL_TIMEOUT": "5s",
    "DISCOVERY_TIMEOUT": "1s",
    "HEALTH_INTERVAL": "500ms",
    "RESCAN_INTERVAL": "500ms",
    "SHUTDOWN_GRACE_PERIOD": "3s",
}


@dataclass
class Done:
    """The result. ``longest_response`` (of the kubelet's calls) and ``longest_quiet`` (until a stable state) are in seconds."""

    kills: int = 0
    pods: int = 0
    seconds: float = 0.0
    responses: int = 0
    longest_response: float = 0.0
    longest_quiet: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.pods} pods, {self.seconds:.0f} s; {self.faults.total()} faults; {self.responses} responses, "
            f"the longest after {self.longest_response:.1f} s; quiet again after at most {self.longest_quiet:.1f} s"
        )


async def kills(
    count: int, rng: random.Random, *, rolling: bool = False, faults: bool = False, progress: bool = False
) -> Done:
    """Kills the plugin at random moments while pods are created and deleted.

    Args:
        count: number of kills.
        rng: source of the random moments.
        rolling: whether the next instance starts before the last one is killed or stopped, as in an update.
        faults: whether the environment of the plugin fails too, except during a check after every ten kills.
        progress: whether each check is printed.

    Raises:
        AssertionError: a device has two holders, something is left at a check, or a call got no response.
        TimeoutError: a pod does not run although it could.
    """
    done = Done()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        async with node_harness(Path(folder), proxied=faults, call=_CALL) as b, contextlib.AsyncExitStack() as stack:
            if faults and not stack.enter_context(small_cdi_folder(b)) and progress:
                print("no permission to mount: the driver's process simulates a full CDI folder", flush=True)
            injector = Faults(b, random.Random(rng.random()))
            stack.push_async_callback(injector.clear)
            await b.start("plugin-0", **QUICK, **({"POD_UID": _uid(0)} if rolling else {}))
            for n in range(count):
                if faults:
                    injector.begin()
                await _create_and_delete_pods(b, rng, done)
                await _wait_for_random_moment(b, rng)
                await _replace(b, rng, n, rolling=rolling)
                done.kills = n + 1
                if n % _ROUNDS == _ROUNDS - 1 or n == count - 1:
                    await injector.clear()
                    await _settle(b, done)
                    done.faults, done.seconds = injector.happened, time.monotonic() - started
                    if progress:
                        print(f"{done}; nothing leaked", flush=True)
            for name in _undeleted(b):
                await b.cluster.client.delete(PODS, name, "default")
            await b.until("the deletion of all pods", lambda: not b.cluster.api.storage.list("pods"), _SETTLE)
            await b.until("everything to be free", b.is_empty, _SETTLE)
            _measure(b, done)
    done.seconds = time.monotonic() - started
    return done


async def _create_and_delete_pods(b: NodeHarness, rng: random.Random, done: Done) -> None:
    alive = _undeleted(b)
    for name in rng.sample(alive, min(len(alive), max(rng.randint(0, 3), len(alive) - _PODS))):
        await b.cluster.client.delete(PODS, name, "default")
    for _ in range(rng.randint(1, 3)):
        done.pods += 1
        await b.apply_pod(f"p{done.pods}", count=rng.randint(1, 2))


async def _wait_for_random_moment(b: NodeHarness, rng: random.Random) -> None:
    """Waits for a random moment, or in half of all cases until a prepare or unprepare is in progress."""
    if rng.random() < 0.5:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while {p.stem for p in b.hardware.glob("*.a")} == {p.stem for p in b.hardware.glob("*.b")}:
                    await asyncio.sleep(0.002)
    else:
        await asyncio.sleep(rng.uniform(0, 0.25))


async def _replace(b: NodeHarness, rng: random.Random, n: int, *, rolling: bool) -> None:
    """Replaces an instance by the next one. Faults of the environment must not stop an instance or prevent its start."""
    old, new = f"plugin-{n}", f"plugin-{n + 1}"
    if rolling:
        await b.start(new, timeout=_SETTLE, POD_UID=_uid(n + 1), **QUICK)
        number = rng.choice([signal.SIGKILL, signal.SIGTERM])
        code = await b.kill(old, number)
        assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL), _ended(b, code)
    else:
        code = await b.kill(old)
        assert code == -signal.SIGKILL, _ended(b, code)
        b.check()
        await b.start(new, timeout=_SETTLE, **QUICK)
    b.check()


def _ended(b: NodeHarness, code: int) -> str:
    return f"the plugin ended with {code}: {b.log.read_text()[-3000:]}"


def _uid(n: int) -> str:
    return f"00000000-0000-4000-8000-{n:012d}"


def _undeleted(b: NodeHarness) -> list[str]:
    pods = b.cluster.api.storage.list("pods")
    return [p["metadata"]["name"] for p in pods if not p["metadata"].get("deletionTimestamp")]


async def _settle(b: NodeHarness, done: Done) -> None:
    """Waits for a stable state: all records agree, and every pod runs that can run."""
    began = time.monotonic()
    reason = ""

    def quiet() -> bool:
        nonlocal reason
        try:
            b.check_quiet()
        except (AssertionError, RecordsError) as e:
            reason = str(e)
            return False
        reason = ", ".join([*_unfinished_pods(b), *b.leftover_files()])
        return not reason

    try:
        await b.until("everything to be quiet", quiet, _SETTLE)
    except TimeoutError as e:
        raise TimeoutError(f"{reason}: {e}") from None
    b.check_quiet()
    done.longest_quiet = max(done.longest_quiet, time.monotonic() - began)
    _measure(b, done)


def _unfinished_pods(b: NodeHarness) -> list[str]:
    """Describes each pod that is still being deleted, and each pod that could run but does not."""
    pods = b.cluster.api.storage.list("pods")
    out = [f"{p['metadata']['name']} is still being deleted" for p in pods if p["metadata"].get("deletionTimestamp")]
    claims = {o["name"]: c for c in b.cluster.claims() for o in c["metadata"].get("ownerReferences") or []}
    free = 4 - sum(len(_devices(c)) for c in claims.values())
    for pod in pods:
        name, claim = pod["metadata"]["name"], claims.get(pod["metadata"]["name"])
        if pod["metadata"].get("deletionTimestamp") or pod.get("status", {}).get("phase") == "Running":
            continue
        if claim is None:
            out.append(f"{name} has no claim")
        elif _devices(claim):
            out.append(f"{name} has its devices and does not run")
        elif claim["spec"]["devices"]["requests"][0]["exactly"]["count"] <= free:
            out.append(f"{name} has no devices, though {free} are free")
    return out


def _devices(claim: Any) -> list[Any]:
    found: list[Any] = (claim.get("status") or {}).get("allocation", {}).get("devices", {}).get("results") or []
    return found


def _measure(b: NodeHarness, done: Done) -> None:
    """Checks that every call got a response before the kubelet cancelled it, unless the plugin was killed."""
    assert not b.timed_out_calls, b.timed_out_calls
    done.responses, done.longest_response = len(b.response_seconds), max(b.response_seconds, default=0.0)


async def cycles(count: int, state: Path) -> tuple[float, int]:
    """Prepares and unprepares many times. Returns the growth of memory in MiB, and of open descriptors."""
    async with running("bench.drivers:Idle", Idle.name, state=state / "soak") as p:
        kubelet = Kubelet(p.socket)
        claims = [await allocate(p.cluster, p.driver, f"s-{i}", f"d-{i}") for i in range(8)]

        async def some(n: int) -> None:
            for _ in range(n // len(claims)):
                await kubelet.prepare(claims)
                await kubelet.unprepare(claims)

        await some(max(count // 5, 800))  # until caches, threads and memory arenas have their final size
        memory, descriptors = p.status("VmRSS"), p.descriptors
        await some(count)
        growth = (p.status("VmRSS") - memory) / 1024, p.descriptors - descriptors
        await kubelet.close()
    return growth


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1_000, help="a quarter of them in rolling updates")
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--no-faults", action="store_true", help="kills only")
    args = parser.parse_args()
    logging.getLogger("dra_devkit.localcluster").setLevel(logging.ERROR)  # the kubelet would log the faults
    print(f"{args.kills} random kills, seed {args.seed}", flush=True)
    rolling = args.kills // 4
    for updates, count in ((False, args.kills - rolling), (True, rolling)):
        if not count:
            continue
        rng = random.Random(args.seed)
        done = await kills(count, rng, rolling=updates, faults=not args.no_faults, progress=True)
        what = "rolling updates, half of them by SIGKILL" if updates else "kills"
        print(f"{what}: {done}: nothing leaked, no device had two holders, every call got a response")
        for kind, times in done.faults.most_common():
            print(f"{times:>7} {kind}")
    if not args.cycles:
        return
    state = ROOT / ".bench"
    state.mkdir(exist_ok=True)
    memory, descriptors = await cycles(args.cycles, state)
    print(
        f"{args.cycles} cycles: memory grew by {memory:.2f} MiB (aim: under 2), descriptors by {descriptors} (aim: 0)"
    )


def _end(number: int, frame: object) -> None:
    """Ends with KeyboardInterrupt, so that mounts and processes are cleaned up."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    asyncio.run(main())
