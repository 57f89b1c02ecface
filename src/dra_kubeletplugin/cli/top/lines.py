"""Formats rows as terminal lines: a sign for each colour, so that colours are not needed, and bars in steps of an eighth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ...analysis.top.arranging import Group
from ...resourceapi.usage.rows import BAD, CounterRow, DeviceRow, DeviceUse, HealthRow, Meter, PodRow
from .plain import age, health, holder

SIGNS = {
    DeviceUse.FREE: "○",
    DeviceUse.HELD: "●",
    DeviceUse.SHARED: "◐",
    DeviceUse.BLOCKED: "◌",
    DeviceUse.VANISHED: "✕",
}
STYLES = {
    DeviceUse.FREE: "green",
    DeviceUse.HELD: "cyan",
    DeviceUse.SHARED: "cyan",
    DeviceUse.BLOCKED: "yellow",
    DeviceUse.VANISHED: "bold red",
}
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR = 10
_WIDE = 110  # from this number of columns, every cell has its full width


@dataclass(frozen=True)
class Entry:
    """One line. ``key`` identifies the same object across updates."""

    key: str
    row: Group | CounterRow | DeviceRow | PodRow
    folded: bool = False


@dataclass(frozen=True)
class Widths:
    """Widths of the columns that depend on content; the last column gets the remaining width."""

    group: int = 18
    name: int = 8
    node: int = 0
    driver: int = 0
    root: int = 0
    health: int = 10
    holder: int = 12

    @classmethod
    def of(cls, groups: Sequence[Group], whole: int, *, node: bool) -> Widths:
        """Returns widths for a screen of ``whole`` columns. ``node``: whether to show the node. A single driver is not shown."""

        def widest(texts: Iterable[str], least: int, most: int) -> int:
            return max(least, min(max(map(len, texts), default=0) + 2, most))

        rows = [r for g in groups for r in g.devices]
        wide, driver = whole >= _WIDE, len({r.driver for r in rows}) > 1
        return cls(
            group=widest((g.title for g in groups), 18, 60),
            name=widest((r.name for r in rows), 8, 30),
            node=widest((r.node or r.reach for r in rows), 0, 22) if node else 0,
            driver=widest((r.driver for r in rows), 0, 40) if driver else 0,
            root=widest((r.root for r in rows), 0, 14) if any(r.root for r in rows) else 0,
            health=widest(map(health, rows), 2, 26 if wide else 18),
            holder=widest(map(holder, rows), 12, 40 if wide else 26),
        )


def _cell(text: str, width: int) -> str:
    """Pads or cuts the text, with at least one space before the next column."""
    return set_cell_size(text, width) if cell_len(text) < width else set_cell_size(text, width - 2) + "… "


def bar(share: float, width: int = _BAR) -> str:
    full = max(0.0, min(1.0, share)) * width
    whole = int(full)
    part = _EIGHTHS[int((full - whole) * 8)] if whole < width else ""
    return ("█" * whole + part).ljust(width)[:width]


def colour(share: float) -> str:
    return "red" if share > 1 else "yellow" if share >= 0.9 else "cyan"


def group_line(entry: Entry, group: Group, width: int) -> Text:
    number = len(group.devices)
    share = group.held / number if number else 0.0
    text = Text("▸ " if entry.folded else "▾ ", style="bold")
    text.append(_cell(group.title, width), style="bold")
    text.append("▕").append(bar(share), style="cyan").append("▏")
    text.append(f" {group.held} of {number} held", style="dim")
    if group.bad:
        text.append(f"  ▲ {group.bad} not well", style="bold red")
    return text


def device_line(row: DeviceRow, widths: Widths) -> Text:
    """Formats a device. The most important cells come first, because a narrow screen cuts the end of the line."""
    text = Text("    ")
    text.append(f"{SIGNS[row.use]} {row.use:<8}", style=STYLES[row.use])
    text.append(_cell(row.name, widths.name))
    bad = row.health in BAD or row.use is DeviceUse.VANISHED or any(h.conditions for h in row.holders)
    style = "bold red" if bad else "yellow" if row.taints else "green" if row.health is HealthRow.HEALTHY else "dim"
    text.append(_cell(health(row), widths.health), style=style)
    text.append(_cell(holder(row), widths.holder))
    for meter in row.meters:
        _meter(text, meter)
    text.append(f"NUMA {row.numa:<3}" if row.numa else " " * 8, style="dim")
    for value, width in ((row.root, widths.root), (row.node or row.reach, widths.node), (row.driver, widths.driver)):
        if width:
            text.append(_cell(value, width), style="dim")
    return text


def set_line(row: CounterRow) -> Text:
    text = Text("    ┊ ", style="dim")
    text.append(f"{row.name}  ")
    for meter in row.meters:
        _meter(text, meter)
    return text


def _meter(text: Text, meter: Meter) -> None:
    text.append(f"{meter.name} ", style="dim").append("▕").append(bar(meter.share, 8), style=colour(meter.share))
    text.append(f"▏{meter.used}/{meter.total}  ", style="dim")


def pod_line(row: PodRow, now: float) -> Text:
    text = Text("  ")
    text.append(_cell(f"{row.namespace}/{row.name}", 34), style="bold")
    text.append(f"{age(row.since, now):>5}  ", style="dim")
    if row.reason:
        text.append(row.reason, style="yellow")
    else:
        text.append(f"{row.message or 'not explained yet'} …", style="dim italic")
    return text
