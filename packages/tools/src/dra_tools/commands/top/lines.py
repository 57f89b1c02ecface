"""Formats lines of the usage for a terminal of any width, as pieces of text with their styles.

The screen and the table of `dra top` use the same pieces. A bar grows in steps of an eighth of a column.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, fields

from dra_devkit.event_messages import age, ago

from ...usage import texts
from ...usage.arranging import Group
from ...usage.cards import Line, LineKind
from ...usage.rows import PodRow
from ...usage.texts import Tone

Piece = tuple[str, str]  # text, and its style in the words of rich
STYLES = {Tone.NONE: "dim", Tone.GOOD: "green", Tone.HELD: "cyan", Tone.WARN: "yellow", Tone.BAD: "bold red"}
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR = 10
_INDENT = 4
_LEAST = 12  # columns that a cut cell keeps
_GAP = 2
_OPTIONAL = ("driver", "root", "numa")  # in the order in which they are left out of a narrow terminal
_CUT = ("health", "holder", "name", "node")


@dataclass(frozen=True)
class Widths:
    """Widths of the columns with the gap after them; 0 for a column that is left out."""

    group: int = 0
    use: int = 0
    name: int = 0
    health: int = 0
    holder: int = 0
    node: int = 0
    numa: int = 0
    root: int = 0
    driver: int = 0

    @classmethod
    def of(cls, groups: Iterable[Group], shown: Iterable[Line], whole: int, *, node: bool, driver: bool) -> Widths:
        """Returns widths for a terminal of ``whole`` columns.

        Args:
            shown: the lines of unfolded groups.
            node: whether the lines show the node, because the title of the group does not.
            driver: whether there are several drivers.
        """
        most: dict[str, int] = dict.fromkeys((f.name for f in fields(cls)), 0)
        for line in shown:
            of_device = line.kind is LineKind.DEVICE
            sizes = {
                "use": cells(line.use) + 2 if line.use else 0,
                "holder": cells(line.holder),
                "name": cells(line.name) + 2 * line.depth if of_device else 0,
                "health": cells(line.health) if of_device else 0,
                "node": cells(line.node) if node else 0,
                "numa": cells(line.numa) + 5 if line.numa else 0,
                "root": cells(line.root),
                "driver": cells(line.driver) if driver else 0,
            }
            for name, size in sizes.items():
                most[name] = max(most[name], size)
        most = {name: size + _GAP if size else 0 for name, size in most.items()}
        # A long title leaves space for the bar and the number of held cards.
        most["group"] = max((cells(g.title) for g in groups), default=0) + _GAP
        most["group"] = min(most["group"], max(_LEAST, whole - _BAR - 40))
        return cls(**_fitting(most, whole - _INDENT))


def _fitting(widths: dict[str, int], remaining: int) -> dict[str, int]:
    """Leaves out optional columns, then cuts the widest column, until all columns fit."""

    def total() -> int:
        return sum(size for name, size in widths.items() if name != "group")

    for name in _OPTIONAL:
        if total() > remaining:
            widths[name] = 0
    while total() > remaining and (widest := max(_CUT, key=widths.__getitem__)) and widths[widest] > _LEAST:
        widths[widest] -= 1
    return widths


def cells(text: str) -> int:
    """Returns the columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cell(text: str, width: int, *, middle: bool = False) -> str:
    """Pads or cuts a text to ``width`` columns, of which the last two are a gap."""
    remaining = width - _GAP
    if cells(text) > remaining:
        while cells(text) > remaining:
            text = texts.cut_middle(text, len(text) - 1) if middle else text.rstrip("…")[:-1] + "…"
    return text + " " * (width - cells(text))


def bar(share: float, width: int = _BAR) -> str:
    full = max(0.0, min(1.0, share)) * width
    whole = int(full)
    part = _EIGHTHS[int((full - whole) * 8)] if whole < width else ""
    return ("█" * whole + part).ljust(width)[:width]


def _share(share: float) -> list[Piece]:
    return [("▕", ""), (bar(share), "yellow" if share >= 0.9 else "cyan"), ("▏ ", "")]


def group_line(group: Group, width: int, *, folded: bool = False) -> list[Piece]:
    pieces = [("▸ " if folded else "▾ ", "bold"), (cell(group.title, width, middle=True), "bold")]
    pieces += [*_share(group.occupancy.share), (group.held_text, "dim")]
    return [*pieces, (f"  ▲ {group.bad} not well", "bold red")] if group.bad else pieces


def device_line(line: Line, widths: Widths) -> list[Piece]:
    """Formats a card, a device, or parts of a card. The last cells are the least important, because a narrow terminal cuts them."""
    if line.kind is LineKind.CARD:
        places = [f"NUMA {line.numa}" if widths.numa and line.numa else "", line.root if widths.root else ""]
        places += [line.node if widths.node else "", line.driver if widths.driver else ""]
        name = (" " * _INDENT + line.name + "  ", "bold")
        return [name, *_share(line.share), ("  ".join([*line.meters, *filter(None, places)]), "dim")]
    indent = " " * (_INDENT + 2 * line.depth)
    use = cell(f"{line.sign} {line.use}", widths.use)
    pieces = [(indent + use, STYLES[line.use_tone])]
    if line.kind is LineKind.PARTS:
        return [*pieces, (line.health + "  " if line.health else "", STYLES[line.tone]), (line.name, "")]
    pieces.append((cell(line.name, widths.name - 2 * line.depth, middle=True), ""))
    pieces.append((cell(line.holder, widths.holder, middle=True) if widths.holder else "", ""))
    pieces.append((cell(line.health, widths.health) if widths.health else "", STYLES[line.tone]))
    pieces += [(f"{meter}  ", "dim") for meter in line.meters]
    for text, width in (
        (line.node, widths.node),
        (f"NUMA {line.numa}" if line.numa else "", widths.numa),
        (line.root, widths.root),
        (line.driver, widths.driver),
    ):
        pieces.append((cell(text, width, middle=True) if width else "", "dim"))
    return pieces


def pod_width(rows: Iterable[PodRow]) -> int:
    """Returns the width of the names of pods, at most 34, so that the reasons have space."""
    return min(34, max((cells(f"{r.namespace}/{r.name}") + _GAP for r in rows), default=0))


def pod_line(row: PodRow, now: float, width: int, columns: int) -> list[Piece]:
    """Formats a waiting pod. A reason that is too long for ``columns`` is cut, so that the age of a reported cause stays visible.

    Args:
        width: the width of the pod's name.
    """
    head = [
        (f"  {cell(f'{row.namespace}/{row.name}', width, middle=True)}", "bold"),
        (f"{age(row.since, now):>5}  ", "dim"),
    ]
    since = ago(row.reported, now)
    remaining = columns - sum(cells(text) for text, _ in head) - cells(since) + _GAP
    if row.reason and since:
        return [*head, (cell(row.reason, max(remaining, _LEAST)).rstrip() + since, "yellow")]
    return [*head, (row.reason, "yellow") if row.reason else (f"{row.message or 'not explained yet'} …", "dim italic")]
