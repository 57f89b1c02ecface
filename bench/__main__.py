"""`make bench`: the figures of README, each beside a floor or an aim, with where they were measured.

The plugin runs as a DaemonSet runs it: over HTTPS, from a pod's service account, metrics and probes on. The API server is the local
one, in a process of its own, 1 ms slower than it could be; a third process is the kubelet, and does the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench import latency, memory, publish
from bench.apiserver import ROOT, Api, api_server
from bench.deployed import deployed
from bench.empty import empty_plugin

DELAY = 0.001
MEMORY = {"drivers/pci": ("idle", 44.0), "bench.drivers:Many": ("idle, 2,048 devices", 60.0)}
GO = """Beside the Go driver, measured elsewhere and not in this run (a real cluster, Kubernetes 1.36.2 over HTTPS, the plugins side by
side in one run; two runs), milliseconds for 1, 8, 32 claims. Ours there is of before the client kept its connections:

| | Go example driver | ours, then |
|---|---|---|
| prepare | 2.8, 25, 83 and 1.8, 14, 34 | 3.9, 12, 74 and 2.2, 6.2, 60 |
| unprepare | 1.2, 10, 41 | 2.1, 4.6, 12.5 |

The aim on such a cluster is at most 1, 1/3 and 1/4 of Go's time for 1, 8 and 32 claims. It cannot be measured without one: what is
measured here is how close a call is to its floor."""


SCHEDULING = """Pods that the local cluster schedules in a second, API server, controllers and scheduler in one process, beside what
Kubernetes publishes of the like workloads (its scheduler_perf, 2025, on its own machines):"""


def machine(python: str) -> str:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    cores = len([line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")])
    versions = subprocess.run(
        [python, "-c", "import platform, ssl; print(platform.python_version(), ssl.OPENSSL_VERSION, sep=', ')"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    kernel, libc = platform.release(), " ".join(platform.libc_ver())
    return f"{cores} cores of {cpu}; Linux {kernel}, {libc}; Python {versions}"


def grouped(lines: list[str]) -> str:
    """Calls by the kind of file, each with how often."""
    kinds = Counter(re.sub(r"[0-9a-f]{8}-[-0-9a-f]{27}|\d{3,}|tmp\w{8}", "*", line) for line in lines)
    return ": " + ", ".join(f"{n} x {kind}" for kind, n in kinds.items()) if kinds else ""


async def latencies(api: Api, state: Path, python: str, rounds: int) -> None:
    async with deployed("bench.drivers:Idle", api, state, python) as p, empty_plugin(state, python) as empty:
        claims = await latency.some_claims(p, api, 100)
        print(f"\nMedians of {rounds} rounds, ours and the floor in turn:\n")
        print("| claims in a call | ours | floor | ratio | aim | gRPC alone | ours to floor and gRPC |")
        print("|---|---|---|---|---|---|---|")
        for row in await latency.rows(p, api, state, claims[:32], empty, rounds):
            aim = "" if row.aim is None else f"{row.aim:.1f}{'' if row.ratio <= row.aim else ' (missed)'}"
            print(
                f"| {row.what} {row.claims} | {row.ours:.1f} ms | {row.floor:.1f} ms | {row.ratio:.2f} "
                f"| {aim} | {row.grpc:.1f} ms | {row.ratio_with_grpc:.2f} |"
            )
        cost = await latency.cost(p, api, claims[:32])
        print(f"\nA warm prepare and unprepare of {cost.claims} claims:")
        print(f"- new TLS connections: {cost.connections} (aim: 0)")
        asked = ", ".join(f"{n} x {what}" for what, n in cost.requests.items()) or "none"
        per_claim = sum(cost.requests.values()) / cost.claims
        print(f"- requests for each claim: {per_claim:.2f} (aim: at most 1): {asked}")
        for what, found, aim in (("prepare", cost.prepare_syncs, 1), ("unprepare", cost.unprepare_syncs, 0)):
            shown = (
                "not counted: strace is not installed"
                if found is None
                else f"{len(found)} (aim: {aim}){grouped(found)}"
            )
            print(f"- syncs of {what}: {shown}")
        print(f"\n100 claims in 100 concurrent calls: {await latency.together(p, claims):.0f} ms (aim: under 1000)")


async def memories(api: Api, state: Path, python: str) -> None:
    print(
        "\n| memory | resident | of it anonymous | shared out (PSS) | aim | start to registered |\n|---|---|---|---|---|---|"
    )
    for target, (what, aim) in MEMORY.items():
        found = await memory.idle(target, api, state, python)
        met = "" if found.resident <= aim else " (missed)"
        print(
            f"| {what} | {found.resident:.1f} MiB | {found.anonymous:.1f} MiB | {found.proportional:.1f} MiB "
            f"| {aim:.0f}{met} | {found.registered:.0f} ms |"
        )
    print("\n| import, in this order | MiB | modules |\n|---|---|---|")
    for name, grown, modules in memory.by_import(python):
        print(f"| {name} | {grown:.1f} | {modules} |")


async def publications(api: Api, state: Path, python: str) -> None:
    print("\n| publishing | answer to published | aim | our CPU | writes | aim | slowest GetInfo (aim: 100 ms) |")
    print("|---|---|---|---|---|---|---|")
    async for row in publish.rows(api, state, python):
        late = "" if row.seconds <= row.aim else " (missed)"
        many = "" if row.writes <= row.most else " (missed)"
        slow = "" if row.slowest <= 0.1 else " (missed)"
        print(
            f"| {row.what} | {row.seconds * 1000:.0f} ms | {row.aim * 1000:.0f} ms{late} | {row.cpu * 1000:.0f} ms "
            f"| {row.writes} | {row.most}{many} | {row.slowest * 1000:.0f} ms{slow} |"
        )
    quiet = await publish.idle(api, state, python)
    print(f"\nIdle for {publish.IDLE:g} s with 2,048 devices: {quiet or 'no request but the watch'} (aim: no writes)")


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "latency", "memory", "publish", "scheduling"), default="all")
    parser.add_argument("--state", type=Path, default=ROOT / ".bench", help="a folder on a real disk")
    parser.add_argument("--python", default=sys.executable, help="the plugin's interpreter, with all that it needs")
    parser.add_argument("--rounds", type=int, default=latency.ROUNDS)
    args = parser.parse_args()
    if not shutil.which("openssl"):
        raise SystemExit("bench: needs openssl, to make the API server's certificate")
    args.state.mkdir(exist_ok=True)
    print(f"Measured on {machine(args.python)}.")
    print(
        f"API server: the local one, {ssl.OPENSSL_VERSION}, a process of its own, {DELAY * 1000:g} ms added to each answer."
    )
    with tempfile.TemporaryDirectory(dir=args.state) as account:
        async with api_server(Path(account), DELAY) as api:
            if args.what in {"all", "latency"}:
                await latencies(api, args.state, args.python, args.rounds)
                print(f"\n{GO}")
            if args.what in {"all", "memory"}:
                await memories(api, args.state, args.python)
            if args.what in {"all", "publish"}:
                await publications(api, args.state, args.python)
    if args.what in {"all", "scheduling"}:
        print(f"\n{SCHEDULING}\n", flush=True)
        # A process of its own, as `dra dev` is one.
        process = await asyncio.create_subprocess_exec(args.python, "-m", "bench.scheduling", cwd=ROOT)
        if code := await process.wait():
            raise SystemExit(code)


if __name__ == "__main__":
    asyncio.run(main())
