"""`dra top --once`: prints the rows of the screen as a table, for pipes and simple terminals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...analysis.top.arranging import arranged
from ...base.text import counted
from ...resourceapi.usage.rows import DeviceRow, Overview
from ..shell.output import columns
from ..shell.style import Style
from .plain import age, health, holder

_HEAD = ("NODE", "DEVICE", "USE", "HEALTH", "NUMA", "PCIE ROOT", "HOLDER", "CLAIM", "DRIVER")


def table(found: Overview, style: Style) -> Iterator[str]:
    n = found.count
    yield style.bold(
        f"{counted(n.devices, 'device')}: {n.held} held, {n.free} free, {n.blocked} blocked, {n.bad} not well"
    )
    rows = [r for group in arranged(found.devices) for r in group.devices]
    yield from _aligned([_HEAD, *map(_cells, rows)], style)
    if found.sets:
        cells = [
            (s.node, s.name, m.name, f"{m.used}/{m.total}", f"{m.share:.0%}") for s in found.sets for m in s.meters
        ]
        yield ""
        yield from _aligned([("NODE", "COUNTER SET", "COUNTER", "TAKEN", "SHARE"), *cells], style)
    if pods := found.waiting:
        yield ""
        yield from _aligned([
            ("WAITING POD", "AGE", "REASON"), *((f"{p.namespace}/{p.name}", age(p.since), p.reason or p.message) for p in pods),
        ], style)  # fmt: skip
    unschedulable = (f"{n.name} is {n.unschedulable}" for n in found.nodes if n.unschedulable)
    yield from (f"note: {line}" for line in (*found.gaps, *found.notes, *unschedulable))


def _cells(r: DeviceRow) -> tuple[str, ...]:
    return (
        r.node or r.reach, r.name, r.use, health(r), r.numa, r.root, holder(r), ", ".join(dict.fromkeys(h.claim for h in r.holders)),
        r.driver,
    )  # fmt: skip


def _aligned(rows: Sequence[Sequence[str]], style: Style) -> Iterable[str]:
    head, *rest = columns(rows)
    return [style.bold(head), *rest]
