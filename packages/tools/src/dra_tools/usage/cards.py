"""Arranges the devices of a group as lines: each card with its counters, and below it the parts of the card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_kubeletplugin.base.text import natural

from . import texts
from .rows import CounterRow, DeviceRow, DeviceUse, SetKey
from .texts import Tone

# Parts of a card without a holder share a line if their use and health are the same.
_MERGED = (DeviceUse.FREE, DeviceUse.BLOCKED, DeviceUse.UNAVAILABLE)


class LineKind(StrEnum):
    CARD = "card"
    DEVICE = "device"
    PARTS = "parts"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a view.

    Args:
        key: identifies the line across updates.
        name: the name of a card or device, or the short names of parts with the same state.
        use: None for a card; ``sign`` and ``use_tone`` are then empty.
        depth: 1 for a part of a card, else 0.
        share: the used part of a card, from 0 to 1.
        tone: the tone of ``health``.
        devices: the ids of the devices on the line.
    """

    key: str
    kind: LineKind
    name: str
    use: DeviceUse | None
    devices: tuple[str, ...]
    sign: str = ""
    use_tone: Tone = Tone.NONE
    depth: int = 0
    share: float = 0.0
    meters: tuple[str, ...] = ()
    health: str = ""
    tone: Tone = Tone.NONE
    holder: str = ""
    numa: str = ""
    root: str = ""
    node: str = ""
    driver: str = ""


def lines(devices: Sequence[DeviceRow], sets: Mapping[SetKey, CounterRow]) -> Iterator[Line]:
    """Yields the lines of a group, in the order of the devices. A card is at the place of its first device.

    Args:
        sets: the counter sets of all devices, which several devices of a card share.
    """
    members: dict[SetKey, list[DeviceRow]] = {}
    for row in devices:
        if (card := _card(row, sets)) is not None:
            members.setdefault(card, []).append(row)
    for row in devices:
        card = _card(row, sets)
        if card is None:
            yield _device(row)
        elif (parts := members.pop(card, None)) is not None:
            yield from _of_card(sets[card], parts)


def _card(row: DeviceRow, sets: Mapping[SetKey, CounterRow]) -> SetKey | None:
    return next((key for name in row.sets if (key := (row.driver, row.pool, name)) in sets), None)


def _of_card(counters: CounterRow, parts: Sequence[DeviceRow]) -> Iterator[Line]:
    first = parts[0]
    card = _card_name(counters.name, parts)
    yield Line(
        key=f"card {counters.driver}/{counters.pool}/{counters.name}",
        kind=LineKind.CARD,
        name=card,
        use=None,
        devices=tuple(p.id for p in parts),
        share=counters.share,
        meters=texts.meters(counters.meters),
        numa=first.numa,
        root=first.root,
        node=first.node or first.reach,
        driver=first.driver,
    )
    same: dict[tuple[DeviceUse, str, Tone], list[DeviceRow]] = {}
    for row in parts:
        if row.use in _MERGED and not row.holders:
            same.setdefault((row.use, *texts.health(row)), []).append(row)
        else:
            yield _device(row, card)
    for key in sorted(same, key=lambda k: _MERGED.index(k[0])):
        (use, health, tone), rows = key, sorted(same[key], key=lambda r: natural(r.name))
        if len(rows) == 1:
            yield _device(rows[0], card)
            continue
        yield Line(
            key=f"parts {rows[0].id}",
            kind=LineKind.PARTS,
            name=texts.short_names(card, [r.name for r in rows]),
            use=use,
            devices=tuple(r.id for r in rows),
            sign=texts.SIGNS[use],
            use_tone=texts.TONES[use],
            depth=1,
            health=health,
            tone=tone,
        )


def _card_name(counters: str, parts: Iterable[DeviceRow]) -> str:
    """Returns the name that begins the names of all parts, or else the name of the counter set."""
    names = [p.name for p in parts]
    shortest = min(names, key=len)
    return (
        shortest if len(names) > 1 and all(n == shortest or n.startswith(f"{shortest}-") for n in names) else counters
    )


def _device(row: DeviceRow, card: str = "") -> Line:
    """Returns the line of a device, or of a part of ``card``. A part's line omits the name and the place of the card."""
    health, tone = texts.health(row)
    depth = 1 if card else 0
    return Line(
        key=f"device {row.id}",
        kind=LineKind.DEVICE,
        name=texts.short_names(card, [row.name]) if card else row.name,
        use=row.use,
        devices=(row.id,),
        sign=texts.SIGNS[row.use],
        use_tone=texts.TONES[row.use],
        depth=depth,
        meters=texts.meters(row.meters),
        health=health,
        tone=tone,
        holder=texts.holder(row),
        numa="" if depth else row.numa,
        root="" if depth else row.root,
        node="" if depth else row.node or row.reach,
        driver="" if depth else row.driver,
    )
