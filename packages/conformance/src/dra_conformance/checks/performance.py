"""PRF: latency of calls, and growth of memory and descriptors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..catalogue import expect, should
from ..harness import Harness

_MANY = 32
_TIME = 60.0  # seconds after which the check makes no further calls
_CYCLES_TIME = 300.0  # seconds after which the check makes no further cycles
_SLACK = 2 * 1024 * 1024  # growth of memory in bytes that is always allowed
_DESCRIPTORS = 4  # growth of the number of open files that is allowed


def p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * 0.99) - 1)]


@should(
    "PRF-001",
    "prepares claims within the profile's budget",
    consequence="pods start slowly",
    source="[limits] prepare_p99 and prepare_many_p99 in the profile",
    limit=300,
)
async def latency(h: Harness) -> None:
    """Measures up to 100 calls for one claim, and up to 10 calls for 32 claims."""
    limits = h.profile.limits
    single: list[float] = []
    end = h.transcript.now + _TIME
    while len(single) < h.profile.pace.calls and h.transcript.now < end:
        claim = await h.claim()
        found = await h.plugin.prepare(claim)
        error = found.of(claim).error
        expect(not error, "NodePrepareResources succeeds", error)
        single.append(found.seconds)
        await h.unprepared(claim)
        h.release(claim)
    claims = await h.claims_up_to(_MANY)
    many: list[float] = []
    end = h.transcript.now + _TIME
    while len(many) < max(1, h.profile.pace.calls // 10) and h.transcript.now < end:
        found = await h.plugin.prepare(*claims)
        many.append(found.seconds)
        for claim in claims:
            error = found.of(claim).error
            expect(not error, f"NodePrepareResources succeeds for {len(claims)} claims", error)
            await h.unprepared(claim)
    budgets = {"one claim": (single, limits.prepare_p99), f"{len(claims)} claims": (many, limits.prepare_many_p99)}
    for name, (values, budget) in budgets.items():
        took = p99(values)
        h.facts["figures"].append(f"p99 of a prepare of {name}: {took * 1000:.1f} ms")
        expect(not budget or took <= budget, f"a p99 of {budget * 1000:g} ms for {name}", f"{took * 1000:.1f} ms")


@should(
    "PRF-002",
    "does not grow with the number of prepared claims",
    consequence="after weeks the node kills the driver for its memory",
    source="[limits] cycles and memory_growth in the profile",
    limit=900,
)
async def growth(h: Harness) -> None:
    """Prepares and unprepares claims for up to 300 s, and compares memory and open files before and after."""
    limits = h.profile.limits
    await h.cycles(min(h.profile.pace.warm_up, limits.cycles), _CYCLES_TIME)
    memory, files = h.driver.memory(), h.driver.descriptors()
    count = await h.cycles(limits.cycles, _CYCLES_TIME)
    grown, more = h.driver.memory() - memory, h.driver.descriptors() - files
    percent = 100 * grown / memory if memory else 0.0
    mib = memory / 1024 / 1024
    h.facts["figures"].append(f"{count} cycles: resident memory {mib:.1f} MiB {percent:+.1f} %, descriptors {more:+d}")
    limit = limits.memory_growth
    expect(percent < limit or grown < _SLACK, f"memory grows by less than {limit:g} %", f"{percent:.1f} %")
    expect(more <= _DESCRIPTORS, "the number of open files stays constant", f"{more} more")
