"""Arranges all details of a device, or a summary of several devices, as sections for a person."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from . import texts
from .rows import CounterRow, DeviceRow, Holder, Overview

Section = tuple[str, tuple[tuple[str, str], ...]]
"""A title, and names with values. An empty name continues the value before it."""


def sections(found: Overview, devices: Collection[str]) -> list[Section]:
    """Returns the details of one device, or a summary of several devices with the counters that they use.

    Args:
        devices: ids of devices. An id that no longer exists is left out.
    """
    wanted = set(devices)
    rows = [r for r in found.devices if r.id in wanted]
    out = list(_device(rows[0])) if len(rows) == 1 else [("", tuple((r.name, _state(r)) for r in rows))]
    used = {(r.driver, r.pool, name) for r in rows for name in r.sets}
    out += [_counters(s) for s in found.sets if (s.driver, s.pool, s.name) in used]
    if len(rows) == 1:
        out += [_pairs("capacity", rows[0].capacity), _pairs("attributes", rows[0].attributes)]
    return [s for s in out if s[1]]


def _state(row: DeviceRow) -> str:
    parts = [f"{texts.SIGNS[row.use]} {row.use}", texts.holder(row), texts.health(row)[0], row.why]
    return ", ".join(dict.fromkeys(p for p in parts if p))


def _device(row: DeviceRow) -> Iterator[Section]:
    health, _ = texts.health(row)
    yield _pairs(
        "",
        {
            "use": f"{texts.SIGNS[row.use]} {row.use}",
            "no request can get it": row.why,
            "health": health,
            "message": row.message,
            "taints": ", ".join(row.taints),
            "node": row.node or row.reach,
            "driver": row.driver,
            "pool": row.pool,
            "PCIe root": row.root,
            "NUMA node": row.numa,
        },
    )
    for h in row.holders:
        yield _pairs(f"claim {h.claim}", _holder(h))
    yield _pairs("shared capacity", {m.name: f"{m.used} of {m.total} used" for m in row.meters})


def _holder(h: Holder) -> dict[str, str]:
    pods = ", ".join(p if " " in p else f"pod {p}" for p in h.pods)
    return {
        "request": h.request + (", admin access" if h.admin else ""),
        "share": h.share,
        "reserved for": pods or "no pod",
        "network": h.network,
        "conditions": "; ".join(h.conditions),
        **h.amounts,
    }


def _counters(found: CounterRow) -> Section:
    return _pairs(f"counters of {found.name}", {m.name: f"{m.used} of {m.total} used" for m in found.meters})


def _pairs(title: str, values: Mapping[str, str]) -> Section:
    return title, tuple((name, value) for name, value in values.items() if value)
