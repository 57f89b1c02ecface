"""Describes devices, holders and counters in a few words, for the terminal and for the pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from .rows import DeviceRow, DeviceUse, HealthRow, Meter

_NUMBERS = re.compile(r"(?:-[0-9]+)+$")
_SLOT = re.compile(r"(?P<family>.*[^-0-9])-?[0-9]+$")


class Tone(StrEnum):
    """The meaning of a colour. A sign or a word has the same meaning, for readers without colours."""

    NONE = ""
    GOOD = "good"
    HELD = "held"
    WARN = "warn"
    BAD = "bad"


SIGNS = {
    DeviceUse.FREE: "○",
    DeviceUse.HELD: "●",
    DeviceUse.SHARED: "◐",
    DeviceUse.BLOCKED: "◌",
    DeviceUse.UNAVAILABLE: "⊘",
    DeviceUse.VANISHED: "✕",
}
TONES = {
    DeviceUse.FREE: Tone.GOOD,
    DeviceUse.HELD: Tone.HELD,
    DeviceUse.SHARED: Tone.HELD,
    DeviceUse.BLOCKED: Tone.WARN,
    DeviceUse.UNAVAILABLE: Tone.BAD,
    DeviceUse.VANISHED: Tone.BAD,
}
MEANINGS = {
    DeviceUse.FREE: "some request could get it now",
    DeviceUse.HELD: "held by a claim",
    DeviceUse.SHARED: "held, and others may share it",
    DeviceUse.BLOCKED: "not held, but other partitions use up the counters that it needs",
    DeviceUse.UNAVAILABLE: "not held, but tainted, or its node or pool cannot be used",
    DeviceUse.VANISHED: "held, and it is no longer in a slice",
}


def health(row: DeviceRow) -> tuple[str, Tone]:
    """Describes the state of a device; the worst condition wins."""
    return next(_conditions(row))


def _conditions(row: DeviceRow) -> Iterator[tuple[str, Tone]]:
    """Yields the conditions of a device, the worst first."""
    if row.use is DeviceUse.VANISHED:
        yield "✕ not in a slice", Tone.BAD
    if row.health is HealthRow.UNHEALTHY:
        yield f"▲ {row.message or 'unhealthy'}", Tone.BAD
    if row.taints:
        more = f" +{len(row.taints) - 1}" if len(row.taints) > 1 else ""
        taint = row.taints[0].partition("/")[2] or row.taints[0]
        yield f"▲ {taint}{more}", Tone.BAD if row.health is HealthRow.TAINTED else Tone.WARN
    yield from ((f"▲ {c}", Tone.BAD) for h in row.holders for c in h.conditions)
    if row.use is DeviceUse.UNAVAILABLE:
        yield row.why.removeprefix(f"node {row.node} is "), Tone.WARN
    yield "", Tone.NONE


def holder(row: DeviceRow) -> str:
    """Returns the first holder, as its pod or else its claim, and the number of further holders."""
    names = [f"{h.pods[0] if h.pods else h.claim}{' (admin)' if h.admin else ''}" for h in row.holders]
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return names[0] + more if names else ""


def meters(found: Iterable[Meter]) -> tuple[str, ...]:
    """Formats counters. Numbered counters of one unit each, as `partitions()` makes them, are one text: ``slots 1100``."""
    families: dict[str, list[Meter]] = {}
    for meter in found:
        match = _SLOT.fullmatch(meter.name) if meter.total == "1" else None
        families.setdefault(f"{match['family']}s" if match else meter.name, []).append(meter)
    amounts, slots = list[str](), list[str]()
    for name, members in families.items():
        if len(members) > 1 or members[0].name != name:
            slots.append(f"{name} {''.join(m.used if len(m.used) == 1 else '+' for m in members)}")
        else:
            amounts.append(f"{name} {members[0].used}/{members[0].total}")
    return (*amounts, *slots)


def short_names(card: str, names: Sequence[str]) -> str:
    """Returns the names of parts of a card without the name of the card: ``part-quarter-0,1,2  part-half-0-1``."""
    families: dict[str, list[str]] = {}
    for name in names:
        short = name.removeprefix(f"{card}-") if name != card else "whole"
        family = _NUMBERS.sub("", short)
        families.setdefault(family, []).append(short[len(family) :].removeprefix("-"))
    return "  ".join(_members(family, numbers) for family, numbers in families.items())


def _members(family: str, numbers: Sequence[str]) -> str:
    found = ",".join(n for n in numbers if n)
    return f"{family}-{found}" if found else family


def cut_middle(text: str, width: int) -> str:
    """Cuts the middle of a name, because names of devices of one card differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}" if width > 2 else text[:width]


def signs() -> Iterator[tuple[str, str]]:
    """Yields each sign of a device's use with its meaning."""
    yield from ((f"{SIGNS[use]} {use}", meaning) for use, meaning in MEANINGS.items())
    yield "▲", "unhealthy, tainted, or something is wrong"
