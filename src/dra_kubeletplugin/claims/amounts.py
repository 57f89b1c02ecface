"""What a claim takes of counters and of shared capacity, and whether that is there.

A partition draws from counter sets of its pool, whoever has it (KEP-4815); a share has a part of its device's capacity
(KEP-5075). What is held counts as it was when it was taken, what there is counts as it is now. What is there no more sets no
limit: nothing can be compared with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from ..resources.quantity import Quantity
from ..resources.types import Device

JSON = dict[str, Any]
_NONE = Quantity(0)


class Hold(NamedTuple):
    """A device, or a share of it, that nobody else may hold. ``takes`` is JSON text, empty where it is not known."""

    pool: str
    device: str
    share: str
    takes: str
    uid: str  # of the claim


class Supply(Protocol):
    """What there is now. Asked from the thread of the records."""

    def device(self, pool: str, name: str) -> Device | None:
        """As it is published now; None where it is not known."""

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        """Counter → amount of a counter set; None where it is not known."""


@dataclass(frozen=True)
class Shortage:
    """More is asked for than there is beside what others hold.

    ``holders`` are the UIDs of the claims that hold some of it; those in ``unknown`` hold a device of which nobody knows what it
    takes.
    """

    what: str
    devices: Sequence[str]
    asked: Quantity
    limit: Quantity
    held: Quantity
    holders: frozenset[str]
    unknown: frozenset[str]

    def __str__(self) -> str:
        rest = f", of which {self.held} are held" if self.holders else ""
        return f"{self.asked} of {self.what} are asked for and there are {self.limit}{rest}"


class _Takes(msgspec.Struct, frozen=True):
    counters: dict[str, dict[str, str]] = {}
    capacity: dict[str, str] = {}


class Takes(NamedTuple):
    """Amounts of one hold: counter set → counter → amount, and capacity → amount."""

    counters: Mapping[str, Mapping[str, Quantity]]
    capacity: Mapping[str, Quantity]


def takes_json(device: Device, share: bool, consumed: Mapping[str, Quantity]) -> JSON:
    """What a claim takes with ``device``, as its record has it; nothing of a device that it has whole and undivided."""
    out: JSON = {}
    if device.consumes_counters:
        out["counters"] = {
            c["counterSet"]: {name: a["value"] for name, a in c["counters"].items()}
            for c in device.json()["consumesCounters"]
        }
    if share:
        out["capacity"] = {name: str(amount) for name, amount in consumed.items()}
    return out


@functools.lru_cache(512)  # partitions of a kind take the same
def read_takes(text: object) -> Takes | None:
    """What ``takes_json`` told, from its JSON text; None for what cannot be read."""
    try:
        found = msgspec.json.decode(text, type=_Takes) if isinstance(text, str) else None
        if found is None:
            return None
        counters = {s: {n: amount(v) for n, v in c.items()} for s, c in found.counters.items()}
        return Takes(counters, {n: amount(v) for n, v in found.capacity.items()})
    except ValueError:
        return None


@functools.lru_cache(512)
def amount(text: str) -> Quantity:
    """Raises ``ValueError`` for what is none."""
    return Quantity(text)


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
        drawn = [(h, _drawn(h, name, supply)) for h in held if h.pool == pool]
        for counter in dict.fromkeys(c for counters in asked.values() for c in counters):
            if counter not in limits:
                continue
            limit = amount(limits[counter])
            # Shares of one device draw once, whichever claims have them.
            before: dict[str, Quantity] = {}
            for h, counters in drawn:
                has = limit if counters is None else counters.get(counter, _NONE)
                before[h.device] = max(before.get(h.device, _NONE), has)
            after = before | {d: max(before.get(d, _NONE), c.get(counter, _NONE)) for d, c in asked.items()}
            used, total = sum(before.values(), _NONE), sum(after.values(), _NONE)
            if total > used and total > limit:
                return Shortage(
                    f"counter {counter} in counter set {name} of pool {pool}",
                    [d for d, has in after.items() if has > before.get(d, _NONE)], total - used, limit, used,
                    frozenset(h.uid for h, c in drawn if c is None or c.get(counter)),
                    frozenset(h.uid for h, c in drawn if c is None),
                )  # fmt: skip
    return None


def _drawn(hold: Hold, counter_set: str, supply: Supply) -> Mapping[str, Quantity] | None:
    """What a hold draws from a counter set; None where nobody knows."""
    takes = read_takes(hold.takes)
    if takes is None:
        device = supply.device(hold.pool, hold.device)
        if device is None:
            return None
        takes = read_takes(_text(takes_json(device, False, {})))
        if takes is None:
            return None
    return takes.counters.get(counter_set, {})


def _of_capacity(mine: Sequence[tuple[Hold, Takes]], held: Sequence[Hold], supply: Supply) -> Shortage | None:
    for pool, name in dict.fromkeys((h.pool, h.device) for h, t in mine if h.share and t.capacity):
        device = supply.device(pool, name)
        if device is None:
            continue
        limits = {k: c["value"] for k, c in (device.json().get("capacity") or {}).items()}
        asked = [t.capacity for h, t in mine if (h.pool, h.device) == (pool, name)]
        had = [(h, read_takes(h.takes)) for h in held if (h.pool, h.device) == (pool, name)]
        for capacity in dict.fromkeys(c for amounts in asked for c in amounts):
            if capacity not in limits:
                continue
            limit = amount(limits[capacity])
            used = sum((limit if t is None else t.capacity.get(capacity, _NONE) for _, t in had), _NONE)
            more = sum((amounts.get(capacity, _NONE) for amounts in asked), _NONE)
            if more and used + more > limit:
                return Shortage(
                    f"capacity {capacity} of device {name} in pool {pool}", [name], more, limit, used,
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
    return _text(takes) if isinstance(takes, dict) else ""


def _text(takes: JSON) -> str:
    return msgspec.json.encode(takes).decode()


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
