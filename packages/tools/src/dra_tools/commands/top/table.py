"""`dra top --once`: prints the lines of the screen once, for pipes and simple terminals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from dra_devkit.commands.style import Style
from dra_devkit.event_messages import age, ago
from dra_kubeletplugin.base.terminal import on_one_line
from dra_kubeletplugin.cli.shell.output import columns

from ...usage.arranging import FOLD_ABOVE, Group, arranged, waiting_title
from ...usage.cards import lines
from ...usage.rows import Overview, PodRow, PoolCount, PoolRow
from ...usage.view import notes, sets_by_key, tiles
from .lines import Piece, Widths, device_line, group_line

_NO_BREAK = "\u00a0"
_POOL_TITLE = "pools: counted by the control plane / by dra top"
_POOL_HEAD = ("POOL", "DEVICES", "HELD", "FREE", "BLOCKED", "UNAVAILABLE", "MORE")
_CODES = {"bold red": "1;31", "bold": "1", "dim": "2", "green": "32", "yellow": "33", "cyan": "36"}


def table(found: Overview, style: Style, width: int, *, whole: bool = False) -> Iterator[str]:
    """Yields the lines. All texts of the cluster are made printable.

    Args:
        width: columns of the terminal. Cells of longer lines are shortened, because a wrapped line would break the columns.
        whole: whether each device has a line. Otherwise, in a large cluster, only each group has a line, as on the screen.
    """
    numbers = ", ".join(str(t).replace(" ", _NO_BREAK) for t in tiles(found.count))
    yield from (line.replace(_NO_BREAK, " ") for line in textwrap.wrap(numbers, width))
    yield from (f"note: {on_one_line(line)}" for line in notes(found))
    groups = arranged(found.devices, sets=found.sets)
    if whole or len(groups) <= FOLD_ABOVE:
        yield from _devices(found, groups, style, width)
    else:
        yield f"note: {len(groups)} groups, one line for each: --node NAME or --filter WORDS lists devices, -o json lists all"
        yield ""
        widths = Widths.of(groups, (), width, node=False, driver=False)
        yield from (_painted(group_line(group, widths.group, folded=True), style, width) for group in groups)
    if found.pools:
        yield ""
        yield style.bold(_POOL_TITLE)
        for line in columns([_POOL_HEAD, *map(_pool, found.pools)]):
            yield _painted([("  " + line, "")], style, width)
    if found.count.waiting:
        yield ""
        yield style.bold(waiting_title(len(found.waiting), found.count.waiting))
        yield from _pods(found.waiting, width)


def _devices(found: Overview, groups: Sequence[Group], style: Style, width: int) -> Iterator[str]:
    sets = sets_by_key(found.sets)
    by_group = [tuple(lines(g.devices, sets)) for g in groups]
    shown = [line for members in by_group for line in members]
    drivers = len({d.driver for d in found.devices}) > 1
    widths = Widths.of(groups, shown, width, node=False, driver=drivers)
    for group, members in zip(groups, by_group, strict=True):
        yield ""
        yield _painted(group_line(group, widths.group), style, width)
        yield from (_painted(device_line(line, widths), style, width) for line in members)


def _pool(row: PoolRow) -> tuple[str, ...]:
    """Returns the cells of a pool: pairs of the control plane's number and the number of ``dra top``."""
    found = row.counted or PoolCount(error="not counted")
    pairs = (
        (found.devices, row.devices),
        (found.allocated, row.held),
        (found.available, row.free),
        (None, row.blocked),  # the control plane counts blocked devices as available
        (found.unavailable, row.unavailable),
    )
    more = [f"{p.allocatable} of {p.total} {p.type} allocatable" for p in found.partitions]
    more += [f"{c.name} {c.available} of {c.total} available" for c in found.capacity]
    cells = (f"{'-' if counted is None else counted} / {own}" for counted, own in pairs)
    return (f"{row.driver}/{row.pool}", *cells, "; ".join(filter(None, (*more, found.error))))


def _pods(pods: Sequence[PodRow], width: int) -> Iterator[str]:
    for pod in pods:
        head, why = f"  {pod.namespace}/{pod.name}  {age(pod.since)}  ", pod.reason + ago(pod.reported)
        yield from textwrap.wrap(
            on_one_line(head + (why or pod.message or "not explained yet")),
            max(width, 40),
            subsequent_indent=" " * 6,
            break_on_hyphens=False,
            break_long_words=False,
        )


def _painted(pieces: Sequence[Piece], style: Style, width: int) -> str:
    out, remaining = "", width
    for piece, name in pieces:
        text = on_one_line(piece)  # same length
        part = text if len(text.rstrip()) <= remaining else text[: max(0, remaining - 1)] + "…"[:remaining]
        remaining = max(0, remaining - len(part))
        out += style.paint(_CODES[name], part) if name in _CODES and part.strip() else part
    return out.rstrip()
