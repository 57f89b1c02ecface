"""Sorts, filters and groups rows for the screen of `dra top` and for its table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...resourceapi.usage.rows import BAD, DeviceRow, DeviceUse, PodRow


class Grouping(StrEnum):
    NODE = "node"
    DRIVER = "driver"
    ROOT = "root"
    NUMA = "numa"
    SET = "partition"


class Order(StrEnum):
    NAME = "name"
    USE = "use"
    HEALTH = "health"
    HOLDER = "holder"


@dataclass(frozen=True, slots=True)
class Group:
    """Devices in one group. ``held`` counts devices with a holder, ``bad`` counts unhealthy or vanished devices."""

    title: str
    devices: Sequence[DeviceRow]
    held: int
    bad: int


_USES = {
    u: i
    for i, u in enumerate((DeviceUse.VANISHED, DeviceUse.HELD, DeviceUse.SHARED, DeviceUse.BLOCKED, DeviceUse.FREE))
}
_PARTS = re.compile(r"[0-9][0-9a-f]*|[a-z]+|[^0-9a-z]+")


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Returns a sort key for text with numbers.

    With it ``gpu-10`` comes after ``gpu-9``, and the PCI address ``0b:00.0`` between ``07:00.0`` and ``13:00.0``.
    """
    found = []
    for part in _PARTS.findall(text.lower()):
        if part.isdecimal():
            part = part.lstrip("0") or "0"
        number = part[0].isdecimal()
        found.append((not number, len(part) if number else 0, part))
    return found


def _title(row: DeviceRow, grouping: Grouping) -> str:
    node = row.node or row.reach or "no node"
    match grouping:
        case Grouping.NODE:
            return node
        case Grouping.DRIVER:
            return row.driver
        case Grouping.ROOT:
            return f"{node}  root {row.root or 'unknown'}"
        case Grouping.NUMA:
            return f"{node}  NUMA {row.numa or 'unknown'}"
        case Grouping.SET:
            return f"{node}  " + (", ".join(row.sets) or "no partitions")


def _holder(row: DeviceRow) -> str:
    return row.holders[0].claim if row.holders else "\uffff"


_ORDERS: Mapping[Order, Callable[[DeviceRow], object]] = {
    Order.NAME: lambda r: (),
    Order.USE: lambda r: _USES[r.use],
    Order.HEALTH: lambda r: r.health not in BAD and r.use is not DeviceUse.VANISHED,
    Order.HOLDER: _holder,
}


def searchable_text(row: DeviceRow) -> str:
    """Returns the text that a filter searches, in lower case."""
    parts = [row.node, row.driver, row.pool, row.name, row.use, row.health, row.root, *row.sets, *row.taints]
    parts += [f"numa={row.numa}", *(f"{h.claim} {' '.join(h.pods)}" for h in row.holders)]
    parts += [f"{name}={value}" for name, value in row.attributes.items()]
    return "\n".join(parts).lower()


def matching(rows: Iterable[DeviceRow], text: str) -> list[DeviceRow]:
    """Returns the rows that contain every word of ``text``. A row must not contain a word that has a leading ``!`` there."""
    words = text.lower().split()
    if not words:
        return list(rows)
    wanted = [w for w in words if not w.startswith("!")]
    unwanted = [w[1:] for w in words if w.startswith("!") and len(w) > 1]
    out = []
    for row in rows:
        found = searchable_text(row)
        if all(w in found for w in wanted) and not any(w in found for w in unwanted):
            out.append(row)
    return out


def matching_pods(pods: Iterable[PodRow], text: str) -> list[PodRow]:
    words = [w for w in text.lower().split() if not w.startswith("!")]
    return [
        p for p in pods if all(w in f"{p.namespace}/{p.name} {' '.join(p.requests)} {p.reason}".lower() for w in words)
    ]


def arranged(
    rows: Iterable[DeviceRow], grouping: Grouping = Grouping.NODE, order: Order = Order.NAME, *, backwards: bool = False
) -> list[Group]:
    """Returns groups sorted by title. Devices in a group are sorted by ``order``, then by name."""
    groups: dict[str, list[DeviceRow]] = {}
    for row in rows:
        groups.setdefault(_title(row, grouping), []).append(row)
    out = []
    for title in sorted(groups, key=natural):
        members = sorted(
            groups[title], key=lambda r: (_ORDERS[order](r), r.node, r.driver, natural(r.name)), reverse=backwards
        )
        held = sum(1 for r in members if r.use in {DeviceUse.HELD, DeviceUse.SHARED, DeviceUse.VANISHED})
        out.append(
            Group(title, members, held, sum(1 for r in members if r.health in BAD or r.use is DeviceUse.VANISHED))
        )
    return out


__all__ = ["Group", "Grouping", "Order", "arranged", "matching", "matching_pods", "natural", "searchable_text"]
