"""`make bench`: measures the figures of docs/figures.md, each with a floor or an aim, and prints the machine.

The plugin runs as in a DaemonSet: HTTPS, a pod's service account, metrics and probes. The API server is the local one, in its own
process, with 1 ms added to each response. A third process is the kubelet and measures the floor.
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

from bench import hops, latency, memory, publish
from bench.apiserver import ROOT, Api, api_server
from bench.deployed import deployed
from bench.empty import empty_plugin

DELAY = 0.001
MEMORY = {
    "drivers/pci": ("idle", 57.2),  # 60 MB
    "bench.drivers:Many": ("idle, 2,048 devices", 60.0),
}
GO = """The Go example driver was not measured in this run. On a real cluster over HTTPS, a prepare of 1, 8, 32 claims
took 3.9, 22, 98 ms, a repeat 2.9, 12, 52 ms, an unprepare 1.5, 8.9, 50 ms, the three calls 3.8, 24, 138 ms of CPU."""


SCHEDULING = """Pods that the local cluster schedules per second, with API server, controllers and scheduler in one process, and the
published figures of Kubernetes for similar workloads (scheduler_perf, 2025, on its own machines):"""


FLEET = "The operator's commands on a large cluster, and what many plugins cost an API server:"


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
    """Returns the number of calls for each kind of file."""
    kinds = Counter(re.sub(r"[0-9a-f]{8}-[-0-9a-f]{27}|\d{3,}|tmp\w{8}", "*", line) for line in lines)
    return ": " + ", ".join(f"{n} x {kind}" for kind, n in kinds.items()) if kinds else ""


async def latencies(api: Api, state: Path, python: str, rounds: int) -> None:
    async with (
        deployed("bench.drivers:Idle", api, state, python) as p,
        deployed("bench.drivers:Described", api, state, python) as described,
        empty_plugin(state, python) as empty,
    ):
        claims = await latency.some_claims(p, api, 100)
        more = await latency.some_claims(described, api, max(latency.SIZES), "m")
        plugins = {"": (p, claims), " with metadata": (described, more)}
        print(f"\nMedians of {rounds} rounds, in turn with the floor:\n")
        print("| claims in a call | plugin | floor | gRPC alone | ratio to floor and gRPC | aim |")
        print("|---|---|---|---|---|---|")
        for row in await latency.rows(plugins, api, state, empty, rounds):
            aim = f"{row.aim:.2f}{'' if row.ratio <= row.aim else ' (missed)'}"
            print(
                f"| {row.what} {row.claims} | {row.plugin:.1f} ms | {row.floor:.1f} ms | {row.grpc:.1f} ms "
                f"| {row.ratio:.2f} | {aim} |"
            )
        print("\n| prepare, repeat and unprepare | CPU | aim | threads | resident |\n|---|---|---|---|---|")
        for found in await latency.round_costs(plugins, rounds):
            aim = "" if found.aim is None else f"{found.aim:g} ms{'' if found.cpu <= found.aim else ' (missed)'}"
            print(
                f"| {found.what} {found.claims} | {found.cpu:.1f} ms | {aim} | {found.threads} "
                f"| {found.resident:.1f} MiB |"
            )
        cost = await latency.cost(p, api, claims[:32])
        print(f"\nA warm prepare and unprepare of {cost.claims} claims:")
        print(f"- new TLS connections: {cost.connections} (aim: 0)")
        requests = ", ".join(f"{n} x {what}" for what, n in cost.requests.items()) or "none"
        per_claim = sum(cost.requests.values()) / cost.claims
        print(f"- requests for each claim: {per_claim:.2f} (aim: at most 1): {requests}")
        of_folder = 1
        syncs = (("prepare", cost.prepare_syncs, cost.claims + of_folder), ("unprepare", cost.unprepare_syncs, 0))
        for what, found, aim in syncs:
            shown = (
                "not counted: strace is not installed"
                if found is None
                else f"{len(found)} (aim: {aim}){grouped(found)}"
            )
            print(f"- syncs of {what}: {shown}")
        print(f"\n100 claims in 100 concurrent calls: {await latency.together(p, claims):.0f} ms (aim: under 1000)")


async def memories(api: Api, state: Path, python: str) -> None:
    print(
        "\n| memory | resident | anonymous part | proportional (PSS) | aim | start to registered |\n|---|---|---|---|---|---|"
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
    print(
        "\n| publishing | devices() to published | aim | plugin's CPU | writes | aim | slowest GetInfo (aim: 100 ms) |"
    )
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
    print(
        f"\nIdle for {publish.IDLE:g} s with 2,048 devices: {quiet or 'no request except the watch'} (aim: no writes)"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=("all", "latency", "memory", "publish", "scheduling", "fleet"), default="all"
    )
    parser.add_argument("--state-dir", type=Path, default=ROOT / ".bench", help="folder on a real disk")
    parser.add_argument("--python", default=sys.executable, help="interpreter for the plugin, with its dependencies")
    parser.add_argument("--rounds", type=int, default=latency.ROUNDS)
    args = parser.parse_args()
    if not shutil.which("openssl"):
        raise SystemExit("bench: needs openssl, to create the API server's certificate")
    args.state_dir.mkdir(exist_ok=True)
    print(f"Measured on {machine(args.python)}.")
    print(
        f"API server: the local one, {ssl.OPENSSL_VERSION}, in its own process, {DELAY * 1000:g} ms added to each response."
    )
    with tempfile.TemporaryDirectory(dir=args.state_dir) as account:
        async with api_server(Path(account), DELAY) as api:
            if args.what in {"all", "latency"}:
                await latencies(api, args.state_dir, args.python, args.rounds)
                print()
                await hops.main()
                print(f"\n{GO}")
            if args.what in {"all", "memory"}:
                await memories(api, args.state_dir, args.python)
            if args.what in {"all", "publish"}:
                await publications(api, args.state_dir, args.python)
    if args.what in {"all", "scheduling"}:
        print(f"\n{SCHEDULING}\n", flush=True)
        await module("bench.scheduling", args.python)
    if args.what in {"all", "fleet"}:
        print(f"\n{FLEET}\n", flush=True)
        await module("bench.fleet", args.python)


async def module(name: str, python: str) -> None:
    """Runs a module in its own process, as its program runs."""
    process = await asyncio.create_subprocess_exec(python, "-m", name, cwd=ROOT)
    if code := await process.wait():
        raise SystemExit(code)


if __name__ == "__main__":
    asyncio.run(main())
