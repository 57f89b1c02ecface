"""Measures prepare, repeat and unprepare of 1, 8 and 32 claims beside their floor in the same run, and what a call costs.

The floor of a call is what no plugin can leave out (:mod:`bench.floor`) plus a gRPC call of a plugin that returns at once
(:mod:`bench.empty`).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import syncs
from bench.apiserver import Api
from bench.deployed import Deployed, Ref, allocated
from bench.floor import Floor
from bench.node import Kubelet

ROUNDS = 25
WARM = 5
SIZES = (1, 8, 32)
AIM = 1.3  # times the floor with gRPC
METADATA_AIM = 1.15  # times the aim without metadata files
CPU_AIM = {("", 1): 4.0, (" with metadata", 32): 50.0}  # milliseconds for a prepare, a repeat and an unprepare


@dataclass(frozen=True)
class Row:
    """Medians in milliseconds. ``plugin`` is a call of the measured plugin, ``grpc`` a call of an empty plugin."""

    what: str
    claims: int
    plugin: float
    floor: float
    grpc: float
    aim: float

    @property
    def ratio(self) -> float:
        return self.plugin / (self.floor + self.grpc)


@dataclass(frozen=True)
class RoundCost:
    """CPU time of the plugin's process for one prepare, repeat and unprepare, in milliseconds; and its threads and MiB afterwards."""

    what: str
    claims: int
    cpu: float
    aim: float | None
    threads: int
    resident: float


@dataclass(frozen=True)
class Cost:
    """Counts for one warm call of ``claims`` claims. Syncs are None if strace is not installed."""

    claims: int
    connections: int
    requests: dict[str, int]
    prepare_syncs: list[str] | None
    unprepare_syncs: list[str] | None


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Returns milliseconds."""
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1000


async def rows(
    plugins: Mapping[str, tuple[Deployed, list[Ref]]], api: Api, state: Path, empty: Kubelet, rounds: int = ROUNDS
) -> list[Row]:
    """Measures all plugins and the floor in turn, so that a slower moment of the machine affects all of them.

    Args:
        plugins: each plugin with its claims, by what is added to the name of a row.
    """
    kubelets = {name: Kubelet(p.socket) for name, (p, _) in plugins.items()}
    floor = Floor(api, state, next(iter(plugins.values()))[0].cdi)
    await floor.open()
    out = []
    for count in SIZES:
        figures: dict[str, list[float]] = {}
        for n in range(WARM + rounds):
            for name, call, claims in _calls(plugins, kubelets, floor, empty, first=n):
                took = await timed(lambda call=call, some=claims[:count]: call(some))  # type: ignore[misc]
                if n >= WARM:
                    figures.setdefault(name, []).append(took)
        middle = {name: statistics.median(values) for name, values in figures.items()}
        for what in ("prepare", "repeat", "unprepare"):
            grpc = middle[f"empty {'unprepare' if what == 'unprepare' else 'prepare'}"]
            for name in plugins:
                aim = AIM * (METADATA_AIM if name else 1.0)
                out.append(Row(what + name, count, middle[what + name], middle[f"floor {what}"], grpc, aim))
    for kubelet in kubelets.values():
        await kubelet.close()
    floor.close()
    return sorted(out, key=lambda row: row.what)


def _calls(
    plugins: Mapping[str, tuple[Deployed, list[Ref]]],
    kubelets: Mapping[str, Kubelet],
    floor: Floor,
    empty: Kubelet,
    first: int,
) -> list[tuple[str, Callable[[list[Ref]], Awaitable[None]], list[Ref]]]:
    """Returns the calls of one round. ``first`` selects the group of calls that comes first."""
    claims = next(iter(plugins.values()))[1]
    groups = [
        [
            (f"floor {what}", call, claims)
            for what, call in (("prepare", floor.prepare), ("repeat", floor.repeat), ("unprepare", floor.unprepare))
        ],
        [("empty prepare", empty.prepare, claims), ("empty unprepare", empty.unprepare, claims)],
    ]
    for name, kubelet in kubelets.items():
        own = plugins[name][1]
        groups.append(
            [
                (f"prepare{name}", kubelet.prepare, own),
                (f"repeat{name}", kubelet.prepare, own),
                (f"unprepare{name}", kubelet.unprepare, own),
            ]
        )
    first %= len(groups)
    return [call for group in groups[first:] + groups[:first] for call in group]


async def round_costs(plugins: Mapping[str, tuple[Deployed, list[Ref]]], rounds: int = ROUNDS) -> list[RoundCost]:
    """Measures the CPU time of each plugin's process, user and system."""
    out = []
    for name, (p, claims) in plugins.items():
        kubelet = Kubelet(p.socket)
        for count in SIZES:
            started = 0.0
            for n in range(WARM + rounds):
                if n == WARM:
                    started = p.cpu()
                await kubelet.prepare(claims[:count])
                await kubelet.prepare(claims[:count])
                await kubelet.unprepare(claims[:count])
            cpu = (p.cpu() - started) / rounds * 1000
            out.append(
                RoundCost(f"round{name}", count, cpu, CPU_AIM.get((name, count)), p.threads(), p.memory()["Rss"])
            )
        await kubelet.close()
    return out


async def cost(p: Deployed, api: Api, claims: list[Ref]) -> Cost:
    """Counts what one call does, after some warm-up calls."""
    kubelet = Kubelet(p.socket)
    for _ in range(3):
        await kubelet.prepare(claims)
        await kubelet.unprepare(claims)
    before = await api.counts()
    await kubelet.prepare(claims)
    await kubelet.unprepare(claims)
    seen = (await api.counts()).since(before)
    prepare: list[str] | None = None
    unprepare: list[str] | None = None
    if syncs.can_count():
        async with syncs.counted(p.pid) as prepare:
            await kubelet.prepare(claims)
        async with syncs.counted(p.pid) as unprepare:
            await kubelet.unprepare(claims)
    await kubelet.close()
    return Cost(len(claims), seen.connections, seen.requests, prepare, unprepare)


async def together(p: Deployed, claims: list[Ref]) -> float:
    """Returns the milliseconds for concurrent calls with one claim each."""
    kubelet = Kubelet(p.socket)
    elapsed = await timed(lambda: asyncio.gather(*(kubelet.prepare([c]) for c in claims)))
    await asyncio.gather(*(kubelet.unprepare([c]) for c in claims))
    await kubelet.close()
    return elapsed


async def some_claims(p: Deployed, api: Api, count: int, prefix: str = "c") -> list[Ref]:
    return [await allocated(api, p.driver, f"{prefix}-{i}", f"d-{i}") for i in range(count)]
