"""Formats all details of one device as lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...resourceapi.usage.rows import CounterRow, DeviceRow, Holder


def device(row: DeviceRow, sets: Iterable[CounterRow]) -> Iterator[str]:
    yield (
        f"{row.use}"
        + (f", {row.health}" if row.health != "unreported" else "")
        + (f": {row.message}" if row.message else "")
    )
    yield ""
    yield from _pairs({
        "node": row.node or row.reach, "driver": row.driver, "pool": row.pool, "PCIe root": row.root, "NUMA node": row.numa,
    })  # fmt: skip
    yield from _titled("taints", row.taints)
    for h in row.holders:
        yield from _titled(f"claim {h.claim}", _holder(h))
    yield from _titled("capacity", _pairs(row.capacity))
    yield from _titled("shared capacity", (f"{m.name}: {m.used} of {m.total} used" for m in row.meters))
    drawn = [s for s in sets if s.driver == row.driver and s.pool == row.pool and s.name in row.sets]
    for s in drawn:
        yield from _titled(f"draws from {s.name}", (f"{m.name}: {m.used} of {m.total} used" for m in s.meters))
    yield from _titled("attributes", _pairs(row.attributes))


def _holder(h: Holder) -> Iterator[str]:
    yield f"request {h.request}" + (f", share {h.share}" if h.share else "") + (", admin access" if h.admin else "")
    if h.state:
        yield f"record: {h.state}"
    yield "reserved for " + (", ".join(p if " " in p else f"pod {p}" for p in h.pods) or "no pod")
    yield from (f"{name}: {amount}" for name, amount in h.amounts.items())
    yield from ((f"network: {h.network}",) if h.network else ())
    yield from h.conditions


def _pairs(values: Mapping[str, str]) -> Iterator[str]:
    known = {k: v for k, v in values.items() if v}
    width = max(map(len, known), default=0)
    return (f"{k.ljust(width)}  {v}" for k, v in known.items())


def _titled(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield from ("", title, *(f"  {line}" for line in found))
