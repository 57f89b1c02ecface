"""Measures the operator's commands on a cluster of 5,000 nodes, and what 200 plugins cost an API server: ``make bench ARGS=fleet``.

The cluster (:mod:`bench.fleet_cluster`) is on the local API server, in its own process, over HTTPS. Each command runs as an operator
runs it, in its own process with a kubeconfig. The CPU time of the command and of the server are counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench import fleet_plugins, fleet_top
from bench.apiserver import Api, api_server
from bench.fleet_cluster import API, DRIVER, PER_NODE, WAITING, Size
from dra_kubeletplugin.base.json_types import JSON

_HELD = "all-held-two"  # the pod for the measurement with one pod
_SCREEN = 20.0  # seconds for which `dra top` is measured after it has found the reasons of the waiting pods
_CODE = (
    "import json, resource, sys; from dra_kubeletplugin.cli import main; code = main(sys.argv[1:]); sys.stdout.flush(); "
    "used = resource.getrusage(resource.RUSAGE_SELF); "
    "print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]), file=sys.stderr); sys.exit(code)"
)


@dataclass(frozen=True)
class Run:
    """A finished command. Times in seconds, ``memory`` is the maximum resident MiB, ``sent`` the MB of the server's responses."""

    took: float
    cpu: float
    memory: float
    server: float
    sent: float
    requests: int
    output: str


@dataclass(frozen=True)
class MeasuredCommand:
    what: str
    words: Sequence[str]
    seconds: float  # the aim for the wall time on an idle machine
    memory: float = 0.0  # the aim in MiB; 0 for none


def measured_commands(folder: Path, pods: int) -> list[MeasuredCommand]:
    manifests = folder / "workload.yaml"
    manifests.write_text(yaml.safe_dump_all(workload(pods)))
    return [
        MeasuredCommand("`dra explain` of one pod", ["explain", f"pod/{_HELD}", "-n", "research"], 3.0, 200.0),
        MeasuredCommand(f"`dra explain` of {len(WAITING)} waiting pods", ["explain"], 6.0),
        MeasuredCommand("`dra top --once`", ["top", "--once"], 4.0),
        MeasuredCommand(f"`dra simulate` of {pods:,} pods", ["simulate", "-f", str(manifests)], 60.0),
    ]


def workload(pods: int) -> list[JSON]:
    """Returns a Deployment whose pods ask for two small devices each. Some do not fit."""
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}
    exactly["selectors"] = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model != "H100"'}}]
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    template = {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": spec}
    pod = {
        "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "4", "memory": "16Gi"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
    }
    deployment = {"replicas": pods, "selector": {}, "template": {"metadata": {}, "spec": pod}}
    many = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}, "spec": deployment}
    return [template, many]


async def run(api: Api, words: Sequence[str]) -> Run:
    """Runs a command and counts the server's work meanwhile."""
    before = await api.counts()
    start = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CODE, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=os.environ
    )  # fmt: skip
    out, err = await process.communicate()
    took = time.monotonic() - start
    last = (err.decode().splitlines() or [""])[-1]
    if not last.startswith("[") or process.returncode not in {0, 1}:
        raise SystemExit(f"{' '.join(words)}: {err.decode()}")
    cpu, memory = json.loads(last)
    used = (await api.counts()).since(before)
    requests = sum(used.requests.values())
    return Run(took, cpu, memory, used.cpu, used.sent / 1e6, requests, out.decode())


def kubeconfig(api: Api, folder: Path) -> Path:
    token = (api.folder / "token").read_text()
    config = {
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": api.url, "certificate-authority": str(api.ca)}}],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return file


@contextlib.asynccontextmanager
async def cluster(size: Size) -> AsyncIterator[tuple[Api, Path]]:
    """Yields the API server with the cluster, and a folder with ``kubeconfig``. Sets KUBECONFIG."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with api_server(folder / "account", 0.0, size) as api:
            os.environ["KUBECONFIG"] = str(kubeconfig(api, folder))
            yield api, folder


async def commands(size: Size, pods: int, words: Sequence[str] = ()) -> None:
    """Prints a row for each command whose name contains all words."""
    started = time.monotonic()
    async with cluster(size) as (api, folder):
        print(
            f"{size.nodes:,} nodes, {size.nodes * PER_NODE:,} devices, {size.pods:,} pods, {size.claims:,} claims; "
            f"the server was ready after {time.monotonic() - started:.0f} s\n"
        )
        print("| command | wall time | aim | its CPU | its memory | the server's CPU | read | requests |")
        print("|---|---|---|---|---|---|---|---|")
        for command in measured_commands(folder, pods):
            if not all(w in command.what for w in words):
                continue
            found = await run(api, command.words)
            late = "" if found.took <= command.seconds else " (missed)"
            memory = f"{found.memory:.0f} MiB"
            if command.memory:
                memory += f" (aim: {command.memory:.0f}{'' if found.memory <= command.memory else ', missed'})"
            print(
                f"| {command.what} | {found.took:.1f} s | {command.seconds:g} s{late} | {found.cpu:.1f} s | {memory} "
                f"| {found.server:.1f} s | {found.sent:.0f} MB | {found.requests} |",
                flush=True,
            )
        if not words or words == ["screen"]:
            await screen(api)


async def screen(api: Api) -> None:
    found = await fleet_top.measure(api, _SCREEN)
    print(
        f"\n`dra top` on a terminal: first devices after {found.first:.1f} s (aim: 4 s{_missed(found.first > 4.0)}), "
        f"{found.first_cpu:.1f} s of CPU, {found.memory:.0f} MiB; then {found.share:.1%} of a core "
        f"(aim: 10 %{_missed(found.share > 0.1)}) with {found.changes:.0f} changed objects a second",
        flush=True,
    )


def _missed(is_missed: bool) -> str:
    return ", missed" if is_missed else ""


async def plugins(count: int, idle: float, outage: float) -> None:
    """Prints what plugins cost the API server, and the same for 5,000 plugins by calculation."""
    with tempfile.TemporaryDirectory() as name:
        async with api_server(Path(name) / "account", 0.0, Size(count, 2 * count, count)) as api:
            found = await fleet_plugins.measure(api, count, idle, outage)
    print(
        f"\n{count} plugins of 8 devices in {fleet_plugins.WORKERS} processes. An hour is the calculation from {idle:g} s in which "
        f"watches end and slices are compared {fleet_plugins.FASTER} times as often:\n"
    )
    rate = sum(found.hourly.values())
    print(f"- cold start until all are published: {found.start:.1f} s; {_shown(found.start_requests, count)} for each plugin; "
          f"{found.start_cpu:.1f} s of the server's CPU")  # fmt: skip
    hourly = ", ".join(f"{n:.0f} x {what}" for what, n in found.hourly.items())
    print(
        f"- idle, for each plugin in an hour: {rate:.0f} requests: {hourly}; {found.hourly_cpu * 1000:.0f} ms of the server's CPU"
    )
    print(f"- after {found.outage:g} s without the server, in which all devices changed: {found.returned:.1f} s until all are published; "
          f"{_shown(found.returned_requests, count)} for each plugin; {found.connections} connections")  # fmt: skip
    print(f"- by calculation, 5,000 idle plugins: {5000 * rate / 3600:.0f} requests a second, {5000 * found.hourly_cpu / 3600:.1%} "
          f"of a core of this server; 5,000 watches")  # fmt: skip


def _shown(requests: dict[str, int], count: int) -> str:
    return ", ".join(f"{n / count:.1f} x {what}" for what, n in sorted(requests.items()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="measure only commands whose name contains all words; or: screen, plugins"
    )
    parser.add_argument("--nodes", type=int, default=Size.nodes)
    parser.add_argument("--pods", type=int, default=Size.pods)
    parser.add_argument("--claims", type=int, default=Size.claims)
    parser.add_argument("--simulated", type=int, default=1000, help="pods of `dra simulate`")
    parser.add_argument("--plugins", type=int, default=200, help="number of plugins")
    parser.add_argument("--idle", type=float, default=40.0, help="seconds for which the plugins are idle")
    parser.add_argument("--outage", type=float, default=60.0, help="seconds for which the API server is unavailable")
    args = parser.parse_args()
    if args.words != ["plugins"]:
        asyncio.run(commands(Size(args.nodes, args.pods, args.claims), args.simulated, args.words))
    if args.words in ([], ["plugins"]):
        asyncio.run(plugins(args.plugins, args.idle, args.outage))


if __name__ == "__main__":
    main()
