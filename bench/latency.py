"""Measures calls of 1, 8 and 32 claims and their floor in the same run, and counts requests and syncs of such a call."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
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
AIM = {
    1: 1.3,
    8: 1.5,
    32: 1.5,
}  # ratio of a prepare to its floor. An unprepare has no aim: its floor is small compared with gRPC


@dataclass(frozen=True)
class Row:
    """Medians in milliseconds."""

    what: str
    claims: int
    ours: float
    floor: float
    grpc: float  # of an empty call

    @property
    def ratio(self) -> float:
        return self.ours / self.floor

    @property
    def ratio_with_grpc(self) -> float:
        return self.ours / (self.floor + self.grpc)

    @property
    def aim(self) -> float | None:
        return AIM[self.claims] if self.what == "prepare" else None


@dataclass(frozen=True)
class Cost:
    """The cost of one warm call with ``claims`` claims. Syncs are None if they cannot be counted."""

    claims: int
    connections: int
    requests: dict[str, int]
    prepare_syncs: list[str] | None
    unprepare_syncs: list[str] | None


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Returns the duration in milliseconds."""
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1000


async def rows(
    p: Deployed, api: Api, state: Path, claims: list[Ref], empty: Kubelet, rounds: int = ROUNDS
) -> list[Row]:
    """Measures all calls in turn, so that a short slowdown of the machine affects all of them."""
    kubelet, floor = Kubelet(p.socket), Floor(api, state, p.cdi)
    await floor.open()
    out = []
    for count in SIZES:
        some = claims[:count]
        figures: dict[str, list[float]] = {}
        for n in range(WARM + rounds):
            calls: list[tuple[str, Callable[[list[Ref]], Awaitable[None]]]] = [
                ("floor prepare", floor.prepare),
                ("prepare", kubelet.prepare),
                ("unprepare", kubelet.unprepare),
                ("floor unprepare", floor.unprepare),
            ]
            if n % 2:  # each one is first equally often
                calls = [calls[1], calls[0], calls[3], calls[2]]
            calls += [("empty prepare", empty.prepare), ("empty unprepare", empty.unprepare)]
            for name, call in calls:
                took = await timed(lambda call=call, some=some: call(some))  # type: ignore[misc]
                if n >= WARM:
                    figures.setdefault(name, []).append(took)
        middle = {name: statistics.median(values) for name, values in figures.items()}
        out += [
            Row(what, count, middle[what], middle[f"floor {what}"], middle[f"empty {what}"])
            for what in ("prepare", "unprepare")
        ]
    await kubelet.close()
    floor.close()
    return sorted(out, key=lambda row: row.what)


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


async def some_claims(p: Deployed, api: Api, count: int) -> list[Ref]:
    return [await allocated(api, p.driver, f"c-{i}", f"d-{i}") for i in range(count)]
