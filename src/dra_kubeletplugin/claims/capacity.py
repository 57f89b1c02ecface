"""Calculates the amounts of shared counters and shared capacity that a claim takes, and whether enough is available.

A partition draws the same amounts of its pool's counters for every claim (KEP-4815). A share takes a part of its device's
capacity (KEP-5075). A prepared claim counts with the amounts that its prepare recorded. The limits are the current ones.
A counter or capacity that is no longer published sets no limit, because there is nothing to compare with.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import NamedTuple, Protocol

import msgspec

from ..base.json_types import JSON
from ..resourceapi.quantity import Format, Quantity, QuantityRangeError
from ..resourceapi.types import Device

_NANO = 9  # decimal places: one billionth is the smallest amount that Kubernetes has
_CONTEXT = Context(prec=120)
_MAX_DIGITS = 80  # digits; no real amount has more
_MAX_AMOUNT = int("1" + "0" * _MAX_DIGITS)


class Hold(NamedTuple):
    """A device, or a share of a device, that one claim holds exclusively.

    ``takes`` is the JSON text of its amounts, see :func:`takes_json`; empty if the amounts are not known.
    """

    pool: str
    device: str
    share: str
    takes: str
    uid: str  # of the claim


class Supply(Protocol):
    """The current limits, and the amounts that devices currently draw. The methods are called from the record thread."""

    def draws(self, pool: str, name: str) -> JSON | None:
        """Returns the amounts that a device draws now, by counter set and counter; None if the device is not known."""

    def capacity(self, pool: str, name: str) -> Mapping[str, str] | None:
        """Returns the capacity amounts of a device; None if the device is not known."""

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        """Returns the amounts of a counter set by counter; None if the counter set is not known."""


class Shortage(msgspec.Struct, frozen=True):
    """A counter or capacity that is too small for a claim: the claim requests more than the other claims leave.

    Amounts are in billionths, see :func:`nano`. ``holders`` are the UIDs of the claims that hold some of the amount.
    ``unknown`` are the UIDs of holders whose taken amounts are not known.
    """

    resource: str
    devices: Sequence[str]
    requested: int
    limit: int
    held: int
    format: Format
    holders: frozenset[str]
    unknown: frozenset[str]

    def __str__(self) -> str:
        requested, limit, held = (
            Quantity(Decimal(n).scaleb(-_NANO), self.format) for n in (self.requested, self.limit, self.held)
        )
        rest = f", of which {held} are held" if self.holders else ""
        return f"{requested} of {self.resource} are requested and {limit} exist{rest}"


class _Takes(msgspec.Struct, frozen=True):
    counters: dict[str, dict[str, str]] = {}
    capacity: dict[str, str] = {}


class Takes(NamedTuple):
    """Amounts of one hold: by counter set and counter, and by capacity name."""

    counters: Mapping[str, Mapping[str, int]]
    capacity: Mapping[str, int]


def takes_json(counters: JSON, consumed: Mapping[str, Quantity] | None = None) -> JSON:
    """Returns the amounts that a claim takes, as its record stores them; empty for a whole device without counters.

    Args:
        counters: the amounts that the device draws, see :meth:`Supply.draws`.
        consumed: the capacity of a share; None for a whole device.
    """
    out: JSON = {"counters": counters} if counters else {}
    if consumed is not None:
        out["capacity"] = {name: str(amount) for name, amount in consumed.items()}
    return out


def draws_of(device: Device) -> JSON:
    """Returns the amounts that a device draws, by counter set and counter."""
    return {s: {n: str(Quantity(v)) for n, v in c.items()} for s, c in device.consumes_counters.items()}


@functools.lru_cache(512)  # partitions of the same kind take the same amounts
def read_takes(text: object) -> Takes | None:
    """Decodes the JSON text of :func:`takes_json`; None for text that cannot be read."""
    try:
        found = msgspec.json.decode(text, type=_Takes) if isinstance(text, str) else None
        if found is None:
            return None
        counters = {s: {n: _taken(v) for n, v in c.items()} for s, c in found.counters.items()}
        return Takes(counters, {n: _taken(v) for n, v in found.capacity.items()})
    except (ValueError, RecursionError):
        return None


def _taken(amount: str) -> int:
    """Returns an amount in billionths, at least 0. A negative amount would increase the amount that other claims can take."""
    return max(0, nano(amount))


@functools.lru_cache(512)
def nano(text: str) -> int:
    """Converts a quantity to billionths, as an exact integer that is fast to add.

    A quantity with more digits than any real amount becomes a large constant with the same sign.

    Raises ``ValueError`` for text that is not a quantity.
    """
    with contextlib.suppress(QuantityRangeError):
        value = Quantity(text).value
        if value.adjusted() <= _MAX_DIGITS:
            return int(value.scaleb(_NANO, _CONTEXT))
    return -_MAX_AMOUNT if text.startswith("-") else _MAX_AMOUNT


def shortage(wanted: Sequence[Hold], held: Sequence[Hold], supply: Supply) -> Shortage | None:
    """Returns the first counter or capacity whose limit is below the sum of ``wanted`` and ``held``; None if there is none.

    The amounts of a hold are unknown if an older version of the plugin or ``recover()`` recorded it. A share with unknown amounts counts
    as the whole device. A device with unknown amounts counts with the amounts that it draws now. If the device is no longer known either,
    it counts as drawing each counter entirely.
    """
    wanted_takes = [(h, t) for h in wanted if (t := read_takes(h.takes)) is not None]
    return _counter_shortage(wanted_takes, held, supply) or _capacity_shortage(wanted_takes, held, supply)


def _counter_shortage(
    wanted_takes: Sequence[tuple[Hold, Takes]], held: Sequence[Hold], supply: Supply
) -> Shortage | None:
    for pool, name in dict.fromkeys((h.pool, s) for h, t in wanted_takes for s in t.counters):
        limits = supply.counters(pool, name)
        if limits is None:
            continue
        requested = {h.device: t.counters[name] for h, t in wanted_takes if h.pool == pool and name in t.counters}
        drawn = [(h, c) for h in held if h.pool == pool and (c := _drawn(h, name, supply)) != {}]
        for counter in dict.fromkeys(c for counters in requested.values() for c in counters):
            if counter not in limits:
                continue
            limit = nano(limits[counter])
            # A device draws its counters once, also if several claims hold shares of it.
            before: dict[str, int] = {}
            for h, c in drawn:
                before[h.device] = max(before.get(h.device, 0), limit if c is None else c.get(counter, 0))
            after = before | {d: max(before.get(d, 0), c.get(counter, 0)) for d, c in requested.items()}
            used, total = sum(before.values()), sum(after.values())
            if total > used and total > limit:
                return Shortage(
                    f"counter {counter} in counter set {name} of pool {pool}",
                    [d for d, has in after.items() if has > before.get(d, 0)],
                    total - used,
                    limit,
                    used,
                    Quantity(limits[counter]).format,
                    frozenset(h.uid for h, c in drawn if c is None or c.get(counter)),
                    frozenset(h.uid for h, c in drawn if c is None),
                )
    return None


def _drawn(hold: Hold, counter_set: str, supply: Supply) -> Mapping[str, int] | None:
    """Returns the amounts that a hold draws from a counter set; None if they are not known."""
    takes = read_takes(hold.takes)
    if takes is None:
        draws = supply.draws(hold.pool, hold.device)
        takes = None if draws is None else read_takes(encoded(takes_json(draws)))
    return None if takes is None else takes.counters.get(counter_set, {})


def _capacity_shortage(
    wanted_takes: Sequence[tuple[Hold, Takes]], held: Sequence[Hold], supply: Supply
) -> Shortage | None:
    for pool, name in dict.fromkeys((h.pool, h.device) for h, t in wanted_takes if h.share and t.capacity):
        limits = supply.capacity(pool, name)
        if limits is None:
            continue
        requested = [t.capacity for h, t in wanted_takes if (h.pool, h.device) == (pool, name)]
        taken = [(h, read_takes(h.takes)) for h in held if (h.pool, h.device) == (pool, name)]
        for capacity in dict.fromkeys(c for amounts in requested for c in amounts):
            if capacity not in limits:
                continue
            limit = nano(limits[capacity])
            used = sum(limit if t is None else t.capacity.get(capacity, 0) for _, t in taken)
            more = sum(amounts.get(capacity, 0) for amounts in requested)
            if more > 0 and used + more > limit:
                return Shortage(
                    f"capacity {capacity} of device {name} in pool {pool}",
                    [name],
                    more,
                    limit,
                    used,
                    Quantity(limits[capacity]).format,
                    frozenset(h.uid for h, t in taken if t is None or t.capacity.get(capacity)),
                    frozenset(h.uid for h, t in taken if t is None),
                )
    return None


def decoded(text: object) -> JSON | None:
    """Returns the amounts of a hold as its record stores them; None if they are not known."""
    if read_takes(text) is None:
        return None
    out: JSON = msgspec.json.decode(str(text))
    return out


def encoded(takes: object) -> str:
    """Encodes ``takes`` of a recorded device as the text of a hold; empty if the amounts are not known."""
    if not isinstance(takes, dict):
        return ""
    return msgspec.json.encode(takes).decode() if takes else "{}"


def shared_supplies(wanted: Iterable[Hold]) -> list[tuple[str, str | None]]:
    """Returns the devices whose other holds must be counted together with ``wanted``, as pairs of pool and device.

    The device is None if ``wanted`` draws counters of the pool: then the holds of all its devices count.
    """
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
