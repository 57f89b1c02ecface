"""The view that the pages draw: groups of lines, tiles, notes and waiting pods, filtered and sorted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_kubeletplugin.base.text import join_names

from . import texts
from .arranging import Grouping, Order, arranged, matching, matching_pods, waiting_title
from .cards import Line, lines
from .rows import Count, CounterRow, DeviceUse, Overview, PodRow, SetKey
from .texts import Tone

_NAMED = 3  # maximum number of nodes with the same reason that a note names


@dataclass(frozen=True, slots=True)
class Tile:
    number: str
    label: str
    tone: Tone = Tone.NONE
    sign: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.number} {self.label}".lstrip()


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group of lines. ``held`` is a text with the number of held cards. ``share`` is the held part of the cards, from 0 to 1."""

    title: str
    held: str
    share: float
    bad: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class View:
    """The content of a page.

    Args:
        empty: why the view has no group; an empty text if it has groups.
        waiting_title: the number of pods that wait; empty if no pod waits.
        stale_reason: why the data is from the time ``at`` (unix seconds) and not current; empty if it is current.
    """

    title: str
    tiles: tuple[Tile, ...]
    notes: tuple[str, ...]
    groups: tuple[GroupView, ...]
    empty: str
    waiting_title: str
    waiting: tuple[PodRow, ...]
    signs: tuple[tuple[str, str], ...]
    stale_reason: str
    at: float


def view(found: Overview, query: Mapping[str, str]) -> View:
    """Returns the view of an overview.

    Args:
        query: ``filter``, ``group`` and ``sort``. An unknown grouping or order counts as the default.
    """
    text = query.get("filter", "")
    grouping = next((g for g in Grouping if g == query.get("group")), Grouping.NODE)
    order = next((o for o in Order if o == query.get("sort")), Order.NAME)
    sets = sets_by_key(found.sets)
    groups = tuple(
        GroupView(g.title, g.held_text, g.occupancy.share, g.bad, tuple(lines(g.devices, sets)))
        for g in arranged(matching(found.devices, text), grouping, order, sets=found.sets)
    )
    empty = "" if groups else "Nothing matches the filter." if found.devices else "No devices are published."
    pods = tuple(matching_pods(found.waiting, text))
    return View(
        title=found.title,
        tiles=tuple(tiles(found.count)),
        notes=notes(found),
        groups=groups,
        empty=empty,
        waiting_title=waiting_title(len(pods), found.count.waiting) if found.count.waiting else "",
        waiting=pods,
        signs=tuple(texts.signs()),
        stale_reason=found.unavailable,
        at=found.at,
    )


def sets_by_key(sets: tuple[CounterRow, ...]) -> dict[SetKey, CounterRow]:
    return {(s.driver, s.pool, s.name): s for s in sets}


def notes(found: Overview) -> tuple[str, ...]:
    """Returns all sentences that a reader of the view must know."""
    by_reason: dict[str, list[str]] = {}
    for node in found.nodes:
        if node.unschedulable:
            by_reason.setdefault(node.unschedulable, []).append(node.name)
    nodes = (line for why, names in by_reason.items() for line in _nodes(why, names))
    return (*found.gaps, *found.notes, *nodes)


def _nodes(why: str, names: Sequence[str]) -> Iterator[str]:
    if len(names) > _NAMED:
        yield f"{len(names)} nodes are {why}: {join_names(names, _NAMED)}"
    else:
        yield from (f"{name} is {why}" for name in names)


def tiles(n: Count) -> list[Tile]:
    """Returns the numbers of a view. Cards are shown if they differ from devices, because partitions overlap."""
    out = [Tile(str(n.devices), "device" if n.devices == 1 else "devices")]
    if n.occupancy.cards != n.devices:
        out = [Tile(f"{n.occupancy.used:.3g}", f"of {n.occupancy.cards} cards held", Tone.HELD), *out]
    out += [
        Tile(str(n.held), "held", Tone.HELD, texts.SIGNS[DeviceUse.HELD]),
        Tile(str(n.free), "free", Tone.GOOD, texts.SIGNS[DeviceUse.FREE]),
        Tile(str(n.blocked), "blocked", Tone.WARN, texts.SIGNS[DeviceUse.BLOCKED]),
        Tile(str(n.unavailable), "unavailable", Tone.BAD, texts.SIGNS[DeviceUse.UNAVAILABLE]),
        Tile(str(n.bad), "not well", Tone.BAD, "▲"),
    ]
    if n.waiting is not None:
        out.append(Tile(str(n.waiting), "pod waits" if n.waiting == 1 else "pods wait", Tone.WARN))
    return out
