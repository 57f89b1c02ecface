"""Sorts, filters and groups rows for `dra top` and for the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_kubeletplugin.base.text import counted, natural

from .rows import BAD, TAKEN, CounterRow, DeviceRow, DeviceUse, Occupancy, PodRow, card_shares, occupancy

FOLD_ABOVE = 24
"""The number of groups above which the groups start folded: a line for each group, without its devices."""


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
    """Devices in one group. ``held`` counts devices with a holder, ``bad`` counts unhealthy, tainted or vanished devices.

    A bar shows ``occupancy``: the number of the group's cards that are held by claims. A card that is held in part counts as a fraction.
    """

    title: str
    devices: Sequence[DeviceRow]
    held: int
    bad: int
    occupancy: Occupancy

    @property
    def held_text(self) -> str:
        return f"{self.occupancy.used:.3g} of {self.occupancy.cards} held"


_USES = (
    DeviceUse.VANISHED,
    DeviceUse.HELD,
    DeviceUse.SHARED,
    DeviceUse.BLOCKED,
    DeviceUse.UNAVAILABLE,
    DeviceUse.FREE,
)


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
    Order.USE: lambda r: _USES.index(r.use),
    Order.HEALTH: lambda r: r.health not in BAD and r.use is not DeviceUse.VANISHED,
    Order.HOLDER: _holder,
}


def searchable_text(row: DeviceRow) -> str:
    """Returns the text that a filter searches, in lower case."""
    parts = [
        row.node,
        row.driver,
        row.pool,
        row.name,
        row.use,
        row.health,
        row.root,
        *row.sets,
        *row.taints,
        row.message,
    ]
    parts += ["tainted"] if row.taints else []  # also if its health is worse than tainted
    parts += [f"numa={row.numa}", *(f"{h.claim} {' '.join(h.pods)}" for h in row.holders)]
    parts += [f"{name}={value}" for name, value in row.attributes.items()]
    return "\n".join(parts).lower()


def matching(rows: Iterable[DeviceRow], text: str) -> list[DeviceRow]:
    """Returns the rows that contain every word of ``text``. ``!word`` leaves out the rows that contain ``word``."""
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


def waiting_title(shown: int, waiting: int | None) -> str:
    """Returns the title of the list of waiting pods. A filter never hides that pods wait.

    Args:
        shown: pods in the list.
        waiting: ``Count.waiting``, the total number of waiting pods; None if it is unknown.
    """
    total = shown if waiting is None else waiting
    if not total:
        return "no pod waits to start"
    title = f"{counted(total, 'pod waits', 'pods wait')} to start"
    return title if shown == total else f"{title}, the filter hides {total - shown}"


def arranged(
    rows: Iterable[DeviceRow],
    grouping: Grouping = Grouping.NODE,
    order: Order = Order.NAME,
    *,
    sets: Iterable[CounterRow] = (),
    backwards: bool = False,
) -> list[Group]:
    """Returns groups sorted by title. Devices in a group are sorted by ``order``, then by node, driver and name.

    Args:
        sets: the counter sets of the devices, for the occupancy of each group.
        backwards: whether the devices in each group are in reverse order.
    """
    shares = card_shares(sets)
    groups: dict[str, list[DeviceRow]] = {}
    for row in rows:
        groups.setdefault(_title(row, grouping), []).append(row)
    nodes = {node: natural(node) for node in {r.node for members in groups.values() for r in members}}
    out = []
    for title in sorted(groups, key=natural):
        members = sorted(
            groups[title],
            key=lambda r: (_ORDERS[order](r), nodes[r.node], r.driver, natural(r.name)),
            reverse=backwards,
        )
        held = sum(1 for r in members if r.use in TAKEN)
        bad = sum(1 for r in members if r.health in BAD or r.use is DeviceUse.VANISHED)
        out.append(Group(title, members, held, bad, occupancy(members, shares)))
    return out
