"""What a claim takes of counters and of shared capacity, and whether that is there.

A partition draws from counter sets of its pool, whoever has it (KEP-4815); a share has a part of its device's capacity
(KEP-5075). What is held counts as it was when it was taken, what there is counts as it is now. What is there no more sets no
limit: nothing can be compared with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NamedTuple, Protocol

import msgspec

from ..resourceapi.quantity import Format, Quantity, QuantityRangeError
from ..resourceapi.types import Device

JSON = dict[str, Any]
_NANO = 9  # digits behind the point: a billionth is the least that Kubernetes knows
_CONTEXT = Context(prec=120)
_MOST = 80  # digits; more than anything has
_HUGE = int("1" + "0" * _MOST)


class Hold(NamedTuple):
    """A device, or a share of it, that nobody else may hold. ``takes`` is JSON text, empty where it is not known."""

    pool: str
    device: str
    share: str
    takes: str
    uid: str  # of the claim


class Supply(Protocol):
    """What there is now. Asked from the thread of the records."""

    def draws(self, pool: str, name: str) -> JSON | None:
        """Counter set → counter → amount that a device draws now; None where the device is not known."""

    def capacity(self, pool: str, name: str) -> Mapping[str, str] | None:
        """Capacity → amount of a device; None where it is not known."""

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        """Counter → amount of a counter set; None where it is not known."""


@dataclass(frozen=True)
class Shortage:
    """More is asked for than there is beside what others hold; amounts as :func:`nano` has them.

    ``holders`` are the UIDs of the claims that hold some of it; those in ``unknown`` hold a device of which nobody knows what it
    takes.
    """

    what: str
    devices: Sequence[str]
    asked: int
    limit: int
    held: int
    format: Format
    holders: frozenset[str]
    unknown: frozenset[str]

    def __str__(self) -> str:
        asked, limit, held = (
            Quantity(Decimal(n).scaleb(-_NANO), self.format) for n in (self.asked, self.limit, self.held)
        )
        rest = f", of which {held} are held" if self.holders else ""
        return f"{asked} of {self.what} are asked for and there are {limit}{rest}"


class _Takes(msgspec.Struct, frozen=True):
    counters: dict[str, dict[str, str]] = {}
    capacity: dict[str, str] = {}


class Takes(NamedTuple):
    """Amounts of one hold: counter set → counter → amount, and capacity → amount."""

    counters: Mapping[str, Mapping[str, int]]
    capacity: Mapping[str, int]


def takes_json(counters: JSON, consumed: Mapping[str, Quantity] | None = None) -> JSON:
    """What a claim takes, as its record has it; nothing of a device that it has whole and undivided.

    Args:
        counters: what the device draws, see :meth:`Supply.draws`.
        consumed: the part of a share; None for a whole device.
    """
    out: JSON = {"counters": counters} if counters else {}
    if consumed is not None:
        out["capacity"] = {name: str(amount) for name, amount in consumed.items()}
    return out


def draws_of(device: Device) -> JSON:
    """Counter set → counter → amount that a device draws."""
    return {s: {n: str(Quantity(v)) for n, v in c.items()} for s, c in device.consumes_counters.items()}


@functools.lru_cache(512)  # partitions of a kind take the same
def read_takes(text: object) -> Takes | None:
    """What ``takes_json`` told, from its JSON text; None for what cannot be read."""
    try:
        found = msgspec.json.decode(text, type=_Takes) if isinstance(text, str) else None
        if found is None:
            return None
        counters = {s: {n: _taken(v) for n, v in c.items()} for s, c in found.counters.items()}
        return Takes(counters, {n: _taken(v) for n, v in found.capacity.items()})
    except (ValueError, RecursionError):
        return None


def _taken(amount: str) -> int:
    """Whoever takes less than nothing gives the others nothing by it."""
    return max(0, nano(amount))


@functools.lru_cache(512)
def nano(text: str) -> int:
    """A quantity in billionths: exact, and quick to add. What has more digits than anything real is cut to a number as large.

    Raises ``ValueError`` for what is no quantity.
    """
    try:
        value = Quantity(text).value
    except QuantityRangeError:
        return -_HUGE if "-" in text.partition("e")[0] else _HUGE
    if value.adjusted() > _MOST:
        return _HUGE if value > 0 else -_HUGE
    return int(value.scaleb(_NANO, _CONTEXT))


def shortage(wanted: Sequence[Hold], held: Sequence[Hold], supply: Supply) -> Shortage | None:
    """What there is not enough of for ``wanted`` beside ``held``; None where it fits.

    A hold of which it is not known what it takes, as a version before this one made it, or ``recover()`` told of it: a share is
    taken to have its device whole, a device to draw what it draws now, and one that nobody knows any more to draw everything.
    """
    mine = [(h, t) for h in wanted if (t := read_takes(h.takes)) is not None]
    return _of_counters(mine, held, supply) or _of_capacity(mine, held, supply)


def _of_counters(mine: Sequence[tuple[Hold, Takes]], held: Sequence[Hold], supply: Supply) -> Shortage | None:
    for pool, name in dict.fromkeys((h.pool, s) for h, t in mine for s in t.counters):
        limits = supply.counters(pool, name)
        if limits is None:
            continue
        asked = {h.device: t.counters[name] for h, t in mine if h.pool == pool and name in t.counters}
        drawn = [(h, c) for h in held if h.pool == pool and (c := _drawn(h, name, supply)) != {}]
        for counter in dict.fromkeys(c for counters in asked.values() for c in counters):
            if counter not in limits:
                continue
            limit = nano(limits[counter])
            # Shares of one device draw once, whichever claims have them.
            before: dict[str, int] = {}
            for h, c in drawn:
                before[h.device] = max(before.get(h.device, 0), limit if c is None else c.get(counter, 0))
            after = before | {d: max(before.get(d, 0), c.get(counter, 0)) for d, c in asked.items()}
            used, total = sum(before.values()), sum(after.values())
            if total > used and total > limit:
                return Shortage(
                    f"counter {counter} in counter set {name} of pool {pool}",
                    [d for d, has in after.items() if has > before.get(d, 0)],
                    total - used, limit, used, Quantity(limits[counter]).format,
                    frozenset(h.uid for h, c in drawn if c is None or c.get(counter)),
                    frozenset(h.uid for h, c in drawn if c is None),
                )  # fmt: skip
    return None


def _drawn(hold: Hold, counter_set: str, supply: Supply) -> Mapping[str, int] | None:
    """What a hold draws from a counter set; None where nobody knows."""
    takes = read_takes(hold.takes)
    if takes is None:
        draws = supply.draws(hold.pool, hold.device)
        takes = None if draws is None else read_takes(encoded(takes_json(draws)))
    return None if takes is None else takes.counters.get(counter_set, {})


def _of_capacity(mine: Sequence[tuple[Hold, Takes]], held: Sequence[Hold], supply: Supply) -> Shortage | None:
    for pool, name in dict.fromkeys((h.pool, h.device) for h, t in mine if h.share and t.capacity):
        limits = supply.capacity(pool, name)
        if limits is None:
            continue
        asked = [t.capacity for h, t in mine if (h.pool, h.device) == (pool, name)]
        had = [(h, read_takes(h.takes)) for h in held if (h.pool, h.device) == (pool, name)]
        for capacity in dict.fromkeys(c for amounts in asked for c in amounts):
            if capacity not in limits:
                continue
            limit = nano(limits[capacity])
            used = sum(limit if t is None else t.capacity.get(capacity, 0) for _, t in had)
            more = sum(amounts.get(capacity, 0) for amounts in asked)
            if more > 0 and used + more > limit:
                return Shortage(
                    f"capacity {capacity} of device {name} in pool {pool}",
                    [name], more, limit, used, Quantity(limits[capacity]).format,
                    frozenset(h.uid for h, t in had if t is None or t.capacity.get(capacity)),
                    frozenset(h.uid for h, t in had if t is None),
                )  # fmt: skip
    return None


def decoded(text: object) -> JSON | None:
    """What a hold takes as its record has it; None where it is not known."""
    if read_takes(text) is None:
        return None
    out: JSON = msgspec.json.decode(str(text))
    return out


def encoded(takes: object) -> str:
    """``takes`` of a record's device as a hold has it."""
    if not isinstance(takes, dict):
        return ""
    return msgspec.json.encode(takes).decode() if takes else "{}"


def places(wanted: Iterable[Hold]) -> list[tuple[str, str | None]]:
    """Where others' holds matter: pool, and the device where only that does."""
    out: dict[tuple[str, str | None], None] = {}
    for hold in wanted:
        takes = read_takes(hold.takes)
        if takes is None:
            continue
        if takes.counters:
            out[hold.pool, None] = None
        elif takes.capacity:
            out[hold.pool, hold.device] = None
    return [(pool, device) for pool, device in out if device is None or (pool, None) not in out]
