"""Measures the idle resident memory of a deployed plugin, in total and by imported module."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.apiserver import ROOT, Api
from bench.deployed import deployed

SETTLE = 12.0  # seconds after publishing until the plugin is idle and its idle threads have ended
RUNS = 3
STEPS = (
    "asyncio",
    "ssl",
    "msgspec",
    "h11",
    "httptools",
    "prometheus_client",
    "pyudev",
    "grpc.aio",
    "google.protobuf.descriptor_pool",
    "dra_kubeletplugin",
    "dra_kubeletplugin.plugin.node",
    "dra_kubeletplugin.cli.run",
)
_BY_IMPORT = """
import importlib, json, sys
def resident():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
print(json.dumps(["bare interpreter", resident(), len(sys.modules)]))
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(json.dumps([name, resident(), len(sys.modules)]))
"""


@dataclass(frozen=True)
class Idle:
    """Medians in MiB; ``registered`` in milliseconds after the start of the process."""

    resident: float
    anonymous: float
    proportional: float
    registered: float


async def idle(target: str, api: Api, state: Path, python: str, runs: int = RUNS) -> Idle:
    """Measures after some probes and scrapes, which a cluster makes too."""
    found = []
    for _ in range(runs):
        async with deployed(target, api, state, python) as p:
            for _ in range(3):
                await p.probe("/metrics")
                await p.probe("/healthz")
            await asyncio.sleep(SETTLE)
            memory = p.memory()
            found.append((memory["Rss"], memory["Anonymous"], memory["Pss"], p.registered * 1000))
    return Idle(*(statistics.median(values) for values in zip(*found, strict=True)))


def by_import(python: str) -> list[tuple[str, float, int]]:
    """Returns what each import adds: name, resident MiB, number of modules."""
    run = subprocess.run(
        [python, "-c", _BY_IMPORT, *STEPS], check=True, capture_output=True, text=True, cwd=ROOT / "src"
    )
    out, before, modules = [], 0.0, 0
    for name, resident, loaded in map(json.loads, run.stdout.splitlines()):
        out.append((name, resident - before, loaded - modules))
        before, modules = resident, loaded
    return out
